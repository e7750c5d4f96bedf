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
    created_at       timestamptz
);
comment on type fairq.claimed_job is 'A job handed to a worker. lease_token is the fence: renew, complete, fail and release ask for it.';

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
    cost         double precision
);
comment on type fairq.new_job is 'One element of the argument of enqueue_jobs(). Internal.';

create type fairq.news as (
    tenant   text,
    state    text,
    priority smallint,
    run_at   timestamptz,
    job_id   bigint,
    ended    integer
);
comment on type fairq.news is 'Something a look tells the scheduler of a tenant. state: queued (jobs of one priority at or after the place run_at, job_id), scheduled (jobs due at or after run_at), ended (attempts), wish (its operator''s row changed). Internal.';

create type fairq.moved as (
    news  fairq.news[],
    floor timestamptz
);
comment on type fairq.moved is 'What promote or expire did inside a claim: the news of it, and where the next one may start to read. Internal.';

create type fairq.place as (
    vtime  bigint,
    charge bigint,
    served bigint,
    tenant text collate "C"
);
comment on type fairq.place is 'A place in the pick order: the columns that order flows, in their order. Internal.';

create type fairq.pick as (
    turn          integer,
    flow_row      tid,
    job_row       tid,
    tenant        text,
    job_id        bigint,
    priority      smallint,
    run_at        timestamptz,
    nth           integer,
    tag           bigint,
    charge        bigint,
    next_priority smallint,
    next_run_at   timestamptz,
    next_job_id   bigint
);
comment on type fairq.pick is 'A job chosen by the scheduler, in turn, and the place of its tenant''s next one; without a turn: a flow found empty. Internal.';

create type fairq.queue_stat as (
    queue            text,
    paused           boolean,
    eligible_tenants bigint,
    scheduled        bigint,
    running          bigint,
    next_due_at      timestamptz,
    ticked_at        timestamptz
);
comment on type fairq.queue_stat is 'A row of queue_stats().';

create type fairq.tenant_stat as (
    tenant      text,
    weight      double precision,
    max_running integer,
    paused      boolean,
    running     integer,
    queued      bigint,
    vtime       bigint,
    blocked_by  text
);
comment on type fairq.tenant_stat is 'A row of tenant_stats().';
