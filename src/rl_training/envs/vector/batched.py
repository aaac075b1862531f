"""A vector of envs that are stepped together in one call, such as Gymnasium's CartPole in NumPy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Env

from rl_training.envs.changes import Answer, ChangeLog, PendingChanges
from rl_training.envs.episodes import Array, BoolArray, DoubleArray, EpisodeTracker, ResetResult, Seeds, StepResult
from rl_training.envs.guard import ENV_FAILURES, RESET_PATIENCE, STEP_PATIENCE, EnvCalls
from rl_training.envs.restore import same_values, why_not_restorable
from rl_training.envs.samples import RunningEpisode
from rl_training.envs.vector.protocol import BatchedEnv, Restoration
from rl_training.errors import EnvironmentStepError, describe_error


class BatchedVectorEnv:
    """Steps a batched env, counts its episodes, and restores them by replaying all of them side by side."""

    def __init__(
        self, env: BatchedEnv, run_seed: int, *, first_env: int = 0, max_episode_steps: int | None = None
    ) -> None:
        """`max_episode_steps` truncates episodes, as `gymnasium.make` does for single envs."""
        self._env = env
        self._max_episode_steps = max_episode_steps
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.tracker = EpisodeTracker(self.num_envs, run_seed, self.single_observation_space, first_env=first_env)
        self._calls = EnvCalls()
        self.calls = [self._calls]
        self._obs: Any = None
        self._numbers_shape = (self.num_envs,)  # of rewards, terminated and truncated
        self._obs_shape = (self.num_envs, *(self.single_observation_space.shape or ()))

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Start the next episode of every env that `options["reset_mask"]` names, or of all."""
        return self.tracker.reset(self._reset_envs, seed, options)

    def _reset_envs(self, mask: BoolArray, seeds: list[int | None], options: dict[str, Any] | None) -> ResetResult:
        calls = self._calls  # written out instead of `calls.slow`: with many envs, every second step resets one
        before, calls.patience, calls.index = calls.patience, RESET_PATIENCE, int(mask.argmax())
        calls.begin(lambda index: self.tracker.locate_reset(index, seeds[index]))
        try:
            obs, infos = self._env.reset(seed=seeds, options={**(options or {}), "reset_mask": mask})
        except ENV_FAILURES as failure:
            raise calls.error(failure) from failure
        finally:
            calls.end()
            calls.patience = before
        self._obs = self._copy_obs("reset returned observations", obs)
        return self._obs, infos

    def step(self, actions: Any) -> StepResult:
        """Step all envs; at the end of an episode, the observation is the true last one of that episode."""
        taken = self.tracker.begin_step(actions)
        calls = self._calls
        calls.index = 0  # all envs are stepped at once
        calls.begin(lambda index: self.tracker.locate(index, taken[index]))
        try:
            obs, rewards, terminated, truncated, infos = self._env.step(taken)
        except ENV_FAILURES as failure:
            raise calls.error(failure) from failure
        finally:
            calls.end()
        calls.patience = STEP_PATIENCE
        obs, rewards, terminated, truncated = self._to_arrays(obs, rewards, terminated, truncated)
        if self._max_episode_steps is not None:
            truncated = truncated | (self.tracker.lengths + 1 >= self._max_episode_steps)
        result = self.tracker.finish_step(taken, (obs, rewards, terminated, truncated, dict(infos)))
        self._obs = obs
        return result

    def _to_arrays(
        self, obs: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> tuple[Array, DoubleArray, BoolArray, BoolArray]:
        """Convert the values of a step. Only observations are copied: nothing uses the others after the next step."""
        return (
            self._copy_obs("step returned observations", obs),
            self._to_array("step returned rewards", rewards, np.float64, self._numbers_shape),
            self._to_array("step returned terminated", terminated, np.bool_, self._numbers_shape),
            self._to_array("step returned truncated", truncated, np.bool_, self._numbers_shape),
        )

    def _copy_obs(self, returned: str, obs: Any) -> Array:
        """Copy observations in the dtype of their space, because the env may write over its arrays."""
        given = self._to_array(returned, obs, None, self._obs_shape)
        dtype = self.single_observation_space.dtype
        try:
            return given.astype(dtype, casting="same_kind")
        except TypeError:
            raise self._error(f"{returned} of type {given.dtype}, expected {dtype}") from None

    def _to_array(self, returned: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Convert a value that the env returned; refuse another shape. `returned` begins the message."""
        try:
            array: Array = np.asarray(value, dtype)
        except (TypeError, ValueError) as error:
            raise self._error(f"{returned} that are not an array: {describe_error(error)}") from None
        if array.shape != shape:
            raise self._error(f"{returned} of shape {array.shape}, expected {shape}")
        return array

    def _error(self, problem: str) -> EnvironmentStepError:
        kind = type(self._env)
        return EnvironmentStepError(f"{kind.__module__}:{kind.__qualname__}: {problem}")

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to restore every env to its current state."""
        return self.tracker.state_dict()

    def restore(self, state: dict[str, Any], last_obs: Any) -> Restoration:
        """Restore every env to `state`, in which it showed `last_obs` [env, ...]."""
        self.tracker.load_state_dict(state)
        running = {index: self.tracker.running(index) for index in np.flatnonzero(~self.tracker.ended).tolist()}
        reasons = {index: why_not_restorable(episode) for index, episode in running.items()}
        failures = {index: reason for index, reason in reasons.items() if reason}
        replayed = {index: episode for index, episode in running.items() if index not in failures}
        if replayed:
            longest = max(replayed, key=lambda index: replayed[index].length)
            with self._calls.slow(self.tracker.locate_restore, longest, replayed[longest].length):
                failures |= self._replay(replayed, last_obs, replayed[longest].changes)
        else:
            with self._calls.slow(self.tracker.locate_restore):
                self._pending(self.tracker.changes[0], [0] * self.num_envs).make_all()
        return Restoration(self.tracker.finish_restore(failures, self.reset, lambda: self._obs), failures)

    def _replay(self, episodes: Mapping[int, RunningEpisode], last_obs: Any, log: ChangeLog) -> dict[int, str]:
        """Play all episodes again so that they reach their newest step together; return which failed, and why.

        `log` has the changes of the longest episode. It includes those of all others, which began later.
        """
        lengths = np.zeros(self.num_envs, np.int64)
        seeds: list[int | None] = [0] * self.num_envs
        for index, episode in episodes.items():
            lengths[index], seeds[index] = episode.length, episode.seed
        longest = remaining = int(lengths.max())
        returns = np.zeros(self.num_envs)
        failures: dict[int, str] = {}
        changes = self._pending(log, seeds)
        changes.make_before_episode()
        waits = np.ones(self.num_envs, np.bool_)  # for the step at which the env's own episode begins
        obs = self._begin(waits, seeds)
        while True:
            begins = waits & (lengths == remaining)
            if begins.any():
                obs = self._begin(begins, seeds)
                waits &= ~begins
            changes.make_before(longest - remaining + 1)
            if remaining == 0:
                break
            actions = _actions_at(remaining, episodes, self.num_envs)
            obs, rewards, terminated, truncated = self._to_arrays(*self._env.step(actions)[:4])
            ended = terminated | truncated
            returns[~waits] += rewards[~waits]
            for index in np.flatnonzero(ended & ~waits).tolist():
                step = lengths[index] - remaining + 1
                failures.setdefault(index, f"the replayed episode ended with step {step} of {lengths[index]}")
            if ended.any():  # so that no env is stepped beyond its end
                obs = self._begin(ended, seeds)
            remaining -= 1
        self._obs = obs
        for index, episode in episodes.items():
            if not same_values(self._obs[index], last_obs[index]):
                failures.setdefault(index, "replaying its actions led to another observation")
            elif returns[index] != episode.episode_return:
                text = f"replaying its actions gave the return {returns[index]}, not {episode.episode_return}"
                failures.setdefault(index, text)
        return failures

    def visit(self, function: Callable[[Any], Answer]) -> list[Answer]:
        """Call a function with the batched env, and return its answer for every env."""
        with self._calls.slow(self.tracker.locate_visit):
            return [function(self._env)] * self.num_envs

    def _pending(self, log: ChangeLog, seeds: list[int | None]) -> PendingChanges:
        return PendingChanges(self._env, log, lambda: self._begin(np.ones(self.num_envs, np.bool_), seeds))

    def _begin(self, mask: BoolArray, seeds: list[int | None]) -> Any:
        chosen = [seed if begins else None for seed, begins in zip(seeds, mask, strict=True)]
        obs, _ = self._env.reset(seed=chosen, options={"reset_mask": mask})
        return self._copy_obs("reset returned observations", obs)

    def close(self) -> None:
        """Close the envs."""
        self._env.close()


def _actions_at(remaining: int, episodes: Mapping[int, RunningEpisode], num_envs: int) -> Any:
    """Return the actions of all envs when `remaining` steps are left; an env that waits takes any known action."""
    known = {index: episode.actions for index, episode in episodes.items() if episode.actions is not None}
    spare = next(actions[0] for actions in known.values() if len(actions))
    rows = [spare] * num_envs
    for index, actions in known.items():
        if remaining <= len(actions):
            rows[index] = actions[len(actions) - remaining]
    return np.array(rows)


class SingleOfBatch(Env[Any, Any]):
    """One env of a batched kind, as a single env."""

    def __init__(self, env: BatchedEnv) -> None:
        self.env = env
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """Begin an episode."""
        obs, _ = self.env.reset(seed=[seed], options={**(options or {}), "reset_mask": np.ones(1, np.bool_)})
        return obs[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        obs, rewards, terminated, truncated, _ = self.env.step(np.array([action]))
        return obs[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        """Close the env."""
        self.env.close()
