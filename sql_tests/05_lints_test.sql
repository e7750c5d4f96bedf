-- The lints of splinter that apply to a schema like this, asked of the catalog; the number is splinter's.
select plan(12);

select is_empty($$
    select k.conname from pg_constraint as k
    where k.contype = 'f' and k.connamespace = 'fairq'::regnamespace
$$, '0001: no foreign key, so none without an index');

select is_empty($$
    select p.polrelid::regclass, p.polname from pg_policy as p
    join pg_class as c on c.oid = p.polrelid
    where c.relnamespace = 'fairq'::regnamespace
      and concat(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
          ~ '\(\)' and concat(pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) !~* '\( *select '
$$, '0003: a policy calls its function once for a statement, not once for a row');

select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'fairq'::regnamespace and c.relkind = 'r'
      -- many rows of one tenant may be there for a moment, and each is deleted by its place
      and c.relname not in ('flows', 'settlements')
      and not exists (select from pg_index as i where i.indrelid = c.oid and i.indisprimary)
$$, '0004: every table has a primary key, but the scheduler''s feeds');

select is_empty($$
    select p.polrelid::regclass, r.role::regrole, m.command
    from pg_policy as p
    join pg_class as c on c.oid = p.polrelid
    cross join unnest(p.polroles) as r(role)
    cross join (values ('r'), ('a'), ('w'), ('d')) as m(command)
    where c.relnamespace = 'fairq'::regnamespace and p.polpermissive and p.polcmd::text in ('*', m.command)
    group by p.polrelid, r.role, m.command having count(*) > 1
$$, '0006: one permissive policy for a role and a command');

select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'fairq'::regnamespace and c.relkind in ('r', 'p')
      and exists (select from pg_policy as p where p.polrelid = c.oid) <> c.relrowsecurity
$$, '0007, 0008, 0013: row security is on, and has policies');

select is_empty($$
    select min(i.indexrelid::regclass::text), max(i.indexrelid::regclass::text)
    from pg_index as i join pg_class as c on c.oid = i.indrelid
    where c.relnamespace = 'fairq'::regnamespace
    group by i.indrelid, i.indkey::text, i.indclass::text, i.indoption::text, pg_get_expr(i.indpred, i.indrelid), pg_get_expr(i.indexprs, i.indrelid)
    having count(*) > 1
$$, '0009: no index is there twice');

select is_empty($$
    select c.oid::regclass from pg_class as c
    where c.relnamespace = 'fairq'::regnamespace
      and (c.relkind = 'm' or c.relkind = 'v' and not c.reloptions @> '{security_invoker=true}')
$$, '0010, 0016: no view has the rights of its owner, and none keeps rows of its own');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'fairq'::regnamespace
      and not coalesce(p.proconfig @> '{"search_path=pg_catalog, pg_temp"}', false)
$$, '0011: no function goes by its caller''s search path');

select is_empty($$
    select d.objid::regclass from pg_depend as d
    where d.deptype = 'e' and d.refclassid = 'pg_extension'::regclass
      and d.classid = 'pg_class'::regclass
      and exists (select from pg_class as c where c.oid = d.objid and c.relnamespace = 'fairq'::regnamespace)
$$, '0014: nothing here comes from an extension');

select is_empty($$
    select a.attrelid::regclass, a.attname from pg_attribute as a
    join pg_class as c on c.oid = a.attrelid
    join pg_type as t on t.oid = a.atttypid
    where c.relnamespace = 'fairq'::regnamespace and c.relkind = 'r' and a.attnum > 0
      and t.typname in ('regcollation', 'regconfig', 'regdictionary', 'regnamespace', 'regoper', 'regoperator', 'regproc', 'regprocedure', 'regrole')
$$, '0018: no column keeps a name that an upgrade of the server would not carry over');

select is_empty($$
    select p.polrelid::regclass, p.polname from pg_policy as p
    join pg_class as c on c.oid = p.polrelid
    where c.relnamespace = 'fairq'::regnamespace and p.polpermissive
      and p.polroles && array[0, 'fairq_tenant'::regrole::oid]
      and pg_get_expr(p.polqual, p.polrelid) is distinct from
          '(tenant = ( SELECT fairq.current_tenant_id() AS current_tenant_id))'
$$, '0015, 0024: a tenant''s policies let through what is its own, and nothing else');

select is_empty($$
    select p.oid::regprocedure from pg_proc as p
    where p.pronamespace = 'fairq'::regnamespace and p.prosecdef and has_function_privilege('public', p.oid, 'execute')
$$, '0028, 0029: no definer function is for everybody');

select * from finish();
