"""How much of everything: each size of a run in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The numbers of a run; seconds where nothing else is said."""

    rounds: int  # how often each queue has its turn; the median counts
    jobs: Mapping[int, int]  # claimed and completed in one segment, by the batch size
    counted: Mapping[int, int]  # likewise, instruction by instruction: whole passes where a queue reads ahead
    tenants: tuple[int, ...]
    enqueue: float
    big: int  # jobs of the one large group
    small: int  # how many small groups, of ten jobs each
    queued: int
    finished: int
    active: int
    idle: int
    held: float  # under a held snapshot
    held_step: float
    held_peer: float
    wake: float
    notify: float
    sessions: tuple[int, ...]
    growth_tenants: tuple[int, ...]
    growth_backlog: tuple[int, ...]
    growth_finished: tuple[int, ...]
    growth_batch: tuple[int, ...]
    growth_sessions: tuple[int, ...]


# Seconds: whether it runs at all.
SMOKE = Sizes(
    rounds=1,
    jobs={1: 40, 10: 200},
    counted={1: 10, 10: 20},
    tenants=(3,),
    enqueue=0.2,
    big=200,
    small=20,
    queued=1_500,
    finished=300,
    active=30,
    idle=50,
    held=1.5,
    held_step=0.5,
    held_peer=0.5,
    wake=0.5,
    notify=0.2,
    sessions=(2, 4),
    growth_tenants=(5,),
    growth_backlog=(800,),
    growth_finished=(100,),
    growth_batch=(1,),
    growth_sessions=(2,),
)
# Minutes: what a change has done, and what is published.
QUICK = Sizes(
    rounds=1,
    jobs={1: 3_000, 10: 15_000, 100: 40_000, 1000: 50_000},
    counted={1: 750, 10: 750, 100: 2_100},
    tenants=(1, 100),
    enqueue=3,
    big=20_000,
    small=999,
    queued=100_000,
    finished=100_000,
    active=1_000,
    idle=10_000,
    held=30,
    held_step=10,
    held_peer=30,
    wake=8,
    notify=3,
    sessions=(4, 16, 64),
    growth_tenants=(1, 100, 10_000),
    growth_backlog=(1_000, 10_000, 100_000),
    growth_finished=(0, 100_000),
    growth_batch=(1, 10, 100, 1000),
    growth_sessions=(1, 4, 16, 64),
)
# Ten times as much, for a machine that is free for long.
FULL = Sizes(
    rounds=3,
    jobs={1: 10_000, 10: 50_000, 100: 100_000, 1000: 100_000},
    counted={1: 1_500, 10: 3_000, 100: 21_000},
    tenants=(1, 100),
    enqueue=5,
    big=100_000,
    small=999,
    queued=1_000_000,
    finished=1_000_000,
    active=10_000,
    idle=100_000,
    held=600,
    held_step=60,
    held_peer=60,
    wake=30,
    notify=10,
    sessions=(4, 16, 64),
    growth_tenants=(1, 10, 100, 1_000, 10_000, 100_000),
    growth_backlog=(1_000, 10_000, 100_000, 1_000_000),
    growth_finished=(0, 10_000, 100_000, 1_000_000),
    growth_batch=(1, 10, 100, 1000),
    growth_sessions=(1, 4, 16, 64),
)
SIZES = {"smoke": SMOKE, "quick": QUICK, "full": FULL}
