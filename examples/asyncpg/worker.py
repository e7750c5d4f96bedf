# A worker, four jobs at once: DATABASE_URL=... python worker.py QUEUE OWNER; LISTEN_URL has it woken at once.
import asyncio
import json
import os
import signal
import sys

import asyncpg

CLAIM = """
    select c.job_id, c.lease_token, c.payload, extract(epoch from c.lease_expires_at - clock_timestamp())::float / 3
    from fairq.claim_jobs(p_queue => $1, p_owner => $2, p_limit => $3) as c"""
(queue, owner), url, running, leaving, wake = sys.argv[1:], os.environ["DATABASE_URL"], {}, [], asyncio.Event()


async def work(payload):  # yours: in no transaction; it is cancelled when it is to stop
    return await asyncio.sleep(payload.get("seconds", 0), {"letter": payload["letter"]})


async def run(pool, job, token, renew_every, working):
    try:
        while not (await asyncio.wait([working], timeout=renew_every))[0]:
            if not await pool.fetchval("select fairq.renew_job_lease($1, $2)", job, token):
                working.cancel()
        result = await working
        async with pool.acquire() as conn, conn.transaction():  # the effects, and that it is done: both or neither
            await conn.execute("insert into sent (job_id, letter) values ($1, $2)", job, result["letter"])
            if not await conn.fetchval("select fairq.complete_job($1, $2, $3)", job, token, json.dumps(result)):
                raise asyncio.CancelledError
    except asyncio.CancelledError:
        await pool.fetch("select * from fairq.release_jobs($1, $2)", [job], [token])
    except Exception as error:
        await pool.fetch("select fairq.fail_job($1, $2, $3)", job, token, repr(error))
    del running[token]


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [leaving.append(True), wake.set()])
    # without a cache no prepared statement is left for the next transaction of a pgbouncer
    async with asyncpg.create_pool(url, statement_cache_size=0) as pool, asyncio.TaskGroup() as tasks:
        if listen_url := os.environ.get("LISTEN_URL"):
            ear = await asyncpg.connect(listen_url)
            await ear.add_listener(await ear.fetchval("select fairq.channel($1)", queue), lambda *_: wake.set())
        while not leaving:
            wake.clear()
            jobs = await pool.fetch(CLAIM, queue, owner, free) if (free := 4 - len(running)) else []
            for job, token, payload, renew_every in jobs:
                working = running[token] = asyncio.create_task(work(json.loads(payload)))
                tasks.create_task(run(pool, job, token, renew_every, working)).add_done_callback(lambda _: wake.set())
            asyncio.get_running_loop().call_later(0 if jobs else 1, wake.set)
            await wake.wait()
        [working.cancel() for working in running.values()]


asyncio.run(main())
