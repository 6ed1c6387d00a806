"""The rows that `speed` writes, as JSON lines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from studies.rows import read_rows


@dataclass(frozen=True)
class SpeedRow:
    """One engine's time for one rule on one size, and whether its answer was right."""

    engine: str
    rule: str
    sketch: str | None
    """None where the engine has no sketch."""
    clients: int
    byzantine: int
    dim: int
    dtype: str
    device: str
    seconds: float | None
    """Median of the repeats; None where the engine failed."""
    seconds_min: float | None
    seconds_max: float | None
    reads: float | None
    """Median of each call's seconds over those of the read just before it."""
    reads_min: float | None
    reads_max: float | None
    read_seconds: float | None
    """One read of all updates, median in the same run."""
    repeats: int
    extra_bytes: int | None
    """Peak memory of a call beside the updates and its answer; None where the system does not report it."""
    ok: bool
    judged: str
    """Why the answer is right, or what is wrong with it."""
    definition_error: float | None
    """Distance to the rule's definition in float64, relative to the honest spread."""
    mean_error: float | None
    """Distance to the honest mean, relative to the honest spread."""
    machine: str
    version: str
    run: str = ""
    """When the command that measured the row was started; times are compared within one run."""

    @property
    def label(self) -> str:
        return self.engine if self.sketch is None else f"{self.engine} {self.sketch}"

    @property
    def subject(self) -> tuple[object, ...]:
        """The thing measured; equal for two measurements of the same thing."""
        return self.label, self.rule, self.clients, self.byzantine, self.dim, self.dtype, self.device

    @property
    def failure(self) -> str:
        """The reason why there is no time: "not run" or "fails"."""
        return "not run" if self.judged.startswith("not run") else "fails"


load = partial(read_rows, kind=SpeedRow, advice="Wanted rows that `python -m studies speed --json` wrote.")
