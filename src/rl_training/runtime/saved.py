"""How far a run has come, as its checkpoints keep it, and what to say about a run that went on from one."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from rl_training.envs.samples import ReplaySample
from rl_training.runtime.collector import Episode
from rl_training.runtime.types import MetricDict


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
    envs: dict[str, Any]
    acting: dict[str, Any]
    """What the noise of acting remembers."""
    obs: Any
    """What the envs show, [env, ...]."""
    actions: Any
    """Drawn for `obs` and not taken, when an env failed with them; else none."""
    callbacks: list[dict[str, Any]]
    samples: tuple[ReplaySample, ...]
    """What fresh envs must reproduce for a resume to be exact."""

    def state_dict(self) -> dict[str, Any]:
        """As tensors and plain values."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        state["episodes"] = [tuple(episode) for episode in self.episodes]
        state["samples"] = [sample.state_dict() for sample in self.samples]
        for name in ("obs", "actions"):
            state[name] = None if state[name] is None else torch.from_numpy(np.array(state[name]))
        return state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "SavedProgress":
        """Out of a checkpoint's trainer state."""
        state = {"samples": (), "acting": {}, **state}  # older checkpoints have neither
        recorded = state["samples"]
        values = {field.name: state[field.name] for field in fields(cls)}
        values["samples"] = tuple(ReplaySample.from_state(sample) for sample in recorded)
        values["episodes"] = tuple(Episode(*episode) for episode in state["episodes"])
        for name in ("obs", "actions"):
            values[name] = None if state[name] is None else state[name].numpy()
        return cls(**values)

    def forked(self) -> "SavedProgress":
        """For a new directory, where the parent's best checkpoint does not lie and whose clocks begin at 0."""
        untimed = {name: value for name, value in self.metrics.items() if not name.startswith("time/")}
        return replace(self, best_return=None, metrics=untimed)

    def without_actions(self) -> "SavedProgress":
        """For envs that do not show what the actions were drawn for."""
        return replace(self, actions=None)


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
