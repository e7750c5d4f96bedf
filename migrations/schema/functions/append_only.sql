--
-- append-only: the log tells what happened, and nobody edits it, the owner included
--

create or replace function fairq._refuse_log_change()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- The one way out: prune() retires the rows of a job that is gone from everywhere.
begin
    if tg_op = 'DELETE' then
        if not exists (select from fairq.jobs as j where j.job_id = old.job_id)
           and not exists (select from fairq.finished_jobs as f where f.job_id = old.job_id) then
            return old;
        end if;
    end if;

    raise exception 'job_log is append-only: % refused', lower(tg_op)
        using errcode = '42501', hint = 'Rows go with their job, by prune().';
end
$fn$;
comment on function fairq._refuse_log_change() is 'Trigger: refuses every change of job_log but the retirement of a job''s rows once the job itself is gone.';
revoke all on function fairq._refuse_log_change() from public;

create or replace trigger job_log_rows_stay
before update or delete on fairq.job_log
for each row execute function fairq._refuse_log_change();
create or replace trigger job_log_table_stays
before truncate on fairq.job_log
for each statement execute function fairq._refuse_log_change();
-- always: also for a session that replays as a replica
alter table fairq.job_log enable always trigger job_log_rows_stay;
alter table fairq.job_log enable always trigger job_log_table_stays;
