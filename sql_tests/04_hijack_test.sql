-- A caller's temporary types, tables and operators never run code with the functions' rights.
select plan(8);

-- a run that failed may have left it
drop role if exists fairq_test_thief;
create role fairq_test_thief login in role fairq_worker, fairq_producer, fairq_operator;
grant create on database :DBNAME to fairq_test_thief;

-- Acting as the thief: whatever is his and is reached, leaves a trace that no rollback takes back
set session authorization fairq_test_thief;
create schema trap;
create sequence trap.traces;
create function trap.leave(p_any anyelement) returns boolean language sql as $fn$
    select nextval('trap.traces') > 0
$fn$;
create function trap.leave_row() returns trigger language plpgsql as $fn$
    begin perform nextval('trap.traces'); return new; end
$fn$;
create function trap.same(text, text) returns boolean language sql as $fn$
    select nextval('trap.traces') > 0
$fn$;
create function trap.clock_timestamp() returns timestamptz language sql as $fn$
    select nextval('trap.traces'); select '2000-01-01'::timestamptz
$fn$;
create function trap.gen_random_uuid() returns uuid language sql as $fn$
    select nextval('trap.traces'); select '00000000-0000-0000-0000-000000000000'::uuid
$fn$;
create function trap.current_setting(text, boolean) returns text language sql as $fn$
    select nextval('trap.traces')::text
$fn$;
create operator trap.= (leftarg = text, rightarg = text, function = trap.same);
grant usage on schema trap to public;
grant usage on sequence trap.traces to public;

create temp table jobs (like pg_class);
create temp table leases (like pg_class);
create temp table tenants (like pg_class);
create temp table access_grants (like pg_class);
create temp table pg_locks (like pg_class);
create trigger trap before insert or update on jobs for each row execute function trap.leave_row();
create trigger trap before insert or update on leases for each row execute function trap.leave_row();
grant all on jobs, leases, tenants, access_grants, pg_locks to public;

create domain pg_temp.jsonb as pg_catalog.jsonb check (trap.leave(value));
create domain pg_temp.uuid as pg_catalog.uuid check (trap.leave(value));
create domain pg_temp.timestamptz as pg_catalog.timestamptz check (trap.leave(value));
create domain pg_temp.int4 as pg_catalog.int4 check (trap.leave(value));
create domain pg_temp.int8 as pg_catalog.int8 check (trap.leave(value));
create domain pg_temp.bytea as pg_catalog.bytea check (trap.leave(value));
create domain pg_temp.text as pg_catalog.text check (trap.leave(value));

set search_path = trap, pg_catalog, pg_temp;
select (e).job_id as first, (e).created from (
    select fairq.enqueue_job('a', 't', '{"x": 1}', p_key => 'k', p_max_attempts => 9) as e
) as s \gset
select count(*) as enqueued
from fairq.enqueue_jobs('[{"tenant": "a", "task": "t"}, {"tenant": "b", "task": "t", "key": "k"}]') \gset
select job_id as job, lease_token as token
from fairq.claim_jobs(p_owner => 'thief', p_limit => 1, p_tenant => 'a') \gset
select fairq.renew_job_lease(:job, :'token', '1 minute') as renewed \gset
select fairq.fail_job(:job, :'token', '{"code": "E"}', '0') as failed \gset
select lease_token as token from fairq.claim_jobs(p_owner => 'thief', p_limit => 1, p_tenant => 'a') \gset
select fairq.release_job(:job, :'token') as released \gset
select lease_token as token from fairq.claim_jobs(p_owner => 'thief', p_limit => 1, p_tenant => 'a') \gset
select fairq.complete_job(:job, :'token', '{"ok": true}') as completed \gset
select fairq.cancel_job(:job + 1) as cancelled \gset
select fairq.retry_job(:job + 1) as retried \gset
select fairq.reschedule_job(:job + 1, p_priority => 0) as rescheduled \gset
select fairq.prune() as pruned, fairq.promote_due_jobs() as promoted, fairq.release_expired_jobs() as expired \gset
select fairq.explain_wait(:job + 1) as waits \gset
select fairq.set_tenant('default', 'a', 2) as set \gset
select is_called as trapped from trap.traces \gset

reset search_path;
drop domain pg_temp.text, pg_temp.jsonb, pg_temp.uuid, pg_temp.timestamptz, pg_temp.int4, pg_temp.int8, pg_temp.bytea;
reset session authorization;
set search_path = tap, public;
select is(:'trapped'::boolean, false, 'no code of the caller''s ran');
select is(:'token' = '00000000-0000-0000-0000-000000000000', false, 'the token is the server''s own');
select is(:enqueued, 2, 'jobs are enqueued');
select is(
    :'renewed' || :'failed' || :'released' || :'completed', 'tqueuedqueuedt', 'renew, fail, release and complete work'
);
select is(:'cancelled' || :'retried' || :'rescheduled', 'cancelledqueuedqueued', 'cancel, retry and reschedule work');

-- Settings of the caller that change the meaning of code
set standard_conforming_strings = off;
set transform_null_equals = on;
set array_nulls = off;
set "plpgsql.check_asserts" = off;
set "plpgsql.print_strict_params" = on;
set extra_float_digits = -15;
set datestyle = 'SQL, DMY';
set intervalstyle = 'sql_standard';
set bytea_output = 'escape';
select is(
    (fairq.enqueue_job('a', 'q''); drop table fairq.jobs; --', '{"$$;select 1;--": null}', p_key => '$$;select 1;--')).created,
    true, 'hostile names are stored as they are, whatever the caller has set'
);
select is(fairq.cancel_job(hostile.job_id), 'cancelled', 'and found again')
from (select max(j.job_id) as job_id from fairq.all_jobs as j where j.task = 'q''); drop table fairq.jobs; --') as hostile;
select fairq_test.refuses(
    'select fairq.fail_job(1, gen_random_uuid(), p_retry_delay => ''-1 s'')', '22023', 'p_retry_delay',
    'and a bad argument is refused'
);

select * from finish();
drop owned by fairq_test_thief;
drop role fairq_test_thief;
