"""What a group tells while it trains: how far each seed is, and who wants to know."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl_training.experiment.groups import GroupRecord, SeedRecord, SeedStatus
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.types import MetricDict


@dataclass
class SeedProgress:
    """How far one seed has come, as far as its process has told."""

    seed: int
    total: int
    """Budget in env steps."""
    status: SeedStatus = "waiting"
    step: int = 0
    rate: float = 0.0
    """Env steps per second."""
    reason: str | None = None
    seconds: float = 0.0
    """Of training, earlier parts of a resumed run included."""
    metrics: MetricDict = field(default_factory=dict)
    _begun: tuple[float, int] | None = None
    """When the process told its first step, and which that was."""

    @classmethod
    def of(cls, record: SeedRecord, total: int) -> "SeedProgress":
        """As far as the group knows before any process has started."""
        progress = cls(record.seed, total)
        progress.apply_record(record)
        return progress

    def apply_record(self, record: SeedRecord) -> None:
        """Take over how the seed stands in the group's record."""
        self.status, self.reason = record.status, record.reason
        self.step, self.seconds = record.global_step, record.wall_seconds
        if record.final_return is not None:
            self.metrics["eval/mean_reward"] = record.final_return

    def advance(self, step: int, metrics: MetricDict, clock: float) -> None:
        """Take over what the process tells at a moment of the clock."""
        self.step, self.metrics = step, metrics
        began_at, began_step = self._begun = self._begun or (clock, step)
        self.rate = (step - began_step) / max(clock - began_at, 1e-6)

    @property
    def left(self) -> int:
        """Env steps to go, unless the run has ended."""
        return max(self.total - self.step, 0) if self.status in ("waiting", "running") else 0


class GroupObserver(Protocol):
    """Follows a group while it trains."""

    @property
    def make_seed_callback(self) -> Callable[[], Callback] | None:
        """Make the callback that reports one seed's progress in that seed's log; none: the log holds no reports."""

    def begin(self, group_dir: Path, record: GroupRecord) -> None:
        """The group is about to train."""

    def say(self, text: str) -> None:
        """Something happened that is worth a line."""

    def update(self, seeds: Sequence[SeedProgress]) -> None:
        """Numbers may have changed; called several times a second."""

    def ended(self, progress: SeedProgress) -> None:
        """A seed has ended."""

    def end(self, seeds: Sequence[SeedProgress]) -> None:
        """The group has ended."""


class SilentObserver:
    """Shows nothing."""

    make_seed_callback: Callable[[], Callback] | None = None

    def begin(self, group_dir: Path, record: GroupRecord) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""

    def update(self, seeds: Sequence[SeedProgress]) -> None:
        """Show nothing."""

    def ended(self, progress: SeedProgress) -> None:
        """Show nothing."""

    def end(self, seeds: Sequence[SeedProgress]) -> None:
        """Show nothing."""
