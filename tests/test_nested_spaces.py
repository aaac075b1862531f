"""Nested observations, masks of legal actions and nested actions, from training to prediction."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sample_spaces  # noqa: F401  (registers the envs)
from chaos import result_of as outcome
from conftest import MakeConfig, slow_except_first
from sample_spaces import MaskedEnv
from test_exact_resume import SignalAt, train

from rl_training.api.algorithms import DQN, PPO, Algorithm
from rl_training.envs.making import make_single_env
from rl_training.errors import ConfigError, EnvironmentSetupError, EnvironmentStepError
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.workflows import evaluate_checkpoint, prepare_resume

LEARNING: dict[str, dict[str, Any]] = {
    "ppo": {
        "num_steps": 64,
        "minibatch_size": 64,
        "learning_rate": 3e-3,
        "hidden_sizes": [64, 64],
        "update_epochs": 10,
    },
    "dqn": {
        "learning_starts": 200,
        "learning_rate": 3e-3,
        "train_frequency": 4,
        "gradient_steps": 2,
        "buffer_capacity": 4_000,
        "batch_size": 64,
    },
}
MODELS: dict[str, type[Algorithm]] = {"ppo": PPO, "dqn": DQN}
ALGORITHMS = pytest.mark.parametrize("algo", list(LEARNING))
MASKS = pytest.mark.parametrize(
    ("env_id", "env_kwargs", "source"),
    [
        ("Masked-v0", {}, "info"),
        ("MaskMethod-v0", {}, "method"),
        ("Masked-v0", {"source": "observation"}, "observation.action_mask"),
    ],
)


def learn(make_config: MakeConfig, algo: str, env_id: str, steps: int, **changes: Any) -> Any:
    config = make_config(
        algo=algo,
        env_id=env_id,
        total_timesteps=steps,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs=LEARNING[algo],
        **changes,
    )
    return config, train(config)


@ALGORITHMS
@pytest.mark.parametrize("env_id", slow_except_first(["Nested-v0", "Tuple-v0"]))
def test_all_parts_of_an_observation_are_used(make_config: MakeConfig, algo: str, env_id: str) -> None:
    _, run_dir = learn(make_config, algo, env_id, 4_000 if algo == "ppo" else 2_000)
    assert evaluate_checkpoint(run_dir, 20)["eval_return_mean"] >= 9.9


@ALGORITHMS
@MASKS
def test_an_illegal_action_is_never_taken_and_the_best_legal_one_is_found(
    make_config: MakeConfig, algo: str, env_id: str, env_kwargs: dict[str, Any], source: str
) -> None:
    """The env raises if an illegal action reaches it, in warm-up, training or evaluation."""
    changes = {"env_kwargs": env_kwargs, "action_mask": "auto"}
    _, run_dir = learn(make_config, algo, env_id, 3_000 if algo == "ppo" else 2_000, **changes)
    metadata = read_metadata(context_of(run_dir))
    assert metadata["decisions"]["action_mask"] == f"{source}: illegal actions are never taken"
    metrics = evaluate_checkpoint(run_dir, 40)
    assert metrics["eval_length_mean"] <= 2.8  # the mean distance from cells 0 to 3 is 2.5
    assert metrics["eval_return_min"] >= 0.7 - 1e-9


@ALGORITHMS
@pytest.mark.parametrize("env_id", ["Nested-v0", "Masked-v0"])
def test_processes_change_nothing_and_a_killed_run_continues_exactly(
    make_config: MakeConfig, algo: str, env_id: str
) -> None:
    mask = "info" if env_id == "Masked-v0" else "off"
    config = make_config(algo=algo, env_id=env_id, action_mask=mask)
    straight = train(config)
    assert outcome(train(config.model_copy(update={"vectorization": "async"}))) == outcome(straight)
    run_dir = train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, []).train()
    assert outcome(run_dir) == outcome(straight)
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_mask_without_any_action_is_an_error_that_names_the_step(make_config: MakeConfig, vectorization: str) -> None:
    config = make_config(
        env_id="Masked-v0",
        env_kwargs={"no_action_at": 3},
        action_mask="info",
        num_envs=2,
        vectorization=vectorization,
    )
    with pytest.raises(EnvironmentStepError, match=r"env [01], episode \d+ \(seed \d+\), step 3 .*allows no action"):
        train(config)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_mask_that_an_algorithm_cannot_use_is_a_warning(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, env_id="sample_spaces:MaskedBox-v0", action_mask="auto")
    message = rf"MaskedBox-v0 gives a mask of legal actions \(info\), which {algo} cannot use"
    with pytest.warns(UserWarning, match=message):
        train(config)


@pytest.mark.parametrize(
    ("action_mask", "message"),
    [
        ("method", r"action_mask: method needs an env with a method action_masks\(\)"),
        ("observation.legal", "action_mask: observation.legal needs a Dict observation with an entry 'legal'"),
    ],
)
def test_a_source_of_masks_that_is_not_there_is_refused(action_mask: str, message: str) -> None:
    with pytest.raises(EnvironmentSetupError, match=message):
        make_single_env("Masked-v0", {}, action_mask)


def test_an_env_that_cannot_be_searched_for_a_mask_is_not_passed_over_in_silence(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.envs.factory._MASK_SECONDS", 0.0)
    run_dir = train(make_config(action_mask="auto"))
    decision = read_metadata(context_of(run_dir))["decisions"]["action_mask"]
    assert decision.startswith("off: one env could not be searched for a mask of legal actions (no answer within 0 s")


def test_a_mask_missing_in_info_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(EnvironmentStepError, match=r'env 0, .*reset: info has no "action_mask"'):
        train(make_config(action_mask="info"))


@pytest.mark.parametrize("value", ["infos", "observation.", "observation"])
def test_an_unknown_source_of_masks_is_refused(make_config: MakeConfig, value: str) -> None:
    with pytest.raises(ConfigError, match=r"allowed: auto, off, info, method, observation\.NAME"):
        make_config(action_mask=value)


@ALGORITHMS
def test_predictions_take_nested_observations_one_or_many(make_config: MakeConfig, algo: str) -> None:
    _, run_dir = learn(make_config, algo, "Nested-v0", 256)
    model = MODELS[algo].load(run_dir)
    env = gymnasium.make("Nested-v0")
    first, second = env.reset(seed=1)[0], env.reset(seed=2)[0]
    alone = [model.predict(obs) for obs in (first, second)]
    assert all(type(action) is int for action in alone)
    parts = {name: np.stack([obs["panel"][name] for obs in (first, second)]) for name in ("switch", "dials")}
    batch = {"panel": parts, "lamp": np.stack([first["lamp"], second["lamp"]]), "note": ["hello"] * 2}
    assert np.asarray(model.predict(batch)).tolist() == alone
    with pytest.raises(ConfigError, match=r"^component \[0\] of part 'lamp' of the observation is nan$"):
        model.predict({**first, "lamp": np.full(2, np.nan, np.float32)})
    with pytest.raises(ConfigError, match=r"an observation must be one of Dict.*KeyError"):
        model.predict({"lamp": first["lamp"]})


@ALGORITHMS
@MASKS
def test_predictions_respect_masks(
    make_config: MakeConfig, algo: str, env_id: str, env_kwargs: dict[str, Any], source: str, tmp_path: Path
) -> None:
    _, run_dir = learn(make_config, algo, env_id, 256, env_kwargs=env_kwargs, action_mask=source)
    model = MODELS[algo].load(run_dir)
    env = MaskedEnv(**env_kwargs)
    obs, _ = env.reset(seed=0)
    if source.startswith("observation"):
        obs["action_mask"] = np.array([0, 0, 0, 1], np.int8)
        assert model.predict(obs) == 3
        obs["action_mask"] = np.zeros(4, np.int8)
        with pytest.raises(ConfigError, match=r"^the action mask allows no action$"):
            model.predict(obs)
        return
    assert model.predict(obs, action_masks=[0, 0, 1, 0]) == 2
    for deterministic in (True, False):
        batch = np.stack([obs] * 4)
        assert np.asarray(model.predict(batch, deterministic, action_masks=np.eye(4))).tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="this agent was trained with masks of legal actions: give action_masks="):
        model.predict(obs)
    with pytest.raises(ConfigError, match=r"^the action mask allows no action$"):
        model.predict(batch, action_masks=[[1, 0, 0, 0]] * 3 + [[0, 0, 0, 0]])
    with pytest.raises(ConfigError, match=r"^the action mask has 3 entries, the actions have 4$"):
        model.predict(obs, action_masks=[1, 0, 0])


@pytest.mark.parametrize("env_id", ["CartPole-v1", "NestedAction-v0"])
def test_a_mask_for_an_agent_without_masks_is_refused(make_config: MakeConfig, env_id: str) -> None:
    model = PPO(make_config(env_id=env_id))
    obs = gymnasium.make(env_id).observation_space.sample()
    with pytest.raises(ConfigError, match="this agent was trained without masks of legal actions: leave action_masks"):
        model.predict(obs, action_masks=[1, 0])


@pytest.mark.slow
def test_nested_actions_reach_the_env_as_it_expects_them(make_config: MakeConfig) -> None:
    _, run_dir = learn(make_config, "ppo", "NestedAction-v0", 6_000)
    assert evaluate_checkpoint(run_dir, 40)["eval_return_mean"] >= 2.6  # of 3
    model = PPO.load(run_dir)
    action = model.predict(np.array([1.0, 1.0], np.float32))
    assert gymnasium.make("NestedAction-v0").action_space.contains(action)
    assert len(model.predict(np.ones((3, 2), np.float32))) == 3
