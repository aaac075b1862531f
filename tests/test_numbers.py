"""Numbers that are not finite stop a run before they reach the weights, and what was refused can be looked at."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces

from rl_training import PPO
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError, EnvironmentStepError, NonFiniteUpdateError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.workflows import replay_failed_step, resume_training

ALGORITHMS = ["ppo", "dqn", "sac"]


class OddEnv(gymnasium.Env[Any, Any]):
    """Gives `value` as reward, or as the second number of its observation, with every 11th step."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, value: float, where: str, continuous: bool = False, limit: int = 10**6) -> None:
        self.value, self.where, self.limit = value, where, limit
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.array([0.0, self.value if self.where == "reset" else 0.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs, reward = np.full(2, self.steps, np.float32), 1.0
        if self.steps % 11 == 0:
            if self.where == "reward":
                reward = self.value
            else:
                obs[1] = self.value
        return obs, reward, False, self.steps >= self.limit, {}


gymnasium.register("tests/Odd-v0", f"{__name__}:OddEnv")


def train(config: TrainConfig) -> Any:
    return get_algorithm_spec(config.algo).train_fn(config)


def only_run(config: TrainConfig) -> Path:
    (run_dir,) = config.output_dir.iterdir()
    return run_dir


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("where", "named"), [("reward", "the reward is"), ("obs", r"component \[1\] of the obs")])
def test_an_env_that_gives_no_number_is_named_with_its_step(
    make_config: MakeConfig, value: float, where: str, named: str
) -> None:
    config = make_config(env_id="tests/Odd-v0", env_kwargs={"value": value, "where": where}, eval_interval=0)
    place = rf"env 0, episode 0 \(seed \d+\), step 11 with action [01]: {named}.*{value}"
    with pytest.raises(EnvironmentStepError, match=place):
        train(config)
    saved = load_checkpoint(find_checkpoint(only_run(config)))
    assert saved.trainer_state["global_step"] == 40  # ten whole steps of four envs
    assert torch.isfinite(saved.buffer_state["rewards"]).all()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_first_observation_that_is_no_number_is_named(make_config: MakeConfig, vectorization: str) -> None:
    kwargs = {"value": float("nan"), "where": "reset"}
    config = make_config(env_id="tests/Odd-v0", env_kwargs=kwargs, vectorization=vectorization)
    place = r"env 0, episode 0 \(seed \d+\), reset: component \[1\] of the observation is nan"
    with pytest.raises(EnvironmentStepError, match=place):
        train(config)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("where", "named"), [("reward", "the reward is"), ("obs", r"component \[1\] of the obs")])
def test_a_nan_in_the_first_evaluation_is_refused_as_in_training(
    make_config: MakeConfig, where: str, named: str, vectorization: str
) -> None:
    config = make_config(
        env_id="tests/Odd-v0",
        env_kwargs={"value": float("nan"), "where": where},
        vectorization=vectorization,
        num_envs=8,
        algo_kwargs={"num_steps": 8},
    )
    place = rf"evaluation at step 64, env 0, episode 0 \(seed \d+\), step 11 with action [01]: {named}.*nan"
    with pytest.raises(EnvironmentStepError, match=place):
        train(config)
    context = context_of(only_run(config))
    assert read_strictly(context.metadata_path.read_text())["best_return"] is None
    saved = load_checkpoint(find_checkpoint(context.run_dir))
    assert saved.trainer_state["best_return"] is None
    assert saved.trainer_state["due"] == ["evaluate"]


def read_strictly(text: str) -> Any:
    """The JSON value; Python's own words for NaN and infinity are refused."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_an_infinite_return_is_never_the_best_one_and_no_file_holds_it(make_config: MakeConfig) -> None:
    kwargs = {"value": 1.7e308, "where": "reward", "limit": 22}  # twice in an episode
    result = train(make_config(env_id="tests/Odd-v0", env_kwargs=kwargs, algo="dqn", total_timesteps=32))
    assert result.metrics["eval_return_mean"] == float("inf")
    context = context_of(result.run_dir)
    metadata = read_strictly(context.metadata_path.read_text())
    assert metadata["best_return"] is None
    assert metadata["metrics"]["eval_return_mean"] is None
    for line in context.metrics_path.read_text().splitlines():
        read_strictly(line)


class ChoiceEnv(gymnasium.Env[Any, Any]):
    """Shows -2 to 0, but `value` in place of its `odd_at`th observation; 0 is the first."""

    observation_space = spaces.Discrete(3, start=-2)

    def __init__(self, value: int, odd_at: int, continuous: bool = False) -> None:
        self.value, self.odd_at = value, odd_at
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> int:
        return self.value if self.steps == self.odd_at else -(self.steps % 3)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observe(), 1.0, False, self.steps == 20, {}


gymnasium.register("tests/Choice-v0", f"{__name__}:ChoiceEnv")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("value", [-3, 1, 2**40])
def test_a_discrete_observation_out_of_range_is_named_with_its_step(
    make_config: MakeConfig, algo: str, vectorization: str, value: int
) -> None:
    kwargs = {"value": value, "odd_at": 11, "continuous": algo == "sac"}
    config = make_config(
        algo=algo, env_id="tests/Choice-v0", env_kwargs=kwargs, vectorization=vectorization, eval_interval=0
    )
    place = rf"env 0, episode 0 \(seed \d+\), step 11 with action .*: the observation is {value}, allowed are -2 to 0"
    with pytest.raises(EnvironmentStepError, match=place):
        train(config)
    saved = load_checkpoint(find_checkpoint(only_run(config)))
    assert saved.trainer_state["global_step"] == 40  # ten whole steps of four envs


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_first_discrete_observation_out_of_range_is_named(make_config: MakeConfig, vectorization: str) -> None:
    kwargs = {"value": 1, "odd_at": 0}
    config = make_config(env_id="tests/Choice-v0", env_kwargs=kwargs, vectorization=vectorization)
    place = r"env 0, episode 0 \(seed \d+\), reset: the observation is 1, allowed are -2 to 0"
    with pytest.raises(EnvironmentStepError, match=place):
        train(config)
    assert not config.output_dir.exists()


def test_predict_refuses_a_discrete_observation_out_of_range(make_config: MakeConfig) -> None:
    model = PPO(make_config(env_id="tests/Choice-v0", env_kwargs={"value": 0, "odd_at": 0}))
    assert [model.predict(value) for value in (-2, -1, 0)] == model.predict([-2, -1, 0]).tolist()
    for odd in (1, -3, [0, 1], 0.5, "0", True):
        with pytest.raises(ConfigError, match=r"(the observation is (1|-3), allowed are|an integer from) -2 to 0"):
            model.predict(odd)


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_numbers_whose_sum_overflows_are_numbers(make_config: MakeConfig) -> None:
    config = make_config(env_id="tests/Odd-v0", env_kwargs={"value": 3e38, "where": "obs"}, eval_episodes=0)
    assert train(config).status == "completed"


@pytest.fixture
def exploding(make_config: MakeConfig) -> TrainConfig:
    """Rewards are finite and so large that no loss is."""
    return make_config(
        env_id="tests/Odd-v0",
        env_kwargs={"value": 3e38, "where": "reward"},
        total_timesteps=256,
        eval_episodes=0,
        algo_kwargs={"num_steps": 8},
    )


def test_a_loss_that_is_not_finite_never_reaches_the_weights(exploding: TrainConfig) -> None:
    with pytest.raises(NonFiniteUpdateError, match=r"minibatch is rejected, its loss is .*"):
        train(exploding)
    run_dir = only_run(exploding)
    metadata = read_metadata(context_of(run_dir))
    assert metadata["status"] == "failed"
    assert metadata["error"].startswith("NonFiniteUpdateError: the minibatch is rejected, its loss is")
    for path in (find_checkpoint(run_dir), context_of(run_dir).failure_path):
        params = load_checkpoint(path).algorithm_state["policy"]["params"]
        assert all(torch.isfinite(weights).all() for weights in params.values())


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_absurd_learning_rate_stops_the_run_and_the_refused_step_can_be_repeated(
    make_config: MakeConfig, algo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(algo=algo, total_timesteps=4_000, eval_episodes=0, algo_kwargs={"learning_rate": 1e30})
    with pytest.raises(NonFiniteUpdateError, match="its batch is finite, so the weights have grown too large"):
        train(config)
    run_dir = only_run(config)
    refused = load_checkpoint(context_of(run_dir).failure_path).algorithm_state
    for params in (refused["policy"]["params"], refused.get("critics", {})):
        assert not any(weights.isnan().any() for weights in params.values())
    failed = replay_failed_step(run_dir)
    assert failed.message is not None
    assert "is rejected" in failed.message
    assert main(["replay", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "not finite" in shown
    assert failed.message in " ".join(shown.split())


def test_a_failed_update_leaves_the_last_good_checkpoint_to_go_on_from(make_config: MakeConfig) -> None:
    config = make_config(total_timesteps=4_000, eval_episodes=0, algo_kwargs={"learning_rate": 1e30})
    with pytest.raises(NonFiniteUpdateError):
        train(config)
    run_dir = only_run(config)
    assert find_checkpoint(run_dir).name == "step_0.pt"  # not what the first steps of the update have left
    with pytest.raises(NonFiniteUpdateError):  # it is the same run, so it fails the same way
        resume_training(run_dir)
    assert find_checkpoint(run_dir).name == "step_0.pt"


def test_a_run_without_a_refused_step_has_nothing_to_replay(make_config: MakeConfig) -> None:
    result = train(make_config())
    with pytest.raises(CheckpointError, match="has no rejected gradient step"):
        replay_failed_step(result.run_dir)
    assert main(["replay", str(result.run_dir)]) == 2


def test_the_command_line_ends_a_failed_run_with_1(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(make_config().output_dir)
    command = ["train", "--algo", "ppo", "--env", "tests/Odd-v0", "--output-dir", output]
    code = main([*command, "--set", "env_kwargs.value=.nan", "--set", "env_kwargs.where=reward"])
    assert code == 1
    assert "step 11 with action" in capsys.readouterr().err
