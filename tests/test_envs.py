from importlib.metadata import EntryPoint
from typing import Any

import gymnasium
import numpy as np
import pytest
import sample_envs
from conftest import MakeConfig
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from rl_training.envs import making
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.errors import EnvironmentSetupError, EnvironmentStepError, TrainingStateError

BOTH = pytest.mark.parametrize("vectorization", ["sync", "async"])


def test_make_env_reports_return_and_length_at_the_end(make_config: MakeConfig) -> None:
    env = make_env(make_config(env_id="tests/Counting-v0", env_kwargs={"limit": 2}), 0)
    assert isinstance(env, RecordEpisodeStatistics)
    env.reset(seed=1)
    assert "episode" not in env.step(1)[-1]
    info = env.step(0)[-1]
    assert (info["episode"]["r"], info["episode"]["l"]) == (3.0, 2)


def test_the_default_vector_env_is_gymnasiums_with_autoreset_off(make_config: MakeConfig) -> None:
    envs = make_vector_env(make_config(num_envs=3))
    assert isinstance(envs, SyncVectorEnv)
    assert envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED


def run_steps(envs: VectorEnv, steps: int) -> list[np.ndarray[Any, Any]]:
    """Everything a fixed action sequence gives, flattened."""
    rng = np.random.default_rng(0)
    obs, _ = envs.reset()
    seen = [obs]
    for _ in range(steps):
        obs, rewards, terminated, truncated, infos = envs.step(rng.integers(2, size=envs.num_envs))
        seen += [obs, rewards, terminated, truncated]
        ended = terminated | truncated
        if ended.any():
            seen += [infos["episode"]["r"], infos["episode"]["l"], infos["_episode"]]
            obs, _ = envs.reset(options={"reset_mask": ended})
            seen.append(obs)
    envs.close()
    return seen


def test_sync_and_async_give_the_same_trajectories(make_config: MakeConfig) -> None:
    sync, asynchronous = (
        run_steps(make_vector_env(make_config(num_envs=3, vectorization=kind)), 60) for kind in ("sync", "async")
    )
    assert len(sync) == len(asynchronous) > 1 + 4 * 60
    for left, right in zip(sync, asynchronous, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)


@BOTH
def test_the_last_observation_is_the_ended_episodes_own_and_no_step_is_invented(
    make_config: MakeConfig, vectorization: str
) -> None:
    config = make_config(env_id="tests/Counting-v0", num_envs=2, vectorization=vectorization)
    envs = make_vector_env(config)
    obs, _ = envs.reset()
    for episode in range(3):
        for step in range(3):
            before = obs.copy()
            obs, rewards, terminated, truncated, infos = envs.step(np.array([0, 1]))
            assert before[:, 0].tolist() == obs[:, 0].tolist() == [episode, episode]
            assert obs[:, 1].tolist() == [step + 1, step + 1]
            assert rewards.tolist() == [1.0, 2.0]
        assert terminated.all()
        assert not truncated.any()
        assert infos["episode"]["r"].tolist() == [3.0, 6.0]
        assert infos["episode"]["l"].tolist() == [3, 3]
        obs, _ = envs.reset(options={"reset_mask": terminated})
    envs.close()


@BOTH
def test_a_masked_reset_leaves_the_other_envs_alone(make_config: MakeConfig, vectorization: str) -> None:
    envs = make_vector_env(make_config(env_id="tests/Counting-v0", num_envs=2, vectorization=vectorization))
    envs.reset()
    envs.step(np.array([0, 0]))
    obs, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert obs.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert envs.tracker.episode_numbers.tolist() == [0, 1]
    envs.close()


@BOTH
def test_arrays_that_an_env_writes_again_change_nothing_returned(make_config: MakeConfig, vectorization: str) -> None:
    envs = make_vector_env(make_config(env_id="tests/Counting-v0", num_envs=1, vectorization=vectorization))
    kept = [envs.reset()[0]]
    kept += [envs.step(np.array([0]))[0] for _ in range(2)]
    last, rewards, terminated, _, infos = envs.step(np.array([0]))
    kept += [last, envs.reset(options={"reset_mask": np.array([True])})[0]]
    envs.step(np.array([1]))
    assert (rewards.tolist(), terminated.tolist()) == ([1.0], [True])
    assert (infos["episode"]["r"].tolist(), infos["episode"]["l"].tolist()) == ([3.0], [3])
    assert [row[0].tolist() for row in kept] == [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [1.0, 0.0]]
    envs.close()


def test_every_env_and_every_episode_has_a_seed_of_its_own(make_config: MakeConfig) -> None:
    def first_numbers(seed: int) -> list[float]:
        envs = make_vector_env(make_config(env_id="tests/Seed-v0", seed=seed, num_envs=4))
        return [float(number) for _ in range(5) for number in envs.reset()[0][:, 0]]

    numbers = first_numbers(seed=1)
    assert len(set(numbers)) == 20
    assert first_numbers(seed=1) == numbers
    assert not set(first_numbers(seed=2)) & set(numbers)


def test_an_episodes_seed_does_not_depend_on_the_number_of_envs_or_on_when_it_starts(make_config: MakeConfig) -> None:
    few = make_vector_env(make_config(env_id="tests/Seed-v0", num_envs=1))
    many = make_vector_env(make_config(env_id="tests/Seed-v0", num_envs=3))
    few.reset()
    many.reset()
    late, _ = few.reset()
    for _ in range(2):
        many.step(np.zeros(3, dtype=np.int64))
    mask = np.array([True, False, False])
    assert many.reset(options={"reset_mask": mask})[0][0, 0] == late[0, 0]


@BOTH
def test_stepping_an_ended_env_is_an_error(make_config: MakeConfig, vectorization: str) -> None:
    config = make_config(env_id="tests/Counting-v0", num_envs=1, env_kwargs={"limit": 1}, vectorization=vectorization)
    envs = make_vector_env(config)
    envs.reset()
    envs.step(np.array([0]))
    with pytest.raises(TrainingStateError, match="reset"):
        envs.step(np.array([0]))
    envs.close()


def test_after_a_step_that_failed_halfway_only_a_full_reset_or_a_restore_goes_on(make_config: MakeConfig) -> None:
    envs = make_vector_env(make_config(env_id="tests/Failing-v0", num_envs=2, env_kwargs={"fails_at": 2}))
    envs.reset()
    envs.step(np.array([0, 0]))
    with pytest.raises(EnvironmentStepError, match="broken at step 2"):
        envs.step(np.array([0, 0]))
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(TrainingStateError, match="reset or restore all envs first"):
        envs.step(np.array([0, 0]))
    envs.reset()
    envs.step(np.array([0, 0]))


@BOTH
def test_every_env_needs_an_action(make_config: MakeConfig, vectorization: str) -> None:
    envs = make_vector_env(make_config(num_envs=3, vectorization=vectorization))
    envs.reset()
    for actions in (np.array([0, 0]), np.zeros(4, dtype=np.int64), 0):
        with pytest.raises(ValueError, match="3 envs need as many actions"):
            envs.step(actions)
    assert len(envs.step(np.zeros(3, dtype=np.int64))) == 5
    envs.close()


def test_a_counter_of_another_number_of_envs_is_refused(make_config: MakeConfig) -> None:
    envs = make_vector_env(make_config(num_envs=2))
    with pytest.raises(ValueError, match="the saved state has 3 envs, this run has 2"):
        envs.tracker.load_state_dict({"episode_numbers": [0, 0, 0]})


def test_an_env_that_gives_another_type_than_its_space_is_brought_back() -> None:
    first, second = (SyncEpisodeVectorEnv([sample_envs.DoubleEnv] * 2, 7) for _ in range(2))
    first.reset()
    obs, *_ = first.step(np.array([0, 1]))
    assert obs.dtype == np.float32
    restored = second.restore(first.state_dict(), obs)
    assert not restored.failures
    assert np.array_equal(restored.obs, obs)


@BOTH
def test_an_unknown_env_is_refused_with_the_nearest_name(make_config: MakeConfig, vectorization: str) -> None:
    with pytest.raises(EnvironmentSetupError, match="did you mean 'CartPole-v1'"):
        make_vector_env(make_config(env_id="CartPol-v1", vectorization=vectorization))


def test_the_episode_counter_goes_on_where_a_saved_one_stopped(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Seed-v0", num_envs=2)
    straight, first, second = (make_vector_env(config) for _ in range(3))
    first.reset()
    second.tracker.load_state_dict(first.tracker.state_dict())
    straight.reset()
    assert np.array_equal(second.reset()[0], straight.reset()[0])


def register_declared() -> None:
    """What a package declares under the entry-point group `gymnasium.envs`."""
    gymnasium.register("Declared/Counting-v0", "sample_envs:CountingEnv")


def test_an_env_that_its_package_only_declares_is_registered(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = [EntryPoint("Declared", f"{__name__}:register_declared", "gymnasium.envs")]
    monkeypatch.setattr(
        making,
        "entry_points",
        lambda *, group, name: [each for each in declared if each.matches(group=group, name=name)],
    )
    with pytest.raises(EnvironmentSetupError, match="unknown environment 'Other/Counting-v0'"):
        make_env(make_config(env_id="Other/Counting-v0"), 0)
    for _ in range(2):  # the second time it is known
        assert make_env(make_config(env_id="Declared/Counting-v0"), 0).reset(seed=1)[0].tolist() == [0.0, 0.0]
    del gymnasium.registry["Declared/Counting-v0"]
