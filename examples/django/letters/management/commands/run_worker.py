# A worker: DATABASE_URL=... django-admin run_worker QUEUE OWNER; LISTEN_URL, a direct connection, has it woken.
import json
import os
import signal
import threading

import psycopg
from django.core.management.base import BaseCommand
from django.db import connection, transaction

from letters import models, tasks

CLAIM = """
    select c.job_id, c.lease_token, c.task, c.payload, extract(epoch from c.lease_expires_at - clock_timestamp())::float
    from fairq.claim_jobs(p_queue => %s, p_owner => %s, p_limit => 1) as c"""
leaving = threading.Event()


def call(query, *arguments):  # in autocommit, unless the caller is in a transaction
    with connection.cursor() as cursor:
        return cursor.execute(query, arguments).fetchall()


def run(job, token, task, payload, lease):
    over = threading.Event()  # the job has ended, or its lease is lost

    def renew():  # on a connection of its own
        while not over.wait(lease / 3):
            if call("select fairq.renew_job_lease(%s, %s)", job, token) == [(False,)]:
                over.set()
        connection.close()

    threading.Thread(target=renew, daemon=True).start()
    try:
        result = tasks.TASKS[task](json.loads(payload), lambda: leaving.is_set() or over.is_set())
        with transaction.atomic():  # what the job changes here, and that it is done: both or neither
            models.Sent.objects.create(job_id=job, letter=result["letter"])
            complete = call("select fairq.complete_job(%s, %s, %s)", job, token, json.dumps(result))
            transaction.set_rollback(complete == [(False,)])
    except InterruptedError:
        call("select * from fairq.release_jobs(array[%s], array[%s])", job, token)
    except Exception as error:
        call("select fairq.fail_job(%s, %s, %s)", job, token, repr(error))
    over.set()


class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("args", nargs=2)

    def handle(self, queue, owner, **options):
        signal.signal(signal.SIGTERM, lambda *_: leaving.set())
        if listen_url := os.environ.get("LISTEN_URL"):
            ear = psycopg.connect(listen_url, autocommit=True)
            ear.execute("listen " + call("select quote_ident(fairq.channel(%s))", queue)[0][0])
        while not leaving.is_set():
            if jobs := call(CLAIM, queue, owner):
                run(*jobs[0])
            else:
                list(ear.notifies(timeout=1, stop_after=1)) if listen_url else leaving.wait(1)
