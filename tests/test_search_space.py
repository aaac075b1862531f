"""Search spaces: what they accept, what they refuse with one clear line, and the configs that drawn values give."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeConfig

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import with_resolved_params
from rl_training.experiment.search_space import SPACES_DIR, load_space, read_space
from rl_training.experiment.sources import Layer
from rl_training.experiment.studies import StudyOptions
from rl_training.groups.tuning import prepare_study
from rl_training.runtime.registry import get_algorithm_spec, list_algorithm_specs

LOG = {"low": 1e-4, "high": 1e-2, "scale": "log"}

MISTAKES: list[tuple[Any, str]] = [
    ({"learning_rat": LOG}, ":1: learning_rat: unknown parameter; did you mean 'learning_rate'?"),
    ({"colour": [1, 2]}, "colour: unknown parameter; a study can vary activation, "),
    ({"seed": [1, 2]}, "seed: cannot be searched; a study can vary "),
    ({"learning_rate": {"low": 1e-2, "high": 1e-4}}, "low=0.01 is not below high=0.0001: the range is empty"),
    ({"learning_rate": {"low": 0.0, "high": 1e-4, "scale": "log"}}, "low=0.0: a log scale needs values above 0"),
    ({"learning_rate": {"low": "small", "high": 1e-4}}, "learning_rate.low"),
    ({"learning_rate": {"low": 1e-4}}, "learning_rate.high: required"),
    ({"learning_rate": {**LOG, "scal": "log"}}, "learning_rate.scal: unknown key; did you mean 'scale'?"),
    ({"learning_rate": {**LOG, "scale": "logarithmic"}}, "learning_rate.scale='logarithmic': "),
    ({"learning_rate": 1e-3}, "learning_rate=0.001: give a list of values, or a range such as"),
    (
        {"learning_rate": {"low": -1.0, "high": 1e-3}},
        "learning_rate: -1.0 cannot be trained (algo_kwargs.learning_rate",
    ),
    ({"gamma": {"low": 0.9, "high": 1.5}}, "gamma: 1.5 cannot be trained (algo_kwargs.gamma=1.5: "),
    ({"gamma": {"low": 0.9, "high": 1.0, "scale": "one_minus_log"}}, "needs numbers from 0 to below 1"),
    ({"num_steps": {"low": 30, "high": 64, "scale": "powers_of_two"}}, "needs powers of two, such as 32 and 1024"),
    ({"update_epochs": []}, "update_epochs.choices=[]: "),
    ({"update_epochs": [1, 2, 1]}, "update_epochs: 1 is listed twice"),
    ({"activation": ["tanh", "sinus"]}, "activation: 'sinus' cannot be trained (algo_kwargs.activation='sinus': "),
    ({"num_steps": [8, 16], "minibatch_size": [64, 128]}, "cannot be trained (algo_kwargs.minibatch_size="),
    (
        {"minibatch_size": {"low": 8, "high": 64, "at_most": "num_step"}},
        "at_most: num_step: unknown parameter; did you",
    ),
    (
        {"update_epochs": {"low": 1, "high": 9, "at_most": "hidden_sizes"}},
        "update_epochs: at_most: hidden_sizes=[64, 64] is not a number above 0",
    ),
    ({}, "the search space has no parameter"),
    ("learning_rate", ":1: expected a map of config keys, got str"),
]


@pytest.mark.parametrize(("space", "message"), MISTAKES)
def test_a_mistake_in_a_space_is_one_line_and_leaves_nothing_behind(
    space: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, runs = tmp_path / "space.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump(space))
    argv = ["tune", "--algo", "ppo", "--env", "CartPole-v1", "--space", str(path), "--output-dir", str(runs)]
    assert main(argv) == 2
    output = capsys.readouterr()
    (line,) = output.err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert output.out == ""
    assert not runs.exists()


@pytest.mark.parametrize("algo", [spec.name for spec in list_algorithm_specs() if spec.name in ("ppo", "dqn", "sac")])
def test_every_algorithm_has_a_space_whose_values_can_be_trained(algo: str, make_config: MakeConfig) -> None:
    config = make_config(algo=algo, env_id="Pendulum-v1" if algo == "sac" else "CartPole-v1", algo_kwargs={})
    study = prepare_study(config, None, 1, StudyOptions(trials=1))
    assert study.settings.space == load_space(None, algo).values
    assert len(study.settings.space) >= 7
    assert {path.stem for path in SPACES_DIR.iterdir()} == {"ppo", "dqn", "sac"}


def drawn_config(
    make_config: MakeConfig, space: dict[str, Any], drawn: dict[str, Any], **params: Any
) -> dict[str, Any]:
    config = make_config(num_envs=4, algo_kwargs=params)
    config = with_resolved_params(config, get_algorithm_spec("ppo").resolve_params_fn(config))
    read = read_space(Layer("space", space), config)
    return read.apply(config, read.limit(config, drawn, first_rung=500)).algo_kwargs


@pytest.mark.parametrize(("num_steps", "drawn", "used"), [(16, 256, 64), (16, 32, 32), (24, 256, 64), (64, 256, 256)])
def test_a_value_is_lowered_to_the_product_that_it_must_not_exceed(
    num_steps: int, drawn: int, used: int, make_config: MakeConfig
) -> None:
    """With 4 envs, rollouts have 64, 96 and 256 transitions; 64 is the largest power of two up to 96."""
    limited = {"low": 16, "high": 1024, "scale": "powers_of_two", "at_most": "num_steps * num_envs"}
    space = {"minibatch_size": limited, "num_steps": [16, 24, 64]}
    params = drawn_config(make_config, space, {"minibatch_size": drawn, "num_steps": num_steps})
    assert (params["num_steps"], params["minibatch_size"]) == (num_steps, used)


def test_limits_hold_together_and_for_the_first_rung_in_any_order(make_config: MakeConfig) -> None:
    """500 env steps of 4 envs leave 125 steps per env: 64 as a power of two, so a rollout has 256 transitions."""
    space = {
        "minibatch_size": {"low": 16, "high": 1024, "scale": "powers_of_two", "at_most": "num_steps * num_envs"},
        "num_steps": {"low": 32, "high": 4096, "scale": "powers_of_two", "at_most": "first_rung / num_envs"},
    }
    for ordered in (space, dict(reversed(space.items()))):
        params = drawn_config(make_config, ordered, {"minibatch_size": 1024, "num_steps": 4096})
        assert (params["num_steps"], params["minibatch_size"]) == (64, 256)


def test_a_number_scales_the_schedule_of_its_parameter(make_config: MakeConfig) -> None:
    schedule = {"schedule": "linear", "start": 1e-3, "end": 1e-4}
    params = drawn_config(make_config, {"learning_rate": LOG}, {"learning_rate": 4e-3}, learning_rate=schedule)
    assert params["learning_rate"] == {"schedule": "linear", "start": 4e-3, "end": pytest.approx(4e-4)}


def test_an_algorithm_without_a_shipped_space_needs_a_file() -> None:
    with pytest.raises(ConfigError, match="no shipped search space for a2c: give a file with --space"):
        load_space(None, "a2c")
