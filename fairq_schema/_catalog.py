"""
What a schema is, object by object, in words that are the same from PostgreSQL 15 to 18.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import tuple_row

from fairq_schema._rename import DEFAULT_SCHEMA, checked_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairq_schema._session import Connection


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """
    Every object of a schema with its definition.
    """

    objects: Mapping[str, str]

    @property
    def digest(self) -> str:
        """
        One short name for all of it: equal digests, equal schemas.
        """
        return hashlib.sha256(json.dumps(self.objects, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Fingerprint) -> list[str]:
        """
        Name each object that is not the same in both, with both definitions.
        """
        names = sorted(self.objects.keys() | other.objects.keys())
        pairs = [(name, self.objects.get(name), other.objects.get(name)) for name in names]
        return [f"{name}:\n  - {one}\n  + {two}" for name, one, two in pairs if one != two]


def fingerprint(connection: Connection, schema: str = DEFAULT_SCHEMA) -> Fingerprint:
    """
    Read the definition of every object in a schema, as if the schema were called fairq.
    """
    checked_name(schema)
    objects = {}
    # rolled back, so that search_path comes back as it was, also inside a transaction of the caller
    with connection.transaction(force_rollback=True):
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        cursor.execute("set local search_path = pg_catalog, pg_temp")  # every other name is printed in full
        for kind, query in _QUERIES.items():
            for name, definition in cursor.execute(query.encode(), {"schema": schema}):
                objects[f"{kind} {_as_fairq(name, schema)}"] = _as_fairq(definition, schema)
    return Fingerprint(objects)


def _as_fairq(text: str, schema: str) -> str:
    name = re.escape(schema)
    return re.sub(rf'(?<![\w."])(?:"{name}"|{name})(?=\.)', DEFAULT_SCHEMA, text)


def _rights(acl: str, kind: str, owner: str) -> str:
    """
    Return an expression for who may do what; without MAINTAIN, which is part of ALL from PostgreSQL 17 on.
    """
    return f"""owner to ' || {owner}::regrole || '; rights: ' || coalesce((
            select string_agg(one, ', ' order by one collate "C")
            from (
                select coalesce(nullif(a.grantee, 0)::regrole::text, 'PUBLIC') || '='
                    || string_agg(a.privilege_type || case when a.is_grantable then '*' else '' end, '+'
                                  order by a.privilege_type) as one
                from aclexplode(coalesce({acl}, acldefault('{kind}', {owner}))) as a
                where a.privilege_type <> 'MAINTAIN'
                group by a.grantee
            ) as grants
        ), 'none')"""


def _comment(oid: str, catalog: str) -> str:
    return f"coalesce('; comment: ' || obj_description({oid}, '{catalog}'), '')"


_HERE = "(select oid from pg_namespace where nspname = %(schema)s)"

# One query for each kind of object: its name, and all that is worth comparing.
# Not compared: what no statement of a migration sets (oids, statistics, sizes), and NOT NULL constraints, which
# PostgreSQL 18 began to list beside the flag of the column.
_QUERIES = {
    "schema": f"""
        select 'fairq', '{_rights("n.nspacl", "n", "n.nspowner")} || {_comment("n.oid", "pg_namespace")}
        from pg_namespace as n where n.nspname = %(schema)s
    """,
    "relation": f"""
        select c.oid::regclass::text,
            case c.relkind when 'r' then 'table' when 'v' then 'view' when 'S' then 'sequence' else c.relkind::text end
            || case when c.relrowsecurity then '; row security' else '' end
            || case when c.relforcerowsecurity then '; forced' else '' end
            || case c.relpersistence when 'u' then '; unlogged' else '' end
            || coalesce('; with ' || array_to_string(
                array(select o collate "C" from unnest(c.reloptions) as o order by 1), ', '
            ), '')
            || '; {_rights("c.relacl", "r", "c.relowner")} || {_comment("c.oid", "pg_class")}
        from pg_class as c
        where c.relnamespace = {_HERE} and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
    """,
    "sequence": f"""
        select s.seqrelid::regclass::text,
            format('%%s start %%s increment %%s min %%s max %%s cache %%s cycle %%s; ',
                format_type(s.seqtypid, null), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle)
            || '{_rights("c.relacl", "s", "c.relowner")} || {_comment("c.oid", "pg_class")}
        from pg_sequence as s join pg_class as c on c.oid = s.seqrelid where c.relnamespace = {_HERE}
    """,
    "column": f"""
        select c.oid::regclass || '.' || a.attname,
            'position ' || row_number() over (partition by c.oid order by a.attnum)
            || ' ' || format_type(a.atttypid, a.atttypmod)
            || case when a.attcollation <> t.typcollation then ' collate ' || a.attcollation::regcollation else '' end
            || case when a.attnotnull then ' not null' else '' end
            || case a.attidentity when 'a' then ' identity always' when 'd' then ' identity by default' else '' end
            || case a.attgenerated when 's' then ' stored' when 'v' then ' virtual' else '' end
            || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
            || coalesce('; rights: ' || (
                select string_agg(one, ', ' order by one collate "C")
                from (
                    select coalesce(nullif(grantee, 0)::regrole::text, 'PUBLIC') || '=' || privilege_type as one
                    from aclexplode(a.attacl)
                ) as grants
            ), '')
            || coalesce('; comment: ' || col_description(c.oid, a.attnum), '')
        from pg_attribute as a
        join pg_class as c on c.oid = a.attrelid
        join pg_type as t on t.oid = a.atttypid
        left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where c.relnamespace = {_HERE} and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
          and a.attnum > 0 and not a.attisdropped
    """,
    "constraint": f"""
        select coalesce(c.conrelid::regclass::text || '.', '') || c.conname,
            pg_get_constraintdef(c.oid) || {_comment("c.oid", "pg_constraint")}
        from pg_constraint as c where c.connamespace = {_HERE} and c.contype <> 'n'
    """,
    "index": f"""
        select i.indexrelid::regclass::text,
            pg_get_indexdef(i.indexrelid) || case when i.indisvalid then '' else '; INVALID' end
            || {_comment("i.indexrelid", "pg_class")}
        from pg_index as i join pg_class as c on c.oid = i.indexrelid where c.relnamespace = {_HERE}
    """,
    "function": f"""
        select p.oid::regprocedure::text,
            pg_get_functiondef(p.oid) || '; {_rights("p.proacl", "f", "p.proowner")} || {_comment("p.oid", "pg_proc")}
        from pg_proc as p where p.pronamespace = {_HERE} and p.prokind in ('f', 'p', 'w')
    """,
    "type": f"""
        select t.oid::regtype::text,
            case t.typtype when 'c' then 'composite' when 'e' then 'enum' else t.typtype::text end
            || coalesce(' over ' || format_type(nullif(t.typbasetype, 0), t.typtypmod), '')
            || coalesce(' ' || (
                select string_agg(e.enumlabel, ', ' order by e.enumsortorder)
                from pg_enum as e where e.enumtypid = t.oid
            ), '')
            || '; {_rights("t.typacl", "T", "t.typowner")} || {_comment("t.oid", "pg_type")}
        from pg_type as t
        left join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = {_HERE} and t.typtype <> 'b' and coalesce(c.relkind = 'c', true)
    """,
    "policy": f"""
        select p.polrelid::regclass || '.' || p.polname,
            'for ' || p.polcmd::text
            || case when p.polpermissive then '' else '; restrictive' end
            || '; to ' || array_to_string(array(
                select coalesce(nullif(r, 0)::regrole::text, 'PUBLIC') collate "C"
                from unnest(p.polroles) as r order by 1
            ), ', ')
            || coalesce('; using ' || pg_get_expr(p.polqual, p.polrelid), '')
            || coalesce('; with check ' || pg_get_expr(p.polwithcheck, p.polrelid), '')
            || {_comment("p.oid", "pg_policy")}
        from pg_policy as p join pg_class as c on c.oid = p.polrelid where c.relnamespace = {_HERE}
    """,
    "trigger": f"""
        select t.tgrelid::regclass || '.' || t.tgname,
            pg_get_triggerdef(t.oid) || '; enabled ' || t.tgenabled::text || {_comment("t.oid", "pg_trigger")}
        from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = {_HERE} and not t.tgisinternal
    """,
    # PostgreSQL 16 began to leave out the table's name before a column where there is only one table
    "view": f"""
        select c.oid::regclass::text,
            regexp_replace(
                regexp_replace(pg_get_viewdef(c.oid), '(\\m\\w+|"[^"]+")\\.(?=[\\w"])', '', 'g'), '\\s+', ' ', 'g'
            )
        from pg_class as c where c.relnamespace = {_HERE} and c.relkind in ('v', 'm')
    """,
}
