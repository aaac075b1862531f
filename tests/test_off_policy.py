"""The off-policy loop, with the learners that really run in it."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import sample_envs  # noqa: F401  (registers the envs)
import torch
from conftest import MakeConfig
from sample_learners import build_dqn_learner

from rl_training.algorithms.dqn import DQNParams
from rl_training.envs.factory import make_vector_env
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import LocalCollector
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.off_policy import add_to_replay, build_replay, updates_owed, wire_off_policy
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState

BOTH = pytest.mark.parametrize("algo", ["dqn", "sac"])


class Counting(Callback):
    """Counts what really happened, and keeps the order of events."""

    def __init__(self) -> None:
        self.env_steps = self.gradient_steps = self.evaluations = 0
        self.updated_at: list[int] = []
        self.weights: list[torch.Tensor] = []

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        self.env_steps += result.num_env_steps
        assert trainer.global_step == self.env_steps

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self.gradient_steps += result.num_gradient_steps
        self.updated_at.append(trainer.global_step)
        assert trainer.num_updates == self.gradient_steps

    def on_eval_end(self, trainer: Any, metrics: Any) -> None:
        self.evaluations += 1


class ListenAtStart(Callback):
    """Keeps what a run says at its start."""

    def on_train_start(self, trainer: TrainerState) -> None:
        self.decisions = trainer.decisions


@BOTH
@pytest.mark.parametrize(("warm_up", "said"), [(128, "128: nothing is learned in 128 steps"), (127, None)])
def test_a_run_whose_warm_up_lasts_to_its_end_says_so(
    make_config: MakeConfig, algo: str, warm_up: int, said: str | None
) -> None:
    listener = ListenAtStart()
    config = make_config(algo=algo, num_envs=1, algo_kwargs={"learning_starts": warm_up, "train_frequency": 1})
    result = get_algorithm_spec(algo).train_fn(config, callbacks=[listener])
    assert listener.decisions.get("learning_starts") == said
    assert result.metrics["num_updates"] == (0 if said else 1)


@pytest.mark.parametrize("prioritized", [True, False])
def test_settings_of_a_prioritised_replay_that_is_off_are_named(prioritized: bool) -> None:
    found = DQNParams(prioritized=prioritized, priority_alpha=0.5).explain_ineffective(10_000)
    assert found == ({} if prioritized else {"priority_alpha": "has no effect without prioritized"})


@BOTH
@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_the_plan_counts_exactly_what_the_run_does(make_config: MakeConfig, algo: str, num_envs: int) -> None:
    config = make_config(algo=algo, num_envs=num_envs, total_timesteps=150, eval_interval=70, keep_checkpoints=100)
    spec, counted = get_algorithm_spec(algo), Counting()
    plan = spec.plan_fn(config)
    result = spec.train_fn(config, callbacks=[counted])
    assert plan.env_steps == counted.env_steps == result.metrics["global_step"]
    assert plan.gradient_steps == counted.gradient_steps == result.metrics["num_updates"]
    assert plan.details["updates"] == len(counted.updated_at)
    assert plan.evaluations == counted.evaluations
    assert plan.checkpoints == len(list(result.checkpoint_path.parent.glob("step_*.pt")))


@pytest.mark.parametrize(("frequency", "gradient_steps"), [(1, 1), (4, 1), (4, 2), (16, 16)])
def test_the_update_ratio_is_the_same_for_1_and_8_envs(
    make_config: MakeConfig, frequency: int, gradient_steps: int
) -> None:
    totals = []
    for num_envs in (1, 8):
        kwargs = {"train_frequency": frequency, "gradient_steps": gradient_steps}
        config = make_config(algo="dqn", num_envs=num_envs, total_timesteps=160, eval_episodes=0, algo_kwargs=kwargs)
        totals.append(train_dqn(config).metrics["num_updates"])
    assert totals == [(160 - 32) // frequency * gradient_steps] * 2


def test_updates_owed_by_hand() -> None:
    params = DQNParams(learning_starts=10, train_frequency=4, gradient_steps=2)
    assert updates_owed(params, 0, 10) == 0
    assert updates_owed(params, 9, 10) == 0
    assert updates_owed(params, 10, 12) == 2
    assert updates_owed(params, 8, 16) == 4  # 12 and 16; 8 lies in the warm-up
    assert updates_owed(params, 12, 15) == 0
    assert updates_owed(params, 12, 24) == 6
    assert updates_owed(params, 0, 12) == 2  # 4 and 8 lie in the warm-up


def test_a_vector_step_across_the_end_of_the_warm_up_owes_what_lies_behind_it(make_config: MakeConfig) -> None:
    kwargs = {"learning_starts": 10, "train_frequency": 1}
    config = make_config(algo="dqn", num_envs=8, total_timesteps=16, eval_episodes=0, algo_kwargs=kwargs)
    assert train_dqn(config).metrics["num_updates"] == 6  # 11 to 16


@BOTH
def test_acting_is_asked_with_the_env_steps_of_all_envs(
    make_config: MakeConfig, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(algo=algo, num_envs=4)
    envs, spec = make_vector_env(config), get_algorithm_spec(algo)
    learner: Any = spec.build_learner_fn(config, envs.single_observation_space, envs.single_action_space)
    asked: list[int] = []
    actor = learner.make_actor(range(4))
    act = actor.act

    def recorded(obs: Any, step: int) -> Any:
        asked.append(step)
        return act(obs, step)

    monkeypatch.setattr(actor, "act", recorded)
    replay = build_replay(config, learner)
    collector = LocalCollector(envs, actor)
    collector.start()
    collector.collect(partial(add_to_replay, replay, learner), range(100, 118, 4), lambda: False)
    assert asked == [100, 104, 108, 112, 116]


def test_the_reward_scale_restarts_with_the_episode_at_a_time_limit_too(make_config: MakeConfig) -> None:
    kwargs = {"normalize_rewards": True, "gamma": 0.5}
    config = make_config(
        algo="dqn", env_id="tests/Counting-v0", num_envs=1, env_kwargs={"ending": "truncated"}, algo_kwargs=kwargs
    )
    envs = make_vector_env(config)
    learner = build_dqn_learner(config, envs.single_observation_space, envs.single_action_space)
    parts = wire_off_policy(config, learner, LocalCollector(envs, learner.make_actor(range(config.num_envs))))
    replay: Any = parts.buffer
    parts.collector.start()
    parts.collector.collect(partial(add_to_replay, replay, learner), range(9), lambda: False)
    rewards = replay._gather(np.arange(9))["rewards"].tolist()
    estimates = []
    for first in (0, 3, 6):  # every third step reaches the time limit
        one, two, three = rewards[first : first + 3]
        estimates += [one, 0.5 * one + two, 0.25 * one + 0.5 * two + three]
    moments = learner.state_dict()["rewards"]["moments"]
    assert moments["mean"].item() == pytest.approx(np.mean(estimates))
    assert moments["variance"].item() == pytest.approx(np.var(estimates))


@BOTH
def test_nothing_is_learnt_in_the_warm_up(make_config: MakeConfig, algo: str) -> None:
    spec, counted = get_algorithm_spec(algo), Counting()
    config = make_config(algo=algo, num_envs=1, total_timesteps=40, algo_kwargs={"learning_starts": 40})
    untouched = load_checkpoint(spec.train_fn(config, callbacks=[counted]).checkpoint_path)
    assert counted.updated_at == []
    env = make_vector_env(config)
    learner = spec.build_learner_fn(config, env.single_observation_space, env.single_action_space)
    fresh = learner.state_dict()["policy"]["params"]
    saved = untouched.algorithm_state["policy"]["params"]
    assert all(torch.equal(fresh[name], saved[name]) for name in fresh)
    counted = Counting()
    spec.train_fn(make_config(algo=algo, num_envs=1, total_timesteps=40), callbacks=[counted])
    assert counted.updated_at == [36, 40]


def test_stored_transitions_are_exactly_those_the_envs_took(make_config: MakeConfig) -> None:
    config = make_config(algo="dqn", env_id="tests/Counting-v0", num_envs=2, env_kwargs={"ending": "truncated"})
    envs = make_vector_env(config)
    learner = build_dqn_learner(config, envs.single_observation_space, envs.single_action_space)
    parts = wire_off_policy(config, learner, LocalCollector(envs, learner.make_actor(range(config.num_envs))))
    replay: Any = parts.buffer
    parts.collector.start()
    parts.collector.collect(partial(add_to_replay, replay, learner), range(0, 14, 2), lambda: False)
    result = parts.collector.take_result()
    batch = replay._gather(np.arange(14))
    episodes, steps = batch["obs"].reshape(7, 2, 2)[:, 0].T.tolist()
    assert episodes == [0, 0, 0, 1, 1, 1, 2]
    assert steps == [0, 1, 2, 0, 1, 2, 0]
    assert np.array_equal(batch["next_obs"][:, 0], batch["obs"][:, 0])  # never the next episode's
    assert np.array_equal(batch["next_obs"][:, 1], batch["obs"][:, 1] + 1)
    assert not batch["dones"].any()
    assert batch["truncated"].reshape(7, 2)[:, 0].tolist() == [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert (result.num_env_steps, result.num_episodes) == (14, 4)


@BOTH
def test_the_same_seed_gives_the_same_weights_sync_or_async_evaluated_or_not(
    make_config: MakeConfig, algo: str
) -> None:
    def weights(**changes: Any) -> dict[str, torch.Tensor]:
        result = get_algorithm_spec(algo).train_fn(make_config(algo=algo, num_envs=2, **changes))
        params: dict[str, torch.Tensor] = load_checkpoint(result.checkpoint_path).algorithm_state["policy"]["params"]
        return params

    first = weights()
    for changes in ({}, {"vectorization": "async"}, {"eval_episodes": 0}, {"checkpoint_interval": 0}):
        other = weights(**changes)
        assert all(torch.equal(first[name], other[name]) for name in first), changes
    other = weights(seed=8)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@BOTH
def test_a_replay_buffer_that_does_not_fit_is_refused_with_a_suggestion(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, algo_kwargs={"buffer_capacity": 10**11})
    with pytest.raises(ConfigError, match=r"GiB needed.*lower algo_kwargs\.buffer_capacity"):
        get_algorithm_spec(algo).train_fn(config)
    assert not config.output_dir.exists()


@BOTH
@pytest.mark.parametrize("changes", [{"buffer_capacity": 4}, {"buffer_capacity": 8, "batch_size": 9}])
def test_a_replay_buffer_that_cannot_serve_a_batch_is_refused(
    make_config: MakeConfig, algo: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="buffer_capacity="):
        get_algorithm_spec(algo).train_fn(make_config(algo=algo, algo_kwargs=changes))
