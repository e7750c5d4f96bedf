--
-- claim: queued -> running
--

create or replace function fairq._limit_idle_transaction()
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A session that forgets its transaction after a claim would stop the queue: at most 10 s of idleness, for this
-- transaction.
begin
    return case
        when current_setting('idle_in_transaction_session_timeout')::interval
            between interval '1 microsecond' and interval '10 seconds' then true
        else set_config('idle_in_transaction_session_timeout', '10s', true) is not null
    end;
end
$fn$;
comment on function fairq._limit_idle_transaction() is 'Bounds how long an idle transaction may hold a queue''s lock. Internal.';
revoke all on function fairq._limit_idle_transaction() from public;

create or replace function fairq._check_claim(p_queue text, p_owner text, p_limit integer, p_lease interval)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for the first argument that is out of its range; 0A000 above READ COMMITTED.
declare
    -- assigned, not performed: an expression costs less than a statement
    v_is_good boolean := fairq._check_name('p_queue', p_queue, 200) and fairq._check_name('p_owner', p_owner, 200)
        and fairq._check_limit(p_limit, 1000);
begin
    if p_lease is not null then
        -- the longest that a queue may allow: what this one does, _take asks
        v_is_good := fairq._check_span('p_lease', p_lease, interval '1 millisecond', interval '7 days');
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'claim_jobs() cannot run at isolation level %', current_setting('transaction_isolation')
            using
                errcode = '0A000',
                hint = 'Claim in a READ COMMITTED transaction: caps and order are judged on what is committed.';
    end if;
    return v_is_good;
end
$fn$;
comment on function fairq._check_claim(text, text, integer, interval) is 'Raises for an argument of a claim. Internal.';
revoke all on function fairq._check_claim(text, text, integer, interval) from public;

create or replace function fairq.claim_jobs(
    p_queue        text default 'default',
    p_owner        text default null,
    p_limit        integer default 10,
    p_lease        interval default null,
    p_tenant       text default null,
    p_async_commit boolean default false
)
    returns setof fairq.claimed_job
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- Tables here are empty one moment and huge the next, and are never analyzed in between: each statement has one
    -- index that serves it, and the planner is not to think of anything else (measured: a join turned round costs
    -- 42,000 buffers). The settings hold for every step called from here.
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    set enable_material = off
    set jit = off
as $fn$
-- queued -> running
--
-- Fair:   between tenants by weight, within a tenant by priority, run_at, job_id; see functions/scheduler.sql.
-- Locks:  the queue's lock, to the end of the transaction: claim in a transaction of its own. Jobs that are ready are
--         had without it, and whoever has some does not wait for it; whoever leaves few takes it if it is free.
-- Long:   from the arguments to the answer, so that a claim is read in one place.
-- Raises: 22023 for a bad argument; 42501 for who may claim for its own tenant alone, and has none; 0A000 above READ
--         COMMITTED; 55P03 when the queue's lock was not free in time.
declare
    v_is_good boolean;
    v_caller  text := fairq._caller();
    v_tenants text[] := '{*}';
    v_claimed fairq.claimed_job[];
    v_job     fairq.claimed_job;
begin
    -- as in _check_claim, which says what is wrong: most claims need no more than this one expression
    if p_lease is not null or (
        octet_length(p_queue) <= 200 and p_queue not in ('*', '@own')
        and (p_queue >= '!' collate "C" and p_queue <= '~' collate "C" or p_queue ~ '[^[:space:]]')
        and octet_length(p_owner) <= 200 and p_owner not in ('*', '@own')
        and (p_owner >= '!' collate "C" and p_owner <= '~' collate "C" or p_owner ~ '[^[:space:]]')
        and p_limit between 1 and 1000
        and current_setting('transaction_isolation') in ('read committed', 'read uncommitted')
    ) is not true then
        -- assigned, not performed: an expression costs less than a statement
        v_is_good := fairq._check_claim(p_queue, p_owner, p_limit, p_lease);
    end if;
    if p_async_commit then
        v_is_good := set_config('synchronous_commit', 'off', true) is not null;
    end if;
    v_is_good := fairq._limit_idle_transaction();

    v_claimed := fairq._take(p_queue, p_owner, v_caller, p_limit, p_lease, p_tenant is null);
    -- mostly it is what was asked for, where a queue reads ahead
    if cardinality(v_claimed) is distinct from p_limit then
        if v_claimed is null then
            v_tenants := fairq._granted_tenants('claim', p_queue, v_caller);
            v_claimed := '{}';
        end if;
        p_limit := p_limit - cardinality(v_claimed);
        if p_limit > 0 and v_claimed <> '{}' then
            -- who waited now might hand out what is over by then
            perform from fairq.schedulers as s where s.queue = p_queue for update skip locked;
            if not found then
                p_limit := 0;
            end if;
        end if;
        if p_tenant is not null then
            v_is_good := fairq._check_name('p_tenant', p_tenant, 200);
            v_tenants := case when v_tenants = '{*}' or p_tenant = any (v_tenants) then array[p_tenant] else '{}' end;
        end if;
        -- nothing that is granted here looks like a queue with no work
        if p_limit > 0 and v_tenants <> '{}' then
            -- a statement of its own: the snapshot of one that calls it is older than the lock
            v_claimed := v_claimed || fairq._dispatch(p_queue, p_owner, v_caller, p_limit, p_lease, v_tenants);
        end if;
    end if;
    foreach v_job in array v_claimed loop
        -- a great one was left behind by _lease
        if v_job.payload is null then
            select j.payload into v_job.payload from fairq.jobs as j where j.job_id = v_job.job_id;
        end if;
        return next v_job;
    end loop;
end
$fn$;
comment on function fairq.claim_jobs(text, text, integer, interval, text, boolean) is 'queued -> running: leases up to p_limit jobs of a queue to p_owner for p_lease, in fair order; p_tenant restricts it to one tenant. p_async_commit is the caller''s word that its transaction does nothing else: its commit does not wait for the disk, and a server crash may return the job to the queue as if it had not been claimed.';
revoke all on function fairq.claim_jobs(text, text, integer, interval, text, boolean) from public;
grant execute on function fairq.claim_jobs(text, text, integer, interval, text, boolean) to fairq_worker;
