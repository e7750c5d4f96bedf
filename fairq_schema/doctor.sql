-- What is wrong with the isolation of fairq in this database: one row for each hazard found. Any login can run it.
--
-- error: tenants or workers are not kept apart as promised. warning: they are, as long as somebody is careful.
-- info: worth knowing. Roles are found by what they may do, whatever they are called.
-- For another schema than fairq: set fairq_doctor.schema = '...'; first.
with recursive
here as (
    select
        n.oid as schema, n.nspname as name, n.nspowner as owner, f.proowner as api,
        current_setting('server_version_num')::integer as version
    from pg_catalog.pg_namespace as n
    join pg_catalog.pg_proc as f on f.pronamespace = n.oid and f.proname = 'claim_jobs'
    where n.nspname = coalesce(nullif(current_setting('fairq_doctor.schema', true), ''), 'fairq')
),
powers as (
    select h.owner as role from here as h
    union
    select h.api from here as h
),
groups as (
    select distinct a.grantee as role
    from here as h
    join pg_catalog.pg_proc as p on p.pronamespace = h.schema
    cross join aclexplode(p.proacl) as a
    where a.grantee not in (0, p.proowner) and a.grantee not in (select w.role from powers as w)
),
tenant_groups as (
    select distinct r.role
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema
    join pg_catalog.pg_policy as p on p.polrelid = c.oid and p.polname = 'tenant_fence'
    cross join unnest(p.polroles) as r(role)
),
-- by rows, not by pg_has_role(), which says yes for every superuser
members as (
    select g.role as root, m.member, to_jsonb(m) as option
    from (select w.role from powers as w union select g.role from groups as g) as g
    join pg_catalog.pg_auth_members as m on m.roleid = g.role
    union
    select d.root, m.member, to_jsonb(m)
    from members as d
    join pg_catalog.pg_auth_members as m on m.roleid = d.member
),
logins as (
    select distinct r.*, d.root
    from members as d
    join pg_catalog.pg_roles as r on r.oid = d.member
    where r.rolcanlogin
),
found (hazard, severity, subject, what, remedy) as (
    -- H1: somebody is one of the powers, and with it every tenant
    select
        'H1', 'error', quote_ident(r.rolname), 'this login can be ' || quote_ident(w.rolname) || ', which sees and writes all',
        format('revoke %I from %I;', w.rolname, r.rolname)
    from here as h
    cross join pg_catalog.pg_roles as r
    join pg_catalog.pg_roles as w on w.oid in (select p.role from powers as p) and w.oid <> r.oid
    where r.rolcanlogin and not r.rolsuper
      and (
          pg_has_role(r.oid, w.oid, 'USAGE')
          or pg_has_role(r.oid, w.oid, case when h.version >= 160000 then 'SET' else 'MEMBER' end)
      )
    union all
    select
        'H1', 'info', quote_ident(r.rolname),
        'this login administers ' || quote_ident(w.rolname) || ', and could make itself a member', 'keep it for installations'
    from here as h
    join members as d on d.root in (select p.role from powers as p) and (d.option ->> 'admin_option')::boolean
    join pg_catalog.pg_roles as r on r.oid = d.member
    join pg_catalog.pg_roles as w on w.oid = d.root
    where h.version >= 160000 and r.rolcanlogin and not r.rolsuper
      and not pg_has_role(r.oid, w.oid, 'USAGE') and not pg_has_role(r.oid, w.oid, 'SET')

    -- H2: a role of the queue has a right of the cluster
    union all
    select
        'H2',
        case when r.oid in (select t.role from tenant_groups as t) or r.oid in (select w.role from powers as w)
            then 'error' else 'warning' end,
        quote_ident(r.rolname), 'this role of the queue has ' || a.attribute,
        format('alter role %I no%s;', r.rolname, a.attribute)
    from pg_catalog.pg_roles as r
    cross join lateral (
        values
        ('login', r.rolcanlogin and r.oid in (select w.role from powers as w)), ('superuser', r.rolsuper),
        ('bypassrls', r.rolbypassrls), ('createrole', r.rolcreaterole), ('createdb', r.rolcreatedb),
        ('replication', r.rolreplication)
    ) as a(attribute, has)
    where a.has and r.oid in (select w.role from powers as w union select g.role from groups as g)

    -- H3: a login of the queue is not bound by row-level security
    union all
    select distinct
        'H3', case when l.root in (select t.role from tenant_groups as t) then 'error' else 'warning' end,
        quote_ident(l.rolname),
        'this login is a member of ' || l.root::regrole || ' and passes by row-level security',
        format('alter role %I nosuperuser nobypassrls;', l.rolname)
    from logins as l
    where l.rolsuper or l.rolbypassrls

    -- H4: a login of the queue has a predefined role that reaches beyond it
    union all
    select distinct
        'H4',
        -- who watches a queue watches its sessions, too
        case when p.rolname in ('pg_monitor', 'pg_read_all_stats') and has_function_privilege(l.root, f.oid, 'EXECUTE')
            then 'info' else 'warning' end,
        quote_ident(l.rolname), 'this login of the queue is a member of ' || p.rolname,
        format('revoke %I from %I;', p.rolname, l.rolname)
    from logins as l
    cross join here as h
    join pg_catalog.pg_proc as f on f.pronamespace = h.schema and f.proname = 'tenant_stats'
    join pg_catalog.pg_roles as p on p.rolname in (
        'pg_read_all_data', 'pg_write_all_data', 'pg_monitor', 'pg_read_all_stats', 'pg_signal_backend', 'pg_maintain',
        'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files'
    )
    where not l.rolsuper and pg_has_role(l.oid, p.oid, 'MEMBER')

    -- H5: before 16, CREATEROLE is membership in everything
    union all
    select
        'H5', 'warning', quote_ident(r.rolname),
        'this login has CREATEROLE, and can make itself a member of any role before PostgreSQL 16',
        format('between migrations: alter role %I nocreaterole; the next one needs it back', r.rolname)
    from here as h
    cross join pg_catalog.pg_roles as r
    where h.version < 160000 and r.rolcanlogin and r.rolcreaterole and not r.rolsuper

    -- H6: temporary objects are what attacks on definer functions are made of
    union all
    select
        'H6', 'info', quote_ident(d.datname), 'PUBLIC may make temporary objects in this database',
        format('if no application needs it: revoke temporary on database %I from public;', d.datname)
    from here as h
    join pg_catalog.pg_database as d on d.datname = current_database()
    cross join aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) as a
    where a.grantee = 0 and a.privilege_type = 'TEMPORARY'

    -- H7: and so are objects in a schema of everybody's
    union all
    select
        'H7', case when n.oid = h.schema then 'error' else 'warning' end, quote_ident(n.nspname),
        'PUBLIC may make objects in this schema', format('revoke create on schema %I from public;', n.nspname)
    from here as h
    cross join pg_catalog.pg_namespace as n
    cross join aclexplode(n.nspacl) as a
    where a.grantee = 0 and a.privilege_type = 'CREATE'

    -- H8: something of the queue is for everybody
    union all
    select
        'H8', 'error', p.oid::regprocedure::text, 'PUBLIC may call this function',
        format('revoke all on function %s from public;', p.oid::regprocedure)
    from here as h
    join pg_catalog.pg_proc as p on p.pronamespace = h.schema
    where has_function_privilege('public', p.oid, 'EXECUTE')
    union all
    select
        'H8', 'error', c.oid::regclass::text, 'PUBLIC has ' || lower(a.privilege_type) || ' on this relation',
        format('revoke all on %s from public;', c.oid::regclass)
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema
    cross join aclexplode(c.relacl) as a
    where a.grantee = 0
    union all
    select
        'H8', 'warning', t.oid::regtype::text, 'PUBLIC may build on this type, which would keep migrations from changing it',
        format('revoke all on type %s from public;', t.oid::regtype)
    from here as h
    join pg_catalog.pg_type as t on t.typnamespace = h.schema and t.typelem = 0
    where has_type_privilege('public', t.oid, 'USAGE')

    -- H9: a function that goes by its caller's search path
    union all
    select
        'H9', case when p.prosecdef then 'error' else 'warning' end, p.oid::regprocedure::text,
        'this function does not pin its search_path to pg_catalog, pg_temp',
        format('alter function %s set search_path = pg_catalog, pg_temp;', p.oid::regprocedure)
    from here as h
    join pg_catalog.pg_proc as p on p.pronamespace = h.schema
    where not coalesce(p.proconfig @> '{"search_path=pg_catalog, pg_temp"}', false)

    -- H10: a table without row-level security, or without a fence where a tenant may read
    union all
    select
        'H10', 'error', c.oid::regclass::text, 'row-level security is not enabled and forced on this table',
        format('alter table %1$s enable row level security; alter table %1$s force row level security;', c.oid::regclass)
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema and c.relkind in ('r', 'p')
    where not (c.relrowsecurity and c.relforcerowsecurity)
    union all
    select
        'H10', 'error', c.oid::regclass::text,
        'members of ' || t.role::regrole || ' may read this table, and no restrictive policy bounds them',
        'restore the policy tenant_fence'
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema and c.relkind in ('r', 'p')
    cross join tenant_groups as t
    where has_any_column_privilege(t.role, c.oid, 'SELECT, INSERT, UPDATE')
      and not exists (
          select from pg_catalog.pg_policy as p
          where p.polrelid = c.oid and not p.polpermissive and t.role = any (p.polroles) and p.polcmd = '*'
      )

    -- H11: a view with the rights of its owner shows every tenant's rows to whoever may read it
    union all
    select distinct
        'H11', case when n.oid = h.schema then 'error' else 'warning' end, v.oid::regclass::text,
        case v.relkind when 'm' then 'this materialized view' else 'this view has the rights of its owner, and' end
        || ' reads ' || c.oid::regclass || ', so row-level security does not bound its readers',
        case v.relkind
            when 'm' then format('drop materialized view %s;', v.oid::regclass)
            else format('alter view %s set (security_invoker = true);', v.oid::regclass)
        end
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema and c.relkind in ('r', 'p', 'v')
    join pg_catalog.pg_depend as d
        on d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid and d.classid = 'pg_rewrite'::regclass
    join pg_catalog.pg_rewrite as w on w.oid = d.objid
    join pg_catalog.pg_class as v on v.oid = w.ev_class and v.relkind in ('v', 'm') and v.oid <> c.oid
    join pg_catalog.pg_namespace as n on n.oid = v.relnamespace
    where v.relkind = 'm'
       or not coalesce(v.reloptions && '{security_invoker=true,security_invoker=on,security_invoker=1}', false)

    -- H12: something in the schema belongs to somebody else, who can change it
    union all
    select
        'H12', 'error', o.name, 'this object in the schema belongs to ' || o.owner::regrole,
        'drop it, or give it to its owner'
    from here as h
    cross join lateral (
        select c.oid::regclass::text as name, c.relowner as owner from pg_catalog.pg_class as c where c.relnamespace = h.schema
        union all
        select p.oid::regprocedure::text, p.proowner from pg_catalog.pg_proc as p where p.pronamespace = h.schema
        union all
        select t.oid::regtype::text, t.typowner from pg_catalog.pg_type as t
        where t.typnamespace = h.schema and t.typrelid = 0 and t.typelem = 0
    ) as o
    where o.owner not in (h.owner, h.api)

    -- H13: code of somebody else runs whenever a table is written
    union all
    select
        'H13', 'error', c.oid::regclass::text, 'the trigger ' || quote_ident(t.tgname) || ' runs ' || p.oid::regprocedure,
        format('drop trigger %I on %s;', t.tgname, c.oid::regclass)
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema
    join pg_catalog.pg_trigger as t on t.tgrelid = c.oid and not t.tgisinternal
    join pg_catalog.pg_proc as p on p.oid = t.tgfoid
    where p.pronamespace <> h.schema
    union all
    select
        'H13', 'error', c.oid::regclass::text, 'there is a rule ' || quote_ident(w.rulename) || ' on this table',
        format('drop rule %I on %s;', w.rulename, c.oid::regclass)
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema
    join pg_catalog.pg_rewrite as w on w.ev_class = c.oid and w.rulename <> '_RETURN'

    -- H14: the log can be rewritten
    union all
    select
        'H14', 'error', c.oid::regclass::text, 'the trigger ' || n.name || ' is missing or does not always fire',
        format('alter table %s enable always trigger %s;', c.oid::regclass, n.name)
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema
        and c.relname in ('job_log', 'job_log_0', 'job_log_1', 'job_log_2', 'job_log_3')
    cross join (values ('job_log_rows_stay'), ('job_log_table_stays')) as n(name)
    where not exists (
        select from pg_catalog.pg_trigger as t where t.tgrelid = c.oid and t.tgname = n.name and t.tgenabled = 'A'
    )

    -- H15: a server with known holes in what all this rests on (the floor of May 2026)
    union all
    select
        'H15', 'warning', current_setting('server_version'), 'this server lacks fixes of row-level security and search paths',
        'take the newest minor release of its version'
    from here as h
    where h.version < case h.version / 10000
        when 15 then 150018 when 16 then 160014 when 17 then 170010 when 18 then 180004 else 0
    end

    -- H16: replication carries every row past row-level security
    union all
    select distinct
        'H16', 'warning', quote_ident(p.pubname), 'this publication carries ' || c.oid::regclass || ' of every tenant',
        'treat its subscribers like the owner of the schema'
    from here as h
    join pg_catalog.pg_class as c on c.relnamespace = h.schema and c.relkind in ('r', 'p')
    join pg_catalog.pg_publication as p on p.puballtables
        or exists (select from pg_catalog.pg_publication_rel as r where r.prpubid = p.oid and r.prrelid = c.oid)
        or exists (select from pg_catalog.pg_publication_namespace as s where s.pnpubid = p.oid and s.pnnspid = h.schema)
    union all
    select
        'H16', 'warning', quote_ident(l.rolname), 'this login of the queue may replicate, and so read every change',
        format('alter role %I noreplication;', l.rolname)
    from (select distinct l.rolname from logins as l where l.rolreplication and not l.rolsuper) as l

    union all
    select
        'H0', 'error', coalesce(nullif(current_setting('fairq_doctor.schema', true), ''), 'fairq'),
        'there is no fairq in this schema', 'fairq apply'
    where not exists (select from here as h)
)
select f.hazard, f.severity, f.subject, f.what, f.remedy
from found as f
order by array_position('{error,warning,info}', f.severity), substr(f.hazard, 2)::integer, f.subject, f.what;
