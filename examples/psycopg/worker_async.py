# A worker, four jobs at once: DATABASE_URL=... python worker_async.py QUEUE OWNER; LISTEN_URL has it woken at once.
import asyncio
import os
import signal
import sys

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

CLAIM = """
    select c.job_id, c.lease_token, c.payload, extract(epoch from c.lease_expires_at - clock_timestamp())::float / 3
    from fairq.claim_jobs(p_queue => %s, p_owner => %s, p_limit => 1) as c"""
(queue, owner), url, listen_url = sys.argv[1:], os.environ["DATABASE_URL"], os.environ.get("LISTEN_URL")
pool = AsyncConnectionPool(url, min_size=5, open=False, kwargs={"autocommit": True, "prepare_threshold": None})


async def work(payload):  # yours: in no transaction; it is cancelled when it is to stop
    return await asyncio.sleep(payload.get("seconds", 0), {"letter": payload["letter"]})


async def run(slots, leaving, job, token, payload, renew_every):
    async with pool.connection() as conn:
        working = asyncio.create_task(work(payload))
        try:
            while not (await asyncio.wait([working, leaving], timeout=renew_every, return_when="FIRST_COMPLETED"))[0]:
                renewed = await conn.execute("select fairq.renew_job_lease(%s, %s)", [job, token])
                if not (await renewed.fetchone())[0]:
                    break
            working.cancel()  # unless it has ended
            result = await working
            async with conn.transaction():  # what the job changes here, and that it is done: both or neither
                await conn.execute("insert into sent (job_id, letter) values (%s, %s)", [job, result["letter"]])
                done = await conn.execute("select fairq.complete_job(%s, %s, %s)", [job, token, Jsonb(result)])
                if not (await done.fetchone())[0]:
                    raise psycopg.Rollback
        except asyncio.CancelledError:
            await conn.execute("select * from fairq.release_jobs(array[%s], array[%s])", [job, token])
        except Exception as error:
            await conn.execute("select fairq.fail_job(%s, %s, %s)", [job, token, repr(error)])
    slots.release()


async def main():
    leaving, slots = asyncio.get_running_loop().create_future(), asyncio.Semaphore(4)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.cancel)
    async with pool, pool.connection() as conn, asyncio.TaskGroup() as jobs:
        ear = await psycopg.AsyncConnection.connect(listen_url, autocommit=True) if listen_url else conn
        if listen_url:
            async for (listen,) in await conn.execute("select 'listen ' || quote_ident(fairq.channel(%s))", [queue]):
                await ear.execute(listen)
        while await slots.acquire() and not leaving.done():
            if job := await (await conn.execute(CLAIM, [queue, owner])).fetchone():
                jobs.create_task(run(slots, leaving, *job))
            else:
                slots.release()
                [notification async for notification in ear.notifies(timeout=1, stop_after=1)]


asyncio.run(main())
