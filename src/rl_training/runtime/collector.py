"""Collecting experience: the policy acts, the envs step, and every ending keeps its kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rl_training.algorithms.base import OffPolicyLearner, OnPolicyLearner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.vector import EpisodeVectorEnv
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


def collect_rollout(
    envs: EpisodeVectorEnv,
    learner: OnPolicyLearner,
    rollout: RolloutBuffer,
    obs: Any,
    *,
    interrupted: Callable[[], bool],
) -> CollectResult:
    """Fill the rollout from `obs` on; stops early, between two steps, when interrupted."""
    before = len(rollout)
    episodes: list[Episode] = []
    while not rollout.full and not interrupted():
        actions = learner.act(obs)
        next_obs, rewards, terminated, truncated, infos = envs.step(learner.policy.to_env(actions))
        ended = terminated | truncated
        rollout.add(
            obs=obs,
            actions=actions,
            rewards=rewards,
            dones=ended,
            truncated=truncated & ~terminated,
            last_obs=next_obs,
        )
        if ended.any():
            episodes += finished_episodes(infos)
            next_obs, _ = envs.reset(options={"reset_mask": ended})
        obs = next_obs
    metrics = episode_metrics(episodes)
    return CollectResult(len(rollout) - before, len(episodes), metrics, obs, tuple(episodes))


def collect_transitions(
    envs: EpisodeVectorEnv,
    learner: OffPolicyLearner,
    replay: ReplayBuffer,
    obs: Any,
    *,
    steps: tuple[int, int],
    interrupted: Callable[[], bool],
) -> CollectResult:
    """Store transitions from env step `steps[0]` until `steps[1]` is reached or passed, or until interrupted."""
    step, until = steps
    episodes: list[Episode] = []
    while step < until and not interrupted():
        actions = learner.act(obs, step)
        next_obs, rewards, terminated, truncated, infos = envs.step(learner.policy.to_env(actions))
        replay.add(obs=obs, actions=actions, rewards=rewards, next_obs=next_obs, dones=terminated, truncated=truncated)
        step += envs.num_envs
        ended = terminated | truncated
        learner.normalizer.observe(obs, rewards, ended)
        if ended.any():
            episodes += finished_episodes(infos)
            next_obs, _ = envs.reset(options={"reset_mask": ended})
        obs = next_obs
    return CollectResult(step - steps[0], len(episodes), episode_metrics(episodes), obs, tuple(episodes))


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
