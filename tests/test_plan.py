"""Plans count in closed form what walking through every iteration would count."""

import math
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path

from conftest import MakeConfig
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.base import OffPolicyParams
from rl_training.algorithms.dqn import DQNParams
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.schedules import crosses
from rl_training.runtime.dqn_trainer import DQN
from rl_training.runtime.off_policy import next_boundary, updates_owed
from rl_training.runtime.plan import Stretch, count_events
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.sac_trainer import SAC


def walk_events(interval: int, ends: Sequence[int]) -> int:
    """The reference: every iteration is looked at."""
    due = [crosses(interval, before, after) for before, after in pairwise([0, *ends])]
    return sum(due) + (0 if due[-1] else 1)


def walk_ends(params: OffPolicyParams, config: TrainConfig) -> Iterator[int]:
    """The reference: the iterations as the off-policy loop makes them."""
    step = 0
    while step < config.total_timesteps:
        vector_steps = math.ceil((next_boundary(params, config, step) - step) / config.num_envs)
        step += vector_steps * config.num_envs
        yield step


def test_regular_iterations_are_counted_without_walking_through_them() -> None:
    for interval, size, iterations in product((0, 1, 3, 7, 20, 64), (1, 2, 5, 7, 30), (1, 2, 9, 40)):
        total = size * iterations
        stretch = Stretch(0, total, size, size)
        assert count_events(interval, [stretch]) == walk_events(interval, range(size, total + 1, size))
    total = 2048 * 10**12
    assert count_events(10_000, [Stretch(0, total, 2048, 2048)]) == total // 10_000


@settings(max_examples=400, deadline=None)
@given(
    num_envs=st.integers(1, 12),
    total_timesteps=st.integers(1, 400),
    learning_starts=st.integers(0, 450),
    train_frequency=st.integers(1, 60),
    gradient_steps=st.integers(1, 3),
    log_interval=st.integers(1, 90),
    eval_interval=st.integers(0, 90),
    checkpoint_interval=st.integers(0, 90),
)
def test_an_off_policy_plan_counts_what_walking_through_every_iteration_counts(
    num_envs: int,
    total_timesteps: int,
    learning_starts: int,
    train_frequency: int,
    gradient_steps: int,
    log_interval: int,
    eval_interval: int,
    checkpoint_interval: int,
) -> None:
    rhythm = {
        "learning_starts": learning_starts,
        "train_frequency": train_frequency,
        "gradient_steps": gradient_steps,
    }
    config = TrainConfig(
        algo="dqn",
        env_id="CartPole-v1",
        num_envs=num_envs,
        total_timesteps=total_timesteps,
        log_interval=log_interval,
        eval_interval=eval_interval,
        checkpoint_interval=checkpoint_interval,
        algo_kwargs={"buffer_capacity": 100, "hidden_sizes": [4], **rhythm},
    )
    plan, params = DQN.plan_fn(config), DQNParams(**config.algo_kwargs)
    ends = list(walk_ends(params, config))
    owed = [updates_owed(params, before, after) for before, after in pairwise([0, *ends])]
    assert plan.env_steps == ends[-1]
    assert plan.gradient_steps == sum(owed)
    assert plan.evaluations == walk_events(eval_interval, ends)
    assert plan.checkpoints == 1 + walk_events(checkpoint_interval, ends)
    assert plan.details["iterations"] == len(ends)
    assert plan.details["updates"] == sum(1 for count in owed if count)
    assert plan.details["warm-up env steps"] == min(learning_starts, ends[-1])


def test_an_interval_between_the_shorter_and_the_longer_iterations_is_counted_over_many_periods() -> None:
    ends = [-(-number * 13 // 8) * 8 for number in range(1, 5_001)]  # 8 or 16 env steps each
    assert {after - before for before, after in pairwise(ends)} == {8, 16}
    for interval in range(9, 16):
        stretch = Stretch(0, ends[-1], size=13, grid=8)
        assert stretch.num_iterations == 5_000
        assert count_events(interval, [stretch]) == walk_events(interval, ends)


def test_fifty_million_steps_are_planned_at_once_and_without_memory(make_config: MakeConfig, tmp_path: Path) -> None:
    kwargs = {"buffer_capacity": 1_000_000, "learning_starts": 10_000, "train_frequency": 1}
    config = make_config(
        algo="sac", num_envs=1, total_timesteps=50_000_000, eval_interval=10_000, algo_kwargs=kwargs, tags=("plan",)
    )
    SAC.plan_fn(config)  # imports
    tracemalloc.start()
    began = time.process_time()
    plan = SAC.plan_fn(config)
    seconds = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.env_steps == 50_000_000
    assert plan.gradient_steps == plan.details["updates"] == 50_000_000 - 10_000
    assert plan.evaluations == 5_000
    assert seconds < 2.0
    assert peak < 20 * 2**20
    assert list(tmp_path.glob("runs")) == []


def test_a_plan_of_the_largest_budget_is_exact(make_config: MakeConfig) -> None:
    total = 2**53 - 1
    config = make_config(
        algo="ppo", num_envs=3, total_timesteps=total, algo_kwargs={"num_steps": 1, "minibatch_size": 3}
    )
    plan = get_algorithm_spec("ppo").plan_fn(config)
    assert plan.env_steps == plan.details["rollouts"] * 3 == total + (-total % 3)
