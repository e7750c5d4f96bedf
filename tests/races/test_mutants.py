"""
The race checks can fail: each names schedulers that look right and are not.

A storm meets its mutant by chance. So what a check in a named order can tell is left to that one, and the storms are
held against those mutants only that show that they can fail, several times if need be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import Edit, Statement, both

from . import test_leases as leases
from . import test_locks as locks
from . import test_look as look
from . import test_read_ahead as read_ahead
from . import test_storms as storms

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tests.support import Database


# that the checks can fail need not be shown on each version
pytestmark = pytest.mark.once


UNLOCKED = both(
    Edit("_lock_queue", " for update skip locked"),
    Edit("_wait_for_queue", " for update", times=2),
)

MUTANTS: dict[str, tuple[Callable[[Database], None], tuple[Callable[..., None], ...]]] = {
    # the queue's lock
    "claims do not lock the queue": (
        UNLOCKED,
        (locks.check_claims_take_turns,),
    ),
    "nobody may lock the queue": (
        Statement("drop policy api_locks on fairq.schedulers"),
        (locks.check_claims_take_turns,),
    ),
    "the queue's lock is waited for in one go": (
        Edit("_wait_for_queue", "least(400, ", "least(20000, "),
        (locks.check_a_claim_rolled_back_to_a_savepoint_frees_the_queue,),
    ),
    "who is cancelled while it waits for the queue goes on waiting": (
        Edit("_wait_for_queue", "if sqlstate = '57014' and", "if false and"),
        (locks.check_a_cancelled_claim_waits_no_longer,),
    ),
    "a timeout that is reported as a cancellation is one": (
        Edit("_wait_for_queue", " and clock_timestamp() < v_from + make_interval(secs => v_slice / 1000.0)"),
        (locks.check_a_timeout_reported_as_a_cancellation_is_none,),
    ),
    "the holder is known by its transaction only": (
        Edit("_lock_holders", "l.mode = 'RowShareLock'", "false"),
        (locks.check_the_holder_is_named,),
    ),
    # the look
    "the tick remembers a later snapshot than the look's": (
        Edit(
            "_dispatch",
            "v_tick := v_caught.tick;",
            "v_tick := v_caught.tick; v_tick.seen := pg_current_snapshot();",
        ),
        (look.check_commits_inside_a_claim,),
    ),
    "the look is not filtered by its snapshot": (
        both(
            Edit("_news_since", "pg_visible_in_snapshot(j.changed_xid, p_snap) and j.changed_xid <> p_own", "true"),
            Edit("_pick", "and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)"),
            Edit("_pick_one", "and jj.changed_xid <> p_own and pg_visible_in_snapshot(jj.changed_xid, p_snap)"),
        ),
        (look.check_children_are_found_once_committed,),
    ),
    **{
        f"{pick} takes jobs of its own transaction": (
            both(
                Edit("_news_since", " and j.changed_xid <> p_own"),
                Edit(pick, "jj.changed_xid <> p_own and "),
            ),
            (look.check_children_are_found_once_committed,),
        )
        for pick in ("_pick", "_pick_one")
    },
    "the next look forgets the tick's own transaction": (
        Edit("_look", "select p_tick.own_xid where p_tick.own_xid < v_since", "select null::xid8 where false"),
        (
            look.check_children_are_found_once_committed,
            look.check_savepoints_leave_nothing_behind,
            storms.check_slow_producers_lose_nothing,
        ),
    ),
    "the next look forgets what was under way": (
        Edit("_look", "select pg_snapshot_xip(p_tick.seen) as x", "select null::xid8 as x where false"),
        (look.check_a_late_commit_is_found,),
    ),
    "a job put back is no news": (
        Edit("_put_back", "case when p_is_fed then j.changed_xid else pg_current_xact_id() end", "j.changed_xid"),
        (look.check_a_job_put_back_is_found,),
    ),
    "a rescheduled job is no news": (
        Edit("reschedule_job", "changed_xid = pg_current_xact_id()", "changed_xid = j.changed_xid"),
        (look.check_commits_inside_a_claim,),
    ),
    "a promoted job is no news": (
        Edit("promote_due_jobs", ", changed_xid = pg_current_xact_id()"),
        (look.check_a_promoted_job_is_found,),
    ),
    # the pick and the lease
    "the claim does not lock the job": (
        Edit("_lease", "jj.state = 'queued'\n        for key share skip locked", "jj.state = 'queued'"),
        (locks.check_a_cancellation_in_flight_is_passed_by, locks.check_a_claim_in_flight_is_respected),
    ),
    "the claim of one does not lock it": (
        Edit("_lease", " j.state = 'queued'\n        for key share skip locked", " j.state = 'queued'"),
        (locks.check_a_cancellation_in_flight_is_passed_by, locks.check_a_claim_in_flight_is_respected),
    ),
    "a lease is given without a second look at the job": (
        Edit("_lease", "jj.ctid = p.job_row and jj.job_id = p.job_id and jj.state = 'queued'", "jj.job_id = p.job_id"),
        (look.check_a_job_put_off_is_not_leased,),
    ),
    "a lease of one is given without a second look at it": (
        Edit(
            "_lease",
            "j.ctid = v_pick.job_row and j.job_id = v_pick.job_id and j.state = 'queued'",
            "j.job_id = v_pick.job_id",
        ),
        (look.check_a_job_put_off_is_not_leased,),
    ),
    "the claim waits for the job": (
        Edit("_lease", "jj.state = 'queued'\n        for key share skip locked", "jj.state = 'queued' for key share"),
        (locks.check_a_cancellation_in_flight_is_passed_by,),
    ),
    "the claim waits for what it passes by": (
        Edit("_held_by_others", " skip locked"),
        (locks.check_a_cancellation_in_flight_is_passed_by,),
    ),
    "the claim of one waits for it": (
        Edit("_lease", " j.state = 'queued'\n        for key share skip locked", " j.state = 'queued' for key share"),
        (locks.check_a_cancellation_in_flight_is_passed_by,),
    ),
    "a head moves past a job that was skipped": (
        Edit("_dispatch", "if v_skip <> '{}' then", "if false then"),
        (look.check_a_skipped_job_is_found_later,),
    ),
    "the floor of the pick stays above who comes back": (
        Edit("_apply", "if v_flow.eligible then", "if false then"),
        (look.check_a_job_put_back_is_found,),
    ),
    "a running job may be picked": (
        Edit("_pick", "and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)"),
        (look.check_a_skipped_job_is_found_later, storms.check_everything_at_once),
    ),
    **{
        f"{pick} takes a running job": (
            Edit(pick, "and not exists (select from fairq.leases as l where l.job_id = jj.job_id offset 0)"),
            (look.check_a_running_job_is_passed_by,),
        )
        for pick in ("_pick", "_pick_one")
    },
    "flows left out do not bound the pick": (
        both(
            Edit("_pick", "or (select count(*) from flow) < p_wide", "or true"),
            Edit("_pick", "when count(*) over () = p_wide then", "when false then"),
        ),
        (leases.check_an_empty_flow_does_not_bend_the_order,),
    ),
    # the counts
    "a failed attempt is not settled": (
        Edit("_fail", "perform fairq._settle(v_lease.queue, fairq._ending(v_lease, 'held', v_now));"),
        (leases.check_what_runs_is_counted,),
    ),
    "a lease that cron ends is not settled": (
        Edit(
            "release_expired_jobs",
            "perform fairq._settle(v_queue, fairq._ending(v_lease, 'prepaid', clock_timestamp()));",
        ),
        (look.check_a_job_put_back_is_found,),
    ),
    "a lease that a claim ends is not settled": (
        Edit("_expire_due", "v_moved.endings := v_moved.endings || fairq._ending(v_lease, 'prepaid', p_now);"),
        (leases.check_the_old_token_is_dead_after_a_reclaim, storms.check_killed_workers_lose_nothing),
    ),
    "a completed attempt is not settled": (
        Edit("_complete", "group by h.queue", "where false group by h.queue"),
        (leases.check_what_runs_is_counted, storms.check_one_queue_drained_by_many),
    ),
    "who ends an attempt locks the queue": (
        Edit("_settle", "begin", "begin perform from fairq.schedulers as s where s.queue = p_queue for update;"),
        (locks.check_an_open_claim_stops_nobody_else,),
    ),
    "an attempt that is completed alone is not settled": (
        Edit("_complete_one", "values (v_lease.queue, array[", "values ('elsewhere', array["),
        (leases.check_what_runs_is_counted,),
    ),
    "a settlement is read twice": (
        Edit(
            "_look",
            """delete from fairq.settlements as s
        using unnest(v_from, v_to) as u(a, z)
        cross join lateral (
            select ss.ctid as row_id from fairq.settlements as ss
            where ss.queue = p_tick.queue and ss.ended_xid >= u.a and ss.ended_xid <= u.z
            offset 0
        ) as e
        where s.ctid = e.row_id
        returning s.endings""",
            """select s.endings from unnest(v_from, v_to) as u(a, z)
        join fairq.settlements as s on s.queue = p_tick.queue and s.ended_xid >= u.a and s.ended_xid <= u.z""",
        ),
        (leases.check_what_runs_is_counted,),
    ),
    "the cap is counted from nothing": (
        Edit("_charge", "(s.flow).running + s.took", "(s.flow).running"),
        (leases.check_what_runs_is_counted, storms.check_caps_hold),
    ),
    "only what ended is counted": (
        Edit("_apply", "v_flow.running := v_flow.running - v_new.ended;"),
        (leases.check_what_runs_is_counted,),
    ),
    "the queue counts only what ended": (
        Edit("_charge", "p_tick.running + v_sum.took", "p_tick.running"),
        (leases.check_what_runs_is_counted, storms.check_the_cap_of_the_queue_holds),
    ),
    "the queue does not count what ended": (
        Edit("_apply", "p_tick.running - coalesce(v_new.ended, 0)", "p_tick.running"),
        (leases.check_what_runs_is_counted,),
    ),
    "the queue's cap does not limit a claim": (
        Edit("_dispatch", "v_settings.max_running - v_tick.running", "v_settings.max_running"),
        (storms.check_the_cap_of_the_queue_holds,),
    ),
    "a tenant found empty stays backlogged": (
        Edit("_charge", "p_tick.backlogged - v_sum.gone", "p_tick.backlogged"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "a tenant found empty goes on to weigh": (
        Edit("_charge", "p_tick.milliweight - v_sum.milliweight", "p_tick.milliweight"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "a new weight of a backlogged tenant is not counted": (
        Edit("_apply", "+ (round(v_flow.weight * 1000) - round(v_was.weight * 1000))::bigint"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "an entrant is counted by the weight it had before its flow was opened": (
        both(
            Edit(
                "_apply",
                "v_unknown := v_unknown || v_new.tenant;",
                "v_unknown := v_unknown || v_new.tenant; p_tick.backlogged := p_tick.backlogged + 1;"
                " p_tick.milliweight := p_tick.milliweight + round((v_new.wish).weight * 1000)::bigint;",
            ),
            Edit(
                "_apply",
                "if v_new.arrived and not (v_new.flow).has_work then",
                "if v_new.arrived and not (v_new.flow).has_work and v_new.tenant = any (v_unknown) is not true then",
            ),
        ),
        (look.check_a_wish_inside_a_claim_is_weighed_once,),
    ),
    "a flow keeps the weight it was opened with": (
        Edit("_wished", "p_flow.weight := p_wish.weight;"),
        (look.check_a_wish_for_all_reaches_who_was_idle,),
    ),
    "an entrant does not ask what is wished for it": (
        Edit("_by_tenant", "t.wished or t.arrived and (f.flow).has_work is not true", "t.wished"),
        (leases.check_who_is_backlogged_is_counted,),
    ),
    "what a claim may start is not limited by the cap": (
        Edit("_pick", "p_want, (f.flow).max_running - (f.flow).running,", "p_want,"),
        (storms.check_caps_hold,),
    ),
    # leases
    "a lease is judged before its row is locked": (
        Edit(
            "_hold_lease",
            "v_lease.lease_expires_at > coalesce(p_now, clock_timestamp())",
            "v_lease.lease_expires_at > statement_timestamp()",
        ),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "complete judges before its row is locked": (
        Edit("_complete", "coalesce(p_now, clock_timestamp()) then l end", "statement_timestamp() then l end"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "complete judges a single lease before its row is locked": (
        Edit("_complete_one", "v_now := coalesce(p_now, clock_timestamp());", "v_now := statement_timestamp();"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "a lease that is being renewed counts as lost": (
        Edit("_hold_lease", "for update", "for update skip locked"),
        (leases.check_a_worker_can_end_what_it_just_renewed,),
    ),
    "a lease that was over when complete had it is lost": (
        Edit("_complete", "insert into fairq.leases select l.* from unnest(v_late) as l;", "null;"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "a single lease that was over when complete had it is lost": (
        Edit("_complete_one", "insert into fairq.leases select v_lease.*;"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked,),
    ),
    "a dead lease is good until it is taken back": (
        Edit(
            "_complete",
            "case when l.lease_expires_at <= coalesce(p_now, clock_timestamp()) then l end",
            "null::fairq.leases",
        ),
        (leases.check_a_lease_is_judged_once_its_row_is_locked, leases.check_a_dead_lease_completes_nothing),
    ),
    "a single dead lease is good until it is taken back": (
        Edit("_complete_one", "if v_lease.lease_expires_at <= v_now then", "if false then"),
        (leases.check_a_lease_is_judged_once_its_row_is_locked, leases.check_a_dead_lease_completes_nothing),
    ),
    **{
        f"{complete} does not wait for a renewal after the end of the lease": (
            Edit(complete, returning, f"and {alive} {returning}"),
            (leases.check_a_renewal_in_flight_is_waited_for_after_the_end_of_the_lease,),
        )
        for complete, alive, returning in (
            ("_complete_one", "l.lease_expires_at - clock_timestamp() > interval '0'", "returning l.*"),
            (
                "_complete",
                "l.lease_expires_at - coalesce(p_now, clock_timestamp()) > interval '0'",
                "returning\n            l.job_id",
            ),
        )
    },
    "who asks again and waits for the first answer does not see it": (
        Edit(
            "complete_job",
            "if fairq._complete_one(p_job_id, p_token, p_result) then\n        return true;\n    end if;",
            "return fairq._complete_one(p_job_id, p_token, p_result) or fairq._completed_before(p_job_id, p_token);",
        ),
        (leases.check_a_second_completion_waits_for_the_first,),
    ),
    "a great payload is left behind": (
        Edit("claim_jobs", "if v_job.payload is null then", "if false then"),
        (leases.check_great_payloads_arrive_whole,),
    ),
    "a job may have no payload": (
        Statement("alter table fairq.jobs alter payload drop not null"),
        (leases.check_great_payloads_arrive_whole,),
    ),
    "complete asks for no token": (
        both(
            Edit(
                "_complete",
                "and l.lease_token = any (",
                "and l.lease_token is not null or l.job_id = any (p_job_ids) and l.lease_token = any (",
            ),
            Edit("_complete", "+ array_position(", "+ 1 - num_nulls("),
        ),
        (leases.check_only_the_token_ends_an_attempt, leases.check_the_old_token_is_dead_after_a_reclaim),
    ),
    "complete asks for no token of a single job": (
        Edit("_complete_one", " and l.lease_token = p_token"),
        (leases.check_only_the_token_ends_an_attempt, leases.check_the_old_token_is_dead_after_a_reclaim),
    ),
    "the others ask for no token": (
        Edit("_hold_lease", "v_lease.lease_token = p_token and "),
        (leases.check_only_the_token_ends_an_attempt,),
    ),
    "complete asks not who calls": (
        Edit("_complete", " and l.caller = v_caller"),
        (leases.check_only_the_claimer_ends_an_attempt,),
    ),
    "complete asks not who calls for a single job": (
        Edit("_complete_one", " and l.caller = fairq._caller()"),
        (leases.check_only_the_claimer_ends_an_attempt,),
    ),
    "the others ask not who calls": (
        Edit("_hold_lease", "and v_lease.caller = p_caller"),
        (leases.check_only_the_claimer_ends_an_attempt,),
    ),
    "a batch answers for the job and not for the token": (
        Edit("complete_jobs", "u.ordinality = any (v_done)", "cardinality(v_done) > 0"),
        (leases.check_only_the_token_ends_an_attempt,),
    ),
    "a renewal may shorten": (
        Edit("_renew", "greatest(l.lease_expires_at, v_now + p_lease)", "v_now + p_lease"),
        (leases.check_a_renewal_never_shortens,),
    ),
    "cancel does not look for the lease again": (
        Edit(
            "_hold_waiting", "if exists (select from fairq.leases as l where l.job_id = p_job_id) then", "if false then"
        ),
        (leases.check_a_cancel_that_waited_finds_the_lease, locks.check_a_claim_in_flight_is_respected),
    ),
    "who finds the lease keeps the job's row": (
        Edit("_hold_waiting", "raise exception 'job % runs', p_job_id using errcode = 'QF900';", "return null;"),
        (leases.check_a_cancel_that_waited_finds_the_lease,),
    ),
    "a purge locks what runs": (
        both(
            Edit("purge_tenant", "continue when exists (select from fairq.leases as l where l.job_id = v_id);"),
            Edit(
                "purge_tenant", "if exists (select from fairq.leases as l where l.job_id = v_id) then", "if false then"
            ),
        ),
        (locks.check_a_purge_leaves_alone_what_is_claimed_meanwhile,),
    ),
    "enqueue takes the keys of a batch as they come": (
        Edit("_draw_ids", "order by u.tenant, u.key, u.ordinality", "order by u.ordinality"),
        (locks.check_batches_in_opposite_order,),
    ),
    **{
        f"{verb} locks as it comes": (
            Edit(verb, "order by u.job_id, u.ordinality", "order by u.ordinality"),
            (locks.check_batches_in_opposite_order,),
        )
        for verb in ("fail_jobs", "release_jobs", "renew_job_leases")
    },
    "an average is moved on by more than it can bear": (
        Edit("_average", "least(p_count, 1000)", "p_count"),
        (look.check_however_many_end_between_two_looks,),
    ),
    "half a completion may stay": (
        Edit("_complete", "coalesce(cardinality(v_done), 0) <> v_ended", "false"),
        (leases.check_nothing_stays_of_half_a_completion,),
    ),
    "a batch passes by a job that a rebuild has just changed": (
        both(
            Edit(
                "_complete",
                "where j.job_id = any (array(",
                "where j.xmin = any (array(select jj.xmin from fairq.jobs as jj)) and j.job_id = any (array(",
            ),
            Edit("_complete", "coalesce(cardinality(v_done), 0) <> v_ended", "false"),
        ),
        (look.check_attempts_that_end_during_a_rebuild_are_counted,),
    ),
    "half a completion of one may stay": (
        Edit(
            "_complete_one",
            "    if not found then\n        raise exception",
            "    if false then\n        raise exception",
        ),
        (leases.check_nothing_stays_of_half_a_completion,),
    ),
    # promote and expire
    "promote waits for locked jobs": (
        Edit("promote_due_jobs", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "a claim waits for a locked job that is due": (
        Edit("_promote_due", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "a claim waits for a locked lease that is over": (
        Edit("_expire_due", "for update skip locked", "for update"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "the floor of promote moves past locked jobs": (
        Edit("_promote_due", "j.run_at <= p_now + interval", "j.run_at > p_now and j.run_at <= p_now + interval"),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    "the floor of expire moves past locked leases": (
        Edit(
            "_expire_due",
            "l.lease_expires_at <= p_now + interval",
            "l.lease_expires_at > p_now and l.lease_expires_at <= p_now + interval",
        ),
        (leases.check_floors_stay_at_what_is_locked,),
    ),
    # floors that look a second ahead
    "a new lease does not lower the floor of expire": (
        Edit("_dispatch", "v_tick.expire_floor := least(v_tick.expire_floor, v_now + p_lease);"),
        (look.check_what_comes_up_within_a_second_is_found, look.check_a_clock_set_back_hides_nothing),
    ),
    "a lease that ends within a second does not hold the floor of expire": (
        Edit("_expire_due", "l.lease_expires_at <= p_now + interval '1 second'", "l.lease_expires_at <= p_now"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "a new scheduled job does not lower the floor of promote": (
        Edit("_catch_up", "p_tick.promote_floor := least(p_tick.promote_floor, v_moved.floor);"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "a job that is due within a second does not hold the floor of promote": (
        Edit("_promote_due", "j.run_at <= p_now + interval '1 second'", "j.run_at <= p_now"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "a tenant that has spent its tokens does not lower the floor of tokens": (
        Edit("_charge", "p_tick.token_floor := least(p_tick.token_floor, v_sum.token_due_at);"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "a new rate does not lower the floor of tokens": (
        Edit("_apply", "p_tick.token_floor := least(p_tick.token_floor, v_flow.token_due_at);"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "a token that comes within a second does not hold the floor of tokens": (
        Edit("_tokens_due", "min(d.token_due_at) filter (where d.token_due_at > p_now)", "null"),
        (look.check_what_comes_up_within_a_second_is_found,),
    ),
    "the floor of tokens moves past those within the second that a look had no room for": (
        Edit(
            "_tokens_due",
            "min(d.token_due_at) filter (where d.token_due_at > p_now)",
            "case when count(*) = p_limit then max(d.token_due_at)"
            " else min(d.token_due_at) filter (where d.token_due_at > p_now) end",
        ),
        (look.check_no_token_within_a_second_is_lost_behind_a_full_look,),
    ),
    "the floor of tokens moves past those a look had no room for": (
        Edit("_tokens_due", "else max(d.token_due_at) end", "else p_now + interval '1 second' end"),
        (look.check_tokens_beyond_the_limit_of_a_look_come_with_the_next,),
    ),
    # flows in memory
    "the news of who is not picked is not written": (
        Edit("_charge", "(t.flow).tenant not in (", "false and (t.flow).tenant not in ("),
        (look.check_the_news_of_all_is_written,),
    ),
    "the news is not written when nothing is picked": (
        Edit("_dispatch", "if v_caught.touched <> '{}' then", "if false then"),
        (look.check_the_news_of_all_is_written,),
    ),
    "the news of jobs that were skipped is not written": (
        Edit("_pass_by", "perform fairq._write_touched(v_written, '{}');"),
        (look.check_a_skipped_job_is_found_later,),
    ),
    "a claim of one reads from the table what the news have changed": (
        Edit("_pick_one", "and f.tenant <> all (v_tenants)"),
        (look.check_the_news_of_all_is_written,),
    ),
    "a claim of many reads from the table what the news have changed": (
        Edit("_pick", "and ff.tenant not in (select (t.flow).tenant from unnest(p_touched) as t)"),
        (look.check_the_news_of_all_is_written,),
    ),
    "a claim for one tenant reads from the table what the news have changed": (
        Edit("_pick", "and n.tenant not in (select (t.flow).tenant from unnest(p_touched) as t)"),
        (look.check_the_news_of_all_is_written,),
    ),
    # keys
    "a key under way counts as taken": (
        Edit(
            "_draw_id",
            "for v_try in 1..10 loop",
            "if not pg_try_advisory_xact_lock(hashtext(p_job.tenant || p_job.key)) then"
            " return row(null, p_job_id, 'exists')::fairq.enqueue_outcome; end if;\n    for v_try in 1..10 loop",
        ),
        (locks.check_a_producer_waits_only_for_its_key,),
    ),
    "a lost race for a key is a new job": (
        Edit(
            "_draw_id",
            "if found then\n            return row(null, p_job_id, 'created')",
            "if true then\n            return row(null, p_job_id, 'created')",
        ),
        (locks.check_batches_in_opposite_order,),
    ),
    # the fair order
    "an idle tenant keeps its place": (
        Edit("_apply", "p_tick.virtual_time + case", "0 + case"),
        (leases.check_a_returning_tenant_has_no_credit,),
    ),
    "virtual time may fall": (
        Edit("_virtual_time", "greatest(p_tick.virtual_time, v_first.vtime)", "v_first.vtime"),
        (leases.check_virtual_time_never_falls,),
    ),
    # reading ahead
    "what is ready is taken in any order": (
        Edit("_take", "order by rr.dispatch\n", "order by rr.dispatch desc\n"),
        (read_ahead.check_what_is_ready_is_taken_in_order,),
    ),
    "what is being taken is picked again": (
        Edit("_dispatch", "v_away := fairq._being_taken(v_was);", times=2),
        (read_ahead.check_a_take_in_flight_is_passed_by, read_ahead.check_many_take_what_is_ready),
    ),
    "what is ready is not put back": (
        Edit("_dispatch", "v_back := fairq._put_ready_back(v_was);"),
        (read_ahead.check_a_ready_job_is_still_its_tenants, read_ahead.check_reading_ahead_can_be_turned_off),
    ),
    "what is put back is not paid back": (
        Edit("_put_ready_back", "0, 0, 0, p.step)", "0, 0, 0, 0)"),
        (read_ahead.check_reading_ahead_can_be_turned_off,),
    ),
    "what has gone is not paid back": (
        Edit("_lease_each", "0, 0, 0, v_pick.step)", "0, 0, 0, 0)"),
        (read_ahead.check_what_has_gone_is_paid_back,),
    ),
    "a held pick is dropped": (
        Edit("_lease_each", "if v_claimed[cardinality(v_claimed)].job_id is distinct from v_pick.job_id", "if false"),
        (read_ahead.check_what_has_gone_is_paid_back,),
    ),
    "what is ready of a paused tenant is taken": (
        both(
            Edit("_take", "and t.paused order by", "and false order by"),
            Edit("_take", "select t.paused from", "select false from"),
        ),
        (read_ahead.check_a_pause_holds_what_is_ready, read_ahead.check_a_pause_holds_what_is_left_of_a_take),
    ),
    "a claim whose grant goes says nothing of what it has leased": (
        Edit("_take", "v_is_for_all or v_claimed <> '{}'", "v_is_for_all"),
        (read_ahead.check_a_claim_whose_grant_goes_keeps_what_it_has,),
    ),
    "what is ready is taken while all are paused": (
        Edit("_take", "t.tenant in (p.tenant, '*')", "t.tenant = p.tenant"),
        (read_ahead.check_a_pause_of_all_holds_what_is_ready,),
    ),
    "what is ready of the one that is not paused is not taken": (
        Edit("_take", "order by t.tenant = '*'", "order by t.tenant <> '*'"),
        (read_ahead.check_a_pause_of_all_holds_what_is_ready,),
    ),
    "who has some of what is ready waits for the rest": (
        Edit("claim_jobs", "if p_limit > 0 and v_claimed <> '{}' then", "if false then"),
        (read_ahead.check_who_has_what_is_ready_does_not_wait,),
    ),
    "who takes what is ready may idle for ever": (
        Edit("claim_jobs", "v_is_good := fairq._limit_idle_transaction();", ""),
        (read_ahead.check_a_claim_of_what_is_ready_may_not_idle_for_ever,),
    ),
    "what is ready is for all, whoever claims": (
        Edit("_take", "if v_floor is null or not v_is_for_all then", "if v_floor is null then"),
        (read_ahead.check_what_is_ready_is_for_who_may_claim_for_all,),
    ),
    "what is ready is for all, whoever is claimed for": (
        Edit("_take", " and p_is_open\n", "\n"),
        (read_ahead.check_what_is_ready_is_for_who_may_claim_for_all,),
    ),
    "what is ready of a paused queue is taken": (
        Edit("_take", " and not q.paused"),
        (read_ahead.check_a_pause_holds_what_is_ready,),
    ),
    "more is picked than the queue reads ahead": (
        Edit("_dispatch", "least(v_settings.read_ahead, 1000 - p_limit)", "1000 - p_limit"),
        (read_ahead.check_a_newcomer_waits_for_what_is_ready_and_no_longer,),
    ),
    "the rest of a row is lost": (
        Edit("_take", "if cardinality(v_picks) > p_limit then", "if false then"),
        (read_ahead.check_what_is_too_much_stays_ready,),
    ),
    "what is ready is so for ever": (
        Edit("_take", "n.now - interval '1 second' and n.now", "'-infinity' and 'infinity'"),
        (read_ahead.check_what_is_ready_is_so_for_a_second,),
    ),
    "who enters does so at the virtual time of what was ready": (
        both(
            Edit("_catch_up", "if p_back.endings is not null then", "if false then"),
            Edit("_catch_up", "fairq.news[] := v_moved.news;", "fairq.news[] := v_moved.news || p_back.news;"),
            Edit(
                "_catch_up",
                "fairq.ending[] := v_moved.endings;",
                "fairq.ending[] := v_moved.endings || p_back.endings;",
            ),
        ),
        (read_ahead.check_what_is_ready_is_so_for_a_second,),
    ),
    "what is put back has been started": (
        Edit("_put_ready_back", "f.started[1] - n.returned", "f.started[1]"),
        (read_ahead.check_reading_ahead_can_be_turned_off,),
    ),
    "a tenant's tokens are not put back": (
        Edit("_put_ready_back", "f.tokens + n.returned", "f.tokens"),
        (read_ahead.check_tokens_come_back_with_what_is_put_back,),
    ),
    "a queue's tokens are not put back": (
        Edit("_dispatch", "v_was.tokens + coalesce(cardinality(v_back.endings), 0)", "v_was.tokens"),
        (read_ahead.check_tokens_come_back_with_what_is_put_back,),
    ),
    "the expire floor is not held for what is ready": (
        Edit("_dispatch", "v_tick.expire_floor := least(v_tick.expire_floor, v_now);"),
        # nobody takes what is ready then
        (read_ahead.check_a_take_in_flight_is_passed_by,),
    ),
    "the expire floor is not held for what is being taken": (
        Edit(
            "_dispatch",
            "v_tick.expire_floor, greatest(v_was.expire_floor, v_made - interval '2 seconds')",
            "v_tick.expire_floor",
        ),
        (read_ahead.check_leases_of_what_was_ready_end,),
    ),
    "more is picked when all is taken": (
        Edit("_take", "if p_limit = 0 and v_ahead > 3", "if false and v_ahead > 3"),
        (read_ahead.check_more_is_picked_before_all_is_taken,),
    ),
    "picks are numbered from the first on": (
        Edit("_dispatch", " + 1000 - v_left - v_over;", ";"),
        (read_ahead.check_more_is_picked_before_all_is_taken,),
    ),
    "what is ready is put back while more is picked": (
        Edit("_dispatch", "if not v_is_more then", "if true then"),
        (read_ahead.check_more_is_picked_before_all_is_taken,),
    ),
    "more is picked than is missing": (
        Edit("_dispatch", "v_ahead := v_ahead - cardinality(v_away);", "null;"),
        (read_ahead.check_more_is_picked_before_all_is_taken,),
    ),
    "a clock that is set back within a second passes by a lease": (
        Edit("_dispatch", "v_made - interval '2 seconds'", "v_made"),
        (read_ahead.check_a_clock_set_back_a_little_loses_no_lease,),
    ),
    "more is picked as soon as a little is missing": (
        Edit("_dispatch", "v_ahead <= v_settings.read_ahead / 4", "v_ahead <= 0"),
        (read_ahead.check_more_is_picked_once_enough_is_missing,),
    ),
    "more is picked at a quarter or not at all": (
        Edit("_take", "(v_behind + cardinality(v_claimed)) / v_step > v_behind / v_step", "v_behind = v_ahead / 4"),
        (read_ahead.check_more_is_picked_once_enough_is_missing,),
    ),
    "what a cap cuts off counts as the end": (
        Edit("_dispatch", " - v_left - v_over;", " - v_left;"),
        (read_ahead.check_a_capped_queue_picks_when_all_is_taken,),
    ),
    "who could not have what it took has more picked": (
        Edit("_take", "p_limit := -1;", "p_limit := 0;"),
        (read_ahead.check_who_gets_nothing_picks_nothing_more,),
    ),
    "a queue that reads less than four ahead picks more, too": (
        Edit("_take", "v_ahead > 3", "true"),
        (read_ahead.check_little_is_picked_when_all_is_taken,),
    ),
    "who picks more waits for the lock": (
        Edit("_take", "for update skip locked;\n            if found then", "for update;\n            if found then"),
        (read_ahead.check_who_picks_more_does_not_wait,),
    ),
    "who picks more forgets who found nothing": (
        Edit("_dispatch", " or v_is_more and v_was.found_empty"),
        (read_ahead.check_who_picks_more_forgets_no_idle_worker,),
    ),
    "more is picked beside what nobody takes": (
        Edit("_take", "r.dispatch < v_dispatch - v_dispatch % 1024", "false"),
        (read_ahead.check_what_nobody_takes_is_put_back,),
    ),
    "the ready floor stays where something is being taken": (
        Edit("_dispatch", "coalesce(v_floor, v_was.ready_floor)", "v_was.ready_floor"),
        (read_ahead.check_floors_move_while_some_is_being_taken,),
    ),
    "the expire floor stays where something is being taken": (
        Edit("_dispatch", "greatest(v_was.expire_floor, v_made - interval '2 seconds')", "v_was.expire_floor"),
        (read_ahead.check_floors_move_while_some_is_being_taken,),
    ),
    "what has been taken meanwhile is passed by": (
        Edit(
            "_dispatch",
            "v_away := fairq._being_taken(v_was);\n        v_tick.ready_floor",
            "v_tick.ready_floor",
        ),
        (read_ahead.check_a_lease_that_ends_as_it_is_committed_is_seen,),
    ),
    "what is put back comes in anew": (
        Edit("_catch_up", "-4611686018427387904", "fairq._virtual_time(p_tick)"),
        (read_ahead.check_what_is_put_back_keeps_its_turn,),
    ),
    "what is ready is taken by a clock that was set back": (
        both(
            Edit("_take", "when t.expire_floor <= n.now", "when true"),
            Edit("_take", "and t.ticked_at between n.now - interval '1 second' and n.now"),
        ),
        (read_ahead.check_a_clock_set_back_loses_no_lease,),
    ),
    "a pick is given up without the lock": (
        Edit("_lease_each", "if v_is_locked and v_state", "if v_state"),
        (read_ahead.check_a_pick_is_given_up_under_the_lock_alone,),
    ),
    "a rebuild keeps what is ready": (
        Edit("_rebuild", "delete from fairq.ready_picks as r where r.queue = p_queue;"),
        (read_ahead.check_another_cluster_makes_it_ready_anew,),
    ),
    # after a move
    "the memory of another cluster is trusted": (
        Edit("_last_tick", "v_tick.system_identifier is distinct from v_system", "v_tick.system_identifier is null"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "jobs never claimed keep the transactions of another cluster": (
        Edit("_rebuild", "j.changed_xid >= pg_snapshot_xmax(pg_current_snapshot())", "false"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild does not count": (
        Edit(
            "_rebuild",
            "(select count(*) from fairq.leases as l where l.queue = f.queue and l.tenant = f.tenant)",
            "f.running",
        ),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild does not count what the queue runs": (
        Edit("_rebuild", "(select count(*) from fairq.leases as l where l.queue = p_queue)", "p_tick.running"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
    "a rebuild keeps the settlements": (
        Edit("_rebuild", "delete from fairq.settlements as s where s.queue = p_queue;"),
        (look.check_the_memory_of_another_cluster_is_not_trusted,),
    ),
}


CASES = [
    pytest.param(mutation, check, id=f"{name} ({check.__name__})")
    for name, (mutation, checks) in MUTANTS.items()
    for check in checks
]
STORMS = {value for value in vars(storms).values() if callable(value)} | {read_ahead.check_many_take_what_is_ready}
TRIES = 5


@pytest.mark.parametrize(("mutation", "check"), CASES)
def test_a_mutant_is_killed(
    assert_killed: Callable[..., None], mutation: Callable[[Database], None], check: Callable[..., None]
) -> None:
    """
    Under the mutant the check fails: in a named order at once, in a storm in one of five, each in a fresh database.
    """
    assert_killed(check, mutation, tries=TRIES if check in STORMS else 1)


@pytest.mark.parametrize(
    "module", [leases, locks, look, read_ahead, storms], ids=lambda module: module.__name__.split(".")[-1]
)
def test_every_check_has_a_mutant(module: ModuleType) -> None:
    """
    No check of a race is without a mutant that makes it fail.
    """
    killers = {check.__name__ for _, checks in MUTANTS.values() for check in checks}
    checks = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    assert {name for name in checks if name.startswith("check_")} <= killers
