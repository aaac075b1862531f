"""Play an environment with random actions and record faults in what it returns."""

import math
import time
from collections import deque
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rl_training.envs.checks.findings import Finding, Status, Subject, mask_problem, random_actions
from rl_training.envs.layers import AnyEnv
from rl_training.envs.restore import same_values
from rl_training.errors import ActionMaskError, describe_error
from rl_training.packing import Leaf, nested_spaces
from rl_training.streams import derive_seed

_NUM_WATCHED = 8  # newest observations that are checked for later changes: an env may cycle through a few buffers
_ROUNDING = 1e-5  # relative; an observation may exceed its bounds by this much


@dataclass(frozen=True)
class EpisodeRecord:
    """One complete episode."""

    length: int
    episode_return: float
    terminated: bool
    truncated: bool


@dataclass
class Recording:
    """Statistics and faults of an env under random actions."""

    steps: int = 0
    step_seconds: float = 0.0
    resets: int = 0
    reset_seconds: float = 0.0
    rewards: list[float] = field(default_factory=list)
    """All finite rewards."""
    episodes: list[EpisodeRecord] = field(default_factory=list)
    largest: npt.NDArray[np.float64] | None = None
    """The largest magnitude of each component of a Box observation; none for pixels and other spaces."""
    bytes_seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The largest byte that was seen in each part that consists of bytes, and the upper bound of its space."""
    notes: dict[tuple[str, Status], Finding] = field(default_factory=dict)
    """The first fault for each pair of check and status."""
    place: str = "before the first reset"
    """The newest reset or step, for messages."""
    failure: str | None = None
    """Where the env raised an exception, and which; none if it did not."""

    def note(self, fault: Finding | None, place: str | None = None) -> None:
        """Keep a fault with its place (by default the newest step) if it is the first of its check and status."""
        if fault is not None:
            located = replace(fault, found=f"{place or self.place}: {fault.found}")
            self.notes.setdefault((fault.check, fault.status), located)


def record(subject: Subject) -> Recording:
    """Play `subject.steps` random steps."""
    recording = Recording()
    try:
        with closing(subject.make()) as env:
            _Recorder(env, subject.seed, recording).play(subject.steps)
    except ActionMaskError as error:
        recording.note(mask_problem(error))
    except Exception as error:  # what was recorded before is still useful
        recording.failure = f"{recording.place}: {describe_error(error)}"
    return recording


class _Recorder:
    """Plays an env and checks everything that it returns."""

    def __init__(self, env: AnyEnv, seed: int, recording: Recording) -> None:
        self.env, self.seed, self.recording = env, seed, recording
        self._length, self._return = 0, 0.0
        self._watched: deque[tuple[Any, Any, str]] = deque()  # (returned, copy, place)

    def play(self, steps: int) -> None:
        actions = random_actions(self.env.action_space, self.seed, "recording")
        ended = True
        for _ in range(steps):
            if ended:
                self._reset()
            ended = self._step(next(actions))
        while self._watched:
            self._unwatch()

    def _reset(self) -> None:
        seed = derive_seed(self.seed, "check_env/episodes", len(self.recording.episodes))
        self.recording.place = f"episode {len(self.recording.episodes)} (seed {seed}), reset"
        started = time.perf_counter()
        obs, _ = self.env.reset(seed=seed)
        self.recording.reset_seconds += time.perf_counter() - started
        self.recording.resets += 1
        self._length, self._return = 0, 0.0
        self._look_at(obs)

    def _step(self, action: Any) -> bool:
        self._length += 1
        episode = self.recording.place.rpartition(",")[0]
        self.recording.place = f"{episode}, step {self._length}"
        given = deepcopy(action)
        started = time.perf_counter()
        obs, reward, terminated, truncated, _ = self.env.step(given)
        self.recording.step_seconds += time.perf_counter() - started
        self.recording.steps += 1
        if not same_values(given, action):
            text = "the env wrote into the action it was given"
            self.recording.note(Finding("arrays", "warning", text, "copy the action before changing it"))
        self._look_at(obs)
        self._look_at_reward(reward)
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            self.recording.note(flag_fault(name, flag))
        if not (terminated or truncated):
            return False
        self.recording.episodes.append(
            EpisodeRecord(self._length, self._return, terminated=bool(terminated), truncated=bool(truncated))
        )
        return True

    def _look_at(self, obs: Any) -> None:
        fault = obs_fault(self.env.observation_space, obs)
        self.recording.note(fault)
        self._watched.append((obs, deepcopy(obs), self.recording.place))
        if len(self._watched) > _NUM_WATCHED:
            self._unwatch()
        if fault is None or fault.status == "warning":
            self._note_sizes(obs)

    def _note_sizes(self, obs: Any) -> None:
        space = self.env.observation_space
        if isinstance(space, spaces.Box) and space.dtype != np.uint8:
            magnitudes = np.abs(np.asarray(obs, dtype=np.float64))
            largest = self.recording.largest
            self.recording.largest = magnitudes if largest is None else np.maximum(largest, magnitudes)
        for path, inner in nested_spaces(space):
            if isinstance(inner, spaces.Box) and inner.dtype == np.uint8 and inner.high.size:
                part = Leaf(path, inner, 0)
                seen, high = self.recording.bytes_seen.get(part.name, (0, int(inner.high.max())))
                self.recording.bytes_seen[part.name] = max(seen, int(np.max(part.value_in(obs)))), high

    def _unwatch(self) -> None:
        returned, copied, place = self._watched.popleft()
        if not same_values(returned, copied):
            text = "the observation changed after it was returned"
            remedy = "return a copy: obs.copy()"
            self.recording.note(Finding("arrays", "warning", text, remedy), place)

    def _look_at_reward(self, reward: Any) -> None:
        fault = reward_fault(reward)
        self.recording.note(fault)
        if fault is None:
            self.recording.rewards.append(float(reward))
            self._return += float(reward)


def reward_fault(reward: Any) -> Finding | None:
    """Return the fault of a reward; none if it is fine."""
    if np.ndim(reward) != 0:
        text = f"the reward has shape {np.shape(reward)}"
        return Finding("rewards", "problem", text, "return one number: float(reward)")
    try:
        number = float(reward)
    except (TypeError, ValueError):
        return Finding("rewards", "problem", f"the reward is a {type(reward).__name__}", "return a float")
    if not math.isfinite(number):
        return Finding("rewards", "problem", f"the reward is {number}", "keep rewards finite: training stops otherwise")
    return None


def flag_fault(name: str, flag: Any) -> Finding | None:
    """Return the fault of a value of `terminated` or `truncated`; none if it is fine."""
    if isinstance(flag, (bool, np.bool_)):
        return None
    harmless = np.ndim(flag) == 0 and isinstance(flag, (int, float, np.number)) and flag in (0, 1)
    text = f"{name} is {flag!r}, of type {type(flag).__name__}"
    return Finding("endings", "warning" if harmless else "problem", text, f"return bool({name})")


def obs_fault(space: spaces.Space[Any], obs: Any) -> Finding | None:
    """Return the fault of an observation of this space; none if it is fine."""
    if isinstance(space, spaces.Box):
        return _box_fault(space, obs)
    if space.contains(obs):
        return None
    return Finding(
        "observations", "problem", f"{obs!r} is not in {space}", "declare the space that the env really uses"
    )


def _box_fault(space: spaces.Box, obs: Any) -> Finding | None:
    try:
        given = np.asarray(obs)
    except ValueError:  # rows of different lengths
        return Finding("observations", "problem", "the observation is not an array", f"return shape {space.shape}")
    if given.shape != space.shape:
        text = f"shape {given.shape}, but the space declares {space.shape}"
        return Finding("observations", "problem", text, "return and declare the same shape")
    if not np.can_cast(given.dtype, space.dtype, "same_kind"):
        text = f"type {given.dtype}, but the space declares {space.dtype}"
        return Finding("observations", "problem", text, f"return obs.astype(np.{space.dtype})")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        component = np.argwhere(~np.isfinite(given))[0].tolist()
        text = f"component {component} is {given[tuple(component)]}"
        return Finding("observations", "problem", text, "keep observations finite: training stops otherwise")
    return _bounds_fault(space, given) or _dtype_fault(space, given)


def _bounds_fault(space: spaces.Box, given: npt.NDArray[Any]) -> Finding | None:
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    slack = _ROUNDING * np.abs(given.astype(np.float64))
    outside = (given < low - slack) | (given > high + slack)
    if not outside.any():
        return None
    component = tuple(np.argwhere(outside)[0].tolist())
    text = (
        f"component {list(component)} is {given[component]}, declared bounds are {low[component]} to {high[component]}"
    )
    return Finding("observations", "problem", text, "widen the declared bounds, or clip")


def _dtype_fault(space: spaces.Box, given: npt.NDArray[Any]) -> Finding | None:
    if given.dtype == space.dtype:
        return None
    text = f"type {given.dtype}, but the space declares {space.dtype}"
    return Finding("observations", "warning", text, f"return obs.astype(np.{space.dtype}); training converts it")
