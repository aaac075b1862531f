"""Evaluation on envs and seeds of its own: it never touches a training stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.envs.factory import make_env
from rl_training.envs.vector import AnyEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.policies.base import Policy
from rl_training.runtime.collector import Episode
from rl_training.runtime.types import MetricDict
from rl_training.streams import derive_seed

MAX_ENVS = 16  # more would only cost memory: the policy's batch is already cheap


@dataclass(frozen=True)
class EvalResult:
    """Statistics over whole episodes, raw returns, likeliest actions."""

    num_episodes: int
    metrics: MetricDict


class Evaluator:
    """Plays episodes side by side, on envs that it keeps for the next time."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._envs: list[AnyEnv] = []

    def evaluate(
        self, policy: Policy, num_episodes: int, step: int, *, interrupted: Callable[[], bool] = lambda: False
    ) -> EvalResult:
        """`num_episodes` episodes whose seeds are a function of (run seed, env step, episode).

        An interruption ends it at once, with the episodes finished so far and no metrics.
        """
        check_num_episodes(num_episodes)
        while len(self._envs) < min(num_episodes, MAX_ENVS):
            self._envs.append(make_env(self._config, len(self._envs)))
        finished = play_episodes(policy, self._envs, evaluation_seeds(self._config, step, num_episodes), interrupted)
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
        }
        return EvalResult(num_episodes, metrics)

    def close(self) -> None:
        """Close the envs; the evaluator may be used again."""
        while self._envs:
            self._envs.pop().close()


def evaluation_seeds(config: TrainConfig, step: int, num_episodes: int) -> list[int]:
    """The seeds of the episodes that an evaluation at an env step plays."""
    return [derive_seed(config.seed, "evaluation", step, episode) for episode in range(num_episodes)]


def check_num_episodes(num_episodes: int) -> None:
    """Refuse an evaluation of nothing."""
    if num_episodes < 1:
        raise ConfigError(f"num_episodes={num_episodes}: at least 1 is needed")


def play_episodes(
    policy: Policy, envs: Sequence[AnyEnv], seeds: Sequence[int], interrupted: Callable[[], bool]
) -> list[Episode]:
    """One whole episode per seed, each counted, so that short ones are not favoured; fewer when interrupted."""
    waiting = list(reversed(seeds))
    finished: list[Episode] = []
    playing = [(env, env.reset(seed=waiting.pop())[0]) for env in envs[: len(seeds)]]
    while playing and not interrupted():
        actions = policy.predict(np.stack([np.asarray(obs) for _, obs in playing]), deterministic=True)
        still_playing: list[tuple[AnyEnv, Any]] = []
        for (env, _), action in zip(playing, actions, strict=True):
            obs, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                finished.append(Episode(float(info["episode"]["r"]), int(info["episode"]["l"])))
                if not waiting:
                    continue
                obs, _ = env.reset(seed=waiting.pop())
            still_playing.append((env, obs))
        playing = still_playing
    return finished
