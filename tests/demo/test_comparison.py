"""The lines of the picture and their bound, by hand."""

from __future__ import annotations

import pytest

from fairq_schema.demo.comparison import Lines, bound, lines
from fairq_schema.demo.options import WEIGHTS
from fairq_schema.demo.tally import Span

SECOND = 1_000_000


def test_a_line_is_the_time_held_by_weight_from_the_end_of_the_warm_up_on() -> None:
    """Ten seconds, of which the first is warming up; cedar weighs 4."""
    began = 7 * SECOND
    spans = [Span("cedar", began, began + 5 * SECOND), Span("amber", began + 2 * SECOND, began + 3 * SECOND)]

    drawn = lines(spans, began, 10, None)

    assert (drawn.times[0], drawn.times[-1]) == (1, 10)
    assert drawn.levels["cedar"][-1] == pytest.approx(4 / 4)
    assert drawn.levels["amber"][-1] == pytest.approx(1)
    assert drawn.levels["birch"][-1] == 0


def test_the_flood_begins_at_the_level_of_the_others() -> None:
    """Who comes later is owed nothing of the past."""
    spans = [Span(tenant, 0, weight * 5 * SECOND) for tenant, weight in WEIGHTS.items() if tenant != "flood"]
    spans = [Span(tenant, SECOND, SECOND + (end - SECOND) // 5) for tenant, _, end in spans]
    spans.append(Span("flood", 6 * SECOND, 8 * SECOND))

    drawn = lines(spans, 0, 10, 5.5)
    level = sum(drawn.levels[tenant][-1] for tenant in ("amber", "birch", "cedar")) / 3

    assert drawn.levels["flood"][drawn.flood_from] == pytest.approx(level)
    assert drawn.levels["flood"][-1] == pytest.approx(level + 2)


def test_the_spread_is_the_worst_interval_of_any_pair() -> None:
    """A gap that opens and closes again counts as much as one that stays."""
    still = [0.0, 0.0, 0.0, 0.0]
    drawn = Lines([0, 1, 2, 3], {"amber": [0, 1, 1, 1], "birch": [0, 0, 3, 3], "cedar": [1, 1, 1, 1]}, 3)

    assert drawn.spread() == 3
    assert Lines([0, 1, 2, 3], {"amber": still, "flood": [9, 9, 0, 1]}, 2).spread() == 1


def test_the_bound_is_that_of_the_two_worst_tenants() -> None:
    """(1 + 4 D) c / w of each."""
    spans = [Span("amber", 0, SECOND), Span("cedar", 0, SECOND), Span("birch", 0, SECOND)]

    assert bound(spans, 2) == pytest.approx(9 * (1 / 1 + 1 / 2))
