from typing import Any

import numpy as np
import pytest
import sample_envs  # noqa: F401  (registers the envs)
from conftest import MakeConfig

from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.guard import EnvCalls
from rl_training.runtime.evaluator import EpisodePlayer, Evaluator


class AlwaysOne:
    """Plays action 1 and remembers what it saw."""

    def __init__(self) -> None:
        self.batches: list[np.ndarray[Any, Any]] = []
        self.deterministic: set[bool] = set()

    def predict(self, obs: np.ndarray[Any, Any], *, deterministic: bool = True) -> np.ndarray[Any, Any]:
        self.batches.append(obs)
        self.deterministic.add(deterministic)
        return np.ones(len(obs), dtype=np.int64)

    def to_env(self, actions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return actions


def test_statistics_are_over_whole_raw_episodes_with_the_likeliest_actions(make_config: MakeConfig) -> None:
    policy = AlwaysOne()
    result = Evaluator(make_config(env_id="tests/Counting-v0")).evaluate(policy, 20, step=0)
    assert policy.deterministic == {True}
    assert result.num_episodes == 20
    assert result.metrics == {
        "eval_return_mean": 6.0,
        "eval_return_std": 0.0,
        "eval_return_min": 6.0,
        "eval_return_max": 6.0,
        "eval_length_mean": 3.0,
        "eval_episodes": 20,
    }


def test_long_and_short_episodes_count_alike(make_config: MakeConfig) -> None:
    lengths = [2, 9]
    envs = [make_env(make_config(env_id="tests/Counting-v0", env_kwargs={"limit": limit}), 0) for limit in lengths]
    finished = EpisodePlayer(envs, EnvCalls(), "evaluation").play(AlwaysOne(), [1, 2], lambda: False)
    assert sorted(episode.length for episode in finished) == [2, 9]


def episode_numbers(evaluator: Evaluator, step: int) -> list[float]:
    """What `tests/Seed-v0` draws in the 20 episodes of an evaluation, which are more than its envs."""
    policy = AlwaysOne()
    evaluator.evaluate(policy, 20, step)
    return sorted({float(number) for batch in policy.batches for number in batch[:, 0]})


def test_an_evaluation_repeats_itself_and_differs_from_one_at_another_step(make_config: MakeConfig) -> None:
    evaluator = Evaluator(make_config(env_id="tests/Seed-v0"))
    numbers = episode_numbers(evaluator, step=100)
    assert len(numbers) == 20
    assert episode_numbers(evaluator, step=100) == numbers
    assert episode_numbers(Evaluator(make_config(env_id="tests/Seed-v0")), step=100) == numbers
    assert not set(episode_numbers(evaluator, step=101)) & set(numbers)
    longer = Evaluator(make_config(env_id="tests/Seed-v0", env_kwargs={"limit": 5}))
    assert episode_numbers(longer, step=100) == numbers  # whatever the episodes before drew


def test_evaluation_episodes_are_neither_those_of_training_nor_those_of_another_run(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Seed-v0", num_envs=20)
    numbers = set(episode_numbers(Evaluator(config), step=0))
    envs = make_vector_env(config)
    trained = {float(number) for _ in range(20) for number in envs.reset()[0][:, 0]}
    assert not trained & numbers
    assert not set(episode_numbers(Evaluator(make_config(env_id="tests/Seed-v0", seed=8)), step=0)) & numbers


@pytest.mark.parametrize("episodes", [1, 16, 17, 40])
def test_any_number_of_episodes_is_played_exactly(make_config: MakeConfig, episodes: int) -> None:
    result = Evaluator(make_config(env_id="tests/Counting-v0")).evaluate(AlwaysOne(), episodes, step=0)
    assert result.metrics["eval_episodes"] == episodes
    assert result.metrics["eval_return_mean"] == 6.0
