"""Wrappers of a config are checked before anything starts, and are around every env that a run makes."""

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sample_envs  # noqa: F401  # registers envs
from chaos import result_of as outcome
from conftest import MakeConfig
from gymnasium import wrappers
from test_exact_resume import SignalAt, train

from rl_training.cli import main
from rl_training.envs.checks.findings import Subject
from rl_training.envs.factory import make_env, make_vector_env, resolve_action_mask, resolve_vectorization
from rl_training.envs.making import has_time_limit
from rl_training.envs.rendering import make_rendered_env
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.runtime.run_utils import versions
from rl_training.runtime.workflows import resume_training


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Multiplies rewards."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


def not_a_wrapper(env: gymnasium.Env[Any, Any]) -> str:
    return str(env)


def first_reward(env: gymnasium.Env[Any, Any]) -> float:
    with closing(env):
        env.reset(seed=1)
        return float(env.step(0)[1])


def test_entries_from_python_and_from_files_have_one_plain_form(make_config: MakeConfig) -> None:
    limit = {"TimeLimit": {"max_episode_steps": 9}}
    own = {"test_wrappers:Doubled": {"factor": 3.0}}
    from_python = [
        wrappers.FlattenObservation,
        (wrappers.TimeLimit, {"max_episode_steps": np.int64(9)}),
        (Doubled, {"factor": 3.0}),
    ]
    from_file = ["gymnasium.wrappers:FlattenObservation", limit, own]
    plain = ("FlattenObservation", limit, own)
    assert make_config(wrappers=from_python).wrappers == make_config(wrappers=from_file).wrappers == plain
    assert TrainConfig(**plain_config(make_config(wrappers=plain))).wrappers == plain
    assert make_config(wrappers=[{"ClipReward": None}, (Doubled, {})]).wrappers == (
        "ClipReward",
        "test_wrappers:Doubled",
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("FlatenObservation", "did you mean 'FlattenObservation'"),
        ("Nonsense", "give a wrapper of Gymnasium, or package.module:Name"),
        ("TimeLimit", "missing a required argument: 'max_episode_steps'"),
        (
            {"ClipReward": {"minimum": 0}},
            "unexpected keyword argument 'minimum'; its arguments: min_reward, max_reward",
        ),
        ({"ClipReward": 3}, "give the keyword arguments of ClipReward as a map"),
        ({"ClipReward": {}, "FlattenObservation": {}}, "a map with one key"),
        (wrappers.NormalizeObservation, "algo_kwargs.normalize_obs"),
        ("gymnasium.wrappers:NormalizeReward", "algo_kwargs.normalize_rewards"),
        ("Autoreset", "leave it out"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_refused_in_one_line(make_config: MakeConfig, entry: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_config(wrappers=["FlattenObservation", entry])
    assert str(caught.value).startswith("wrappers.1=")
    assert "\n" not in str(caught.value)


def test_a_wrong_entry_is_found_at_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "algo: ppo\nenv_id: CartPole-v1\nwrappers:\n  - ClipReward\n  - TimeLimt: {max_episode_steps: 9}\n"
    )
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "runs")]) == 2
    assert f"{config}:5: wrappers.1=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"test_wrappers:Doubled": {"fcator": 2}}, ConfigError, "unexpected keyword argument 'fcator'"),
        ("test_wrappers:Missing", ConfigError, "test_wrappers has no Missing"),
        ("test_wrappers:not_a_wrapper", EnvironmentSetupError, "must return a gymnasium.Env, not str"),
        ({"TimeLimit": {"max_episode_steps": -3}}, EnvironmentSetupError, "the wrapper TimeLimit with"),
    ],
    ids=str,
)
def test_a_wrapper_that_fails_ends_a_run_before_it_has_files(
    make_config: MakeConfig, entry: Any, error: type[Exception], message: str
) -> None:
    config = make_config(wrappers=[entry])
    with pytest.raises(error, match=message):
        train(config)
    assert not config.output_dir.exists()


def test_wrappers_are_around_every_env_with_the_innermost_first(make_config: MakeConfig) -> None:
    config = make_config(wrappers=[(Doubled, {"factor": 5.0}), (wrappers.ClipReward, {"max_reward": 3.0})])
    subject = Subject(config.env_id, {}, 10, 1, config.wrappers)
    for env in (make_env(config, 0), make_rendered_env(config), subject.make()):
        assert first_reward(env) == 3.0
    turned = config.model_copy(update={"wrappers": config.wrappers[::-1]})
    assert first_reward(make_env(turned, 0)) == 5.0
    for kind in ("sync", "async"):
        with closing(make_vector_env(config.model_copy(update={"vectorization": kind}))) as envs:
            envs.reset()
            assert envs.step(np.zeros(4, np.int64))[1].tolist() == [3.0] * 4


def test_lists_of_a_file_are_tuples_for_gymnasium(make_config: MakeConfig) -> None:
    config = make_config(wrappers=[{"ReshapeObservation": {"shape": [2, 2]}}])
    with closing(make_env(config, 0)) as env:
        assert env.observation_space.shape == (2, 2)


def test_frames_are_stacked_and_masks_are_found_around_wrappers(make_config: MakeConfig) -> None:
    stacked = make_config(wrappers=[{"FrameStackObservation": {"stack_size": 2}}, "FlattenObservation"], frame_stack=3)
    with closing(make_env(stacked, 0)) as env:
        assert env.observation_space.shape == (24,)
    masked = make_config(env_id="Taxi-v4", wrappers=["test_wrappers:Doubled"], action_mask="auto")
    assert resolve_action_mask(masked, usable=True)[0].action_mask == "info"


def test_wrapped_envs_are_never_native(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="vectorization='native' cannot apply wrappers"):
        make_config(wrappers=["ClipReward"], vectorization="native")
    monkeypatch.setattr("rl_training.envs.choosing.call_in_process", lambda *_: 1e-3)
    auto = make_config(wrappers=["ClipReward"], vectorization="auto", num_envs=64)
    assert resolve_vectorization(auto)[0].vectorization in ("sync", "async")
    assert resolve_vectorization(auto.model_copy(update={"wrappers": ()}))[0].vectorization == "native"


def test_a_wrapped_run_is_resumed_exactly_whatever_its_vectorization(make_config: MakeConfig) -> None:
    outcomes = []
    for kind in ("sync", "async"):
        config = make_config(
            wrappers=[{"DelayObservation": {"delay": 2}}, {"TimeLimit": {"max_episode_steps": 20}}, Doubled],
            env_id="chaos_envs:HiddenWalk-v0",
            vectorization=kind,
            num_envs=2,
        )
        outcomes.append(outcome(train(config)))
        run_dir = train(config, SignalAt(50, "collect"))
        resume_training(run_dir)
        outcomes.append(outcome(run_dir))
    assert all(one == outcomes[0] for one in outcomes)


def test_a_resume_with_other_wrappers_is_refused(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = train(make_config(wrappers=["FlattenObservation"], total_timesteps=64))
    command = ["resume", str(run_dir), "--total-timesteps", "128", "--set"]
    assert main([*command, "wrappers=[]"]) == 2
    assert "wrappers: ['FlattenObservation'] then, [] now" in capsys.readouterr().err


def test_the_source_of_a_wrapper_is_a_part_of_the_versions() -> None:
    assert "test_wrappers source" in versions("CartPole-v1", "test_wrappers:Doubled")
    assert "test_wrappers source" not in versions("CartPole-v1")


def test_a_time_limit_by_wrapper_counts_as_one(make_config: MakeConfig) -> None:
    assert not has_time_limit(make_config(env_id="tests/Endless-v0"))
    assert has_time_limit(make_config(env_id="CartPole-v1"))
    assert not has_time_limit(make_config(env_id="CartPole-v1", env_kwargs={"max_episode_steps": -1}))
    assert has_time_limit(make_config(env_id="tests/Endless-v0", wrappers=[{"TimeLimit": {"max_episode_steps": 9}}]))


def test_check_env_applies_wrappers(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check-env", "tests/Endless-v0", "--steps", "40", "--wrapper", "TimeLimit: {max_episode_steps: 7}"]
    main(command)
    assert "7 steps" in capsys.readouterr().out
