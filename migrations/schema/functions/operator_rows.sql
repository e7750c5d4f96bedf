--
-- operators' rows: a change of a tenant's row reaches the scheduler through its look
--

create or replace function fairq._mark_tenant_changed()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
begin
    new.changed_xid := pg_current_xact_id();
    return new;
end
$fn$;
comment on function fairq._mark_tenant_changed() is 'Trigger: stamps a tenant''s row with the transaction that changed it.';
revoke all on function fairq._mark_tenant_changed() from public;

create or replace trigger tenants_mark_changed
before insert or update on fairq.tenants
for each row execute function fairq._mark_tenant_changed();

create or replace function fairq._keep_tenant_row()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- A row that is gone cannot say so; one that says the same can: what * gives, else the defaults. If it did so already,
-- there is nothing to say.
begin
    insert into fairq.tenants (queue, tenant, weight, max_running, paused, rate, burst)
    select
        old.queue, old.tenant, coalesce(t.weight, 1), t.max_running, coalesce(t.paused, false), t.rate,
        coalesce(t.burst, 1)
    from (values (old.queue)) as q(queue)
    left join fairq.tenants as t on t.queue = q.queue and t.tenant = '*' and old.tenant <> '*'
    where (old.weight, old.max_running, old.paused, old.rate, old.burst) is distinct from (
        coalesce(t.weight, 1), t.max_running, coalesce(t.paused, false), t.rate, coalesce(t.burst, 1)
    );
    return null;
end
$fn$;
comment on function fairq._keep_tenant_row() is 'Trigger: a deleted tenant''s row leaves one of the wishes of *, or of defaults, so that the scheduler learns of it.';
revoke all on function fairq._keep_tenant_row() from public;

create or replace trigger tenants_keep_row
after delete on fairq.tenants
for each row execute function fairq._keep_tenant_row();

create or replace function fairq._note_pause()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Since when and by whom something is paused, whichever function or statement it was; forgotten with the pause.
declare
    v_row    jsonb := to_jsonb(case when tg_op = 'DELETE' then old else new end);
    v_tenant text := coalesce(v_row ->> 'tenant', '');
begin
    if tg_op = 'DELETE' or not (v_row ->> 'paused')::boolean then
        delete from fairq.pause_notes as n where n.queue = v_row ->> 'queue' and n.tenant = v_tenant;
    elsif tg_op = 'INSERT' or not old.paused then
        insert into fairq.pause_notes (queue, tenant, paused_at, paused_by)
        values (
            v_row ->> 'queue', v_tenant, clock_timestamp(),
            case when current_setting('role') = 'none' then session_user::text else current_setting('role') end
        )
        on conflict do nothing;
    end if;
    return null;
end
$fn$;
comment on function fairq._note_pause() is 'Trigger: notes since when a queue or tenant is paused and by whom, and forgets it when the pause ends.';
revoke all on function fairq._note_pause() from public;

create or replace trigger queues_note_pause
after insert or delete or update of paused on fairq.queues
for each row execute function fairq._note_pause();

create or replace trigger tenants_note_pause
after insert or update of paused on fairq.tenants
for each row execute function fairq._note_pause();

-- by its name before tenants_keep_row, which may leave a row that is paused
create or replace trigger tenants_forget_pause
after delete on fairq.tenants
for each row execute function fairq._note_pause();
