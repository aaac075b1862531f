"""How far a run has come, as its checkpoints keep it, and what to say about a run that went on from one."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rl_training.runtime.collector import Episode
from rl_training.runtime.types import MetricDict

_COLLECTOR_FIELDS = ("envs", "obs", "actions", "acting", "samples")


@dataclass(frozen=True)
class SavedProgress:
    """Counters, newest numbers, and where the envs are; the learner and its experience are saved beside it."""

    global_step: int
    num_updates: int
    num_episodes: int
    best_return: float | None
    metrics: MetricDict
    evaluation: MetricDict
    evaluated_at: int
    logged_at: int
    due: list[str]
    """What the newest iteration made due and a signal or an error kept from being done, in order."""
    iterated_at: int
    """The env step at which the newest whole iteration of the loop ended."""
    episodes: tuple[Episode, ...]
    callbacks: list[dict[str, Any]]
    collector: dict[str, Any]
    """Where the envs are, and what fresh envs must reproduce for a resume to be exact."""

    def state_dict(self) -> dict[str, Any]:
        """As tensors and plain values."""
        state = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "collector"}
        state["episodes"] = [tuple(episode) for episode in self.episodes]
        return {**state, **self.collector}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "SavedProgress":
        """Out of a checkpoint's trainer state."""
        state = {"samples": [], "acting": {}, **state}  # older checkpoints have neither
        values = {field.name: state[field.name] for field in fields(cls) if field.name != "collector"}
        values["episodes"] = tuple(Episode(*episode) for episode in state["episodes"])
        return cls(**values, collector={name: state[name] for name in _COLLECTOR_FIELDS})

    def forked(self) -> "SavedProgress":
        """For a new directory, where the parent's best checkpoint does not lie and whose clocks begin at 0."""
        untimed = {name: value for name, value in self.metrics.items() if not name.startswith("time/")}
        return replace(self, best_return=None, metrics=untimed)


@dataclass(frozen=True)
class ResumeNote:
    """From where a run went on; without `reasons`, it continues to the last bit as if it had never stopped."""

    step: int
    reasons: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether everything was brought back."""
        return not self.reasons

    def with_reason(self, reason: str) -> "ResumeNote":
        """Return the note with one more reason why the run is not exact."""
        return replace(self, reasons=(*self.reasons, reason))

    def __str__(self) -> str:
        return f"resumed from step {self.step} ({'exact' if self.exact else 'not exact: ' + '; '.join(self.reasons)})"

    def to_metadata(self) -> dict[str, Any]:
        """For `metadata.json`."""
        return {**asdict(self), "exact": self.exact}
