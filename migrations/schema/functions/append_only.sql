--
-- append-only: the log tells what happened, and nobody edits it, the owner included
--

create or replace function fairq._refuse_log_change()
    returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $fn$
-- Three ways out, which take nothing away: a row whose job is gone from everywhere, a row that is in another partition
-- too, and a whole partition that has no row.
--
-- Index: jobs_pkey, finished_jobs_pkey; job_log_pkey.
begin
    if tg_op = 'DELETE' then
        if not exists (select from fairq.jobs as j where j.job_id = old.job_id)
           and not exists (select from fairq.finished_jobs as f where f.job_id = old.job_id) then
            return old;
        elsif exists (
            select from fairq.job_log as g
            where g.log_id = old.log_id and g.slot <> old.slot and to_jsonb(g) - 'slot' = to_jsonb(old) - 'slot'
        ) then
            return old;
        end if;
    elsif tg_op = 'TRUNCATE' and tg_nargs = 1 then
        -- a row lies in another partition than its own where somebody has taken its own away
        if not exists (select from fairq.job_log as g where g.slot = tg_argv[0]::smallint)
           and (select count(*) from pg_inherits as i where i.inhparent = 'fairq.job_log'::regclass) = 4 then
            return null;
        end if;
    end if;

    raise exception 'job_log is append-only: % refused', lower(tg_op)
        using errcode = '42501', hint = 'Rows go with their job, by maintain() or prune().';
end
$fn$;
comment on function fairq._refuse_log_change() is 'Trigger: refuses every change of job_log but the retirement of a job''s rows once the job itself is gone, and a move to another partition.';
revoke all on function fairq._refuse_log_change() from public;

create or replace trigger job_log_rows_stay
before update or delete on fairq.job_log
for each row execute function fairq._refuse_log_change();
create or replace trigger job_log_table_stays
before truncate on fairq.job_log
for each statement execute function fairq._refuse_log_change();
-- of one partition by itself; that of rows they have from job_log
create or replace trigger job_log_table_stays
before truncate on fairq.job_log_0
for each statement execute function fairq._refuse_log_change('0');
create or replace trigger job_log_table_stays
before truncate on fairq.job_log_1
for each statement execute function fairq._refuse_log_change('1');
create or replace trigger job_log_table_stays
before truncate on fairq.job_log_2
for each statement execute function fairq._refuse_log_change('2');
create or replace trigger job_log_table_stays
before truncate on fairq.job_log_3
for each statement execute function fairq._refuse_log_change('3');
-- always: also for a session that replays as a replica
alter table fairq.job_log enable always trigger job_log_rows_stay;
alter table fairq.job_log enable always trigger job_log_table_stays;
alter table fairq.job_log_0 enable always trigger job_log_rows_stay;
alter table fairq.job_log_0 enable always trigger job_log_table_stays;
alter table fairq.job_log_1 enable always trigger job_log_rows_stay;
alter table fairq.job_log_1 enable always trigger job_log_table_stays;
alter table fairq.job_log_2 enable always trigger job_log_rows_stay;
alter table fairq.job_log_2 enable always trigger job_log_table_stays;
alter table fairq.job_log_3 enable always trigger job_log_rows_stay;
alter table fairq.job_log_3 enable always trigger job_log_table_stays;
