--
-- see: one job, for whoever may manage it; a tenant its own alone, which it need not and cannot name
--

create or replace function fairq.get_job(p_job_id bigint)
    returns setof fairq.all_jobs
    language plpgsql
    stable
    security definer
    set search_path = pg_catalog, pg_temp
    -- see claim_jobs()
    set plan_cache_mode = force_generic_plan
    set enable_seqscan = off
    set enable_bitmapscan = off
as $fn$
-- Index:  primary keys.
-- Raises: 22023 for a null id; 42501 for a tenant's session that does not say which tenant.
begin
    perform fairq._check_id(p_job_id);
    if fairq._find_job(p_job_id) <> 'not_found' then
        return query select a.* from fairq.all_jobs as a where a.job_id = p_job_id;
    end if;
end
$fn$;
comment on function fairq.get_job(bigint) is 'A job as all_jobs has it; no row when there is none, or none that the caller may see. With this a tenant needs no right on any table.';
revoke all on function fairq.get_job(bigint) from public;
grant execute on function fairq.get_job(bigint) to fairq_producer, fairq_tenant, fairq_operator;
