-- The house rules that the catalog can be asked about; each failure names the offender.
select plan(29);

-- the functions as the rules see them
create temp view functions as
select
    p.oid::regprocedure as function, p.proname as name, p.proowner::regrole::text as owner, p.prosecdef as is_definer,
    p.prosrc as body, p.proconfig as settings, p.proargnames[1:p.pronargs] as arguments, p.proacl as acl,
    p.prolang as lang,
    p.proargmodes as modes, obj_description(p.oid, 'pg_proc') as comment,
    -- what a reader would call code: no comments, no strings
    regexp_replace(regexp_replace(p.prosrc, '--[^\n]*', '', 'g'), '''[^'']*''', '''''', 'g') as code
from pg_proc as p
where p.pronamespace = 'fairq'::regnamespace;

create temp view relations as
select c.oid, c.oid::regclass as relation, c.relname as name, c.relkind as kind, c.relacl as acl,
       c.relispartition as is_part, c.relrowsecurity as has_rls, c.relforcerowsecurity as forces_rls, c.relowner::regrole::text as owner
from pg_class as c
where c.relnamespace = 'fairq'::regnamespace;

-- functions: who they run as, and who may run them

select is_empty($$
    select f.function from functions as f where not (f.settings @> array['search_path=pg_catalog, pg_temp'])
    or f.settings is null
$$, 'every function pins search_path = pg_catalog, pg_temp');

select is_empty($$
    select f.function, f.owner from functions as f
    where f.is_definer
      and f.owner <> case when f.name in ('prune', 'maintain', 'erase_tenant') then 'fairq_owner' else 'fairq_api' end
$$, 'every definer function is owned by fairq_api, but those that make history go by fairq_owner');

select is_empty($$
    select f.function, f.owner from functions as f where f.owner not in ('fairq_api', 'fairq_owner')
$$, 'no function is owned by anybody else');

select is_empty($$
    select f.function from functions as f where has_function_privilege('public', f.function, 'execute')
$$, 'public may execute nothing');

select is_empty($$
    select f.function, a.grantee::regrole
    from functions as f
    cross join aclexplode(f.acl) as a
    where f.name ~ '^_' and a.grantee::regrole::text <> f.owner
$$, 'an internal function is granted to nobody');

select is_empty($$
    select f.function from functions as f where f.name ~ '^_' and f.is_definer
$$, 'an internal function has the rights of its caller');

select is_empty($$
    select f.function from functions as f
    where f.name !~ '^_' and not f.is_definer and f.name not in ('channel', 'current_tenant_id', 'schema_version', 'tenant_provider')
$$, 'every public function runs as its owner, but for the four that touch no table');

-- functions: how they are written

select is_empty($$
    select f.function, a.name from functions as f cross join unnest(f.arguments) as a(name)
    where a.name is null or a.name !~ '^p_[a-z_]+$'
$$, 'every input parameter starts with p_');

select is_empty($$
    select f.function from functions as f where f.modes is not null
$$, 'no function has out parameters or returns table (...)');

select is_empty($$
    select f.function from functions as f where f.name !~ '^_?[a-z]+(_[a-z]+)*$'
$$, 'functions are named in lower-case words, internal ones with _ before them');

select is_empty($$
    select f.function from functions as f join pg_language as l on l.oid = f.lang where l.lanname not in ('sql', 'plpgsql')
$$, 'every function is written in SQL or plpgsql');

select is_empty($$
    select f.function from functions as f where f.code ~* '\mexecute\M'
$$, 'there is no dynamic SQL');

select is_empty($$
    select f.function from functions as f where f.body like '%\\%'
$$, 'no body has a backslash: its meaning could be changed by a setting of the caller');

select is_empty($$
    select f.function from functions as f where f.code ~* '\massert\M' or f.code ~* '\minto\s+strict\M'
$$, 'no body has ASSERT or INTO STRICT: settings of the caller turn the one off and make the other talk');

select is_empty($$
    select f.function, m.word[1]
    from functions as f
    cross join regexp_matches(f.code, '\m(?:from|join|into|update)\s+([a-z_]+)\s+(?:as|where|order|\()', 'gi') as m(word)
    -- a type's name may be the name of a with query, too
    where exists (select from relations as r where r.name = m.word[1] and r.kind <> 'c')
$$, 'every table in a body carries its schema');

select is_empty($$
    select f.function from functions as f where f.body ~ '\t'
$$, 'no body has a tab');

-- every locale agrees on ASCII alone
select is_empty($$
    select f.function
    from functions as f
    where regexp_count(f.body, '>= ''!'' collate') <> regexp_count(
        f.body, '(\S+) >= ''!'' collate "C" and \1 <= ''~'' collate "C" or \1 ~ ''\[\^\[:space:\]\]'''
    )
$$, 'a name is judged by its first character alone only when that is visible ASCII');

select is_empty($$
    select f.function, l.line
    from functions as f
    cross join regexp_split_to_table(f.body, '\n') as l(line)
    where length(l.line) > 120
      and f.name not in (
          -- of functions/scheduler.sql: each goes from here once its lines are wrapped
          '_apply', '_dispatch', '_lease', '_lock_holders', '_open_flows', '_pick', '_rebuild', '_spread', '_wait_for_queue'
      )
$$, 'no line of a body has more than 120 columns');

select is_empty($$
    select f.function, m.code[1]
    from functions as f
    cross join regexp_matches(f.body, 'errcode = ''([^'']*)''', 'g') as m(code)
    where m.code[1] not in ('0A000', '22023', '40001', '42501', '54000', '55000', '55P03', 'QF002', 'QF900')
$$, 'every SQLSTATE raised is a known one');

-- tables, views, sequences, types

select is_empty($$
    select r.relation, r.owner from relations as r where r.owner <> 'fairq_owner'
$$, 'fairq_owner owns every table, view, index and sequence');

select is_empty($$
    select r.relation from relations as r where r.kind in ('r', 'p') and not (r.has_rls and r.forces_rls)
$$, 'row-level security is enabled and forced on every table');

select is_empty($$
    select r.relation, w.who
    from relations as r
    cross join (values ('fairq_owner'), ('fairq_api'), ('fairq_operator')) as w(who)
    where r.kind in ('r', 'p')
      and has_any_column_privilege(w.who, r.oid, 'select')
      and not exists (
          select from pg_policy as p
          where p.polrelid = r.oid and p.polpermissive and w.who::regrole = any (p.polroles) and p.polcmd in ('*', 'r')
      )
$$, 'whoever may read a table has a policy that lets it');

select is_empty($$
    select r.relation, v.who, v.command
    from relations as r
    cross join (values ('a', 'insert'), ('w', 'update'), ('d', 'delete')) as c(letter, command)
    cross join lateral (
        select 'fairq_api' as who, c.command
        where case c.letter
            when 'd' then has_table_privilege('fairq_api', r.oid, 'delete')
            else has_any_column_privilege('fairq_api', r.oid, c.command)
        end
    ) as v
    where r.kind in ('r', 'p')
      and not exists (
          select from pg_policy as p
          where p.polrelid = r.oid and 'fairq_api'::regrole = any (p.polroles) and p.polcmd::text in ('*', c.letter)
      )
$$, 'whatever fairq_api may write has a policy: without one, select for update would find nothing and say nothing');

select is_empty($$
    select r.relation from relations as r
    where r.kind = 'v'
      and not exists (
          select from pg_class as c where c.oid = r.oid and c.reloptions @> array['security_invoker=true']
      )
$$, 'every view has the rights of its reader');

select is_empty($$
    select r.relation::text, a.privilege_type
    from relations as r cross join aclexplode(r.acl) as a where a.grantee = 0
    union all
    select t.oid::regtype::text, a.privilege_type
    from pg_type as t
    cross join aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) as a
    -- an array follows its element
    where t.typnamespace = 'fairq'::regnamespace and t.typelem = 0 and a.grantee = 0
$$, 'public has no right on a table, view, sequence or type, the row types of tables and views included');

select is_empty($$
    select k.conrelid::regclass, k.conname
    from pg_constraint as k
    join relations as r on r.oid = k.conrelid
    -- a partition has those of the whole
    where k.coninhcount = 0 and k.conname !~ ('^' || r.name || '_[a-z_]+$')
$$, 'every constraint is named table_rule');

select is_empty($$
    select r.relation
    from relations as r
    join pg_index as i on i.indexrelid = r.oid
    join pg_class as t on t.oid = i.indrelid
    where r.name !~ ('^' || t.relname || '_([a-z]+_idx|pkey)$')
$$, 'every index is named for its table and the room that rides it');

select is_empty($$
    select p.polrelid::regclass, p.polname from pg_policy as p
    join relations as r on r.oid = p.polrelid
    where p.polname !~ '^(owner_does_all|api_(reads|adds|changes|removes|locks)|tenant_(reads_own|fence)|operator_(reads|grants))$'
$$, 'every policy is named for who may do what');

-- comments

select is_empty($$
    select 'function' as kind, f.function::text from functions as f where f.comment is null
    union all
    select 'relation', r.relation::text from relations as r
    where (r.kind in ('r', 'p', 'v', 'c') or r.kind in ('i', 'I') and not r.is_part and r.name not like '%pkey' or r.kind = 'S' and r.name not like '%id_seq')
      and obj_description(r.oid, 'pg_class') is null
      and not (r.kind = 'c' and exists (
          select from pg_type as t where t.typrelid = r.oid and obj_description(t.oid, 'pg_type') is not null
      ))
    union all
    select 'column', format('%s.%s', r.relation, a.attname)
    from relations as r
    join pg_attribute as a on a.attrelid = r.oid
    where r.kind in ('r', 'p') and not r.is_part and a.attnum > 0 and not a.attisdropped and col_description(r.oid, a.attnum) is null
    union all
    select 'schema', 'fairq' where obj_description('fairq'::regnamespace, 'pg_namespace') is null
$$, 'every function, table, column, view, type and index, and the schema, has a comment');

select * from finish();
