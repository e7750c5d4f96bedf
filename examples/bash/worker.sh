#!/usr/bin/env bash
# A worker: DATABASE_URL=... worker.sh QUEUE OWNER. It asks once a second: psql hears of a notification when it asks.
set -uo pipefail
queue=$1 owner=$2 job='' token='' letter='' leaving='' doing='' said=$(mktemp)
trap 'leaving=yes; [ -z "$doing" ] || kill "$doing"' TERM
trap 'rm -f "$said"' EXIT

sql() { # one transaction, or what the script says; the values go in as variables of psql, which quotes them
    psql "$DATABASE_URL" -XqAt -v ON_ERROR_STOP=1 -v queue="$queue" -v owner="$owner" -v job="$job" \
        -v token="$token" -v letter="$letter" -v said="$(cat "$said")" -f -
}

work() { # yours: in no transaction; it is killed when it is to stop
    trap 'kill $!; exit 143' TERM
    sleep "$seconds" & wait $!
    [ -n "$letter" ] || { echo "there is no letter"; return 1; }
}

renew() { # for as long as the worker lives
    while sleep "$renew_every" && kill -0 $$; do
        [ "$(sql <<<"select fairq.renew_job_lease(:job, :'token')")" = t ] || kill "$doing"
    done >/dev/null 2>&1
}

claim="
    select c.job_id, c.lease_token, extract(epoch from c.lease_expires_at - clock_timestamp()) / 3,
        coalesce(c.payload ->> 'seconds', '0'), c.payload ->> 'letter'
    from fairq.claim_jobs(p_queue => :'queue', p_owner => :'owner', p_limit => 1) as c;"
finish="
    begin; -- what the job changes here, and that it is done: both or neither
    insert into sent (job_id, letter) values (:job, :letter);
    select fairq.complete_job(:job, :'token', jsonb_build_object('letter', :letter)) as held \gset
    \if :held
        commit;
    \endif"

while [ -z "$leaving" ]; do
    if ! IFS='|' read -r job token renew_every seconds letter < <(sql <<<"$claim"); then
        sleep 1 & wait $!
        continue
    fi
    work >"$said" 2>&1 & doing=$!
    renew & renewing=$!
    [ -z "$leaving" ] || kill "$doing"
    wait "$doing"; ended=$?
    [ -z "$leaving" ] || wait "$doing"
    doing=''
    case $ended in
        0) sql <<<"$finish" || sql <<<"select fairq.fail_job(:job, :'token', 'the letter could not be noted')" ;;
        143) sql <<<"select fairq.release_jobs(array[:job], array[:'token'::uuid])" ;;
        *) sql <<<"select fairq.fail_job(:job, :'token', :'said')" ;;
    esac >/dev/null
    kill "$renewing"
done
