"""Collecting experience: the policy acts, the envs step, and every ending keeps its kind."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rl_training.algorithms.base import Learner
from rl_training.envs.access import EnvAccess, VectorEnvAccess
from rl_training.envs.episodes import BoolArray, skip_episode
from rl_training.envs.guard import EnvCalls
from rl_training.envs.reports import average_numbers
from rl_training.envs.samples import ReplaySample
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.errors import CheckpointError, EnvironmentSetupError
from rl_training.experiment.config import TrainConfig
from rl_training.policies.acting import Actor
from rl_training.runtime.types import MetricDict

_UNKNOWN = -1  # number of lives


class Episode(NamedTuple):
    """A finished training episode; the return is raw."""

    episode_return: float
    length: int
    info: Mapping[str, float] = MappingProxyType({})
    """The numbers that the env reported at the end of the episode."""


class Transition(NamedTuple):
    """One step of every env, [env, ...], or several at once, [step, env, ...].

    The actions are in the policy's own space.
    """

    obs: Any
    actions: Any
    rewards: Any
    next_obs: Any
    """The observation after the step; at the end of an episode, its true last observation."""
    terminated: Any
    """Where nothing after the step counts for the learner: the episode terminated, or a life was lost."""
    truncated: Any
    goes_on: Any
    """Where a life was lost, but the episode continues in the env."""

    def single_steps(self) -> Iterable["Transition"]:
        """Return the steps one by one, [env, ...]."""
        return (self,) if self.rewards.ndim == 1 else map(Transition._make, zip(*self, strict=True))


@dataclass(frozen=True)
class CollectResult:
    """The size of a collection and its finished episodes; `last_obs` [env, ...] is where the next one starts."""

    num_env_steps: int
    num_episodes: int
    metrics: MetricDict
    last_obs: Any = None
    episodes: tuple[Episode, ...] = ()

    def following(self, earlier: "CollectResult") -> "CollectResult":
        """Return this collection joined with its earlier part, which a signal or a failure cut short."""
        episodes = (*earlier.episodes, *self.episodes)
        num_env_steps = earlier.num_env_steps + self.num_env_steps
        return CollectResult(num_env_steps, len(episodes), episode_metrics(episodes), self.last_obs, episodes)


class Collector(Protocol):
    """Collects experience from some of the envs of a run, which may live in other processes.

    What it collects depends only on its state, on the parameters of the policy and on the env step. If the state from
    the start of an iteration is restored, here or elsewhere, it repeats that iteration bit for bit.
    """

    @property
    def obs(self) -> Any:
        """The current observations, [env, ...]."""

    @property
    def calls(self) -> list[EnvCalls]:
        """The env calls of this process, which a watchdog checks."""

    @property
    def env(self) -> EnvAccess:
        """Access to the envs for callbacks."""

    @property
    def has_all_samples(self) -> bool:
        """Whether the maximum number of env samples is kept."""

    def start(self) -> None:
        """Begin the first episode of every env."""

    def collect(self, store: Callable[[Transition], None], steps: range, interrupted: Callable[[], bool]) -> None:
        """Take one step of every env at each of the env steps in `steps`, with the newest parameters.

        If interrupted, it stops between two steps. Stored steps count even if an env fails afterwards.
        """

    def take_result(self) -> CollectResult:
        """Return what was stored since the last call."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next steps depend on besides the parameters, as tensors and plain values."""

    def restore(self, state: dict[str, Any]) -> dict[int, str]:
        """Continue from `state`; return which envs had to begin a new episode, and why."""

    def begin_samples(self) -> None:
        """Record the next steps of some envs, unless this is in progress; a resume compares fresh envs with them."""


class LifeCounter:
    """Detects lost lives by `info["lives"]`; if it is disabled, it detects none.

    The lives of a new episode are unknown until its first step, because a restored env has no info of a reset.
    """

    def __init__(self, num_envs: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._lives = np.full(num_envs, _UNKNOWN)

    def check(self, infos: dict[str, Any]) -> None:
        """Refuse envs whose reset gives no lives."""
        if self.enabled and "lives" not in infos:
            raise EnvironmentSetupError('terminal_on_life_loss: the env gives no info["lives"]; leave the setting out')

    def find_lost(self, infos: dict[str, Any]) -> BoolArray:
        """Return in which envs a life was lost, given the infos of a step."""
        lives = np.where(infos.get("_lives", "lives" in infos), infos.get("lives", _UNKNOWN), self._lives)
        lost: BoolArray = lives < self._lives
        self._lives = lives
        return lost

    def begin_episodes(self, begins: BoolArray) -> None:
        """Forget the lives of the envs [env] that begin a new episode."""
        self._lives[begins] = _UNKNOWN

    def state_dict(self) -> list[int] | None:
        """Return the lives of every env; none if they are not counted."""
        return self._lives.tolist() if self.enabled else None

    def load_state_dict(self, state: list[int] | None) -> None:
        """Continue from `state`."""
        if state is not None:
            self._lives = np.array(state)


class LocalCollector:
    """Collects in this process, step by step."""

    def __init__(self, envs: VectorEnv, actor: Actor, *, terminal_on_life_loss: bool = False) -> None:
        self._envs, self._actor = envs, actor
        self._lives = LifeCounter(envs.num_envs, enabled=terminal_on_life_loss)
        self._nowhere = np.zeros(envs.num_envs, np.bool_)
        self.obs: Any = None
        self.calls = envs.calls
        self.env: EnvAccess = VectorEnvAccess(envs)
        self._actions: Any = None  # drawn for `obs` and not taken yet: a failed step is repeated with them
        self._num_env_steps = 0
        self._episodes: list[Episode] = []

    @property
    def has_all_samples(self) -> bool:
        """Whether the maximum number of env samples is kept."""
        return self._envs.tracker.recorder.full

    def start(self) -> None:
        """Begin the first episode of every env."""
        self.obs, infos = self._envs.reset()
        self._lives.check(infos)

    def collect(self, store: Callable[[Transition], None], steps: range, interrupted: Callable[[], bool]) -> None:
        """Take one step of every env at each of the env steps in `steps`."""
        envs, actor = self._envs, self._actor
        for step in steps:
            if interrupted():
                return
            if self._actions is None:
                self._actions = actor.act(self.obs, step)
            next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(self._actions))
            store(self._transition(next_obs, rewards, terminated, truncated, infos))
            self._num_env_steps += envs.num_envs
            self.obs, self._actions = next_obs, None
            if "_episode" in infos:
                ended = terminated | truncated
                self._episodes += finished_episodes(infos)
                actor.begin_episodes(ended)  # before the reset: if that fails, a resume repeats it
                self._lives.begin_episodes(ended)
                self.obs, _ = envs.reset(options={"reset_mask": ended})

    def _transition(
        self, next_obs: Any, rewards: Any, terminated: BoolArray, truncated: BoolArray, infos: dict[str, Any]
    ) -> Transition:
        if not self._lives.enabled:
            return Transition(self.obs, self._actions, rewards, next_obs, terminated, truncated, self._nowhere)
        lost = self._lives.find_lost(infos)
        goes_on = lost & ~(terminated | truncated)
        return Transition(self.obs, self._actions, rewards, next_obs, terminated | lost, truncated, goes_on)

    def take_result(self) -> CollectResult:
        """Return what was stored since the last call."""
        num_env_steps, self._num_env_steps = self._num_env_steps, 0
        episodes, self._episodes = tuple(self._episodes), []
        return CollectResult(num_env_steps, len(episodes), episode_metrics(episodes), self.obs, episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the envs, observations, drawn actions, noise, lives, and samples for `check_replays`."""
        return {
            "envs": self._envs.state_dict(),
            "obs": torch.from_numpy(np.array(self.obs)),
            "actions": None if self._actions is None else torch.from_numpy(np.array(self._actions)),
            "acting": self._actor.state_dict(),
            "lives": self._lives.state_dict(),
            "samples": [sample.state_dict() for sample in self._envs.tracker.recorder.samples()],
        }

    def restore(self, state: dict[str, Any]) -> dict[int, str]:
        """Continue from `state`; return which envs had to begin a new episode, and why."""
        check_num_groups(state, 1)
        self._actor.load_state_dict(state["acting"])
        self._lives.load_state_dict(state["lives"])
        restoration = self._envs.restore(state["envs"], state["obs"].numpy())
        self.obs = restoration.obs
        self._actions = None if state["actions"] is None else state["actions"].numpy()
        self._envs.tracker.recorder.load(map(ReplaySample.from_state, state["samples"]))
        if restoration.failures:
            self._actions = None  # they were drawn for another observation
            restarted = np.isin(np.arange(self._envs.num_envs), list(restoration.failures))
            self._actor.begin_episodes(restarted)
            self._lives.begin_episodes(restarted)
        return restoration.failures

    def begin_samples(self) -> None:
        """Record the next steps of some envs, unless this is in progress."""
        tracker = self._envs.tracker
        if not (tracker.recorder.recording or tracker.out_of_sync):
            tracker.begin_samples(self._envs.state_dict()["states"], self.obs)


def make_collector(config: TrainConfig, learner: Learner, envs: VectorEnv) -> LocalCollector:
    """Return a collector for these envs of a run, with an actor of the learner."""
    first = envs.tracker.first_env
    actor = learner.make_actor(range(first, first + envs.num_envs))
    return LocalCollector(envs, actor, terminal_on_life_loss=config.terminal_on_life_loss)


def group_states(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the states of the groups that a collector's state consists of; one if the envs are not divided."""
    return list(state.get("groups", [state]))


def check_num_groups(state: dict[str, Any], num_groups: int) -> None:
    """Refuse the state of a run whose envs were divided into another number of groups."""
    before = len(group_states(state))
    if before != num_groups:
        raise CheckpointError(
            f"the checkpoint is of a run with collectors={before}, not {num_groups}: a run keeps its number of groups"
        )


def without_episode(state: dict[str, Any], env: int) -> dict[str, Any]:
    """Return a collector's state, changed so that one env begins another episode when it is restored."""
    groups, first = group_states(state), 0
    for number, group in enumerate(groups):
        size = len(group["envs"]["seeds"])
        if env < first + size:
            groups[number] = {**group, "envs": skip_episode(group["envs"], env - first)}
            break
        first += size
    return {**state, "groups": groups} if "groups" in state else groups[0]


def finished_episodes(infos: dict[str, Any]) -> list[Episode]:
    """Return the episodes that the infos of a step report as ended."""
    ended, statistics = infos["_episode"], infos["episode"]
    returns, lengths, reported = (statistics[name] for name in ("r", "l", "info"))
    return [
        Episode(float(returns[index]), int(lengths[index]), reported[index]) for index in np.flatnonzero(ended).tolist()
    ]


def episode_metrics(episodes: Sequence[Episode]) -> MetricDict:
    """Return the means of the returns, the lengths and the reported numbers; empty if there is no episode."""
    if not episodes:
        return {}
    returns, lengths, infos = zip(*episodes, strict=True)
    means = {"ep_rew_mean": float(np.mean(returns)), "ep_len_mean": float(np.mean(lengths))}
    return {**means, **average_numbers(infos)} if any(infos) else means
