--
-- Types
--

create type fairq.enqueued_job as (
    job_id  bigint,
    created boolean
);
comment on type fairq.enqueued_job is 'What enqueue_job() did: created is false when the key was in use, and job_id is then the job that holds it.';

create type fairq.enqueue_outcome as (
    ordinal integer,
    job_id  bigint,
    outcome text
);
comment on type fairq.enqueue_outcome is 'What enqueue_jobs() did with one element, from 1: created; exists (the key was in use); conflict (in use with another payload, nothing enqueued).';

create type fairq.claimed_job as (
    job_id           bigint,
    queue            text,
    tenant           text,
    task             text,
    payload          jsonb,
    priority         smallint,
    attempt          integer,
    max_attempts     integer,
    lease_token      uuid,
    lease_expires_at timestamptz,
    run_at           timestamptz,
    created_at       timestamptz,
    traceparent      text
);
comment on type fairq.claimed_job is 'A job handed to a worker. lease_token is the fence: renew, complete, fail and release ask for it. traceparent is what the producer gave, else null.';

create type fairq.job_outcome as (
    job_id  bigint,
    outcome text
);
comment on type fairq.job_outcome is 'What a batch verb did with one job. lost: no live lease under this token and caller, whatever the reason.';

create type fairq.new_job as (
    tenant       text,
    task         text,
    payload      jsonb,
    queue        text,
    run_at       timestamptz,
    delay        interval,
    priority     integer,
    max_attempts integer,
    key          text,
    key_ttl      interval,
    cost         double precision,
    traceparent  text
);
comment on type fairq.new_job is 'One element of the argument of enqueue_jobs(). Internal.';

create type fairq.news as (
    tenant   text,
    state    text,
    priority smallint,
    run_at   timestamptz,
    job_id   bigint
);
comment on type fairq.news is 'Something a look tells the scheduler of a tenant. state: queued (jobs of one priority at or after the place run_at, job_id), scheduled (jobs due at or after run_at), wish (its operator''s row changed), token (its next one has come). Internal.';

create domain fairq.amount as bigint constraint amount_not_negative check (value >= 0);
comment on domain fairq.amount is 'A number that is counted up. Internal.';

create type fairq.ending as (
    tenant   text,
    epoch    bigint,
    ended    fairq.amount,
    measured fairq.amount,
    elapsed  fairq.amount,
    extra    fairq.amount,
    refund   fairq.amount
);
comment on type fairq.ending is 'Attempts of a tenant that ended, as in settlements. epoch: the flow''s lift epoch at their start. ended: how many; none when a lease was renewed. measured: how many of them tell how long such attempts take; elapsed: the milliseconds those took. extra: what was used beyond what was prepaid; refund: prepaid and not used; both in virtual time, by the weight at the claim. Internal.';

create type fairq.moved as (
    news    fairq.news[],
    endings fairq.ending[],
    floor   timestamptz
);
comment on type fairq.moved is 'What a look, promote, expire or the token buckets found or did inside a claim: the news of it, and the time before which the next one need not ask. Internal.';

create type fairq.place as (
    vtime  bigint,
    charge bigint,
    served bigint,
    tenant text collate "C"
);
comment on type fairq.place is 'A place in the pick order: the columns that order flows, in their order. Internal.';

create type fairq.pick as (
    turn    integer,
    job_row tid,
    tenant  text,
    job_id  bigint,
    price   bigint,
    epoch   bigint,
    weight  double precision,
    step    bigint
);
comment on type fairq.pick is 'A job chosen by the scheduler, in turn. price: what it is charged, before the weight. step: what that adds to the virtual time of its flow. Internal.';

create type fairq.queue_stat as (
    queue            text,
    paused           boolean,
    charge           text,
    max_running      integer,
    rate             double precision,
    burst            integer,
    backlogged       bigint,
    eligible_tenants bigint,
    queued           bigint,
    scheduled        bigint,
    running          bigint,
    oldest_wait      interval,
    next_due_at      timestamptz,
    ticked_at        timestamptz,
    started          double precision,
    expired          bigint,
    dead             bigint
);
comment on type fairq.queue_stat is 'A row of queue_stats(). backlogged: tenants with work, as far as the scheduler has looked; eligible_tenants: those of them that may be picked. oldest_wait: since when the longest waiting queued job could have started. started: jobs started in the last minute. expired: attempts whose leases are over, with nobody to notice. dead: of the last 10,000 that failed or were cancelled.';

create type fairq.tenant_stat as (
    tenant        text,
    weight        double precision,
    max_running   integer,
    rate          double precision,
    burst         integer,
    paused        boolean,
    running       bigint,
    queued        bigint,
    started       double precision,
    share         double precision,
    entitled      double precision,
    lag_jobs      double precision,
    lag_seconds   double precision,
    vtime         bigint,
    blocked_by    text,
    blocked_until timestamptz,
    oldest_wait   interval,
    backlog_share double precision
);
comment on type fairq.tenant_stat is 'A row of tenant_stats(). started, share and entitled are of the last minute; the lag is positive for a tenant that is owed something, negative for one that is ahead. backlog_share: about which part of the queue''s queued jobs is its own, from a sample; null when it is not in the sample, or was asked for by its name.';

create type fairq.pause_stat as (
    queue     text,
    tenant    text,
    paused_at timestamptz,
    paused_by text,
    reason    text
);
comment on type fairq.pause_stat is 'A row of pauses(). tenant: null where it is the whole queue that is paused. paused_at and paused_by: null of a pause that is older than version 2.';

create type fairq.wait_reason as (
    state    text,
    reason   text,
    sentence text,
    until    timestamptz,
    ahead    bigint,
    picks    bigint
);
comment on type fairq.wait_reason is 'The answer of explain_wait(). reason: not_found, finished, running, lease_expired, not_due, queue_paused, queue_at_cap, queue_rate_limited, tenant_paused, tenant_at_cap, tenant_rate_limited, not_looked_at, in_line or ready (picked ahead, for the next claim to take). until: when this reason ends by itself. ahead: jobs of its own tenant before it. picks: jobs of all tenants before it, about.';

create type fairq.upkeep as (
    task text,
    done bigint,
    lags boolean,
    why  text
);
comment on type fairq.upkeep is 'What a slice of upkeep did: the task, or table, or queue; how many; whether something is left that is due, and why.';

create type fairq.right_count as (
    tenant      text,
    running     bigint,
    backlogged  bigint,
    milliweight bigint
);
comment on type fairq.right_count is 'What a count of the scheduler should be: of a tenant what runs; of *, the queue, the others too. Internal.';
