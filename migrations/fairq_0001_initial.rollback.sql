-- 0001 initial, the way back

--
-- schema/rollback_initial.sql
--

--
-- The way back from the first version: the schema, with everything in it
--
-- Roles stay: they belong to the whole cluster, where another database may use them. Where jobs would be lost it
-- raises QF003 and nothing happens, unless the setting fairq_rollback.lose_jobs says yes.

do $fn$
begin
    perform pg_catalog.set_config('fairq_install.path', pg_catalog.current_setting('search_path'), true);
end
$fn$;
set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '500ms';
set local client_min_messages = warning;

do $fn$
begin
    perform set_config('fairq_install.in_transaction', 'yes', true);
end
$fn$;

do $fn$
declare
    v_version integer := current_setting('server_version_num')::integer;
    v_super   boolean := (select r.rolsuper from pg_catalog.pg_roles as r where r.rolname = current_user);
begin
    if current_setting('fairq_install.in_transaction', true) is distinct from 'yes' then
        raise exception 'this rollback must run in one transaction'
            using errcode = '25P01', hint = 'With psql: psql -X -1 -v ON_ERROR_STOP=1 -f FILE.';
    end if;
    -- as in roles.sql: act as the owner for this transaction only, and give back at the end what was taken here
    perform set_config('fairq_rollback.taken', 'no', true);
    if v_super
       or pg_has_role(current_user, 'fairq_owner', case when v_version >= 160000 then 'SET' else 'MEMBER' end) then
        return;
    end if;
    execute format(
        'grant %I to current_user %s', 'fairq_owner',
        case when v_version >= 160000 then 'with inherit false, set true' else '' end
    );
    perform set_config('fairq_rollback.taken', 'yes', true);
exception when insufficient_privilege then
    raise exception '% may not act as %', current_user, 'fairq_owner'
        using
            errcode = '42501',
            hint = format('Ask its administrator to run: grant %I to %I;', 'fairq_owner', current_user);
end
$fn$;

set local role fairq_owner;

do $fn$
declare
    v_table text;
    v_jobs  bigint;
begin
    if current_setting('fairq_rollback.lose_jobs', true) = 'yes' then
        return;
    end if;
    -- The owner too is bound by row security that is forced, and would count no jobs where there are some. Altering
    -- a table also locks it: no job comes in after the count.
    for v_table in
        select c.oid::regclass::text
        from pg_catalog.pg_class as c
        where c.relnamespace = 'fairq'::regnamespace
          and c.relkind in ('r', 'p')
    loop
        execute format('alter table %s no force row level security', v_table);
    end loop;
    select count(*) into v_jobs from fairq.all_jobs as j;
    if v_jobs > 0 then
        raise exception 'rolling back would lose % job%', v_jobs, case when v_jobs = 1 then '' else 's' end
            using
                errcode = 'QF003',
                hint = 'Repeat it with: fairq rollback --yes, or set fairq_rollback.lose_jobs = ''yes''.';
    end if;
end
$fn$;

drop schema fairq cascade;

reset role;

do $fn$
begin
    if current_setting('fairq_rollback.taken') = 'yes' then
        revoke fairq_owner from current_user;
    end if;
    perform set_config(
        'search_path',
        coalesce(nullif(current_setting('fairq_install.path', true), ''), current_setting('search_path')), true
    );
end
$fn$;
