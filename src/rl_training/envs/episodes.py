"""Episode bookkeeping for a vector of envs: seed, actions, return and length of every episode."""

import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.envs.changes import ChangeLog, EnvChange
from rl_training.envs.reports import Info, InfoReader, info_of
from rl_training.envs.samples import MAX_STEPS_BEFORE, RunningEpisode, SampleRecorder
from rl_training.errors import EnvironmentStepError, TrainingStateError
from rl_training.streams import derive_seed

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
DoubleArray = npt.NDArray[np.float64]
Seeds = int | list[int | None] | None
ResetResult = tuple[Any, dict[str, Any]]
StepResult = tuple[Any, DoubleArray, BoolArray, BoolArray, dict[str, Any]]
VectorReset = Callable[[BoolArray, list[int | None], dict[str, Any] | None], ResetResult]

_MANY_CALLS = 1_000  # of env methods by callbacks; all of them are kept and repeated
MAX_REPLAYED_STEPS = 100_000  # actions kept per running episode: a few megabytes, and seconds to replay


class EpisodeTracker:
    """Counts episodes per env. An episode's seed is a function of (run seed, env index, episode number)."""

    def __init__(
        self, num_envs: int, run_seed: int, observation_space: Space[Any] | None = None, *, first_env: int = 0
    ) -> None:
        """`first_env` is the index of the first of these envs among all envs of the run."""
        self.run_seed, self.first_env = run_seed, first_env
        self._choices = choices_of(observation_space)
        self.episode_numbers = np.full(num_envs, -1, dtype=np.int64)  # -1 before the first reset
        self.seeds: list[int | None] = [None] * num_envs
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, dtype=np.int64)
        self.ended = np.ones(num_envs, dtype=np.bool_)
        self._started_at = np.zeros(num_envs)
        self.out_of_sync = False
        """Whether the envs may differ from these counts, because a step or a reset failed halfway."""
        self.recorder = SampleRecorder()
        self._reader = InfoReader()
        self._history: list[Array] = []  # actions [env, ...] of the newest vector steps
        self.changes = [ChangeLog()] * num_envs
        """[env]; the changes that callbacks made."""
        self._changed = False

    def reset(self, vector_reset: VectorReset, seed: Seeds, options: dict[str, Any] | None) -> ResetResult:
        """Reset envs through `vector_reset`; if `seed` is none, every episode gets its own derived seed."""
        options = dict(options or {})
        mask = np.array(options.pop("reset_mask", np.ones(len(self.lengths))), dtype=np.bool_)
        seeds = self._next_seeds(mask) if seed is None else _seed_list(seed, len(mask))
        stays_out_of_sync = self.out_of_sync and not mask.all()
        self.out_of_sync = True
        result = vector_reset(mask, seeds, options or None)
        check_obs(result[0], self._choices, lambda index: self.locate_reset(index, seeds[index]))
        self.out_of_sync = stays_out_of_sync
        self.seeds = [new if starts else old for new, old, starts in zip(seeds, self.seeds, mask, strict=True)]
        self.episode_numbers[mask] += 1
        self.returns[mask] = 0.0
        self.lengths[mask] = 0
        self.ended[mask] = False
        self._started_at[mask] = time.perf_counter()
        self._drop_old_actions()
        if self._changed:
            logs = zip(self.changes, mask, strict=True)
            self.changes = [log.next_episode() if starts else log for log, starts in logs]
        if self.recorder.recording:
            self.recorder.record_reset(np.flatnonzero(mask).tolist(), seeds, result[0])
        return result

    def _next_seeds(self, mask: BoolArray) -> list[int | None]:
        seeds: list[int | None] = [None] * len(mask)
        for index in np.flatnonzero(mask).tolist():
            number = int(self.episode_numbers[index]) + 1
            seeds[index] = derive_seed(self.run_seed, "episodes", self.first_env + index, number)
        return seeds

    def _drop_old_actions(self) -> None:
        """Drop the actions that no running episode needs."""
        needed = self.lengths[self.lengths <= MAX_REPLAYED_STEPS].max(initial=0)
        del self._history[: len(self._history) - int(needed)]

    def begin_step(self, actions: Any) -> Array:
        """Return a copy of the actions [env, ...]; refuse if an env has ended or a step or reset failed halfway."""
        if np.count_nonzero(self.ended):  # `any` takes several times as long
            raise TrainingStateError(f"envs {np.flatnonzero(self.ended).tolist()} have ended: reset them first")
        if self.out_of_sync:
            raise TrainingStateError("a step or reset failed halfway: reset or restore all envs first")
        taken = np.array(actions)
        if taken.shape[:1] != self.lengths.shape:
            raise ValueError(f"{len(self.lengths)} envs need as many actions, got an array of shape {taken.shape}")
        self.out_of_sync = True
        return taken

    def finish_step(
        self, actions: Array, result: StepResult, env_infos: Mapping[int, Info] | None = None
    ) -> StepResult:
        """Check and count a step of all envs, and add the episodes that ended with it to its infos.

        `actions` [env, ...] are kept, so they must be those that `begin_step` returned. `env_infos` are the infos that
        the envs gave, by index; if it is none, the infos of the result are those of a batched env.
        """
        obs, rewards, terminated, truncated, infos = result
        self.check_numbers(obs, actions, rewards)
        finished = self.record(actions, rewards, terminated | truncated)
        if finished:
            finished["episode"]["info"] = [
                self._read_info(index, infos, env_infos) if ended else {}
                for index, ended in enumerate(self.ended.tolist())
            ]
            infos.update(finished)
        if self.recorder.recording:
            self.recorder.record_step(actions, obs, rewards, terminated, truncated)
        return result

    def _read_info(self, index: int, infos: Info, env_infos: Mapping[int, Info] | None) -> dict[str, float]:
        """Return the numbers that one env reported with its last step; most envs report nothing."""
        info = info_of(infos, index, len(self.lengths)) if env_infos is None else env_infos.get(index)
        return self._reader.read(info) if info else {}

    def record(self, actions: Array, rewards: DoubleArray, ended: BoolArray) -> dict[str, Any]:
        """Count one step of every env, and return the infos of the episodes that ended with it.

        `actions` [env, ...] are kept, so they must be those that `begin_step` returned.
        """
        self.out_of_sync = False
        self.returns += rewards
        self.lengths += 1
        self._history.append(actions)
        if len(self._history) > 2 * MAX_REPLAYED_STEPS:
            self._drop_old_actions()
        if not np.count_nonzero(ended):
            return {}
        self.ended = ended.copy()
        elapsed = np.round(time.perf_counter() - self._started_at, 6)
        return {
            "episode": {
                "r": np.where(ended, self.returns, 0.0),
                "l": np.where(ended, self.lengths, 0),
                "t": np.where(ended, elapsed, 0.0),
            },
            "_episode": ended.copy(),
        }

    def begin_change(self) -> None:
        """Prepare a change of all envs; refuse if an env has ended or a step, reset or change failed halfway."""
        if self.out_of_sync or self.ended.any():
            raise TrainingStateError("a step, reset or change failed halfway: the envs cannot be changed now")
        self.out_of_sync = True

    def finish_change(self, change: EnvChange) -> None:
        """Record a change that was made in all envs."""
        self.out_of_sync, self._changed = False, True
        steps = zip(self.changes, self.lengths.tolist(), strict=True)
        self.changes = [log.add(step, change) for log, step in steps]
        self.recorder.record_change(change)
        if change.is_call and self.changes[0].num_calls == _MANY_CALLS:
            warnings.warn(
                f"callbacks have called methods of the envs {_MANY_CALLS:,} times; every checkpoint stores all calls, "
                "and every restored env repeats them: use set_attr, which keeps only the newest values",
                stacklevel=4,
            )

    def begin_samples(self, states: list[Any], obs: Any) -> None:
        """Start to record samples of some envs; `states` [env] are the results of the envs' own `get_state()`."""
        candidates = [
            index
            for index, state in enumerate(states)
            if self.seeds[index] is not None and (state is not None or self.lengths[index] <= MAX_STEPS_BEFORE)
        ]
        episodes = {index: self.running(index, states[index]) for index in self.recorder.choose(candidates)}
        self.recorder.begin(episodes, self.episode_numbers.tolist(), obs)

    def running(self, index: int, state: Any = None) -> RunningEpisode:
        """Return the running episode of one env."""
        return RunningEpisode(
            seed=self.seeds[index],
            length=int(self.lengths[index]),
            episode_return=float(self.returns[index]),
            actions=self._recent_actions(index, np.array(self._history)),
            state=state,
            changes=self.changes[index],
        )

    def _recent_actions(self, index: int, history: Array) -> Array | None:
        """Return the actions of one env's running episode; none if the episode is too long to keep them."""
        length = int(self.lengths[index])
        if length > MAX_REPLAYED_STEPS:
            return None
        return history[len(history) - length :, index].copy() if length else history[:0]

    def locate(self, index: int, action: Any = None) -> str:
        """Describe the step that an env is taking, for messages."""
        episode, seed = self.episode_numbers[index], self.seeds[index]
        return step_place(self.first_env + index, episode, seed, step=self.lengths[index] + 1, action=action)

    def locate_reset(self, index: int, seed: int | None) -> str:
        """Describe the episode that an env is about to begin, for messages."""
        return reset_place(self.first_env + index, self.episode_numbers[index] + 1, seed)

    def locate_visit(self, index: int) -> str:
        """Describe the moment at which a callback reads or changes an env, for messages."""
        episode, seed, steps = self.episode_numbers[index], self.seeds[index], self.lengths[index]
        return f"env {self.first_env + index}, episode {episode} (seed {seed}), a callback after step {steps}"

    def locate_restore(self, index: int) -> str:
        """Describe the episode to which an env is restored, for messages."""
        return f"env {self.first_env + index}, restore of episode {self.episode_numbers[index]}"

    def check_numbers(self, obs: Any, actions: Array, rewards: DoubleArray) -> None:
        """Refuse rewards and observations that are not finite or not in a Discrete space, before anything uses them."""
        check_obs(obs, self._choices, lambda index: self.locate(index, actions[index]))
        if not _all_finite(rewards):
            index = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise EnvironmentStepError(f"{self.locate(index, actions[index])}: the reward is {rewards[index]}")

    def finish_restore(
        self, failures: Iterable[int], reset: Callable[..., ResetResult], read_obs: Callable[[], Any]
    ) -> Any:
        """Start new episodes in the envs that had ended or could not be restored; return all observations."""
        restarted = self.ended.copy()
        restarted[list(failures)] = True
        obs = reset(options={"reset_mask": restarted})[0] if restarted.any() else read_obs()
        self.out_of_sync = False
        return obs

    def state_dict(self, states: list[Any] | None = None) -> dict[str, Any]:
        """Return what is needed to continue the running episodes; `states` are those of the envs themselves."""
        num_envs = len(self.lengths)
        history = np.array(self._history)
        recent = [self._recent_actions(index, history) for index in range(num_envs)]
        changes = {"changes": [log.state_dict() for log in self.changes]} if self._changed else {}
        return {
            **changes,
            "episode_numbers": self.episode_numbers.tolist(),
            "seeds": list(self.seeds),
            "lengths": self.lengths.tolist(),
            "returns": self.returns.tolist(),
            "ended": self.ended.tolist(),
            "actions": [None if actions is None else torch.from_numpy(actions) for actions in recent],
            "states": [None] * num_envs if states is None else states,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the counts of a saved state; the caller restores the envs themselves."""
        numbers = np.array(state["episode_numbers"], dtype=np.int64)
        if numbers.shape != self.episode_numbers.shape:
            raise ValueError(f"the saved state has {len(numbers)} envs, this run has {len(self.episode_numbers)}")
        self.episode_numbers = numbers
        self.seeds = list(state["seeds"])
        self.lengths = np.array(state["lengths"], dtype=np.int64)
        self.returns = np.array(state["returns"])
        self.ended = np.array(state["ended"], dtype=np.bool_)
        self.out_of_sync = True
        self.recorder.stop()
        self._started_at[:] = time.perf_counter()
        self.changes = [ChangeLog.from_state(log) for log in state.get("changes", [None] * len(numbers))]
        self._changed = "changes" in state
        self._history = _merge_actions([None if one is None else one.numpy() for one in state["actions"]])


def step_place(index: int, episode: int, seed: int | None, *, step: int, action: Any = None) -> str:
    """Describe the step that an env is taking, for messages."""
    place = f"env {index}, episode {episode} (seed {seed}), step {step}"
    return place if action is None else f"{place} with action {np.asarray(action).tolist()}"


def reset_place(index: int, episode: int, seed: int | None) -> str:
    """Describe the episode that an env is about to begin, for messages."""
    return f"env {index}, episode {episode} (seed {seed}), reset"


@dataclass(frozen=True)
class FailedEpisode:
    """The training episode in which an env failed, as the error message names it."""

    env: int
    place: str
    """The env, episode, seed and step."""

    @classmethod
    def find(cls, message: str) -> "FailedEpisode | None":
        """Find the episode in a message that begins with the result of `step_place` or `reset_place`."""
        found = re.match(r"(?:\w+: )?(env (\d+), episode \d+ \(seed \w+\), (?:step \d+|reset))", message)
        return None if found is None else cls(int(found[2]), found[1])


def skip_episode(state: dict[str, Any], env: int) -> dict[str, Any]:
    """Return a copy of an `EpisodeTracker`'s state; when it is restored, one env begins another episode."""
    if state["ended"][env]:  # the episode that could not begin is skipped
        numbers = [number + (index == env) for index, number in enumerate(state["episode_numbers"])]
        return {**state, "episode_numbers": numbers}
    return {**state, "seeds": [None if index == env else seed for index, seed in enumerate(state["seeds"])]}


def batch_obs(space: Space[Any], observations: Sequence[Any], locate: Callable[[int], str]) -> Any:
    """Copy the observations into a new batch, so that no env can overwrite what a caller keeps.

    Refuse an observation that does not fit its space; `locate` describes its origin, given its index.
    """
    try:
        if isinstance(space, Box):  # the same as Gymnasium's functions below, but much faster
            batch = np.array(observations)
            if batch.shape[1:] == space.shape and batch.dtype == space.dtype:
                return batch
            return np.stack(observations, out=np.empty((len(observations), *space.shape), space.dtype))
        fresh: Any = create_empty_array(space, len(observations), fn=np.empty)
        return concatenate(space, observations, fresh)
    except (TypeError, ValueError):
        for index, obs in enumerate(observations):
            problem = misfit(space, obs)
            if problem:
                raise EnvironmentStepError(f"{locate(index)}: {problem}") from None
        raise


def misfit(space: Space[Any], obs: Any) -> str | None:
    """Describe how an observation differs from its space's shape or type; none if it fits."""
    given = np.asarray(obs)
    if given.shape == space.shape and np.can_cast(given.dtype, space.dtype or given.dtype, "same_kind"):
        return None
    return (
        f"expected an observation of shape {space.shape} and type {space.dtype}, "
        f"got shape {given.shape} and type {given.dtype}"
    )


def check_obs(obs: Any, choices: range | None, locate: Callable[[int], str]) -> None:
    """Refuse observations [env, ...] that are not finite, or not one of the `choices` of a Discrete space."""
    if choices is None:
        _check_finite(obs, locate)
        return
    values = obs.tolist()  # for a few envs, Python's own functions take a quarter of NumPy's time
    if min(values) < choices.start or max(values) >= choices.stop:
        index = next(index for index, value in enumerate(values) if value not in choices)
        raise EnvironmentStepError(f"{locate(index)}: {out_of_range(choices, obs[index])}")


def choices_of(space: Space[Any] | None) -> range | None:
    """Return the values of a Discrete space; none for any other space."""
    return range(int(space.start), int(space.start + space.n)) if isinstance(space, Discrete) else None


def out_of_range(choices: range, value: Any) -> str:
    """Describe an observation that is not one of `choices`, for messages."""
    return f"the observation is {value}, allowed are {choices.start} to {choices.stop - 1}"


def _all_finite(values: Array) -> bool:
    """Test the sum of squares first, which takes a third of the time; it may overflow even for finite values."""
    return math.isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())


def _check_finite(obs: Any, locate: Callable[[int], str]) -> None:
    """Refuse observations [env, ...] that are not finite; `locate` describes the origin of one, given its index."""
    if not (isinstance(obs, np.ndarray) and obs.dtype.kind == "f") or _all_finite(obs):
        return
    index, *component = np.argwhere(~np.isfinite(obs))[0].tolist()
    raise EnvironmentStepError(
        f"{locate(index)}: component {component} of the observation is {obs[index][tuple(component)]}"
    )


def _merge_actions(per_env: list[Array | None]) -> list[Array]:
    """Merge the actions [step, ...] of each env into rows [env, ...], aligned at the newest step, padded with 0."""
    known = [actions for actions in per_env if actions is not None and len(actions)]
    if not known:
        return []
    steps = max(len(actions) for actions in known)
    merged = np.zeros((steps, len(per_env), *known[0].shape[1:]), known[0].dtype)
    for index, actions in enumerate(per_env):
        if actions is not None and len(actions):
            merged[steps - len(actions) :, index] = actions
    return list(merged)


def _seed_list(seed: Seeds, num_envs: int) -> list[int | None]:
    if isinstance(seed, int):
        return [seed + index for index in range(num_envs)]
    return list(seed or [None] * num_envs)
