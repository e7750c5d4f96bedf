-- For PostgREST: db-schemas = "api, fairq", and after `fairq apply --tenant jwt --role tenant=authenticated`:
-- the claim "role" says as whom a request comes, "app_metadata" in it for which tenant.
create schema api;
grant usage on schema api to mail_worker;

-- What a job changes, and that it is done, is one request, so it is one function.
create function api.finish_letter(p_job_id bigint, p_token uuid, p_letter bigint)
    returns boolean
    language plpgsql
as $$
begin
    insert into public.sent (job_id, letter) values (p_job_id, p_letter);
    if not fairq.complete_job(p_job_id => p_job_id, p_token => p_token) then
        raise exception 'the lease is lost' using errcode = 'PT409'; -- undoes the request, and answers 409
    end if;
    return true;
end
$$;
revoke all on function api.finish_letter from public;
grant execute on function api.finish_letter to mail_worker;
