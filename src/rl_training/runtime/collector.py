"""Collecting experience: the policy acts, the envs step, and every ending keeps its kind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from rl_training.envs.guard import EnvCalls
from rl_training.envs.samples import ReplaySample
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.errors import CheckpointError
from rl_training.policies.acting import Actor
from rl_training.runtime.types import MetricDict


class Episode(NamedTuple):
    """A finished training episode; the return is raw."""

    episode_return: float
    length: int


class Transition(NamedTuple):
    """One step of every env, [env, ...]; the actions are in the policy's own space."""

    obs: Any
    actions: Any
    rewards: Any
    next_obs: Any
    """What followed the step: at the end of an episode, its true last observation."""
    terminated: Any
    truncated: Any


@dataclass(frozen=True)
class CollectResult:
    """The size of a collection and its finished episodes; `last_obs` [env, ...] is where the next one starts."""

    num_env_steps: int
    num_episodes: int
    metrics: MetricDict
    last_obs: Any = None
    episodes: tuple[Episode, ...] = ()


class Collector(Protocol):
    """Brings experience from some of the envs of a run, which may live elsewhere.

    Its course depends on its state, on the parameters of the policy and on the step alone. So it can be put back to
    the state it had at the start of an iteration, here or elsewhere, and repeats that iteration bit for bit.
    """

    @property
    def obs(self) -> Any:
        """What the envs show now, [env, ...]."""

    @property
    def calls(self) -> list[EnvCalls]:
        """The env calls of this process, which a watchdog looks at."""

    @property
    def has_all_samples(self) -> bool:
        """Whether as many samples of the envs are kept as there is room for."""

    def start(self) -> None:
        """Begin the first episode of every env."""

    def collect(self, store: Callable[[Transition], None], steps: range, interrupted: Callable[[], bool]) -> None:
        """Take one step of every env at each of the env steps in `steps`, under the newest parameters.

        It stops between two steps when interrupted. What was stored counts, also when an env fails.
        """

    def take_result(self) -> CollectResult:
        """Return what was stored since the last call."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next steps depend on beside the parameters, as tensors and plain values."""

    def restore(self, state: dict[str, Any]) -> dict[int, str]:
        """Continue from `state`; return which envs had to begin a new episode, and why."""

    def begin_samples(self) -> None:
        """Record what some of the envs do next, unless that is being done: a resume compares fresh envs with it."""


class LocalCollector:
    """Collects in this process, step by step."""

    def __init__(self, envs: VectorEnv, actor: Actor) -> None:
        self._envs, self._actor = envs, actor
        self.obs: Any = None
        self.calls = envs.calls
        self._actions: Any = None  # drawn for `obs` and not taken yet: a step that failed is taken again as it was
        self._num_env_steps = 0
        self._episodes: list[Episode] = []

    @property
    def has_all_samples(self) -> bool:
        """Whether as many samples of the envs are kept as there is room for."""
        return self._envs.tracker.recorder.full

    def start(self) -> None:
        """Begin the first episode of every env."""
        self.obs, _ = self._envs.reset()

    def collect(self, store: Callable[[Transition], None], steps: range, interrupted: Callable[[], bool]) -> None:
        """Take one step of every env at each of the env steps in `steps`."""
        envs, actor = self._envs, self._actor
        for step in steps:
            if interrupted():
                return
            if self._actions is None:
                self._actions = actor.act(self.obs, step)
            next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(self._actions))
            store(Transition(self.obs, self._actions, rewards, next_obs, terminated, truncated))
            self._num_env_steps += envs.num_envs
            self.obs, self._actions = next_obs, None
            if "_episode" in infos:
                ended = terminated | truncated
                self._episodes += finished_episodes(infos)
                actor.begin_episodes(ended)  # before the reset: if that fails, a resume repeats it
                self.obs, _ = envs.reset(options={"reset_mask": ended})

    def take_result(self) -> CollectResult:
        """Return what was stored since the last call."""
        num_env_steps, self._num_env_steps = self._num_env_steps, 0
        episodes, self._episodes = tuple(self._episodes), []
        return CollectResult(num_env_steps, len(episodes), episode_metrics(episodes), self.obs, episodes)

    def state_dict(self) -> dict[str, Any]:
        """Return where the envs are, what they show, drawn actions, the noise, and samples for `check_replays`."""
        return {
            "envs": self._envs.state_dict(),
            "obs": torch.from_numpy(np.array(self.obs)),
            "actions": None if self._actions is None else torch.from_numpy(np.array(self._actions)),
            "acting": self._actor.state_dict(),
            "samples": [sample.state_dict() for sample in self._envs.tracker.recorder.samples()],
        }

    def restore(self, state: dict[str, Any]) -> dict[int, str]:
        """Continue from `state`; return which envs had to begin a new episode, and why."""
        check_num_groups(state, 1)
        self._actor.load_state_dict(state["acting"])
        restoration = self._envs.restore(state["envs"], state["obs"].numpy())
        self.obs = restoration.obs
        self._actions = None if state["actions"] is None else state["actions"].numpy()
        self._envs.tracker.recorder.load(map(ReplaySample.from_state, state["samples"]))
        if restoration.failures:
            self._actions = None  # they were drawn for another observation
            self._actor.begin_episodes(np.isin(np.arange(self._envs.num_envs), list(restoration.failures)))
        return restoration.failures

    def begin_samples(self) -> None:
        """Record what some of the envs do next, unless that is being done."""
        tracker = self._envs.tracker
        if not (tracker.recorder.recording or tracker.out_of_sync):
            tracker.begin_samples(self._envs.state_dict()["states"], self.obs)


def check_num_groups(state: dict[str, Any], num_groups: int) -> None:
    """Refuse the state of a run whose envs were divided into another number of groups."""
    before = len(state.get("groups", [None]))
    if before != num_groups:
        raise CheckpointError(
            f"the checkpoint is of a run with collectors={before}, not {num_groups}: a run keeps its number of groups"
        )


def finished_episodes(infos: dict[str, Any]) -> list[Episode]:
    """Return the episodes that the infos of a step report as ended."""
    ended, statistics = infos["_episode"], infos["episode"]
    return [
        Episode(float(total), int(length))
        for total, length in zip(statistics["r"][ended], statistics["l"][ended], strict=True)
    ]


def episode_metrics(episodes: Sequence[Episode]) -> MetricDict:
    """Return the mean return and length, if there is any episode."""
    returns, lengths = zip(*episodes, strict=True) if episodes else ((), ())
    return {"ep_rew_mean": float(np.mean(returns)), "ep_len_mean": float(np.mean(lengths))} if returns else {}
