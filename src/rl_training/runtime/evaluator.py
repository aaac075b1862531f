"""Evaluation in separate envs and with separate seeds; it never uses a random stream of training."""

import math
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box

from rl_training.envs.episodes import batch_obs, check_obs, choices_of, reset_place, step_place
from rl_training.envs.factory import env_factory
from rl_training.envs.guard import ENV_FAILURES, RESET_PATIENCE, STEP_PATIENCE, EnvCalls
from rl_training.envs.layers import AnyEnv
from rl_training.envs.reports import InfoReader, average_numbers
from rl_training.errors import ConfigError, EnvironmentStepError
from rl_training.experiment.config import MAX_EPISODES, TrainConfig, evaluation_config
from rl_training.policies.base import Policy
from rl_training.runtime.types import MetricDict
from rl_training.streams import derive_seed, make_stream

MAX_ENVS = 16  # more would cost memory and save little time


class PlayedEpisode(NamedTuple):
    """An episode that was played to its end or cut at a maximum length; its return is not normalized."""

    seed: int
    episode_return: float
    length: int
    cut: bool
    info: Mapping[str, float]
    """The numbers that the env reported with the last step."""


@dataclass(frozen=True)
class EvalResult:
    """Statistics over complete episodes; returns are not normalized."""

    num_episodes: int
    metrics: MetricDict


class Evaluator:
    """Plays evaluation episodes side by side; its envs are kept for the next evaluation."""

    def __init__(self, config: TrainConfig) -> None:
        self.calls = EnvCalls()
        self._config = config
        self._envs: list[AnyEnv] = []
        self._reader = InfoReader()
        self._warned_of_cuts = False

    def evaluate(
        self, policy: Policy, num_episodes: int, step: int, *, interrupted: Callable[[], bool] = lambda: False
    ) -> EvalResult:
        """Play `num_episodes` episodes whose seeds are a function of (run seed, env step, episode), or of `eval_seed`.

        What an episode draws does not depend on the episodes that are played beside it. If interrupted, return at once
        with the number of episodes finished so far and no metrics.
        """
        check_num_episodes(num_episodes)
        name = f"evaluation at step {step}"
        self._make_envs(min(num_episodes, MAX_ENVS), name)
        player = EpisodePlayer(
            self._envs,
            self.calls,
            name,
            max_steps=self._config.eval_max_steps,
            deterministic=self._config.eval_deterministic,
            reader=self._reader,
        )
        finished = player.play(policy, evaluation_seeds(self._config, step, num_episodes), interrupted)
        if len(finished) < num_episodes:
            return EvalResult(len(finished), {})
        returns = [episode.episode_return for episode in finished]
        metrics: MetricDict = {
            "eval_return_mean": float(np.mean(returns)),
            "eval_return_std": float(np.std(returns)),
            "eval_return_min": float(np.min(returns)),
            "eval_return_max": float(np.max(returns)),
            "eval_length_mean": float(np.mean([episode.length for episode in finished])),
            "eval_episodes": num_episodes,
            **{f"eval_{name}": mean for name, mean in average_numbers(each.info for each in finished).items()},
        }
        num_cut = sum(episode.cut for episode in finished)
        if num_cut:
            metrics["eval_cut_episodes"] = num_cut
            self._warn_of_cuts(num_cut, num_episodes)
        return EvalResult(num_episodes, metrics)

    def _make_envs(self, count: int, name: str) -> None:
        for index in range(len(self._envs), count):
            with self.calls.slow(f"{name}, env {{}}, start".format, index):
                self._envs.append(env_factory(evaluation_config(self._config))())

    def _warn_of_cuts(self, num_cut: int, num_episodes: int) -> None:
        """Warn once, because an env whose episodes never end is cut in every evaluation."""
        if self._warned_of_cuts:
            return
        self._warned_of_cuts = True
        warnings.warn(
            f"{num_cut} of {num_episodes} evaluation episodes were cut after eval_max_steps="
            f"{self._config.eval_max_steps:,} env steps and count with their return so far: set eval_max_steps higher, "
            "or to 0 to play every episode to its end",
            stacklevel=3,
        )

    def close(self) -> None:
        """Close the envs; the evaluator may be used again."""
        while self._envs:
            with self.calls.slow("evaluation, env {}, close".format, len(self._envs) - 1):
                self._envs.pop().close()


def evaluation_seeds(config: TrainConfig, step: int, num_episodes: int) -> list[int]:
    """Return the seeds of the episodes of an evaluation at env step `step`; with an `eval_seed`, always the same."""
    if config.eval_seed is not None:
        return list(range(config.eval_seed, config.eval_seed + num_episodes))
    return [derive_seed(config.seed, "evaluation", step, episode) for episode in range(num_episodes)]


def check_evaluation_env(config: TrainConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Refuse `eval_env_kwargs` that change the spaces of training; only the bounds of observations may differ."""
    if not config.eval_env_kwargs:
        return
    with closing(env_factory(evaluation_config(config))()) as env:
        shown, taken = env.observation_space, env.action_space
    alike = isinstance(shown, Box) and (shown.shape, shown.dtype) == (observation_space.shape, observation_space.dtype)
    if not (alike or shown == observation_space) or taken != action_space:
        raise ConfigError(
            f"eval_env_kwargs={config.eval_env_kwargs}: evaluation would have the spaces {shown} and {taken}, training "
            f"has {observation_space} and {action_space}; give arguments that keep the spaces"
        )


def check_num_episodes(num_episodes: int) -> None:
    """Refuse an evaluation without episodes, or with more episodes than there are seeds."""
    if not 1 <= num_episodes <= MAX_EPISODES:
        raise ConfigError(f"num_episodes={num_episodes}: give a number from 1 to {MAX_EPISODES}")


@dataclass
class _EnvSlot:
    """An env and the state of its running episode."""

    env: AnyEnv
    index: int
    name: str
    """The purpose of the episode, for messages."""
    obs: Any = None
    number: int = -1
    seed: int = 0
    episode_return: float = 0.0
    length: int = 0
    """The number of steps, including the one that is being taken."""
    action: Any = None
    stream: np.random.Generator | None = None
    """The stream of the episode's actions; none if they are deterministic."""
    info: Mapping[str, Any] = field(default_factory=dict)

    def place(self, _: int = 0) -> str:
        """Describe the newest call, for messages."""
        if self.length == 0:
            return f"{self.name}, {reset_place(self.index, self.number, self.seed)}"
        step = step_place(self.index, self.number, self.seed, step=self.length, action=self.action)
        return f"{self.name}, {step}"


class EpisodePlayer:
    """Plays episodes in several envs side by side; refuses invalid observations and rewards as training does."""

    def __init__(
        self,
        envs: Sequence[AnyEnv],
        calls: EnvCalls,
        name: str,
        *,
        max_steps: int = 0,
        deterministic: bool = True,
        reader: InfoReader | None = None,
    ) -> None:
        """`max_steps` cuts episodes, unless it is 0. Drawn actions depend on the episode's seed alone."""
        self._slots = [_EnvSlot(env, index, name) for index, env in enumerate(envs)]
        self._calls = calls
        self._max_steps, self._deterministic = max_steps, deterministic
        self._reader = reader or InfoReader()

    def play(self, policy: Policy, seeds: Sequence[int], interrupted: Callable[[], bool]) -> list[PlayedEpisode]:
        """Play one episode per seed, in this order, and count all of them, so that short ones are not favoured.

        The result has fewer episodes if interrupted.
        """
        waiting = deque(enumerate(seeds))
        finished: dict[int, PlayedEpisode] = {}
        playing = self._slots[: len(seeds)]
        for slot in playing:
            self._reset(slot, *waiting.popleft())
        while playing and not interrupted():
            still_playing = []
            for slot, action in zip(playing, self._choose(policy, playing), strict=True):
                ended = self._step(slot, action)
                if ended or slot.length == self._max_steps:
                    self._observe([slot])  # checks the last observation, which the policy never sees
                    finished[slot.number] = self._finish(slot, cut=not ended)
                    if not waiting:
                        continue
                    self._reset(slot, *waiting.popleft())
                still_playing.append(slot)
            playing = still_playing
        return [episode for _, episode in sorted(finished.items())]

    def _choose(self, policy: Policy, slots: Sequence[_EnvSlot]) -> Any:
        """Return an action for each env; what an episode draws does not depend on the others."""
        obs = self._observe(slots)
        streams = [slot.stream for slot in slots if slot.stream is not None]
        if not streams:
            return policy.predict(obs, deterministic=True)
        return policy.predict(obs, deterministic=False, streams=streams)

    def _finish(self, slot: _EnvSlot, *, cut: bool) -> PlayedEpisode:
        info = self._reader.read(slot.info or {})
        return PlayedEpisode(slot.seed, float(slot.episode_return), slot.length, cut, info)

    def _reset(self, slot: _EnvSlot, number: int, seed: int) -> None:
        slot.number, slot.seed, slot.episode_return, slot.length = number, seed, 0.0, 0
        slot.stream = None if self._deterministic else make_stream(seed, "evaluation_actions")
        with self._calls.slow(slot.place):
            slot.obs, _ = slot.env.reset(seed=seed)

    def _step(self, slot: _EnvSlot, action: Any) -> bool:
        """Take one step, and return whether the episode ended by itself."""
        slot.action = action
        slot.length += 1
        self._calls.patience = RESET_PATIENCE if slot.length == 1 else STEP_PATIENCE
        self._calls.begin(slot.place)
        try:
            slot.obs, reward, terminated, truncated, slot.info = slot.env.step(action)
            slot.episode_return += reward  # type: ignore[operator]  # SupportsFloat: a number in every env there is
            is_number = math.isfinite(reward)
        except ENV_FAILURES as failure:
            raise self._calls.error(failure) from failure
        finally:
            self._calls.end()
        if not is_number:
            raise EnvironmentStepError(f"{slot.place()}: the reward is {reward}")
        return bool(terminated or truncated)

    def _observe(self, slots: Sequence[_EnvSlot]) -> Any:
        """Return the checked observations of these envs, [env, ...]."""

        def place(index: int) -> str:
            return slots[index].place()

        space = slots[0].env.observation_space
        obs = batch_obs(space, [slot.obs for slot in slots], place)
        check_obs(obs, choices_of(space), place)
        return obs
