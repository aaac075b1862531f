"""The progress of a run as its checkpoints store it, and the note about a resume."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from rl_training.experiment.metrics import RETURN
from rl_training.runtime.collector import Episode
from rl_training.runtime.types import MetricDict

SKIPPED_ENV = "skipped_env"
"""The key of the env whose running episode is not continued. A resume adds it; no checkpoint contains it."""
_COLLECTOR_FIELDS = ("envs", "obs", "actions", "acting", "lives", "samples", "groups")


@dataclass(frozen=True)
class SavedProgress:
    """Counters, newest metrics and the state of the collector; learner and experience are saved separately."""

    global_step: int
    num_updates: int
    num_episodes: int
    best_return: float | None
    best_metric: str
    best_value: float | None
    metrics: MetricDict
    evaluation: MetricDict
    evaluated_at: int
    logged_at: int
    due: list[str]
    """Work that was due after the newest iteration but not done, because of a signal or an error, in order."""
    iterated_at: int
    """The env step at which the newest complete iteration of the loop ended."""
    episodes: tuple[Episode, ...]
    callbacks: list[dict[str, Any]]
    collected: tuple[int, tuple[Episode, ...]]
    """Env steps and finished episodes that callbacks have not received yet, because the collection was cut short."""
    collector: dict[str, Any]
    """The state of the envs, and the samples that fresh envs must reproduce for a resume to be exact."""

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as tensors and plain values."""
        state = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "collector"}
        state["episodes"] = _plain_episodes(self.episodes)
        state["collected"] = (self.collected[0], _plain_episodes(self.collected[1]))
        return {**state, **self.collector}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "SavedProgress":
        """Read the progress from a checkpoint's trainer state."""
        older: dict[str, Any] = {
            "samples": [],
            "acting": {},
            "lives": None,
            "collected": (0, []),
            "best_metric": RETURN,
        }
        state = {**older, "best_value": state["best_return"], **state}  # older checkpoints have none of these
        values = {field.name: state[field.name] for field in fields(cls) if field.name != "collector"}
        values["episodes"] = tuple(Episode(*episode) for episode in state["episodes"])
        num_env_steps, episodes = state["collected"]
        values["collected"] = (num_env_steps, tuple(Episode(*episode) for episode in episodes))
        return cls(**values, collector={name: state[name] for name in _COLLECTOR_FIELDS if name in state})

    def forked(self) -> "SavedProgress":
        """Return the progress for a new run directory, which has no best checkpoint yet and whose clocks start at 0."""
        untimed = {name: value for name, value in self.metrics.items() if not name.startswith("time/")}
        return replace(self, best_return=None, best_value=None, metrics=untimed)


def _plain_episodes(episodes: Sequence[Episode]) -> list[tuple[float, int, dict[str, float]]]:
    return [(episode.episode_return, episode.length, dict(episode.info)) for episode in episodes]


@dataclass(frozen=True)
class ResumeNote:
    """The step from which a run was resumed, and the reasons why it may differ from an uninterrupted run."""

    step: int
    reasons: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the run continues bit for bit like an uninterrupted one."""
        return not self.reasons

    def with_reason(self, reason: str) -> "ResumeNote":
        """Return the note with one more reason why the run is not exact."""
        return replace(self, reasons=(*self.reasons, reason))

    def __str__(self) -> str:
        return f"resumed from step {self.step} ({'exact' if self.exact else 'not exact: ' + '; '.join(self.reasons)})"

    def to_metadata(self) -> dict[str, Any]:
        """Return the note as plain values for `metadata.json`."""
        return {**asdict(self), "exact": self.exact}
