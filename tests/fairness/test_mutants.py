"""
The fairness checks can fail: each is held against a scheduler broken on purpose.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support import Edit, both

from . import test_scenarios as at
from .test_differential import check_seeded_traces
from .test_read_ahead import check_what_is_put_back_is_taken_off_the_minute_it_was_counted_in
from .test_state_machine import check_any_order
from .test_worker_time import check_reading_ahead_is_as_more_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support import Both, Database

# that the checks can fail need not be shown on each version
pytestmark = pytest.mark.once

# The seeds of traces that tell of a mutant, to save time. Were the traces made in another way, one of the thousand that
# come after them would tell.
TELLING = 5, 4, 65, 72, 53, 10, 13, 14, 23


def traces(db: Database) -> None:
    """
    The same traces every time, until one tells.
    """
    for seed in TELLING:
        check_seeded_traces(db, 1, seed)
    check_seeded_traces(db, 1000)


def scenario(name: str) -> Callable[[Database], None]:
    """
    The check of a scenario by its name.
    """
    return partial(at.check_scenario, name=name)


CAP_IGNORED = Edit("_pick", "p_want, (f.flow).max_running - (f.flow).running,", "p_want,")

MUTANTS: list[tuple[Callable[[Database], None], Edit | Both]] = [
    # R2: no lift at activation; debt forgotten; a tenant's first job starts at zero
    (
        scenario("09_idling_earns_nothing"),
        Edit("_apply", "p_tick.virtual_time + case", "null + case"),
    ),
    (
        scenario("10_debt_is_kept"),
        Edit(
            "_lifted",
            "if p_start > p_flow.vtime then",
            "if p_start > p_flow.vtime or p_start is not null then",
        ),
    ),
    (
        at.check_13_a_late_commit_earns_nothing,
        Edit(
            "_apply",
            "p_tick.virtual_time + case",
            "case when v_was.stamp > 0 then p_tick.virtual_time end + case",
        ),
    ),
    # R2: E falls with a flow that R11 let in below V
    (
        scenario("r2_nobody_enters_below"),
        Edit("_virtual_time", "greatest(p_tick.virtual_time, v_first.vtime)", "v_first.vtime"),
    ),
    # R4: ties by name alone; of one job among the flows in the table, among those in memory
    (
        scenario("08_batches_change_nothing"),
        Edit("_pick", "order by h.tag, h.charge, h.again", "order by h.tag, h.again", times=2),
    ),
    (
        scenario("02_one_to_three"),
        Edit("_pick_one", "order by f.vtime, f.charge, f.served", "order by f.vtime, f.served"),
    ),
    (
        scenario("02_one_to_three"),
        both(
            Edit("_pick_one", "(v_touched.flow).charge, "),
            Edit("_pick_one", "(v_first.flow).charge, "),
        ),
    ),
    (
        traces,
        Edit("_pick", "h.again, h.nth, h.place", "h.again, h.place", times=2),
    ),
    # R4: of one job, the flows in the table before those in memory, or the other way round
    (
        scenario("11_a_weight_acts_at_once"),
        Edit(
            "_pick_one",
            "(f.vtime, f.charge, f.served, f.tenant) < (v_flow.vtime, v_flow.charge, v_flow.served, v_flow.tenant)",
            "true",
        ),
    ),
    (
        scenario("10_debt_is_kept"),
        Edit("_pick_one", "if found then", "if found and v_first.row_id is null then"),
    ),
    # R4, R7: ties in a batch by how often, whatever the steps
    (
        scenario("08_batches_change_no_tie"),
        Edit("_pick", "h.again, h.nth", "h.nth", times=2),
    ),
    # R7: a flow read to its depth does not bound the pass
    (
        scenario("08_a_heavy_tenant_fills_a_batch"),
        Edit("_pick", "f.vtime + f.depth * f.step", "f.vtime + 1000 * f.depth * f.step"),
    ),
    # R7: a flow that was not read does not bound it either
    (scenario("12_cancelled_tenants_hide_nobody"), Edit("_pick", "(select count(*) from flow) < p_wide", "true")),
    # R7: a flow that was found empty ends the claim
    (
        scenario("12_cancelled_tenants_hide_nobody"),
        Edit(
            "_pick_one", "row(\n            true, null::fairq.pick[],", "row(\n            false, null::fairq.pick[],"
        ),
    ),
    # R8: a weight acts on flows opened after it
    (scenario("11_a_weight_acts_at_once"), Edit("_wished", "p_flow.weight := p_wish.weight;", "")),
    # the look: nothing new of jobs, or of tenants
    (scenario("07_a_short_backlog_ends"), Edit("_look", "where exists (", "where false and exists (")),
    (scenario("11_a_weight_acts_at_once"), Edit("_look", ") or exists (", ") or false and exists (")),
    # R9: the cap judged before the claim and not within it
    (
        at.check_18_a_cap_is_exact,
        CAP_IGNORED,
    ),
    # R11: no lift when unblocked
    (
        scenario("r11_one_job_of_precedence"),
        Edit("_apply", "if v_flow.eligible and not v_was.eligible then", "if false then"),
    ),
    # R11: without bounds upwards, as if it had never waited
    (
        traces,
        Edit("_apply", "p_tick.virtual_time - v_flow.charge);", "p_tick.virtual_time);"),
    ),
    # R1: without the queue's lock
    (at.check_17_one_tenant_many_claimers, Edit("_dispatch", "fairq._lock_queue(p_queue)", "true")),
    # the lighter tenants pay too little
    (
        at.check_16_sixteen_sessions_share_by_weight,
        Edit("_charge", "(s.flow).vtime + s.charge", "(s.flow).vtime + least(s.charge, s.took * 2520000 / 2)"),
    ),
    # charging: only at the end; never a job's own length
    (
        scenario("21_idle_workers_are_shared"),
        Edit("_charge", "least((s.flow).vtime + s.charge, 4611686018427387904)", "(s.flow).vtime"),
    ),
    (scenario("20_slots_are_shared_not_jobs"), Edit("_apply", "if v_new.ended is not null then", "if false then")),
    # charging: a refund counts after a lift too
    (
        scenario("22_a_late_refund_is_void"),
        Edit("_by_tenant", "when t.last_epoch = (f.flow).epoch then t.refund", "else t.refund"),
    ),
    (
        scenario("22_a_late_refund_is_void_when_it_comes_alone"),
        Edit("_by_tenant", "case when e.epoch = (f.flow).epoch then e.refund end", "e.refund"),
    ),
    (
        scenario("22_a_late_refund_is_void_beside_one_in_time"),
        Edit("_by_tenant", " where e.epoch = (f.flow).epoch"),
    ),
    (traces, Edit("_lifted", "p_flow.epoch := p_flow.epoch + 1;", "null;")),
    # charging: an extra charge does not count after a lift
    (
        traces,
        Edit(
            "_by_tenant",
            "t.elapsed, t.extra,",
            "t.elapsed, (select coalesce(sum(e.extra), 0) from unnest(t.endings) as e where e.epoch = (f.flow).epoch),",
        ),
    ),
    # charging: what is paid back, what is paid for, and what is learned, where many are completed at once
    (traces, Edit("_complete", "greatest(0, h.prepaid - h.held)", "0")),
    (traces, Edit("_complete", "greatest(0, h.held - h.prepaid)", "0")),
    (traces, Edit("_complete", "count(h.prepaid) as measured", "count(*) - count(*) as measured")),
    # the same, where one ends
    (traces, Edit("_ending", "greatest(0, p_lease.prepaid - v_held)", "0")),
    (traces, Edit("_ending", "greatest(0, v_held - p_lease.prepaid)", "0")),
    (traces, Edit("_ending", "p_lease.epoch, 1, 1, v_held", "p_lease.epoch, 1, 0, v_held")),
    # charging: a lost lease is paid back; a failure is free; a job given back is not
    (scenario("a_lost_lease_is_paid_for"), Edit("_ending", "or p_pays = 'prepaid'", "")),
    (
        scenario("24_failures_are_paid_for"),
        Edit("_fail", "fairq._ending(v_lease, 'held', v_now)", "fairq._ending(v_lease, 'nothing', v_now)"),
    ),
    (traces, Edit("_release", "else 'nothing' end", "else 'held' end")),
    # charging: what runs is settled by a weight that it was not charged by
    *(
        (scenario("22_a_change_of_weight_leaves_alone_what_runs"), Edit(function, old, "* 2520", times=times))
        for function, old, times in (
            ("_ending", "* 2520 / p_lease.weight", 3),
            ("_complete", "* 2520 / h.weight", 2),
            ("_renew", "* 2520 / v_lease.weight", 1),
        )
    ),
    # charging: a renewal is free
    (
        scenario("22_an_over_estimate_is_corrected"),
        Edit("_renew", "if v_lease.prepaid < v_prepaid then", "if false then"),
    ),
    # charging: a claim prepays more than its lease
    (
        scenario("a_claim_prepays_no_more_than_its_lease"),
        Edit("_pick_one", "when v_flow.price > p_longest then", "when false then"),
    ),
    (
        scenario("08_batches_change_no_tie"),
        Edit("_pick", "when (f.flow).price > p_longest then", "when false then"),
    ),
    (traces, Edit("_pick_one", "least(v_flow.price, p_longest)", "v_flow.price")),
    (traces, Edit("_pick", "least((f.flow).price, p_longest)", "(f.flow).price")),
    # charging: the first estimate of a tenant is not the queue's mean; averages forget nothing
    (traces, Edit("_open_flows", "coalesce(p_tick.mean, 1000)", "1000")),
    (traces, Edit("_average", "power(0.875::double precision, least(p_count, 1000)::double precision)", "0.5")),
    (traces, Edit("_catch_up", "v_caught.tick := fairq._averaged(v_caught.tick, v_endings);", "null;")),
    # charging: a change of it is not noticed by the flows there are
    (
        scenario("a_new_way_of_charging_acts_at_once"),
        Edit("_catch_up", "boolean := p_tick.charge <> p_settings.charge;", "boolean := false;"),
    ),
    # charging: declared costs are not looked at
    (
        scenario("cost_mode_charges_what_is_declared"),
        Edit(
            "_pick_one",
            "when p_by_cost then greatest(1, round(v_job.cost * 1000 * 2520 / v_flow.weight))",
            "when false then 0",
        ),
    ),
    (traces, Edit("_pick", "when p_by_cost then greatest(1, round(n.cost * 1000 * 2520", "when false then (0 * (2520")),
    # settled after the lift
    (
        traces,
        Edit(
            "_apply",
            "p_tick.virtual_time + case",
            "p_tick.virtual_time + greatest(0, v_flow.vtime - v_was.vtime) + case",
        ),
    ),
    # jobs held by others: their tenant keeps its old place
    (
        at.check_held_jobs_earn_nothing,
        Edit("_pass_by", "fairq._lifted(v_touched.flow, p_tick.virtual_time)", "v_touched.flow"),
    ),
    (at.check_held_jobs_earn_nothing, Edit("_pass_by", "fairq._virtual_time(p_tick, p_stuck)", "p_tick.virtual_time")),
    # or the floor of the pick stays where it was before the passes of this claim
    *(
        (
            partial(at.check_a_held_job_earns_nothing_beside_full_claims, batch=batch),
            Edit("_pass_by", "p_tick.pick_floor := fairq._pick_floor(p_tick);"),
        )
        for batch in (1, 10)
    ),
    # virtual time only rises
    (at.check_virtual_time_is_moved_down, Edit("_catch_up", "p_tick := fairq._rebased(p_tick);", "")),
    # E never taken anew
    (traces, Edit("_catch_up", "p_tick.virtual_time := fairq._virtual_time(p_tick);", "")),
    # R10: tokens are not counted; a limited tenant never comes back; or keeps its place in line
    (
        scenario("23_a_limited_tenant_hides_nobody"),
        Edit("_charge", " - s.took end as tokens", " end as tokens"),
    ),
    (
        scenario("23_a_limited_tenant_comes_back"),
        Edit("_tokens_due", "filter (where d.token_due_at <= p_now)", "filter (where false)"),
    ),
    (
        scenario("23_a_limited_tenant_comes_back"),
        Edit("_pick", "floor(fairq._tokens(", "p_want + 0 * floor(fairq._tokens("),
    ),
    (scenario("23_tokens_come_while_there_is_no_work"), Edit("_write_touched", "tokens = (t.flow).tokens,", "")),
    (
        scenario("23_a_token_is_whole_when_it_is_due"),
        Edit("_refilled", "v_tokens := greatest(v_tokens, 1);", "null;"),
    ),
    (
        traces,
        Edit("_refilled", "p_was.tokens_at, p_was.rate, p_was.burst", "p_was.tokens_at, p_flow.rate, p_flow.burst"),
    ),
    # cap and rate of the queue are ignored
    (scenario("r9_the_queue_has_a_cap"), Edit("_dispatch", "v_settings.max_running - v_tick.running, ", "")),
    (scenario("r10_the_queue_has_a_rate"), Edit("_dispatch", ", floor(v_tick.tokens)", "")),
    # the defaults of * are ignored; or not noticed by the flows there are
    (
        scenario("tenants_without_a_row_have_the_defaults"),
        Edit("_wish", "t.tenant in (p_tenant, '*')", "t.tenant = p_tenant"),
    ),
    (
        scenario("tenants_without_a_row_have_the_defaults"),
        Edit("_catch_up", "where n.tenant = '*' and n.state = 'wish'", "where false"),
    ),
    # R3: nobody is spread; the heavy one too; by chance of another number
    (scenario("25_a_crowd_hides_nobody"), Edit("_spread", "if p_tick.backlogged <= 32 then", "if true then")),
    (traces, Edit("_spread", "if p_weight >= greatest(", "if p_weight > greatest(")),
    (traces, Edit("_spread", "2654435769", "2654435761")),
    # flows in memory: the news of one that is picked is not written; nor that of one that is not, or when none is. The
    # table itself refuses tokens without a rate, and a flow that is limited and not until when
    *(
        (traces, Edit("_charge", f" = (s.flow).{column},", f" = f.{column},"))
        for column in ("weight", "max_running", "paused", "burst", "epoch", "estimate", "price")
    ),
    (traces, Edit("_charge", "(s.flow).vtime + s.charge", "f.vtime + s.charge")),
    (traces, Edit("_charge", "(s.flow).running + s.took", "f.running + s.took")),
    (traces, Edit("_charge", "(t.flow).tenant not in (", "false and (t.flow).tenant not in (")),
    (
        check_reading_ahead_is_as_more_workers,
        Edit("_charge", "least((s.flow).vtime + s.charge, 4611686018427387904)", "(s.flow).vtime"),
    ),
    *(
        (check_what_is_put_back_is_taken_off_the_minute_it_was_counted_in, Edit("_charge", old, new))
        for old, new in (
            ("when not s.is_spent then f.started", "when false then null"),
            ("when not s.is_spent then f.spent", "when false then null"),
            ("case when s.is_spent then v_minute else f.minute end", "v_minute"),
        )
    ),
    (traces, Edit("_charge", "when not s.is_spent then (s.flow).head_at", "when false then null")),
    (traces, Edit("_charge", "when not s.is_spent then (s.flow).head_id", "when false then null")),
    (traces, Edit("_charge", "null, null, null, null, false, (t.flow).tokens", "null, null, null, null, false, null")),
    (traces, Edit("_charge", "coalesce(p_dispatch + s.turn, f.served)", "p_dispatch + coalesce(s.turn, 0)")),
    (traces, Edit("_dispatch", "if v_caught.touched <> '{}' then", "if false then")),
    *(
        (traces, Edit("_write_touched", f"{column} = (t.flow).{column},", ""))
        for column in (
            "weight",
            "max_running",
            "paused",
            "rate",
            "burst",
            "tokens_at",
            "token_due_at",
            "vtime",
            "epoch",
            "estimate",
            "price",
            "running",
            "head_at",
            "head_id",
        )
    ),
    # the heads after a pick: news of less urgent jobs are forgotten; the next job is not looked for
    (
        traces,
        both(
            Edit("_charge", "(s.flow).head_at[4]", "f.head_at[4]"),
            Edit("_charge", "(s.flow).head_id[4]", "f.head_id[4]"),
        ),
    ),
    (
        scenario("01_equal_weights_alternate"),
        Edit("_pick_one", "is not null\n        limit 2", "is not null\n        limit 1"),
    ),
    # flows in memory: not read; read whatever holds them up; of all tenants; once more when they have been written
    (scenario("01_equal_weights_alternate"), Edit("_pick_one", "if (v_touched.flow).eligible and (", "if false and (")),
    (
        traces,
        Edit(
            "_pick",
            "from unnest(p_touched) as t\n                where (t.flow).eligible",
            "from unnest(p_touched) as t\n                where false",
        ),
    ),
    (traces, Edit("_pick", "where (t.flow).eligible and (t.flow).tenant <> all", "where (t.flow).tenant <> all")),
    (traces, Edit("_pick", "p_tenants = '{*}' or (t.flow).tenant = any (p_tenants)", "true")),
    (scenario("cost_mode_charges_what_is_declared"), Edit("_dispatch", "v_caught.touched := '{}';")),
    # R12: a tick forgets what runs, or who has work
    (check_any_order, Edit("_apply", "p_tick.running := p_tick.running - coalesce(v_new.ended, 0);", "null;")),
    (check_any_order, Edit("_charge", "p_tick.backlogged := p_tick.backlogged - v_sum.gone;", "null;")),
    # R9: a batch starts what it asks for, whatever the tenant's cap leaves
    (check_any_order, CAP_IGNORED),
    # a job that failed is put back and stays leased
    (check_any_order, Edit("_put_back", "delete from fairq.leases as l where l.job_id = (p_lease).job_id;", "")),
    # a purge forgets where the jobs went
    (
        check_any_order,
        Edit(
            "purge_tenant",
            "perform fairq._cancel_waiting(v_job, v_actor);",
            "delete from fairq.jobs where job_id = v_id;",
        ),
    ),
]


@pytest.mark.parametrize(("check", "mutation"), MUTANTS, ids=[str(mutation) for _, mutation in MUTANTS])
def test_a_broken_scheduler_is_found_out(
    assert_killed: Callable[..., None],
    check: Callable[[Database], None],
    mutation: Edit | Both,
) -> None:
    """
    The check named for each mutant fails on a database whose scheduler is broken in that one place.

    Where sessions have to meet for it, which is a matter of chance, in one of five databases.
    """
    assert_killed(check, mutation, tries=5 if check is at.check_17_one_tenant_many_claimers else 1)
