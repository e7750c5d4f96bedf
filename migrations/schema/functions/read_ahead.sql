--
-- read_ahead: queued -> ready -> running
--
-- A claim of a queue that reads ahead picks more than it was asked for, under the queue's lock and in the usual order;
-- what is not its own is ready: it has a lease that nobody holds. The claims that follow take from there, without the
-- lock. A ready job that nobody takes within the queue's default lease waits again, as if it had not been picked.

create or replace function fairq._take_ready(
    p_queue text, p_owner text, p_caller text, p_limit integer, p_lease interval, p_is_paused boolean,
    p_now timestamptz
)
    returns fairq.claimed_job[]
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- ready -> running: up to p_limit jobs, in the order in which they were picked, as far as nobody else is taking them.
--
-- Fair:   they are charged and counted already. Of a tenant, or a queue, that is paused none is taken.
-- Locks:  the leases' rows, skipping those held by others. Not the jobs': who wants one away takes its lease first.
-- Index:  leases_ready_idx, from the ready floor; ticks_pkey, tenants_pkey, jobs_pkey.
declare
    v_claimed fairq.claimed_job[];
begin
    if p_is_paused then
        return '{}';
    end if;
    with ready as (
        select l.ctid as row_id from fairq.leases as l
        where l.queue = p_queue and l.started_at is null and l.lease_expires_at > p_now
          and l.dispatch >= (
              select t.ready_floor from fairq.ticks as t where t.queue = p_queue order by t.tick_id desc limit 1
          )
          and (
              select t.paused from fairq.tenants as t
              where t.tenant in (l.tenant, '*') and t.queue = p_queue
              order by t.tenant = '*'
              limit 1
          ) is not true
        order by l.dispatch
        limit p_limit
        for update of l skip locked
    ), taken as (
        update fairq.leases as l
        set
            caller = p_caller, lease_owner = p_owner, lease_token = gen_random_uuid(), started_at = p_now,
            lease_expires_at = p_now + p_lease
        from ready as r
        where l.ctid = r.row_id
        returning l.job_id, l.tenant, l.attempt, l.lease_token, l.lease_expires_at, l.dispatch
    )
    select array_agg(
        row(
            t.job_id, p_queue, t.tenant, j.task, case when pg_column_size(j.payload) < 2000 then j.payload end,
            j.priority, t.attempt, j.max_attempts, t.lease_token, t.lease_expires_at, j.run_at, j.created_at
        )::fairq.claimed_job order by t.dispatch
    )
    into v_claimed
    from taken as t
    cross join lateral (
        select jj.* from fairq.jobs as jj where jj.job_id = t.job_id offset 0
    ) as j;
    return coalesce(v_claimed, '{}');
end
$fn$;
comment on function fairq._take_ready(text, text, text, integer, interval, boolean, timestamptz) is 'Leases ready jobs to a worker. Internal.';
revoke all on function fairq._take_ready(text, text, text, integer, interval, boolean, timestamptz) from public;

create or replace function fairq._withdraw(p_job_id bigint)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- ready -> queued: a job that nobody has taken yet is again one that waits, as far as it is one. Its tenant gets back
-- what it was charged.
--
-- Locks:  the lease's row, then the job's.
declare
    v_lease fairq.leases;
begin
    select l.* into v_lease from fairq.leases as l where l.job_id = p_job_id and l.started_at is null for update;
    if found then
        perform fairq._settle(v_lease.queue, fairq._ending(v_lease, 'nothing', clock_timestamp()));
        perform fairq._put_back(v_lease, v_lease.attempt - 1, null, null);
    end if;
end
$fn$;
comment on function fairq._withdraw(bigint) is 'Makes a ready job wait again. Internal.';
revoke all on function fairq._withdraw(bigint) from public;
