-- reconcile: the scheduler's counts against the rows they count.
select plan(13);

-- given three tenants: one that runs, one that waits, one that has ended
select fairq_test.given_jobs(t, 3) from (values ('runs'), ('waits')) as v(t);
select fairq_test.given_jobs('ended', 1);
create temp table held as select * from fairq_test.claim(5);
select fairq.complete_job(h.job_id, h.lease_token) from held as h where h.tenant = 'ended';
create function pg_temp.wrong() returns bigint language sql as $fn$
    select count(*) from fairq._drift('default', 100)
$fn$;

select is(count(*), 1::bigint, 'given an ending that no claim has heard of') from fairq.settlements;
select is(pg_temp.wrong(), 0::bigint, 'the books are right: it is reckoned with');
select is_empty('select * from fairq.reconcile()', 'so there is no row');
select is(count(*), 1::bigint, 'and no look where the queue was claimed from within the minute') from fairq.settlements;
update fairq.ticks as t set ticked_at = t.ticked_at - interval '2 minutes';
select is_empty('select * from fairq.reconcile()', 'after a minute there is no row either');
select is(count(*), 0::bigint, 'but a look, which reads what has ended') from fairq.settlements;

-- wrong counts
update fairq.flows as f set running = f.running + 1 where f.tenant <> 'waits';
select results_eq(
    'select task, done, lags, why from fairq.reconcile()',
    $$ values ('default', 2::bigint, false, '2 counts of the scheduler were wrong') $$, 'wrong counts of tenants are set right'
);
select is(pg_temp.wrong(), 0::bigint, 'and are right');
update fairq.ticks as t set running = 7, backlogged = 9, milliweight = 1;
select results_eq(
    'select task, done, lags, why from fairq.reconcile(''default'')',
    $$ values ('default', 1::bigint, false, '1 counts of the scheduler were wrong') $$, 'and those of the queue'
);
select is(pg_temp.wrong(), 0::bigint, 'are right, too');
select is(count(*), 2::bigint, 'and the queue goes on') from fairq_test.claim(5);

select fairq_test.refuses(
    'select * from fairq.reconcile(p_limit => 0)', '22023', 'p_limit', 'refused: a limit of nothing'
);
begin isolation level repeatable read;
select throws_ok('select * from fairq.reconcile()', '0A000', null, 'an old snapshot is refused');
rollback;

select * from finish();
