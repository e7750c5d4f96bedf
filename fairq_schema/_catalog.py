"""
What a schema is, object by object, in words that are the same from PostgreSQL 15 to 18.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.rows import tuple_row

from fairq_schema._rename import DEFAULT_SCHEMA, checked_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairq_schema._session import Connection

# What is worth comparing of one object, by the words for it: text, yes or no, lists of names, rights by grantee.
Attributes: TypeAlias = "dict[str, Any]"
Objects: TypeAlias = "dict[str, Attributes]"

# These hold no SQL, and are compared as they stand.
NO_SQL = frozenset({"comment", "owner", "rights", "roles", "kind", "labels", "options", "language", "settings"})

# Whatever the session likes, expressions are printed alike: intervals in defaults, names in full.
_SETTINGS = """
    set local search_path = pg_catalog, pg_temp;
    set local datestyle = 'ISO, YMD';
    set local intervalstyle = 'postgres';
    set local timezone = 'GMT';
    set local bytea_output = 'hex';
    set local extra_float_digits = 1;
    set local quote_all_identifiers = off;
"""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """
    Every object of a schema with what is worth comparing of it.
    """

    objects: Mapping[str, Attributes]

    @property
    def digest(self) -> str:
        """
        One short name for all of it: equal digests, equal schemas.
        """
        return hashlib.sha256(json.dumps(self.objects, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Fingerprint) -> list[str]:
        """
        Name each object that is not the same in both, and all that is different of it.
        """
        return [line for name in sorted(self.objects.keys() | other.objects.keys()) for line in self._of(name, other)]

    def _of(self, name: str, other: Fingerprint) -> Iterator[str]:
        one, two = self.objects.get(name), other.objects.get(name)
        if one is None or two is None:
            yield f"{name}:\n  - {one}\n  + {two}"
            return
        for word in sorted(one.keys() | two.keys()):
            if one.get(word) != two.get(word):
                yield f"{name}, {word}:\n  - {one.get(word)}\n  + {two.get(word)}"


def fingerprint(connection: Connection, schema: str = DEFAULT_SCHEMA) -> Fingerprint:
    """
    Read the definition of every object in a schema, as if the schema were called fairq.
    """
    live = read(connection, checked_name(schema))
    return Fingerprint({name: _as_if_fairq(attributes, schema) for name, attributes in live.items()})


def read(connection: Connection, schema: str) -> Objects:
    """
    Read every object of a schema, with definitions as they are; only in names of objects the schema is called fairq.
    """
    objects: Objects = {}
    # rolled back, so that the settings come back as they were, also inside a transaction of the caller
    with connection.transaction(force_rollback=True):
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        cursor.execute(_SETTINGS.encode())
        for kind, query in _QUERIES.items():
            for name, attributes in cursor.execute(query.encode(), {"schema": schema}):
                objects[f"{kind} {as_if_fairq(name, schema)}"] = attributes
    return objects


def as_if_fairq(text: str, schema: str) -> str:
    """
    Return SQL about another schema as it would be about fairq, however the name is spelled.
    """
    name = re.escape(schema)
    return re.sub(rf'(?<![\w."])(?:"{name}"|{name})(?=\.)', DEFAULT_SCHEMA, text)


def _as_if_fairq(attributes: Attributes, schema: str) -> Attributes:
    return {
        word: as_if_fairq(value, schema) if isinstance(value, str) and word not in NO_SQL else value
        for word, value in attributes.items()
    }


def _rights(acl: str, kind: str, owner: str) -> str:
    """
    Return an expression for who may do what; without MAINTAIN, which is part of ALL from PostgreSQL 17 on.
    """
    return f"""(
        select jsonb_object_agg(who, what)
        from (
            select case a.grantee when 0 then 'PUBLIC' else pg_get_userbyid(a.grantee) end as who,
                string_agg(a.privilege_type || case when a.is_grantable then '*' else '' end, '+'
                           order by a.privilege_type) as what
            from aclexplode(coalesce({acl}, acldefault('{kind}', {owner}))) as a
            where a.privilege_type <> 'MAINTAIN'
            group by a.grantee
        ) as grants
    )"""


def _owned(acl: str, kind: str, owner: str) -> str:
    return f"'owner', pg_get_userbyid({owner}), 'rights', {_rights(acl, kind, owner)}"


def _comment(oid: str, catalog: str) -> str:
    return f"'comment', obj_description({oid}, '{catalog}')"


_HERE = "(select oid from pg_namespace where nspname = %(schema)s)"

# One query for each kind of object: its name, and all that is worth comparing; what is null is left out.
# Not compared: what no statement of a migration sets (oids, statistics, sizes), and NOT NULL constraints, which
# PostgreSQL 18 began to list beside the flag of the column.
_QUERIES = {
    "schema": f"""
        select 'fairq', jsonb_strip_nulls(jsonb_build_object(
            {_owned("n.nspacl", "n", "n.nspowner")}, {_comment("n.oid", "pg_namespace")}
        ))
        from pg_namespace as n where n.nspname = %(schema)s
    """,
    "relation": f"""
        select c.oid::regclass::text, jsonb_strip_nulls(jsonb_build_object(
            'kind', case c.relkind
                when 'r' then 'table' when 'p' then 'partitioned table' when 'v' then 'view' else c.relkind::text
            end,
            'partitioned by', pg_get_partkeydef(c.oid),
            'partition of', (
                select i.inhparent::regclass::text from pg_inherits as i where i.inhrelid = c.oid and c.relispartition
            ),
            'bound', pg_get_expr(c.relpartbound, c.oid),
            'row security', c.relrowsecurity,
            'row security for the owner', c.relforcerowsecurity,
            'logged', c.relpersistence <> 'u',
            'replica identity', nullif(c.relreplident::text, 'd'),
            'options', array(select o collate "C" from unnest(c.reloptions) as o order by 1),
            {_owned("c.relacl", "r", "c.relowner")}, {_comment("c.oid", "pg_class")}
        ))
        from pg_class as c
        where c.relnamespace = {_HERE} and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
    """,
    "sequence": f"""
        select s.seqrelid::regclass::text, jsonb_strip_nulls(jsonb_build_object(
            'definition',
            format('%%s start %%s increment %%s min %%s max %%s cache %%s cycle %%s',
                format_type(s.seqtypid, null), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle),
            {_owned("c.relacl", "s", "c.relowner")}, {_comment("c.oid", "pg_class")}
        ))
        from pg_sequence as s join pg_class as c on c.oid = s.seqrelid where c.relnamespace = {_HERE}
    """,
    "column": f"""
        select c.oid::regclass || '.' || quote_ident(a.attname), jsonb_strip_nulls(jsonb_build_object(
            'position', row_number() over (partition by c.oid order by a.attnum),
            'type', format_type(a.atttypid, a.atttypmod),
            'collation', case when a.attcollation <> t.typcollation then a.attcollation::regcollation::text end,
            'not null', a.attnotnull,
            'identity', nullif(a.attidentity::text, ''),
            'generated', nullif(a.attgenerated::text, ''),
            'default', pg_get_expr(d.adbin, d.adrelid),
            'rights', (
                select jsonb_object_agg(who, what)
                from (
                    select case g.grantee when 0 then 'PUBLIC' else pg_get_userbyid(g.grantee) end as who,
                        string_agg(g.privilege_type || case when g.is_grantable then '*' else '' end, '+'
                                   order by g.privilege_type) as what
                    from aclexplode(a.attacl) as g
                    group by g.grantee
                ) as grants
            ),
            'comment', col_description(c.oid, a.attnum)
        ))
        from pg_attribute as a
        join pg_class as c on c.oid = a.attrelid
        join pg_type as t on t.oid = a.atttypid
        left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where c.relnamespace = {_HERE} and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
          and a.attnum > 0 and not a.attisdropped
    """,
    "constraint": f"""
        select coalesce(nullif(c.conrelid, 0)::regclass::text || '.', 'fairq.') || quote_ident(c.conname),
            jsonb_strip_nulls(jsonb_build_object(
                'definition', pg_get_constraintdef(c.oid), {_comment("c.oid", "pg_constraint")}
            ))
        from pg_constraint as c where c.connamespace = {_HERE} and c.contype <> 'n'
    """,
    "index": f"""
        select i.indexrelid::regclass::text, jsonb_strip_nulls(jsonb_build_object(
            'definition', pg_get_indexdef(i.indexrelid),
            'valid', i.indisvalid and i.indisready,
            {_comment("i.indexrelid", "pg_class")}
        ))
        from pg_index as i join pg_class as c on c.oid = i.indexrelid where c.relnamespace = {_HERE}
    """,
    "function": f"""
        select p.oid::regprocedure::text, jsonb_strip_nulls(jsonb_build_object(
            'kind', case p.prokind when 'f' then 'function' when 'p' then 'procedure' else p.prokind::text end,
            'arguments', pg_get_function_arguments(p.oid),
            'result', pg_get_function_result(p.oid),
            'language', l.lanname,
            'volatility', p.provolatile::text,
            'parallel', p.proparallel::text,
            'strict', p.proisstrict,
            'security definer', p.prosecdef,
            'leakproof', p.proleakproof,
            'cost', p.procost,
            'rows', p.prorows,
            'settings', p.proconfig,
            'body', replace(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), E'\\r\\n', E'\\n'),
            {_owned("p.proacl", "f", "p.proowner")}, {_comment("p.oid", "pg_proc")}
        ))
        from pg_proc as p join pg_language as l on l.oid = p.prolang where p.pronamespace = {_HERE}
    """,
    "type": f"""
        select t.oid::regtype::text, jsonb_strip_nulls(jsonb_build_object(
            'kind', case t.typtype when 'c' then 'composite' when 'e' then 'enum' else t.typtype::text end,
            'over', format_type(nullif(t.typbasetype, 0), t.typtypmod),
            'labels', nullif(
                array(select e.enumlabel::text from pg_enum as e where e.enumtypid = t.oid order by e.enumsortorder),
                '{{}}'
            ),
            {_owned("t.typacl", "T", "t.typowner")}, {_comment("t.oid", "pg_type")}
        ))
        from pg_type as t
        left join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = {_HERE} and t.typtype <> 'b' and coalesce(c.relkind = 'c', true)
    """,
    "policy": f"""
        select p.polrelid::regclass || '.' || quote_ident(p.polname), jsonb_strip_nulls(jsonb_build_object(
            'for', p.polcmd::text,
            'permissive', p.polpermissive,
            'roles', array(
                select case r when 0 then 'PUBLIC' else pg_get_userbyid(r) end collate "C"
                from unnest(p.polroles) as r order by 1
            ),
            'using', pg_get_expr(p.polqual, p.polrelid),
            'check', pg_get_expr(p.polwithcheck, p.polrelid),
            {_comment("p.oid", "pg_policy")}
        ))
        from pg_policy as p join pg_class as c on c.oid = p.polrelid where c.relnamespace = {_HERE}
    """,
    "trigger": f"""
        select t.tgrelid::regclass || '.' || quote_ident(t.tgname), jsonb_strip_nulls(jsonb_build_object(
            'definition', pg_get_triggerdef(t.oid), 'enabled', t.tgenabled::text, {_comment("t.oid", "pg_trigger")}
        ))
        from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = {_HERE} and not t.tgisinternal
    """,
    "rule": f"""
        select r.ev_class::regclass || '.' || quote_ident(r.rulename), jsonb_build_object(
            'definition', pg_get_ruledef(r.oid), 'enabled', r.ev_enabled::text
        )
        from pg_rewrite as r join pg_class as c on c.oid = r.ev_class
        where c.relnamespace = {_HERE} and r.rulename <> '_RETURN'
    """,
    # PostgreSQL 16 began to leave out the table's name before a column where there is only one table
    "view": f"""
        select c.oid::regclass::text, jsonb_build_object('definition',
            regexp_replace(
                regexp_replace(pg_get_viewdef(c.oid), '(\\m\\w+|"[^"]+")\\.(?=[\\w"])', '', 'g'), '\\s+', ' ', 'g'
            )
        )
        from pg_class as c where c.relnamespace = {_HERE} and c.relkind in ('v', 'm')
    """,
}
