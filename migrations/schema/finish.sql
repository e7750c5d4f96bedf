--
-- The end of an installation: nobody keeps what only the installation needed
--

set local role fairq_owner;
revoke create on schema fairq from fairq_api;
-- one role that plays both parts has just lost it
grant create on schema fairq to fairq_owner;
grant usage on schema fairq to fairq_worker, fairq_producer, fairq_tenant, fairq_operator;

reset role;

do $fn$
declare
    v_role text;
begin
    foreach v_role in array regexp_split_to_array(btrim(current_setting('fairq_install.taken')), ' ') loop
        if v_role <> '' then
            execute format('revoke %I from current_user', v_role);
        end if;
    end loop;
    -- the tool that runs this may write its own tables in the same transaction
    perform set_config(
        'search_path',
        coalesce(nullif(current_setting('fairq_install.path', true), ''), current_setting('search_path')), true
    );
end
$fn$;
