--
-- settings: what operators want of queues and tenants; in force at the next pick
--

create or replace function fairq._check_tenant_or_all(p_tenant text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    if p_tenant is distinct from '*' then
        perform fairq._check_name('p_tenant', p_tenant, 200);
    end if;
end
$fn$;
comment on function fairq._check_tenant_or_all(text) is 'Raises 22023 for what is neither a tenant nor *. Internal.';
revoke all on function fairq._check_tenant_or_all(text) from public;

create or replace function fairq._check_pace(
    p_max_running integer, p_no_cap text, p_rate double precision, p_no_rate text, p_burst integer
)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Cap, rate and burst of a tenant or a queue; p_no_cap and p_no_rate say how a caller takes the first two away.
--
-- Raises: 22023 for the first that is out of its range.
begin
    if p_max_running < 0 then
        perform fairq._refuse(
            'p_max_running', p_max_running::text, format('a number from 0, or %s for no cap', p_no_cap)
        );
    end if;
    if not (p_rate >= 0.000001 and p_rate <= 1000000) then
        perform fairq._refuse(
            'p_rate', p_rate::text, format('jobs per second, from 0.000001 to 1000000, or %s for no limit', p_no_rate)
        );
    end if;
    if p_burst is null or p_burst not between 1 and 1000000 then
        perform fairq._refuse('p_burst', p_burst::text, 'a number from 1 to 1000000');
    end if;
end
$fn$;
comment on function fairq._check_pace(integer, text, double precision, text, integer) is 'Raises 22023 for a cap, rate or burst out of range. Internal.';
revoke all on function fairq._check_pace(integer, text, double precision, text, integer) from public;

create or replace function fairq.set_tenant(
    p_queue       text,
    p_tenant      text,
    p_weight      double precision default 1,
    p_max_running integer default null,
    p_paused      boolean default false,
    p_rate        double precision default null,
    p_burst       integer default 1
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- The whole wish is replaced: what is not given goes back to its default.
--
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a weight, cap, rate or burst out of range.
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_tenant_or_all(p_tenant);
    if p_weight is null or not (p_weight >= 0.001 and p_weight <= 1000000) then
        perform fairq._refuse('p_weight', p_weight::text, 'a number from 0.001 to 1000000');
    end if;
    if p_paused is null then
        perform fairq._refuse('p_paused', null, 'true or false');
    end if;
    perform fairq._check_pace(p_max_running, 'null', p_rate, 'null', p_burst);

    insert into fairq.tenants as t (queue, tenant, weight, max_running, paused, rate, burst)
    values (p_queue, p_tenant, p_weight, p_max_running, p_paused, p_rate, p_burst)
    on conflict (tenant, queue) do update
    set
        weight = excluded.weight, max_running = excluded.max_running, paused = excluded.paused, rate = excluded.rate,
        burst = excluded.burst;
end
$fn$;
comment on function fairq.set_tenant(text, text, double precision, integer, boolean, double precision, integer) is 'Sets weight, cap, pause and rate of a tenant in a queue, or, as tenant *, of all tenants that have none of their own; from the next pick on. All of them: what is not given goes back to its default. p_rate is in jobs started per second, p_burst the size of its token bucket. Lowering a cap stops nothing that runs.';
revoke all on function fairq.set_tenant(
    text, text, double precision, integer, boolean, double precision, integer
) from public;
grant execute on function fairq.set_tenant(
    text, text, double precision, integer, boolean, double precision, integer
) to fairq_operator;

create or replace function fairq._pause_tenant(p_queue text, p_tenant text, p_paused boolean)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A tenant that had no row of its own keeps what * gives it.
declare
    v_wish fairq.tenants;
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_tenant_or_all(p_tenant);
    v_wish := fairq._wish(p_queue, p_tenant);
    insert into fairq.tenants as t (queue, tenant, weight, max_running, paused, rate, burst)
    values (p_queue, p_tenant, v_wish.weight, v_wish.max_running, p_paused, v_wish.rate, v_wish.burst)
    on conflict (tenant, queue) do update set paused = excluded.paused;
end
$fn$;
comment on function fairq._pause_tenant(text, text, boolean) is 'Pauses or resumes a tenant. Internal.';
revoke all on function fairq._pause_tenant(text, text, boolean) from public;

create or replace function fairq.pause_tenant(p_queue text, p_tenant text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq._pause_tenant(p_queue, p_tenant, true);
end
$fn$;
comment on function fairq.pause_tenant(text, text) is 'Nothing of the tenant is started from the next pick on; what runs goes on. Its weight, cap and rate stay.';
revoke all on function fairq.pause_tenant(text, text) from public;
grant execute on function fairq.pause_tenant(text, text) to fairq_operator;

create or replace function fairq.resume_tenant(p_queue text, p_tenant text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq._pause_tenant(p_queue, p_tenant, false);
end
$fn$;
comment on function fairq.resume_tenant(text, text) is 'Ends a pause. The time it lasted earns the tenant at most one job of precedence.';
revoke all on function fairq.resume_tenant(text, text) from public;
grant execute on function fairq.resume_tenant(text, text) to fairq_operator;

create or replace function fairq.purge_tenant(p_queue text, p_tenant text, p_limit integer default 1000)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
    set enable_hashjoin = off
    set enable_mergejoin = off
    -- each index has the order that is asked for
    set enable_sort = off
as $fn$
-- queued, scheduled -> cancelled: the tenant's waiting jobs, each with its event; what runs goes on
--
-- What was claimed since the list was begun is passed by before its row is locked: who holds a job's row must never
-- make the worker that ends it wait.
-- Locks:  the jobs' rows, skipping those held by others: no claim waits, and none is taken from it.
-- Index:  jobs_claim_idx, then jobs_purge_idx.
-- Raises: 22023 for a bad argument; 40001 when a job was claimed at the very moment it was locked.
declare
    v_actor text := fairq._caller();
    v_id    bigint;
    v_job   fairq.jobs;
    v_total integer := 0;
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_name('p_tenant', p_tenant, 200);
    perform fairq._check_limit(p_limit, 100000);

    for v_id in
        (
            select j.job_id from fairq.jobs as j
            where j.queue = p_queue and j.tenant = p_tenant and j.state = 'queued'
              and not exists (select from fairq.leases as l where l.job_id = j.job_id offset 0)
            order by j.priority, j.run_at, j.job_id
            limit p_limit
        )
        union all
        (
            select j.job_id from fairq.jobs as j
            -- a tenant written as a range is part of the order, which only jobs_purge_idx has
            where j.queue = p_queue and j.state = 'scheduled'
              and j.tenant > '' and j.tenant >= p_tenant and j.tenant <= p_tenant
            order by j.tenant, j.run_at, j.job_id
            limit p_limit
        )
        limit p_limit
    loop
        continue when exists (select from fairq.leases as l where l.job_id = v_id);

        select j.* into v_job from fairq.jobs as j where j.job_id = v_id for update skip locked;
        continue when not found;

        if exists (select from fairq.leases as l where l.job_id = v_id) then
            raise exception 'job % was claimed while it was purged', v_id using errcode = '40001', hint = 'Try again.';
        end if;
        perform fairq._cancel_waiting(v_job, v_actor);
        v_total := v_total + 1;
    end loop;
    return v_total;
end
$fn$;
comment on function fairq.purge_tenant(text, text, integer) is 'Cancels up to p_limit of a tenant''s queued and scheduled jobs; returns how many. Call it until it returns 0.';
revoke all on function fairq.purge_tenant(text, text, integer) from public;
grant execute on function fairq.purge_tenant(text, text, integer) to fairq_operator;

create or replace function fairq._check_settings(p_new fairq.queues)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The rules of the table's constraints, told by the names of the arguments.
--
-- Raises: 22023 for the first setting that is out of its range, given the others.
begin
    if p_new.charge not in ('time', 'jobs', 'cost') then
        perform fairq._refuse('p_charge', p_new.charge, 'time, jobs or cost');
    end if;
    perform fairq._check_pace(p_new.max_running, '-1', p_new.rate, '0', p_new.burst);
    perform fairq._check_span('p_longest_lease', p_new.longest_lease, interval '1 millisecond', interval '7 days');
    perform fairq._check_span('p_default_lease', p_new.default_lease, interval '1 millisecond', p_new.longest_lease);
    if p_new.max_attempts not between 1 and 1000 then
        perform fairq._refuse('p_max_attempts', p_new.max_attempts::text, 'a number from 1 to 1000');
    end if;
    perform fairq._check_span('p_backoff_cap', p_new.backoff_cap, interval '0', interval '365 days');
    perform fairq._check_span('p_backoff_base', p_new.backoff_base, interval '0', p_new.backoff_cap);
    if p_new.backoff_jitter not between 0 and 1 then
        perform fairq._refuse('p_backoff_jitter', p_new.backoff_jitter::text, 'a share from 0 to 1');
    end if;
    if p_new.payload_limit not between 2 and 67108864 then
        perform fairq._refuse('p_payload_limit', p_new.payload_limit::text, 'a number of bytes from 2 to 67108864');
    end if;
    if p_new.read_ahead not between 0 and 1000 then
        perform fairq._refuse('p_read_ahead', p_new.read_ahead::text, 'a number of jobs from 0 to 1000');
    end if;
    perform fairq._check_span('p_key_ttl', p_new.key_ttl, interval '1 microsecond', interval '3650 days');
    perform fairq._check_span('p_retention', p_new.retention, interval '0', interval '3650 days');
    if p_new.retention_failed is not null then
        perform fairq._check_span('p_retention_failed', p_new.retention_failed, interval '0', interval '3650 days');
    end if;
end
$fn$;
comment on function fairq._check_settings(fairq.queues) is 'Raises 22023 for a setting out of range. Internal.';
revoke all on function fairq._check_settings(fairq.queues) from public;

create or replace function fairq.set_queue(
    p_queue            text,
    p_paused           boolean default null,
    p_charge           text default null,
    p_max_running      integer default null,
    p_rate             double precision default null,
    p_burst            integer default null,
    p_default_lease    interval default null,
    p_longest_lease    interval default null,
    p_max_attempts     integer default null,
    p_backoff_base     interval default null,
    p_backoff_cap      interval default null,
    p_backoff_jitter   double precision default null,
    p_payload_limit    integer default null,
    p_key_ttl          interval default null,
    p_retention        interval default null,
    p_notify           boolean default null,
    p_retention_failed interval default null,
    p_read_ahead       integer default null
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- What is not given stays as it is; a queue that had no row starts from that of *. A p_max_running of -1 or a p_rate of
-- 0 takes the queue's own cap or rate away, a p_retention_failed of -1 second that for what failed.
--
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a setting out of range.
declare
    v_new fairq.queues;
begin
    if p_queue is distinct from '*' then
        perform fairq._check_name('p_queue', p_queue, 200);
    end if;
    -- two operators who change different settings at once both have their way
    perform from fairq.queues as q where q.queue = p_queue for update;
    v_new := fairq._queue_settings(p_queue);
    v_new.queue            := p_queue;
    v_new.paused           := coalesce(p_paused, v_new.paused);
    v_new.charge           := coalesce(p_charge, v_new.charge);
    v_new.max_running      := nullif(coalesce(p_max_running, v_new.max_running), -1);
    v_new.rate             := nullif(coalesce(p_rate, v_new.rate), 0);
    v_new.burst            := coalesce(p_burst, v_new.burst);
    v_new.default_lease    := coalesce(p_default_lease, v_new.default_lease);
    v_new.longest_lease    := coalesce(p_longest_lease, v_new.longest_lease);
    v_new.max_attempts     := coalesce(p_max_attempts, v_new.max_attempts);
    v_new.backoff_base     := coalesce(p_backoff_base, v_new.backoff_base);
    v_new.backoff_cap      := coalesce(p_backoff_cap, v_new.backoff_cap);
    v_new.backoff_jitter   := coalesce(p_backoff_jitter, v_new.backoff_jitter);
    v_new.payload_limit    := coalesce(p_payload_limit, v_new.payload_limit);
    v_new.key_ttl          := coalesce(p_key_ttl, v_new.key_ttl);
    v_new.retention        := coalesce(p_retention, v_new.retention);
    v_new.retention_failed := case
        when p_retention_failed = interval '-1 second' then null
        else coalesce(p_retention_failed, v_new.retention_failed)
    end;
    v_new.notify           := coalesce(p_notify, v_new.notify);
    v_new.read_ahead       := coalesce(p_read_ahead, v_new.read_ahead);
    perform fairq._check_settings(v_new);

    insert into fairq.queues as q select v_new.*
    on conflict (queue) do update
    set
        paused = excluded.paused, charge = excluded.charge, max_running = excluded.max_running, rate = excluded.rate,
        burst = excluded.burst, default_lease = excluded.default_lease, longest_lease = excluded.longest_lease,
        max_attempts = excluded.max_attempts, backoff_base = excluded.backoff_base, backoff_cap = excluded.backoff_cap,
        backoff_jitter = excluded.backoff_jitter, payload_limit = excluded.payload_limit, key_ttl = excluded.key_ttl,
        retention = excluded.retention, retention_failed = excluded.retention_failed, notify = excluded.notify,
        read_ahead = excluded.read_ahead;
end
$fn$;
comment on function fairq.set_queue(text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval, double precision, integer, interval, interval, boolean, interval, integer) is 'Changes the settings given of a queue, or of all queues without settings of their own (*).';
revoke all on function fairq.set_queue(
    text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval,
    double precision, integer, interval, interval, boolean, interval, integer
) from public;
grant execute on function fairq.set_queue(
    text, boolean, text, integer, double precision, integer, interval, interval, integer, interval, interval,
    double precision, integer, interval, interval, boolean, interval, integer
) to fairq_operator;
