import os
import pydoc
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import TINY_PPO, MakeConfig
from gymnasium import spaces
from sample_spaces import NestedEnv

import rl_training
import rl_training.api
import rl_training.experiment
from rl_training import DQN, PPO, SAC, TrainConfig
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentSetupError,
    TrainingInterrupted,
    TrainingStateError,
)
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint
from rl_training.experiment.digests import digest
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.validation import StrictModel, describe_fields
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.registry import list_algorithm_specs
from rl_training.runtime.trainer import TrainerState


def test_the_package_offers_few_names_sorted() -> None:
    for module in (rl_training, rl_training.api, rl_training.experiment):
        assert module.__all__ == sorted(module.__all__)
        assert all(getattr(module, name) is not None for name in module.__all__)
        assert set(module.__all__) <= set(dir(module))  # where tab completion looks
    assert rl_training.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="no attribute 'A2C'"):
        rl_training.A2C  # noqa: B018  (the access is the test)


def test_three_lines_train_and_predict(tmp_path: Path) -> None:
    model = PPO.for_env("Acrobot-v1", total_timesteps=64, num_envs=4, output_dir=tmp_path, eval_episodes=0, **TINY_PPO)
    model.learn()
    assert model.predict(np.zeros(6, np.float32)) in (0, 1, 2)
    assert model.config.algo_kwargs["num_steps"] == 16


def test_help_explains_every_field_and_parameter() -> None:
    for subject, words in (
        (
            TrainConfig,
            ["seed (default 1)\n |      Seed of everything", "algo (required)", "TrainConfig(*, algo, env_id, seed"],
        ),
        (PPO, ["learning_rate (default 0.0003)\n |      Size of a gradient step", "learn(self, "]),
        (DQN, ["priority_beta (default linear from 0.4 to 1)", "hidden_sizes (default (128, 128))\n |      Hidden"]),
    ):
        shown = re.sub(".\b", "", pydoc.render_doc(subject))  # without bold letters
        assert [word for word in words if word not in shown] == []
    models: list[type[StrictModel]] = [TrainConfig, *(spec.params_model for spec in list_algorithm_specs())]
    for model in models:
        text = describe_fields(model)
        explained = [name for name in model.model_fields if re.search(rf"^{name} \(.*\)\n    \S", text, re.MULTILINE)]
        assert explained == list(model.model_fields)


def test_for_env_starts_from_the_shipped_preset() -> None:
    model = PPO.for_env("CartPole-v1", seed=3, gamma=0.5)
    assert (model.config.num_envs, model.config.seed) == (8, 3)
    assert model.config.algo_kwargs["num_steps"] == 32
    assert model.config.algo_kwargs["gamma"] == 0.5


def test_for_env_keeps_the_wrappers_of_the_preset_unless_others_are_given() -> None:
    env_id = "popgym:popgym-AutoencodeEasy-v0"
    assert PPO.for_env(env_id).config.wrappers == ("FlattenObservation",)
    assert PPO.for_env(env_id, wrappers=["ClipReward"]).config.wrappers == ("ClipReward",)
    assert PPO.for_env(env_id, wrappers=[]).config.wrappers == ()


def test_for_env_names_the_preset_of_a_value_that_does_not_fit() -> None:
    with pytest.raises(
        ConfigError, match=r"cartpole\.yaml:\d+: algo_kwargs\.minibatch_size=256: exceeds the rollout of 32"
    ):
        PPO.for_env("CartPole-v1", num_envs=1)
    with pytest.raises(ConfigError, match=r"^algo_kwargs\.minibatch_size=900: exceeds the rollout of 256"):
        PPO.for_env("CartPole-v1", minibatch_size=900)


def test_for_env_refuses_unknown_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'gamma'"):
        PPO.for_env("CartPole-v1", gama=0.5)


def test_a_config_of_another_algorithm_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="PPO cannot train algo='dqn'"):
        PPO(make_config(algo="dqn"))


def test_predictions_are_an_int_for_one_discrete_observation_and_an_array_otherwise(make_config: MakeConfig) -> None:
    discrete, continuous = PPO(make_config()), PPO(make_config(env_id="Pendulum-v1"))
    assert isinstance(discrete.predict(np.zeros(4, np.float32)), int)
    for size in (1, 3):
        batch = discrete.predict(np.zeros((size, 4), np.float32))
        assert isinstance(batch, np.ndarray)
        assert batch.shape == (size,)
    single = continuous.predict(np.zeros(3, np.float32))
    assert isinstance(single, np.ndarray)
    assert single.shape == (1,)


def test_deterministic_predictions_repeat_and_drawn_ones_vary(make_config: MakeConfig) -> None:
    model = PPO(make_config(env_id="Pendulum-v1"))
    obs = np.ones((1, 3), np.float32)
    assert np.array_equal(model.predict(obs), model.predict(obs))
    assert not np.array_equal(model.predict(obs, deterministic=False), model.predict(obs, deterministic=False))


def test_a_saved_model_loads_with_the_same_predictions(make_config: MakeConfig, tmp_path: Path) -> None:
    model = PPO(make_config())
    model.learn()
    path = model.save(tmp_path / "model")
    assert path == tmp_path / "model.pt"
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    loaded = PPO.load(path)
    assert np.array_equal(loaded.predict(obs), model.predict(obs))
    assert loaded.evaluate(3) == model.evaluate(3)
    decided = {"algo_kwargs": loaded.config.algo_kwargs, "compile": "off"}
    assert loaded.config == model.config.model_copy(update=decided)


def test_a_run_directory_loads_too(make_config: MakeConfig) -> None:
    result = PPO(make_config()).learn()
    assert PPO.load(result.run_dir).evaluate(2)["eval_return_mean"] == result.metrics["eval_return_mean"]


def test_a_live_model_needs_no_file(make_config: MakeConfig) -> None:
    model = PPO(make_config())
    result = model.learn()
    for path in result.checkpoint_path.parent.iterdir():
        path.unlink()
    assert model.predict(np.zeros(4, np.float32)) in (0, 1)


def test_saving_before_learning_says_what_to_do(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(TrainingStateError, match="learn"):
        PPO(make_config()).save(tmp_path / "model.pt")


def test_learning_tells_its_callbacks_the_first_time_and_again(make_config: MakeConfig) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
            seen.append(trainer.global_step)

    model = PPO(make_config())
    model.learn([Watch()])
    model.learn([Watch()], total_timesteps=192)
    assert seen == [64, 128, 192]


def test_learning_again_goes_on_in_the_same_directory_and_needs_a_larger_budget(make_config: MakeConfig) -> None:
    model = PPO(make_config())
    first = model.learn()
    for budget in (None, 128):
        with pytest.raises(ConfigError, match=r"already trained for 128 steps, .* to train 128 more, give 256"):
            model.learn(budget)
    second = model.learn(192)
    assert (second.metrics["global_step"], second.metrics["num_updates"]) == (192, 3 * 4)
    assert second.run_dir == first.run_dir
    assert [note["step"] for note in read_metadata(context_of(first.run_dir))["resumed"]] == [128]
    assert PPO.load(first.run_dir).learn(256).run_dir == first.run_dir


def test_a_model_that_went_on_equals_one_that_was_never_stopped(make_config: MakeConfig) -> None:
    config = make_config(total_timesteps=192, eval_episodes=0)
    model = PPO(config.model_copy(update={"total_timesteps": 64}))
    model.learn()
    saved = [load_checkpoint(each.learn(192).checkpoint_path) for each in (model, PPO(config))]
    assert digest(saved[0].algorithm_state) == digest(saved[1].algorithm_state)


def test_a_model_of_a_file_goes_on_in_a_new_directory(make_config: MakeConfig) -> None:
    first = PPO(make_config()).learn()
    second = PPO.load(first.checkpoint_path).learn(total_timesteps=192)
    assert second.metrics["global_step"] == 192
    assert read_metadata(context_of(second.run_dir))["parent"] == {"run_id": first.run_dir.name, "step": 128}


def test_learning_takes_a_budget_first_and_then_callbacks(make_config: MakeConfig) -> None:
    counts: list[str] = []

    class Count(Callback):
        def on_train_start(self, trainer: TrainerState) -> None:
            counts.append(f"{trainer.config.total_timesteps}")

    PPO(make_config(eval_episodes=0)).learn(64, Count())
    PPO(make_config(eval_episodes=0)).learn(64, callbacks=[Count()])
    PPO(make_config(eval_episodes=0)).learn(Count(), total_timesteps=64)
    assert counts == ["64"] * 3


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        ((64,), {"total_timesteps": 64}, "give only one budget"),
        ((1e5,), {}, "total_timesteps=100000.0: input should be a valid integer"),
        ((-1,), {}, "total_timesteps=-1"),
        (("ppo",), {}, "callback str has no on_train_start"),
        (([],), {"callbacks": []}, "callbacks twice"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_one_line(
    arguments: Any, options: Any, expected: str, make_config: MakeConfig
) -> None:
    with pytest.raises(ConfigError) as caught:
        PPO(make_config()).learn(*arguments, **options)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not make_config().output_dir.exists()


def test_learning_shows_progress_if_asked(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    model = PPO(make_config(eval_episodes=0))
    model.learn()
    assert capsys.readouterr().err == ""
    model.learn(192, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Training ppo on CartPole-v1, seed 7, in ")
    assert lines[-1].startswith("192/192 steps")


def test_predictions_follow_what_was_learnt_last(make_config: MakeConfig) -> None:
    model = PPO(make_config(env_id="Pendulum-v1", eval_episodes=0))
    obs = np.ones((1, 3), np.float32)
    predictions = [np.asarray(model.predict(obs)).item()]
    for budget in (64, 128):
        result = model.learn(total_timesteps=budget)
        predictions.append(np.asarray(model.predict(obs)).item())
        assert predictions[-1] == np.asarray(PPO.load(result.checkpoint_path).predict(obs)).item()
    assert len(set(predictions)) == 3


def test_loading_nonsense_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        PPO.load(tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        PPO.load(tmp_path)


def test_a_model_keeps_what_an_interrupted_run_has_saved(make_config: MakeConfig, tmp_path: Path) -> None:
    class Interrupt(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    model = PPO(make_config())
    with pytest.raises(TrainingInterrupted):
        model.learn(callbacks=[Interrupt()])
    assert model.save(tmp_path / "model.pt").exists()
    assert model.learn().metrics["num_updates"] == 2 * 4  # goes on from step 64 instead of starting over


def test_a_misspelt_config_field_is_named_too() -> None:
    with pytest.raises(ConfigError, match="did you mean 'num_envs'"):
        PPO.for_env("CartPole-v1", num_env=1)


@pytest.mark.parametrize(
    ("algorithm", "elsewhere", "here"),
    [
        (PPO, "n_steps", "num_steps"),
        (PPO, "batch_size", "minibatch_size"),
        (PPO, "clip_range", "clip_coef"),
        (DQN, "n_steps", "n_step"),
        (DQN, "buffer_size", "buffer_capacity"),
        (SAC, "ent_coef", "alpha"),
        (SAC, "n_envs", "num_envs"),
    ],
)
def test_a_name_from_stable_baselines3_is_refused_with_ours(algorithm: Any, elsewhere: str, here: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{elsewhere}'; did you mean '{here}'"):
        algorithm.for_env("CartPole-v1", **{elsewhere: 1})


def test_an_observation_of_the_wrong_shape_is_refused(make_config: MakeConfig) -> None:
    model = PPO(make_config())
    for shape in ((3,), (2, 3), (1, 2, 2)):
        with pytest.raises(ConfigError, match=r"expected an observation of shape \(4,\)"):
            model.predict(np.zeros(shape, np.float32))


def test_an_evaluation_of_nothing_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="num_episodes=0"):
        PPO(make_config()).evaluate(0)


UNINSTALLED = "sample_spaces:Nested-v0"


def without_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the env's module be missing, and its name unknown."""
    monkeypatch.setitem(sys.modules, "sample_spaces", None)
    monkeypatch.delitem(gymnasium.registry, "Nested-v0", raising=False)


@pytest.fixture
def nested_model(make_config: MakeConfig, tmp_path: Path) -> Path:
    model = PPO(make_config(env_id=UNINSTALLED, eval_episodes=0))
    model.learn()
    return model.save(tmp_path / "nested.pt")


def test_a_loaded_model_predicts_without_its_environment(nested_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obs = NestedEnv().reset(seed=3)[0]
    expected = PPO.load(nested_model).predict(obs)
    without_env(monkeypatch)
    assert PPO.load(nested_model).predict(obs) == expected


def test_evaluating_and_learning_say_that_the_environment_is_missing(
    nested_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_env(monkeypatch)
    model = PPO.load(nested_model)
    for use in (lambda: model.evaluate(1), lambda: model.learn(total_timesteps=256)):
        with pytest.raises(EnvironmentSetupError, match=r"sample_spaces.*install the env's package"):
            use()


def test_an_evaluation_in_another_version_of_the_environment_is_refused(
    nested_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PPO.load(nested_model)
    monkeypatch.setattr(NestedEnv, "action_space", spaces.Discrete(3))
    with pytest.raises(EnvironmentSetupError, match=r"action space Discrete\(3\), but .* with Discrete\(2\)"):
        model.evaluate(1)


def test_a_model_of_an_older_checkpoint_is_saved_with_its_spaces(make_config: MakeConfig, tmp_path: Path) -> None:
    result = PPO(make_config()).learn()
    state = load_checkpoint(result.checkpoint_path)
    old = {name: value for name, value in state.metadata.items() if name != "spaces"}
    path = save_checkpoint(tmp_path / "old.pt", replace(state, metadata=old))
    saved = PPO.load(path).save(tmp_path / "new.pt")
    assert load_checkpoint(saved).metadata["spaces"] == state.metadata["spaces"]


def test_hostile_spaces_are_refused_before_anything_is_built(make_config: MakeConfig, tmp_path: Path) -> None:
    state = load_checkpoint(PPO(make_config()).learn().checkpoint_path)
    for spaces_given in ({}, {"observation": 1, "action": 2}):
        path = save_checkpoint(tmp_path / "bad.pt", replace(state, metadata={**state.metadata, "spaces": spaces_given}))
        with pytest.raises(CheckpointError, match=r"in the checkpoint (is|are) refused"):
            PPO.load(path)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([0.0, np.nan, 0.0, 0.0], r"component \[1\] of the observation is nan"),
        (np.array([[0.0] * 4, [0.0, 0.0, 0.0, -np.inf]]), r"component \[3\] of observation 1 of the batch is -inf"),
        (["a", "b", "c", "d"], "must consist of numbers"),
    ],
)
def test_a_prediction_refuses_numbers_that_are_not_finite(make_config: MakeConfig, obs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(make_config()).predict(obs)


def test_a_prediction_names_the_part_that_is_not_finite(nested_model: Path) -> None:
    obs = NestedEnv().reset(seed=3)[0]
    obs["lamp"][1] = np.nan
    with pytest.raises(ConfigError, match=r"component \[1\] of part 'lamp' of the observation is nan"):
        PPO.load(nested_model).predict(obs)
