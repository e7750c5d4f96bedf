-- fail: whatever an error's text is, the failure is recorded.
select plan(28);

create function pg_temp.kept(p_error text) returns jsonb language plpgsql as $fn$
-- fails a job with the error, and reads what was kept of it
declare
    v_job fairq.claimed_job;
begin
    select * into v_job from fairq_test.claim();
    if fairq.fail_job(v_job.job_id, v_job.lease_token, p_error, '1 day') <> 'scheduled' then
        raise exception 'not recorded';
    end if;
    return (select j.last_error from fairq.jobs as j where j.job_id = v_job.job_id);
end
$fn$;
select fairq_test.given_jobs('a', 40);

-- objects
select is(
    pg_temp.kept('{"code": "E1", "retryable": null}'), '{"code": "E1", "retryable": null}', 'an object is kept as one'
);
select is(
    (select g.details -> 'error' from fairq.job_log as g), '{"code": "E1", "retryable": null}',
    'in the log too, nulls and all'
);
select is(
    pg_temp.kept(e'  \n {"a": 1}'), '{"message": "  \n {\"a\": 1}", "length": 12}',
    'one that does not begin as one is text'
);
select is(pg_temp.kept('  {"a": 1}'), '{"a": 1}', 'spaces before it do not matter');
select is(pg_temp.kept('{}'), '{}', 'an empty object');
select is(pg_temp.kept('{"a": 1, "a": 2}'), '{"a": 2}', 'a key twice: the last one counts');
select is(pg_temp.kept('{"n": 1e400}'), jsonb_build_object('n', 1e400::numeric), 'a number of any size');

-- nearly objects
select is(
    pg_temp.kept(c.error), jsonb_build_object('message', c.error, 'length', length(c.error)),
    'kept as text: ' || c.name
)
from (values
    ('{"a": ', 'half an object'),
    ('{not json}', 'no JSON'),
    ('{"a": 1} trailing', 'more than an object'),
    ('{"a": "\u0000"}', 'an escaped NUL, which jsonb cannot hold'),
    ('{"a": "\ud800"}', 'half of a surrogate pair'),
    ('{"a": "\udc00\ud800"}', 'the halves in the wrong order'),
    ('{"n": 1e999999}', 'a number that is none'),
    ('"text"', 'a JSON string'),
    ('[1, 2]', 'a JSON array'),
    ('null', 'a JSON null'),
    ('', 'nothing'),
    ('   ', 'nothing but spaces'),
    (e'\\x00 \\u0000 ''; drop table fairq.jobs; --', 'hostile text'),
    (e'tab\tline\r\nbell\x07 ü 🐘', 'control characters and more than ASCII')
) as c(error, name);
select is(
    pg_temp.kept(repeat('{"a":', 2700) || 1 || repeat('}', 2700)),
    (repeat('{"a":', 2700) || 1 || repeat('}', 2700))::jsonb,
    'an object as deep as can be written in the space for one'
);
select is(
    pg_temp.kept(repeat('{"a":', 1000000)), jsonb_build_object('message', repeat('{"a":', 400), 'length', 5000000),
    'kept as text: a deeper one'
);
select is(
    pg_temp.kept(format('{"a": "%s"}', repeat('x', 20000))) ->> 'length', '20009',
    'an object too long to keep: its beginning and its length'
);
select is(
    pg_temp.kept(repeat('ü', 10000)), jsonb_build_object('message', repeat('ü', 2000), 'length', 10000),
    'a long text is cut between characters'
);

select is(
    pg_temp.kept('{"a":1e131071}'), jsonb_build_object('message', '{"a":1e131071}', 'length', 14),
    'a number of a hundred thousand digits is kept as it was written'
);

-- the longest
create temp table long as select pg_temp.kept(repeat('x', 100000000)) as kept;
select is(l.kept, jsonb_build_object('message', repeat('x', 2000), 'length', 100000000), '100 MB of text')
from long as l;
select is(count(*), (select count(*) from fairq.jobs as j where j.attempts = 1), 'each failure is in the log')
from fairq.job_log;

select * from finish();
