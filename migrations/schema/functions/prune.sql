--
-- prune: ended jobs go when their time is over
--
-- Owned by fairq_owner: the functions callers run have no right to make history disappear.

create or replace function fairq.prune(p_limit integer default 10000)
    returns integer
    language plpgsql
    security definer
    set search_path = pg_catalog, pg_temp
    set enable_hashjoin = off
    set enable_mergejoin = off
as $fn$
-- succeeded, dead, cancelled -> gone, with their log; and keys that have expired. Never a job that has not ended.
--
-- Locks:  finished_jobs' rows, skipping those held by others (a job being revived).
-- Raises: 22023 when p_limit is out of range.
declare
    v_now  timestamptz := clock_timestamp();
    v_jobs bigint[];
begin
    if p_limit is null or p_limit not between 1 and 100000 then
        raise exception 'p_limit must be a number from 1 to 100000, not %', coalesce(p_limit::text, 'null')
            using errcode = '22023', hint = 'Nothing was changed.';
    end if;

    with old as materialized (
        select f.ctid as row_id
        from fairq.finished_jobs as f
        where f.finished_at < v_now - coalesce(
            (select q.retention from fairq.queues as q where q.queue = f.queue),
            (select q.retention from fairq.queues as q where q.queue = '*')
        )
        limit p_limit
        for update of f skip locked
    ), gone as (
        delete from fairq.finished_jobs as f using old as o where f.ctid = o.row_id returning f.job_id
    )
    select coalesce(array_agg(g.job_id order by g.job_id), '{}') into v_jobs from gone as g;

    delete from fairq.job_log as g
    where g.log_id in (
        select l.log_id
        from unnest(v_jobs) as u(job_id)
        cross join lateral (select gg.log_id from fairq.job_log as gg where gg.job_id = u.job_id offset 0) as l
    );
    delete from fairq.job_keys as k where k.expires_at < v_now;
    return cardinality(v_jobs);
end
$fn$;
comment on function fairq.prune(integer) is 'Removes ended jobs older than their queue''s retention, at most p_limit, with their log, and expired idempotency keys; returns how many jobs went. Call it until it returns 0.';
revoke all on function fairq.prune(integer) from public;
grant execute on function fairq.prune(integer) to fairq_operator;
