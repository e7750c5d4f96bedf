--
-- settings: what operators want of queues and tenants; in force at the next pick
--

create or replace function fairq.set_tenant(
    p_queue       text,
    p_tenant      text,
    p_weight      double precision default 1,
    p_max_running integer default null,
    p_paused      boolean default false
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- The whole wish is replaced: what is not given goes back to its default.
--
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a weight or cap out of range.
begin
    perform fairq._check_name('p_queue', p_queue, 200);
    perform fairq._check_name('p_tenant', p_tenant, 200);
    if p_weight is null or not (p_weight >= 0.001 and p_weight <= 1000000) then
        perform fairq._refuse('p_weight', p_weight::text, 'a number from 0.001 to 1000000');
    end if;
    if p_max_running < 0 then
        perform fairq._refuse('p_max_running', p_max_running::text, 'null (no cap) or a number from 0');
    end if;
    if p_paused is null then
        perform fairq._refuse('p_paused', null, 'true or false');
    end if;

    insert into fairq.tenants as t (queue, tenant, weight, max_running, paused)
    values (p_queue, p_tenant, p_weight, p_max_running, p_paused)
    on conflict (tenant, queue) do update
    set weight = excluded.weight, max_running = excluded.max_running, paused = excluded.paused;
end
$fn$;
comment on function fairq.set_tenant(text, text, double precision, integer, boolean) is 'Sets weight, cap and pause of a tenant in a queue, from the next pick on. Lowering a cap stops nothing that runs.';
revoke all on function fairq.set_tenant(text, text, double precision, integer, boolean) from public;
grant execute on function fairq.set_tenant(text, text, double precision, integer, boolean) to fairq_operator;

create or replace function fairq._check_settings(p_new fairq.queues)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The rules of the table's constraints, told by the names of the arguments.
--
-- Raises: 22023 for the first setting that is out of its range, given the others.
begin
    perform fairq._check_span('p_longest_lease', p_new.longest_lease, interval '1 microsecond', interval '7 days');
    perform fairq._check_span('p_default_lease', p_new.default_lease, interval '1 microsecond', p_new.longest_lease);
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
    perform fairq._check_span('p_key_ttl', p_new.key_ttl, interval '1 microsecond', interval '3650 days');
    perform fairq._check_span('p_retention', p_new.retention, interval '0', interval '3650 days');
end
$fn$;
comment on function fairq._check_settings(fairq.queues) is 'Raises 22023 for a setting out of range. Internal.';
revoke all on function fairq._check_settings(fairq.queues) from public;

create or replace function fairq.set_queue(
    p_queue          text,
    p_paused         boolean default null,
    p_default_lease  interval default null,
    p_longest_lease  interval default null,
    p_max_attempts   integer default null,
    p_backoff_base   interval default null,
    p_backoff_cap    interval default null,
    p_backoff_jitter double precision default null,
    p_payload_limit  integer default null,
    p_key_ttl        interval default null,
    p_retention      interval default null,
    p_notify         boolean default null
)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- What is not given stays as it is; a queue that had no row starts from that of *.
--
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a setting out of range.
declare
    v_new fairq.queues;
begin
    if p_queue is distinct from '*' then
        perform fairq._check_name('p_queue', p_queue, 200);
    end if;
    v_new := fairq._queue_settings(p_queue);
    v_new.queue          := p_queue;
    v_new.paused         := coalesce(p_paused, v_new.paused);
    v_new.default_lease  := coalesce(p_default_lease, v_new.default_lease);
    v_new.longest_lease  := coalesce(p_longest_lease, v_new.longest_lease);
    v_new.max_attempts   := coalesce(p_max_attempts, v_new.max_attempts);
    v_new.backoff_base   := coalesce(p_backoff_base, v_new.backoff_base);
    v_new.backoff_cap    := coalesce(p_backoff_cap, v_new.backoff_cap);
    v_new.backoff_jitter := coalesce(p_backoff_jitter, v_new.backoff_jitter);
    v_new.payload_limit  := coalesce(p_payload_limit, v_new.payload_limit);
    v_new.key_ttl        := coalesce(p_key_ttl, v_new.key_ttl);
    v_new.retention      := coalesce(p_retention, v_new.retention);
    v_new.notify         := coalesce(p_notify, v_new.notify);
    perform fairq._check_settings(v_new);

    insert into fairq.queues as q select v_new.*
    on conflict (queue) do update
    set (paused, default_lease, longest_lease, max_attempts, backoff_base, backoff_cap, backoff_jitter, payload_limit,
         key_ttl, retention, notify)
      = (excluded.paused, excluded.default_lease, excluded.longest_lease, excluded.max_attempts, excluded.backoff_base,
         excluded.backoff_cap, excluded.backoff_jitter, excluded.payload_limit, excluded.key_ttl, excluded.retention,
         excluded.notify);
end
$fn$;
comment on function fairq.set_queue(text, boolean, interval, interval, integer, interval, interval, double precision, integer, interval, interval, boolean) is 'Changes the settings given of a queue, or of all queues without settings of their own (*).';
revoke all on function fairq.set_queue(
    text, boolean, interval, interval, integer, interval, interval, double precision, integer, interval, interval,
    boolean
) from public;
grant execute on function fairq.set_queue(
    text, boolean, interval, interval, integer, interval, interval, double precision, integer, interval, interval,
    boolean
) to fairq_operator;
