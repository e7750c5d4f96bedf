-- fairq VERSION: fairq_0001_initial.rollback.sql, for schema fairq
-- Written by fairq export --target golang-migrate; do not edit: a change is a new version of fairq.
-- sha256 of the original: b0c7e0a843ba7d3cdb587e223d9a2a52416a87a77f799c819f442923e55e3f28
do $fn$
begin
    if current_setting('fairq_rollback.lose_jobs', true) <> 'yes' and fairq.count_jobs() > 0 then
        raise exception 'rolling back would lose % jobs', fairq.count_jobs() using errcode = 'QF003', hint = 'ask';
    end if;
end
$fn$;
drop function fairq.count_jobs();
drop table fairq.jobs;
