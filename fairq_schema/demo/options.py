"""What a run is made of."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHTS = {"amber": 1, "birch": 2, "cedar": 4, "flood": 1}
FLOODING = "flood"


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

    @property
    def flood_at(self) -> float:
        """The moment the flood sets in."""
        return self.seconds * 0.3
