from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces
from sample_envs import CountingEnv

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.factory import make_vector_env
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.runtime.collector import CollectResult, LocalCollector, Transition
from rl_training.runtime.on_policy import add_to_rollout
from rl_training.runtime.ppo_trainer import build_ppo_learner, build_rollout
from rl_training.runtime.registry import get_algorithm_spec


def collect(
    make_config: MakeConfig, num_steps: int = 8, limits: tuple[int, ...] = (), **changes: Any
) -> tuple[CollectResult, RolloutBuffer]:
    """A rollout of `tests/Counting-v0`, whose observations are (episode number, step); `limits` by env, or all 3."""
    values = {"env_id": "tests/Counting-v0", "num_envs": 2, **changes}
    values["algo_kwargs"] = {"num_steps": num_steps, "minibatch_size": 4, "log_std_init": 1.0}
    config = make_config(**values)
    env_fns = [partial(CountingEnv, limit) for limit in limits]
    envs = SyncEpisodeVectorEnv(env_fns, config.seed) if env_fns else make_vector_env(config)
    learner = build_ppo_learner(config, envs.single_observation_space, envs.single_action_space)
    rollout = build_rollout(config, learner)
    collector = LocalCollector(envs, learner.make_actor(range(2)))
    collector.start()
    collector.collect(partial(add_to_rollout, rollout), range(0, 2 * num_steps, 2), lambda: False)
    envs.close()
    return collector.take_result(), rollout


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_stored_steps_are_exactly_those_the_envs_took(make_config: MakeConfig, vectorization: str) -> None:
    result, rollout = collect(make_config, vectorization=vectorization)
    expected = [[episode, step] for episode in range(3) for step in range(3)][:8]
    assert rollout.obs[:, 0].tolist() == rollout.obs[:, 1].tolist() == expected
    assert rollout.dones[:, 0].tolist() == [False, False, True] * 2 + [False, False]
    assert torch.equal(rollout.rewards, 1.0 + rollout.actions.float())
    assert result.last_obs.tolist() == [[2.0, 2.0]] * 2
    assert (result.num_env_steps, result.num_episodes) == (16, 4)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_time_limit_keeps_the_true_last_observation(make_config: MakeConfig, vectorization: str) -> None:
    _, rollout = collect(make_config, env_kwargs={"ending": "truncated"}, vectorization=vectorization)
    assert rollout.truncated[:, 0].tolist() == [False, False, True] * 2 + [False, False]
    assert torch.equal(rollout.dones, rollout.truncated)  # it ends the episode all the same
    # In the order of (step, env): episode 0 of both envs, then episode 1, each with step 3.
    assert rollout.truncated_last_obs().tolist() == [[0.0, 3.0], [0.0, 3.0], [1.0, 3.0], [1.0, 3.0]]


def test_an_ending_resets_its_own_env_alone(make_config: MakeConfig) -> None:
    _, rollout = collect(make_config, num_steps=6, limits=(2, 3))
    assert rollout.obs[:, 0].tolist() == [[episode, step] for episode in range(3) for step in range(2)]
    assert rollout.obs[:, 1].tolist() == [[episode, step] for episode in range(2) for step in range(3)]


def test_the_rollout_keeps_drawn_actions_and_the_env_receives_them_inside_its_bounds(make_config: MakeConfig) -> None:
    _, rollout = collect(make_config, env_id="tests/Echo-v0")
    drawn, received = rollout.actions[:-1].numpy(), rollout.obs[1:].numpy()
    assert np.abs(drawn).max() > 1.5  # -1 and 1 stand for the bounds [0, -3] and [1, 10]
    assert received[..., 0] == pytest.approx(np.clip(0.5 + 0.5 * drawn[..., 0], 0.0, 1.0))
    assert received[..., 1] == pytest.approx(np.clip(3.5 + 6.5 * drawn[..., 1], -3.0, 10.0))


def test_the_rollout_counts_discrete_actions_from_0_wherever_the_space_starts(make_config: MakeConfig) -> None:
    _, rollout = collect(make_config, env_id="tests/Echo-v0", env_kwargs={"kind": "discrete"})
    assert set(rollout.actions.flatten().tolist()) == {0, 1, 2}
    assert torch.equal(rollout.obs[1:, :, 0], rollout.actions[:-1] + 5.0)


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float64), torch.float32),
        (spaces.Box(0, 255, (2, 2), np.uint8), torch.uint8),  # a quarter of the memory; scaled when it is read
        (spaces.Discrete(5), torch.int64),
    ],
)
def test_observations_are_stored_as_small_as_they_come(
    make_config: MakeConfig, space: spaces.Space[Any], dtype: torch.dtype
) -> None:
    config = make_config()
    rollout = build_rollout(config, build_ppo_learner(config, space, spaces.Discrete(2)))
    assert rollout.obs.dtype == dtype
    assert rollout.obs.shape[2:] == space.shape


def test_terminated_and_truncated_together_do_not_bootstrap(make_config: MakeConfig) -> None:
    _, rollout = collect(make_config, env_kwargs={"ending": "both"})
    assert rollout.dones[2].all()
    assert not rollout.truncated.any()


def test_finished_episodes_report_their_raw_returns(make_config: MakeConfig) -> None:
    result, rollout = collect(make_config, num_steps=3)
    assert [episode.length for episode in result.episodes] == [3, 3]
    assert [episode.episode_return for episode in result.episodes] == rollout.rewards.sum(dim=0).tolist()
    assert result.metrics["ep_rew_mean"] == pytest.approx(float(rollout.rewards.sum(dim=0).mean()))
    assert result.metrics["ep_len_mean"] == 3.0


def test_continuous_actions_are_stored_unclipped_and_reach_the_env_clipped(make_config: MakeConfig) -> None:
    config = make_config(env_id="Pendulum-v1", num_envs=2, algo_kwargs={"log_std_init": 2.0})
    envs = make_vector_env(config)
    learner = build_ppo_learner(config, envs.single_observation_space, envs.single_action_space)
    rollout = build_rollout(config, learner)
    collector = LocalCollector(envs, learner.make_actor(range(2)))
    collector.start()
    collector.collect(partial(add_to_rollout, rollout), range(0, rollout.num_missing, 2), lambda: False)
    assert rollout.actions.abs().max() > 1.5
    assert np.abs(learner.policy.to_env(rollout.actions.flatten(0, 1).numpy())).max() == 2.0


def test_an_interruption_stops_between_two_steps(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Counting-v0", num_envs=2)
    envs = make_vector_env(config)
    learner = build_ppo_learner(config, envs.single_observation_space, envs.single_action_space)
    rollout = build_rollout(config, learner)
    answers = iter([False, False, True])
    collector = LocalCollector(envs, learner.make_actor(range(2)))
    collector.start()
    collector.collect(partial(add_to_rollout, rollout), range(0, 16, 2), lambda: next(answers))
    result = collector.take_result()
    assert collector.take_result().num_env_steps == 0
    assert (result.num_env_steps, rollout.position, rollout.full) == (4, 2, False)
    assert result.last_obs.tolist() == [[0.0, 2.0], [0.0, 2.0]]
    assert np.array_equal(rollout.obs[1].numpy(), [[0.0, 1.0], [0.0, 1.0]])


def make_collector(config: Any, envs: range) -> LocalCollector:
    """A collector for some of the envs, with a learner of its own."""
    vector_env = make_vector_env(config, envs)
    build: Any = get_algorithm_spec(config.algo).build_learner_fn
    learner = build(config, vector_env.single_observation_space, vector_env.single_action_space)
    return LocalCollector(vector_env, learner.make_actor(envs))


def collect_bytes(collector: LocalCollector, steps: range) -> list[list[Any]]:
    """The fields of every transition, as arrays of their own."""
    stored: list[Transition] = []
    collector.collect(stored.append, steps, lambda: False)
    assert collector.take_result().num_env_steps == len(steps) * len(stored[0].rewards)
    return [[np.array(field) for field in transition] for transition in stored]


GROUPED = {
    "ppo": {"noise_correlation": 0.6},
    "dqn": {"learning_starts": 60, "epsilon_start": 0.5, "epsilon_end": 0.5},
    "sac": {"noise_correlation": 0.6, "learning_starts": 60},
}


@pytest.mark.parametrize("algo", list(GROUPED))
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_groups_of_envs_collect_what_all_envs_together_do(
    make_config: MakeConfig, algo: str, vectorization: str
) -> None:
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    kwargs = {"max_episode_steps": 17} if vectorization == "sync" else {"max_episode_steps": 11}
    config = make_config(
        algo=algo,
        env_id=env_id,
        num_envs=5,
        env_kwargs=kwargs,
        vectorization=vectorization,
        algo_kwargs=GROUPED[algo],
    )
    steps = range(0, 5 * 40, 5)
    groups = [range(5), range(2), range(2, 5)]
    whole, first, second = (make_collector(config, envs) for envs in groups)
    for collector in (whole, first, second):
        collector.start()
    together, left, right = (collect_bytes(collector, steps) for collector in (whole, first, second))
    for fields, lefts, rights in zip(together, left, right, strict=True):
        for field, one, other in zip(fields, lefts, rights, strict=True):
            # The outputs of a network for three rows may differ from those for five in their last bits.
            joined = np.concatenate([one, other])
            assert joined.dtype == field.dtype
            assert joined == pytest.approx(field, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("algo", list(GROUPED))
def test_a_collector_put_back_to_the_start_of_an_iteration_repeats_it(make_config: MakeConfig, algo: str) -> None:
    env_id = "CartPole-v1" if algo == "dqn" else "Pendulum-v1"
    config = make_config(
        algo=algo, env_id=env_id, num_envs=5, env_kwargs={"max_episode_steps": 17}, algo_kwargs=GROUPED[algo]
    )
    collector, elsewhere = (make_collector(config, range(2, 5)) for _ in range(2))
    collector.start()
    collect_bytes(collector, range(0, 5 * 30, 5))
    state = collector.state_dict()
    first = collect_bytes(collector, range(5 * 30, 5 * 60, 5))
    for other in (collector, elsewhere):
        assert other.restore(state) == {}
        again = collect_bytes(other, range(5 * 30, 5 * 60, 5))
        for fields, others in zip(first, again, strict=True):
            assert all(np.array_equal(one, two) for one, two in zip(fields, others, strict=True))


def test_noise_begins_anew_where_an_episode_ended(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(
        env_id="Pendulum-v1", num_envs=2, env_kwargs={"max_episode_steps": 6}, algo_kwargs={"noise_correlation": 0.8}
    )
    collector = make_collector(config, range(2))
    begun: list[list[bool]] = []
    monkeypatch.setattr(collector._actor, "begin_episodes", lambda ended: begun.append(ended.tolist()))
    collector.start()
    collect_bytes(collector, range(0, 30, 2))
    assert begun == [[True, True], [True, True]]
