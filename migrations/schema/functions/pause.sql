--
-- pause: of queues and tenants, with a reason, and what is paused; pause_tenant() without one is among the settings
--

create or replace function fairq._check_reason(p_reason text)
    returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Raises: 22023 for a reason that says nothing, or too much.
begin
    if octet_length(p_reason) > 1000 or p_reason !~ '[^[:space:]]' then
        perform fairq._refuse('p_reason', p_reason, 'a text of 1 to 1000 bytes, not blank');
    end if;
    return true;
end
$fn$;
comment on function fairq._check_reason(text) is 'Raises 22023 for what is no reason. Internal.';
revoke all on function fairq._check_reason(text) from public;

create or replace function fairq._say_why(p_queue text, p_tenant text, p_reason text)
    returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A pause that is older than the notes begins with the first reason that somebody gives.
begin
    insert into fairq.pause_notes as n (queue, tenant, paused_at, paused_by, reason)
    values (p_queue, p_tenant, clock_timestamp(), fairq._caller(), p_reason)
    on conflict (queue, tenant) do update set paused_by = excluded.paused_by, reason = excluded.reason;
end
$fn$;
comment on function fairq._say_why(text, text, text) is 'Notes the reason of a pause. Internal.';
revoke all on function fairq._say_why(text, text, text) from public;

create or replace function fairq.pause_queue(p_queue text, p_reason text default null)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Whoever pauses what is paused already gives another reason, and answers for it; the time stays.
--
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a bad name or reason.
declare
    v_is_good boolean := fairq._check_reason(p_reason);
begin
    perform fairq.set_queue(p_queue, p_paused => true);
    if p_reason is not null then
        perform fairq._say_why(p_queue, '', p_reason);
    end if;
end
$fn$;
comment on function fairq.pause_queue(text, text) is 'Nothing of the queue is started from the next claim on; what runs goes on. As queue *, of all queues that have no settings of their own. p_reason, up to 1,000 bytes, is what pauses() and explain_wait() tell operators; null: none, or the one there is.';
revoke all on function fairq.pause_queue(text, text) from public;
grant execute on function fairq.pause_queue(text, text) to fairq_operator;

create or replace function fairq.resume_queue(p_queue text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- Locks:  the queue's row in queues, which no claim ever waits for.
-- Raises: 22023 for a bad name.
begin
    perform fairq.set_queue(p_queue, p_paused => false);
end
$fn$;
comment on function fairq.resume_queue(text) is 'Ends a pause of a queue, and forgets its reason. Pauses of its tenants stay.';
revoke all on function fairq.resume_queue(text) from public;
grant execute on function fairq.resume_queue(text) to fairq_operator;

create or replace function fairq.pause_tenant_because(p_queue text, p_tenant text, p_reason text)
    returns void
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
as $fn$
-- pause_tenant() with a third argument: a name of its own, since the arguments of a function that is out never change.
--
-- Locks:  the tenant's row in tenants, which no claim ever waits for.
-- Raises: 22023 for a bad name or reason.
declare
    v_is_good boolean := fairq._check_reason(p_reason);
begin
    if p_reason is null then
        perform fairq._refuse('p_reason', null, 'a text of 1 to 1000 bytes, not blank');
    end if;
    perform fairq._pause_tenant(p_queue, p_tenant, true);
    perform fairq._say_why(p_queue, p_tenant, p_reason);
end
$fn$;
comment on function fairq.pause_tenant_because(text, text, text) is 'As pause_tenant(), with a reason of up to 1,000 bytes, which pauses() and explain_wait() tell operators. Where the tenant is paused already the reason is replaced. resume_tenant() ends the pause.';
revoke all on function fairq.pause_tenant_because(text, text, text) from public;
grant execute on function fairq.pause_tenant_because(text, text, text) to fairq_operator;

create or replace function fairq.pauses(p_queue text default null, p_limit integer default 100)
    returns setof fairq.pause_stat
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
as $fn$
-- The longest first: a pause that was forgotten is an old one.
--
-- Index:  tenants_pause_idx: what is paused is read as a whole, since its order is that of the notes.
-- Raises: 22023 for a limit out of range.
declare
    v_is_good boolean := fairq._check_limit(p_limit, 1000);
begin
    return query
    select p.queue, nullif(p.tenant, ''), n.paused_at, n.paused_by, n.reason
    from (
        select q.queue, '' as tenant from fairq.queues as q where q.paused
        union all
        select t.queue, t.tenant from fairq.tenants as t where t.paused
    ) as p
    left join fairq.pause_notes as n on n.queue = p.queue and n.tenant = p.tenant
    where p_queue is null or p.queue = p_queue
    order by n.paused_at nulls first, p.queue, p.tenant
    limit p_limit;
end
$fn$;
comment on function fairq.pauses(text, integer) is 'What is paused, those paused longest first: queues, and tenants of queues, with since when, by whom and why; of one queue, or of all, up to p_limit (1 to 1,000).';
revoke all on function fairq.pauses(text, integer) from public;
grant execute on function fairq.pauses(text, integer) to fairq_operator;

create or replace function fairq._pause_words(p_queue text, p_tenant text)
    returns text
    language plpgsql
    stable
    set search_path = pg_catalog, pg_temp
as $fn$
-- " since ... by ...: reason", as far as it is known. Who and why are for those who may ask pauses(): a tenant is told
-- of its pause, not of what operators say of it.
declare
    v_note fairq.pause_notes;
begin
    select n.* into v_note from fairq.pause_notes as n where n.queue = p_queue and n.tenant = p_tenant;
    return concat(
        ' since ' || v_note.paused_at::text,
        case when has_function_privilege(
            fairq._caller(), 'fairq.pauses(text,integer)'::regprocedure, 'execute'
        ) then
            concat(' by ' || v_note.paused_by, ': ' || v_note.reason)
        end
    );
end
$fn$;
comment on function fairq._pause_words(text, text) is 'What a sentence says of a pause. Internal.';
revoke all on function fairq._pause_words(text, text) from public;
