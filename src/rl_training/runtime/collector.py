"""Collecting experience: the policy acts, the envs step, and every ending keeps its kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rl_training.algorithms.base import OffPolicyLearner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.policies.acting import Actor
from rl_training.runtime.types import MetricDict


class Episode(NamedTuple):
    """A finished training episode; the return is raw."""

    episode_return: float
    length: int


@dataclass(frozen=True)
class CollectResult:
    """What one collection brought in; `last_obs` [env, ...] is where the next one goes on."""

    num_env_steps: int
    num_episodes: int
    metrics: MetricDict
    last_obs: Any = None
    episodes: tuple[Episode, ...] = ()


@dataclass
class Collection:
    """Experience as it comes in: always in step with what is stored, also when an exception cuts it short."""

    obs: Any
    actions: Any = None
    """Drawn for `obs` and not taken yet, so that a step which failed can be taken again as it was."""
    num_env_steps: int = 0
    episodes: list[Episode] = field(default_factory=list)

    def result(self) -> CollectResult:
        """What has come in."""
        metrics = episode_metrics(self.episodes)
        return CollectResult(self.num_env_steps, len(self.episodes), metrics, self.obs, tuple(self.episodes))

    def move_on(self, envs: VectorEnv, actor: Actor, next_obs: Any, infos: dict[str, Any], ended: Any) -> None:
        """Count a stored step, and start the next episodes of the envs that ended with it."""
        self.num_env_steps += envs.num_envs
        self.obs, self.actions = next_obs, None
        if "_episode" in infos:
            self.episodes += finished_episodes(infos)
            actor.begin_episodes(ended)  # before the reset, which is made good on resume when it fails
            self.obs, _ = envs.reset(options={"reset_mask": ended})


def collect_rollout(
    envs: VectorEnv,
    actor: Actor,
    rollout: RolloutBuffer,
    collection: Collection,
    start: int,
    interrupted: Callable[[], bool],
) -> None:
    """Fill the rollout from `collection.obs` on; stops early, between two steps, when interrupted."""
    while not rollout.full and not interrupted():
        if collection.actions is None:
            collection.actions = actor.act(collection.obs, start + collection.num_env_steps)
        next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(collection.actions))
        ended = terminated | truncated
        rollout.add(
            obs=collection.obs,
            actions=collection.actions,
            rewards=rewards,
            dones=ended,
            truncated=truncated & ~terminated,
            last_obs=next_obs,
        )
        collection.move_on(envs, actor, next_obs, infos, ended)


def collect_transitions(
    envs: VectorEnv,
    actor: Actor,
    learner: OffPolicyLearner,
    replay: ReplayBuffer,
    collection: Collection,
    steps: tuple[int, int],
    interrupted: Callable[[], bool],
) -> None:
    """Store transitions from env step `steps[0]` until `steps[1]` is reached or passed, or until interrupted."""
    start, until = steps
    while start + collection.num_env_steps < until and not interrupted():
        if collection.actions is None:
            collection.actions = actor.act(collection.obs, start + collection.num_env_steps)
        obs, actions = collection.obs, collection.actions
        next_obs, rewards, terminated, truncated, infos = envs.step(actor.to_env(actions))
        ended = terminated | truncated
        replay.add(obs=obs, actions=actions, rewards=rewards, next_obs=next_obs, dones=terminated, truncated=truncated)
        learner.normalizer.observe(obs, rewards, ended)
        collection.move_on(envs, actor, next_obs, infos, ended)


def finished_episodes(infos: dict[str, Any]) -> list[Episode]:
    """The episodes that a step's infos report as ended."""
    ended, statistics = infos["_episode"], infos["episode"]
    return [
        Episode(float(total), int(length))
        for total, length in zip(statistics["r"][ended], statistics["l"][ended], strict=True)
    ]


def episode_metrics(episodes: list[Episode]) -> MetricDict:
    """Mean return and length, when there is any episode."""
    if not episodes:
        return {}
    return {
        "ep_rew_mean": float(np.mean([episode.episode_return for episode in episodes])),
        "ep_len_mean": float(np.mean([episode.length for episode in episodes])),
    }
