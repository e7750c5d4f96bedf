# A worker: DATABASE_URL=... python worker.py QUEUE OWNER; LISTEN_URL, a direct connection, has it woken at once.
import json
import os
import signal
import sys
import threading

import psycopg
from letters import Sent, Session, engine
from sqlalchemy import text

CLAIM = """
    select c.*, cast(extract(epoch from c.lease_expires_at - clock_timestamp()) as float) / 3 as renew_every
    from fairq.claim_jobs(p_queue => :queue, p_owner => :owner, p_limit => 1) as c"""
(queue, owner), leaving = sys.argv[1:], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leaving.set())


def call(query, **arguments):  # a transaction of its own, which does not wait for another word from here
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        return conn.execute(text(query), arguments).all()


def work(job, lost):  # yours: in no transaction, and it looks now and then whether it is to stop
    for _ in range(round(20 * job.payload.get("seconds", 0))):
        if leaving.wait(0.05) or lost.is_set():
            raise InterruptedError
    return {"letter": job.payload["letter"]}


def run(job):
    lease, lost, done = {"job": job.job_id, "token": job.lease_token}, threading.Event(), threading.Event()

    def renew():
        while not done.wait(job.renew_every):
            if call("select fairq.renew_job_lease(:job, :token)", **lease) == [(False,)]:
                lost.set()

    threading.Thread(target=renew, daemon=True).start()
    try:
        answer = lease | {"result": json.dumps(result := work(job, lost))}
        with Session.begin() as session:  # what the job changes here, and that it is done: both or neither
            session.add(Sent(job_id=job.job_id, letter=result["letter"]))
            if not session.scalar(text("select fairq.complete_job(:job, :token, :result)"), answer):
                raise InterruptedError
    except InterruptedError:
        call("select * from fairq.release_jobs(array[:job], array[:token])", **lease)
    except Exception as error:
        call("select fairq.fail_job(:job, :token, :error)", **lease, error=repr(error))
    done.set()


if listen_url := os.environ.get("LISTEN_URL"):
    ear = psycopg.connect(listen_url, autocommit=True)
    ear.execute("listen " + call("select quote_ident(fairq.channel(:queue))", queue=queue)[0][0])
while not leaving.is_set():
    if jobs := call(CLAIM, queue=queue, owner=owner):
        run(*jobs)
    else:
        list(ear.notifies(timeout=1, stop_after=1)) if listen_url else leaving.wait(1)
