-- The verbs pgTAP files and race specs are written in. Never shipped: loaded into the tests' template database.
-- Run by a superuser; after fairq_test.as_role('fairq_worker') everything is done with that role's rights.

create schema fairq_test;
grant usage on schema fairq_test to public;
comment on schema fairq_test is 'Verbs of the tests; no part of fairq.';

create function fairq_test.given_tenant(
    p_tenant text,
    p_weight double precision default 1,
    p_max_running integer default null,
    p_paused boolean default false,
    p_queue text default 'default'
)
    returns void
    language sql
as $fn$
    select fairq.set_tenant(
        p_queue => p_queue, p_tenant => p_tenant, p_weight => p_weight,
        p_max_running => p_max_running, p_paused => p_paused
    )
$fn$;
comment on function fairq_test.given_tenant is 'An operator has stated his wish for a tenant.';

create function fairq_test.given_jobs(
    p_tenant text,
    p_count integer default 1,
    p_queue text default 'default',
    p_priority integer default 2,
    p_delay interval default null,
    p_task text default 'work',
    p_max_attempts integer default null,
    p_payload jsonb default '{}'
)
    returns setof bigint
    language sql
as $fn$
    select (fairq.enqueue_job(
        p_tenant => p_tenant, p_task => p_task, p_payload => p_payload, p_queue => p_queue, p_delay => p_delay,
        p_priority => p_priority, p_max_attempts => p_max_attempts
    )).job_id
    from generate_series(1, p_count)
$fn$;
comment on function fairq_test.given_jobs is
    'A producer has enqueued some equal jobs: their ids. They are claimable once this statement is committed.';

create function fairq_test.claim(
    p_limit integer default 1,
    p_queue text default 'default',
    p_owner text default 'worker',
    p_lease interval default null,
    p_tenant text default null
)
    returns setof fairq.claimed_job
    language sql
as $fn$
    select *
    from fairq.claim_jobs(
        p_queue => p_queue, p_owner => p_owner, p_limit => p_limit, p_lease => p_lease, p_tenant => p_tenant
    )
$fn$;
comment on function fairq_test.claim is 'A worker claims: the jobs in pick order.';

create function fairq_test.state_of(p_job_id bigint)
    returns text
    language sql
as $fn$
    select j.state
    from fairq.all_jobs as j
    where j.job_id = p_job_id
$fn$;
comment on function fairq_test.state_of is 'The state of a job in the user''s words.';

create function fairq_test.as_role(p_role text)
    returns void
    language sql
as $fn$
    select set_config('role', p_role, false)
$fn$;
comment on function fairq_test.as_role is 'From now on the session acts as that role; ''none'' is the superuser again.';

create function fairq_test.forget_everything()
    returns void
    language plpgsql
as $fn$
begin
    delete from fairq.leases;
    delete from fairq.jobs;
    delete from fairq.finished_jobs;
    delete from fairq.job_log;
    delete from fairq.job_keys;
    delete from fairq.settlements;
    delete from fairq.flows;
    delete from fairq.ticks;
    delete from fairq.schedulers;
end
$fn$;
comment on function fairq_test.forget_everything is 'An empty queue again, for the next permutation of a race spec.';

create function fairq_test.lease_is_over()
    returns void
    language sql
as $fn$
    -- the scheduler has looked ahead: it must look again
    update fairq.ticks set expire_floor = '-infinity';
    update fairq.leases set lease_expires_at = clock_timestamp()
$fn$;
comment on function fairq_test.lease_is_over is 'Time has passed, and every lease is over.';

create view fairq_test.jobs as
select
    j.tenant,
    j.state,
    j.attempts,
    count(*) as jobs
from fairq.all_jobs as j
group by j.tenant, j.state, j.attempts
order by j.tenant, j.state, j.attempts;
comment on view fairq_test.jobs is 'What a race spec may print of jobs: nothing that changes from run to run.';

create function fairq_test.given_lease_over(p_job_id bigint)
    returns void
    language sql
as $fn$
    -- the scheduler has looked ahead: it must look again
    update fairq.ticks set expire_floor = '-infinity';
    update fairq.leases as l
    set lease_expires_at = clock_timestamp()
    where l.job_id = p_job_id
$fn$;
comment on function fairq_test.given_lease_over is
    'The lease of a running job has just ended, and nobody has noticed yet.';

create function fairq_test.timeline(p_job_id bigint)
    returns text
    language sql
as $fn$
    select string_agg(
        format('%s %s%s', e.event_type, e.attempt, ' by ' || e.actor), ', ' order by e.created_at, e.attempt
    )
    from fairq.job_events as e
    where e.job_id = p_job_id
$fn$;
comment on function fairq_test.timeline is 'What happened to a job: event, attempt and actor, in order.';

create function fairq_test.refuses(p_call text, p_code text, p_names text, p_rule text)
    returns text
    language plpgsql
as $fn$
declare
    v_code text := 'no error';
    v_said text;
begin
    begin
        execute p_call;
    exception when others then
        v_code := sqlstate;
        v_said := sqlerrm;
    end;
    return tap.ok(v_code = p_code and strpos(v_said, p_names) > 0, p_rule)
        || case when v_code = p_code and strpos(v_said, p_names) > 0 then ''
                else e'\n' || tap.diag(format('wanted %s naming "%s", got %s: %s', p_code, p_names, v_code, v_said))
           end;
end
$fn$;
comment on function fairq_test.refuses is
    'An assertion: the call raises this code, and the message names what is wrong.';
