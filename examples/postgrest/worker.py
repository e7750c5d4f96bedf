# A worker behind PostgREST: API_URL=... API_TOKEN=... python worker.py QUEUE OWNER; it asks once a second.
import json
import os
import signal
import sys
import threading
from urllib.request import Request, urlopen

(queue, owner), leaving = sys.argv[1:], threading.Event()
signal.signal(signal.SIGTERM, lambda *_: leaving.set())
LEASE = float(os.environ.get("LEASE", "30"))  # in seconds


def rpc(function, schema="fairq", **arguments):  # a transaction of its own
    headers = {"Authorization": f"Bearer {os.environ['API_TOKEN']}", "Content-Type": "application/json"}
    headers["Content-Profile"] = schema
    request = Request(f"{os.environ['API_URL']}/rpc/{function}", json.dumps(arguments).encode(), headers)
    with urlopen(request, timeout=30) as answer:
        return json.load(answer)


def work(job, lost):  # yours: it looks now and then whether it is to stop
    for _ in range(round(20 * job["payload"].get("seconds", 0))):
        if leaving.wait(0.05) or lost.is_set():
            raise InterruptedError
    return job["payload"]["letter"]


def run(job):
    lease = {"p_job_id": job["job_id"], "p_token": job["lease_token"]}
    lost, done = threading.Event(), threading.Event()

    def renew():
        while not done.wait(LEASE / 3):
            if not rpc("renew_job_lease", **lease, p_lease=f"{LEASE} seconds"):
                lost.set()

    threading.Thread(target=renew, daemon=True).start()
    try:
        rpc("finish_letter", schema="api", **lease, p_letter=work(job, lost))
    except InterruptedError:
        rpc("release_jobs", p_job_ids=[job["job_id"]], p_tokens=[job["lease_token"]])
    except Exception as error:
        rpc("fail_job", **lease, p_error=repr(error))  # does nothing if the lease is lost
    done.set()


while not leaving.is_set():
    if jobs := rpc("claim_jobs", p_queue=queue, p_owner=owner, p_limit=1, p_lease=f"{LEASE} seconds"):
        run(*jobs)
    else:
        leaving.wait(1)
