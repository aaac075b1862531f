"""Recorded samples of a run's envs, kept in its checkpoints; a resume checks that fresh envs reproduce them."""

import struct
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_training.envs.changes import ChangeLog, EnvChange

Array = npt.NDArray[Any]

KEPT_SAMPLES = 16
_ENVS_AT_ONCE = 4  # more would slow down the steps that are recorded
_MAX_STEPS = 1_000  # per sample
MAX_STEPS_BEFORE = 5_000  # in the episode before a sample begins: every comparison replays them
_MAX_NEXT_EPISODE_STEPS = 20  # steps of the next episode in a sample


@dataclass(frozen=True)
class RunningEpisode:
    """A running episode with what is needed to restore it: seed and actions so far, or the env's own state."""

    seed: int | None
    length: int
    episode_return: float
    actions: Array | None
    """[step, ...]; none if the episode is too long to keep them."""
    state: Any = None
    """The result of the env's own `get_state()`, if it has one."""
    changes: ChangeLog = field(default_factory=ChangeLog)
    """The changes that callbacks made to the env."""


@dataclass(frozen=True)
class ReplaySample:
    """The rest of a running episode and the beginning of the next one, as an env of the run played them."""

    start: RunningEpisode
    episode_number: int
    """The number of episodes that the env had played before this one."""
    obs: Array
    """The observation at the start of the sample."""
    actions: Array
    """[step, ...]"""
    checksums: tuple[int, ...]
    """[step]; the checksum of all observations, rewards and endings up to that step."""
    next_seed: int | None
    """The seed of the next episode, if the sample reaches it."""
    changes: tuple[tuple[int, EnvChange], ...] = ()
    """The changes that callbacks made to the env, each with the number of the sample's steps before it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the sample as tensors and plain values."""
        taken = self.start.actions
        start = {**vars(self.start), "actions": None if taken is None else torch.from_numpy(taken)}
        start["changes"] = self.start.changes.state_dict()
        arrays = {"obs": torch.from_numpy(self.obs), "actions": torch.from_numpy(self.actions)}
        changes = ChangeLog(during=self.changes).state_dict()
        return {**vars(self), **arrays, "start": start, "checksums": list(self.checksums), "changes": changes}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "ReplaySample":
        """Rebuild a sample from the result of `state_dict`."""
        taken = state["start"]["actions"]
        earlier = ChangeLog.from_state(state["start"].get("changes"))
        actions = None if taken is None else taken.numpy()
        start = RunningEpisode(**{**state["start"], "actions": actions, "changes": earlier})
        arrays = {"obs": state["obs"].numpy(), "actions": state["actions"].numpy()}
        changes = ChangeLog.from_state(state.get("changes")).during
        checksums = tuple(state["checksums"])
        return cls(**{**state, **arrays, "start": start, "checksums": checksums, "changes": changes})


def add_checksum(checksum: int, obs: Any, *numbers: float) -> int:
    """Continue a checksum with an observation, in its space's type, and with numbers such as the reward."""
    checksum = zlib.crc32(np.ascontiguousarray(obs).data, checksum)
    return zlib.crc32(struct.pack(f"<{len(numbers)}d", *numbers), checksum)


@dataclass
class _OpenSample:
    """A sample that is still being recorded."""

    start: RunningEpisode
    episode_number: int
    obs: Array
    actions: list[Array] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    next_seed: int | None = None
    num_next_episode_steps: int = 0
    changes: list[tuple[int, EnvChange]] = field(default_factory=list)

    def add_step(self, action: Array, obs: Any, *numbers: float) -> None:
        """Add one step of the env."""
        self.actions.append(action)
        self.checksums.append(add_checksum(self.checksums[-1] if self.checksums else 0, obs, *numbers))
        self.num_next_episode_steps += self.next_seed is not None

    def add_reset(self, seed: int | None, obs: Any) -> None:
        """Add the beginning of the next episode."""
        self.next_seed = seed
        self.checksums[-1] = add_checksum(self.checksums[-1], obs)

    def close(self) -> ReplaySample:
        """Return what has been recorded so far."""
        return ReplaySample(
            start=self.start,
            episode_number=self.episode_number,
            obs=self.obs,
            actions=np.array(self.actions),
            checksums=tuple(self.checksums),
            next_seed=self.next_seed,
            changes=tuple(self.changes),
        )


class SampleRecorder:
    """Records samples of a few envs at a time and keeps the newest. When idle, it costs one test per vector step."""

    def __init__(self) -> None:
        self.recording = False
        self._kept: deque[ReplaySample] = deque(maxlen=KEPT_SAMPLES)
        self._open: dict[int, _OpenSample] = {}
        self._next_env = 0

    @property
    def full(self) -> bool:
        """Whether the maximum number of samples is kept."""
        return len(self._kept) == KEPT_SAMPLES

    def choose(self, candidates: Sequence[int]) -> list[int]:
        """Choose the envs to record next, so that all of them get their turn."""
        later = [index for index in candidates if index >= self._next_env]
        chosen = [*later, *(index for index in candidates if index < self._next_env)][:_ENVS_AT_ONCE]
        self._next_env = chosen[-1] + 1 if chosen else 0
        return chosen

    def begin(self, episodes: Mapping[int, RunningEpisode], episode_numbers: Sequence[int], obs: Sequence[Any]) -> None:
        """Begin a sample of every episode in `episodes`, keyed by env; the other arguments are shaped [env]."""
        self._open = {
            index: _OpenSample(episode, int(episode_numbers[index]), np.array(obs[index]))
            for index, episode in episodes.items()
        }
        self.recording = bool(self._open)

    def record_step(self, actions: Array, obs: Any, rewards: Array, terminated: Array, truncated: Array) -> None:
        """Add a step of all envs, [env, ...]; close the samples whose second episode ended or that are long enough."""
        for index, sample in list(self._open.items()):
            sample.add_step(actions[index], obs[index], rewards[index], terminated[index], truncated[index])
            second_end = sample.next_seed is not None and (terminated[index] or truncated[index])
            if (
                second_end
                or sample.num_next_episode_steps >= _MAX_NEXT_EPISODE_STEPS
                or len(sample.actions) >= _MAX_STEPS
            ):
                self._kept.append(self._open.pop(index).close())
        self.recording = bool(self._open)

    def record_reset(self, indices: Iterable[int], seeds: Sequence[int | None], obs: Any) -> None:
        """Add the beginning of the next episode of these envs."""
        for index in indices:
            sample = self._open.get(index)
            if sample is not None and sample.actions:
                sample.add_reset(seeds[index], obs[index])

    def record_change(self, change: EnvChange) -> None:
        """Add a change that a callback made to all envs."""
        for sample in self._open.values():
            sample.changes.append((len(sample.actions), change))

    def samples(self) -> tuple[ReplaySample, ...]:
        """Return the recorded samples, the oldest first, unfinished ones last."""
        unfinished = [sample.close() for sample in self._open.values() if sample.actions]
        return (*self._kept, *unfinished)[-KEPT_SAMPLES:]

    def load(self, samples: Iterable[ReplaySample]) -> None:
        """Keep the samples of an earlier part of the run."""
        self._kept.extend(samples)

    def stop(self) -> None:
        """Discard the samples that are being recorded, because the envs were restored to another state."""
        self._open = {}
        self.recording = False
