// A worker, four jobs at once: DATABASE_URL=... node worker.mjs QUEUE OWNER; LISTEN_URL has it woken at once.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const CLAIM = `
  select c.*, 1000 * extract(epoch from c.lease_expires_at - clock_timestamp())::float / 3 as renew_every
  from fairq.claim_jobs(p_queue => $1, p_owner => $2, p_limit => $3) as c`
const [queue, owner] = process.argv.slice(2)
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL })
const running = new Map() // by lease: how to stop it
let leaving = false, wake = () => {}

async function work(payload, signal) { // yours: in no transaction; the signal says that it is to stop
  await sleep(1000 * (payload.seconds ?? 0), null, { signal })
  if (!payload.letter) throw new Error('there is no letter')
  return { letter: payload.letter }
}

async function run({ job_id, lease_token, payload, renew_every }, stop) {
  const client = await pool.connect()
  const renewing = setInterval(async () => {
    const { rows } = await pool.query('select fairq.renew_job_lease($1, $2) as held', [job_id, lease_token])
    if (!rows[0].held) stop.abort()
  }, renew_every)
  try {
    const result = await work(payload, stop.signal)
    await client.query('begin') // what the job changes here, and that it is done: both or neither
    await client.query('insert into sent (job_id, letter) values ($1, $2)', [job_id, result.letter])
    const { rows } = await client.query('select fairq.complete_job($1, $2, $3) as held', [job_id, lease_token, result])
    await client.query(rows[0].held ? 'commit' : 'rollback')
  } catch (error) {
    await client.query('rollback')
    if (stop.signal.aborted) await client.query('select * from fairq.release_jobs($1, $2)', [[job_id], [lease_token]])
    else await client.query('select fairq.fail_job($1, $2, $3)', [job_id, lease_token, String(error)])
  }
  clearInterval(renewing)
  client.release()
  running.delete(lease_token)
  wake()
}

process.on('SIGTERM', () => { leaving = true; for (const stop of running.values()) stop.abort(); wake() })
if (process.env.LISTEN_URL) {
  const ear = new pg.Client(process.env.LISTEN_URL)
  await ear.connect()
  const { rows: [{ channel }] } = await ear.query('select quote_ident(fairq.channel($1)) as channel', [queue])
  await ear.on('notification', () => wake()).query(`listen ${channel}`)
}
while (!leaving || running.size) {
  const woken = new Promise((resolve) => { wake = resolve })
  const free = leaving ? 0 : 4 - running.size
  const { rows: jobs } = free ? await pool.query(CLAIM, [queue, owner, free]) : { rows: [] }
  for (const job of jobs) {
    running.set(job.lease_token, new AbortController())
    run(job, running.get(job.lease_token))
  }
  if (!jobs.length) await Promise.race([woken, sleep(1000)])
}
process.exit()
