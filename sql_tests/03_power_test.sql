-- What even the functions' own role may not do, and that the log stays as it is, whoever asks.
select plan(37);

select fairq_test.given_jobs('a');
create temp table held as select * from fairq_test.claim();
select fairq.fail_job(h.job_id, h.lease_token, 'boom') from held as h;

-- Acting as the functions' role: what a mistake in one of them could do
set role fairq_api;
select throws_ok(t.what, '42501', null, 'the functions'' role may not: ' || t.what)
from (values
    ('update fairq.jobs set tenant = ''b'''), ('update fairq.jobs set payload = ''{}'''),
    ('update fairq.jobs set job_id = 1'),
    ('update fairq.jobs set queue = ''q'''), ('update fairq.jobs set max_attempts = 9'),
    ('update fairq.leases set lease_token = gen_random_uuid()'), ('update fairq.leases set caller = ''me'''),
    ('update fairq.finished_jobs set result = null'), ('update fairq.job_log set details = ''{}'''),
    ('delete from fairq.job_log'), ('truncate fairq.job_log'), ('truncate fairq.jobs'),
    ('truncate fairq.finished_jobs'),
    ('delete from fairq.job_keys'), ('delete from fairq.tenants'), ('delete from fairq.queues'),
    ('delete from fairq.access_grants'), ('insert into fairq.access_grants values (''x'', ''claim'')'),
    ('update fairq.access_grants set tenant = ''*'''), ('update fairq.tenants set tenant = ''b'''),
    ('create table fairq.mine ()'), ('drop table fairq.jobs'), ('alter table fairq.jobs no force row level security'),
    ('alter table fairq.job_log disable trigger all'), ('drop policy tenant_fence on fairq.jobs'),
    ('select fairq.prune()')
) as t(what);
select throws_ok(
    'insert into fairq.schedulers values (''q''); update fairq.schedulers set queue = ''other''', '42501', null,
    'a row of the queue''s lock may be locked, not changed'
);
reset role;

-- The log, whoever asks
create temp table changes (what text);
insert into changes values
    ('update fairq.job_log set attempt = 0'), ('delete from fairq.job_log'), ('truncate fairq.job_log');
grant select on changes to public;
set role fairq_owner;
select throws_ok(t.what, '42501', null, 'the owner may not: ' || t.what)
from changes as t;
reset role;
select throws_ok(t.what, '42501', null, 'a superuser may not: ' || t.what)
from changes as t;
set session_replication_role = replica;
select throws_ok(t.what, '42501', null, 'nor one that replays as a replica: ' || t.what)
from changes as t;
reset session_replication_role;
select results_eq(
    'select g.event_type, g.attempt from fairq.job_log as g', $$ values ('retry_scheduled', 1) $$,
    'the log is as it was'
);

select * from finish();
