-- try again: errors of races that nobody can time are provoked by triggers and policies that play the other session.
select plan(9);

select fairq_test.given_jobs('a', 2);
create temp table held as select * from fairq_test.claim(1);
create temp table waiting as
select j.job_id from fairq.jobs as j where not exists (select from fairq.leases as l where l.job_id = j.job_id);
create function public.fairq_test_write_nothing() returns trigger language plpgsql as $fn$ begin return null; end $fn$;

-- enqueue: each time that the key is to be written another one has it, and has gone when it is looked up
begin;
create trigger a_rival before insert on fairq.job_keys for each row execute function public.fairq_test_write_nothing();
select throws_ok(
    'select fairq.enqueue_job(''a'', ''t'', p_key => ''k'')', '40001', null, 'a key that keeps changing hands is an error'
);
select throws_ok(
    'select fairq.enqueue_jobs(''[{"tenant": "a", "task": "t", "key": "k"}]'')', '40001', null,
    'a key that keeps changing hands is an error of its whole batch'
);
rollback;

-- cancel: the job is claimed after its lease was looked for, and given back before the next look
begin;
create policy a_rival on fairq.leases as restrictive for update using (false);
select throws_ok(
    format('select fairq.cancel_job(%s)', h.job_id), '40001', null, 'a job that keeps moving is not cancelled'
)
from held as h;
select is_empty(
    'select from fairq.job_log as g where g.event_type = ''cancel_requested''', 'a cancel that gave up has asked nobody to stop'
);
rollback;

-- complete: a rebuild has changed the job's row under its lease
begin;
create policy a_rival on fairq.jobs as restrictive for delete using (false);
select throws_ok(
    format('select fairq.complete_job(%s, %L)', h.job_id, h.lease_token), '40001', null,
    'a job whose row was changed under its lease is not completed'
)
from held as h;
select throws_ok(
    format('select fairq.complete_jobs(array[%s], array[%L]::uuid[])', h.job_id, h.lease_token), '40001', null,
    'a job whose row was changed under its lease fails its whole batch'
)
from held as h;
rollback;
select is(fairq.complete_job(h.job_id, h.lease_token), true, 'a complete that was to be tried again is, and succeeds')
from held as h;

-- claim: the row that is the queue's lock is not to be had
begin;
create trigger a_rival before insert on fairq.schedulers
for each row execute function public.fairq_test_write_nothing();
select fairq_test.given_jobs('a', 1, 'new');
select throws_ok(
    'select fairq.claim_jobs(''new'', ''w'')', '55000', null, 'a queue whose lock cannot be taken is not claimed from'
);
rollback;
select is(fairq.cancel_job(w.job_id), 'cancelled', 'a waiting job is cancelled once nobody interferes') from waiting as w;

select * from finish();
