"""The progress of groups and studies while they train, and the protocols of the objects that display it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl_training.experiment.groups import GroupRecord, SeedRecord, SeedStatus
from rl_training.experiment.metrics import logged_evaluation
from rl_training.experiment.studies import StudyRecord, StudySettings
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.progress import RecentRate
from rl_training.runtime.types import MetricDict


@dataclass
class SeedProgress:
    """The latest known progress of one seed."""

    seed: int
    total: int
    """The budget in env steps."""
    status: SeedStatus = "waiting"
    step: int = 0
    reason: str | None = None
    seconds: float = 0.0
    """Training time, including the time before the run was resumed."""
    metrics: MetricDict = field(default_factory=dict)
    _rate: RecentRate = field(default_factory=RecentRate)

    @classmethod
    def from_record(cls, record: SeedRecord, total: int) -> "SeedProgress":
        """Create the progress of a seed whose process has not started yet."""
        progress = cls(record.seed, total)
        progress.apply_record(record)
        return progress

    def apply_record(self, record: SeedRecord) -> None:
        """Copy the state of the seed from the group's record."""
        self.status, self.reason = record.status, record.reason
        self.step, self.seconds = record.global_step, record.wall_seconds
        final = {name: value for name, value in (record.metrics or {}).items() if value is not None}
        self.metrics |= logged_evaluation({name: value for name, value in final.items() if name.startswith("eval_")})

    def advance(self, step: int, metrics: MetricDict, clock: float) -> None:
        """Store an update from the process, received at time `clock`."""
        self.step, self.metrics = step, metrics
        self._rate.add(clock, step)

    @property
    def rate(self) -> float:
        """The current speed of the seed, in env steps per second."""
        return self._rate.value

    @property
    def steps_left(self) -> int:
        """The env steps that remain; 0 if the run has ended."""
        return max(self.total - self.step, 0) if self.status in ("waiting", "running") else 0


class GroupObserver(Protocol):
    """An object that is notified while a group trains."""

    @property
    def make_seed_callback(self) -> Callable[[], Callback] | None:
        """The factory of the callback that prints a seed's progress to its log; None prints no progress."""

    def on_group_start(self, group_dir: Path, record: GroupRecord) -> None:
        """Handle the start of the group."""

    def on_message(self, text: str) -> None:
        """Show a line of text."""

    def on_progress(self, seeds: Sequence[SeedProgress]) -> None:
        """Show new numbers; called several times per second."""

    def on_seed_end(self, progress: SeedProgress) -> None:
        """Handle the end of a seed."""

    def on_group_end(self, seeds: Sequence[SeedProgress]) -> None:
        """Handle the end of the group."""


class SilentObserver:
    """An observer that shows nothing."""

    make_seed_callback: Callable[[], Callback] | None = None

    def on_group_start(self, group_dir: Path, record: GroupRecord) -> None:
        """Show nothing."""

    def on_message(self, text: str) -> None:
        """Show nothing."""

    def on_progress(self, seeds: Sequence[SeedProgress]) -> None:
        """Show nothing."""

    def on_seed_end(self, progress: SeedProgress) -> None:
        """Show nothing."""

    def on_group_end(self, seeds: Sequence[SeedProgress]) -> None:
        """Show nothing."""


class StudyObserver(Protocol):
    """An object that is notified while a study trains."""

    @property
    def make_run_callback(self) -> Callable[[], Callback] | None:
        """The factory of the callback that prints a run's progress to its log."""

    def on_study_start(self, study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
        """Handle the start or the resume of a study."""

    def on_message(self, text: str) -> None:
        """Handle one line of text."""

    def on_progress(self, record: StudyRecord, running: Mapping[str, SeedProgress]) -> None:
        """Handle new progress of trials, several times per second; `running` has the progress of each run by name."""

    def on_study_end(self, record: StudyRecord) -> None:
        """Handle the end of all trials."""

    def observe_confirmation(self) -> GroupObserver | None:
        """Return the observer of a group of confirming runs."""


class SilentStudyObserver:
    """An observer that shows nothing."""

    make_run_callback: Callable[[], Callback] | None = None

    def on_study_start(self, study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
        """Show nothing."""

    def on_message(self, text: str) -> None:
        """Show nothing."""

    def on_progress(self, record: StudyRecord, running: Mapping[str, SeedProgress]) -> None:
        """Show nothing."""

    def on_study_end(self, record: StudyRecord) -> None:
        """Show nothing."""

    def observe_confirmation(self) -> GroupObserver | None:
        """Show nothing."""
        return None
