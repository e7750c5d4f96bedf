"""What a run is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WEIGHTS = {"amber": 1, "birch": 2, "cedar": 4, "flood": 1}
FLOODING = "flood"
# What a job of each takes in the comparison behind --plot, in seconds.
LENGTHS = {"amber": 0.04, "birch": 0.005, "cedar": 0.02, "flood": 0.005}


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one run; times are in seconds."""

    dsn: str | None = None
    seconds: float = 20.0
    workers: int = 4
    batch: int = 5
    work: float = 0.005
    flood: int = 100_000
    seed: int = 1
    plain: bool = False
    queue: str = "demo"
    charge: str = "jobs"
    lengths: Mapping[str, float] | None = None
    fifo: bool = False

    @property
    def flood_at(self) -> float:
        """The moment the flood sets in."""
        return self.seconds * 0.3

    def length(self, tenant: str) -> float:
        """How long a job of this tenant takes."""
        return self.lengths[tenant] if self.lengths else self.work
