# A worker: DATABASE_URL=... python worker.py QUEUE OWNER; LISTEN_URL, a direct connection, has it woken at once.
import os
import signal
import sys
import threading

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

CLAIM = """
    select c.*, extract(epoch from c.lease_expires_at - clock_timestamp())::float / 3 as renew_every
    from fairq.claim_jobs(p_queue => %s, p_owner => %s, p_limit => 4) as c"""
(queue, owner), url, leaving = sys.argv[1:], os.environ["DATABASE_URL"], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leaving.set())


def work(job, lost):  # yours: in no transaction, and it looks now and then whether it is to stop
    for _ in range(round(20 * job.payload.get("seconds", 0))):
        if leaving.wait(0.05) or job.job_id in lost:
            raise InterruptedError
    return {"letter": job.payload["letter"]}


def run(conn, renewing, jobs):
    leases, lost, done = ([j.job_id for j in jobs], [j.lease_token for j in jobs]), set(), threading.Event()

    def renew():
        while not done.wait(jobs[0].renew_every):
            answers = renewing.execute("select * from fairq.renew_job_leases(%s, %s)", leases)
            lost.update(row.job_id for row in answers if row.outcome != "renewed")

    threading.Thread(target=renew, daemon=True).start()
    for job in jobs:
        try:
            result = work(job, lost)
            with conn.transaction():  # what the job changes here, and that it is done: both or neither
                conn.execute("insert into sent (job_id, letter) values (%s, %s)", [job.job_id, result["letter"]])
                lease = [job.job_id, job.lease_token, Jsonb(result)]
                if not conn.execute("select fairq.complete_job(%s, %s, %s)", lease).fetchone()[0]:
                    raise InterruptedError
        except InterruptedError:
            continue
        except Exception as error:
            conn.execute("select fairq.fail_job(%s, %s, %s)", [job.job_id, job.lease_token, repr(error)])
    done.set()
    conn.execute("select * from fairq.release_jobs(%s, %s)", leases)  # those that ended are not ours any more


options = {"autocommit": True, "row_factory": namedtuple_row, "prepare_threshold": None}  # nothing prepared: pgbouncer
with psycopg.connect(url, **options) as conn, psycopg.connect(url, **options) as renewing:
    if listen_url := os.environ.get("LISTEN_URL"):
        ear = psycopg.connect(listen_url, **options)
        ear.execute("listen " + conn.execute("select quote_ident(fairq.channel(%s))", [queue]).fetchone()[0])
    while not leaving.is_set():
        if jobs := conn.execute(CLAIM, [queue, owner]).fetchall():
            run(conn, renewing, jobs)
        else:
            list(ear.notifies(timeout=1, stop_after=1)) if listen_url else leaving.wait(1)
