"""What a config accepts, what it refuses and how it says so, before any file is made."""

import math
import pwd
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY_PPO, MakeConfig
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.dqn import DQNParams
from rl_training.algorithms.ppo import PPOParams
from rl_training.algorithms.sac import SACParams
from rl_training.cli import load_config
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrackerOptions, TrainConfig, plain_config, with_resolved_params
from rl_training.experiment.runs import context_of, write_config
from rl_training.experiment.schedules import Schedule
from rl_training.experiment.validation import StrictModel, nearest_name
from rl_training.runtime.manager import DefaultExperimentManager
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.training import resolve_learner_params

NAN, INF = math.nan, math.inf
SECTION = "algo_kwargs."


def config_values(output_dir: Path, field: str, value: Any) -> dict[str, Any]:
    """A config that trains, but for one field; `algo_kwargs.` before its name puts it among the parameters."""
    values: dict[str, Any] = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 64,
        "num_envs": 4,
        "output_dir": output_dir,
        "algo_kwargs": dict(TINY_PPO),
    }
    if field.startswith(SECTION):
        values["algo_kwargs"][field.removeprefix(SECTION)] = value
    else:
        values[field] = value
    return values


BAD_VALUES: list[tuple[str, Any]] = [
    ("algo", ""),
    ("algo", 5),
    ("algo", "a2c"),
    ("env_id", ""),
    ("env_id", None),
    ("seed", -1),
    ("seed", 1.0),
    ("seed", 256.9),
    ("seed", "3"),
    ("seed", True),
    ("seed", None),
    ("seed", NAN),
    ("seed", 2**63),
    ("total_timesteps", 0),
    ("total_timesteps", -5),
    ("total_timesteps", 1e5),
    ("output_dir", 5),
    ("output_dir", None),
    ("device", "gpu"),
    ("device", "cuda:"),
    ("num_envs", 0),
    ("num_envs", True),
    ("vectorization", "threads"),
    ("step_timeout", 0.0),
    ("step_timeout", INF),
    ("env_restarts", -1),
    ("env_restarts", 1.5),
    ("num_threads", 0),
    ("num_threads", 257),
    ("step_timeout", 1e300),
    ("eval_episodes", 1_000_001),
    ("eval_episodes", -1),
    ("eval_interval", -1),
    ("log_interval", 0),
    ("checkpoint_interval", 0.5),
    ("checkpoint_seconds", -1.0),
    ("checkpoint_seconds", INF),
    ("checkpoint_seconds", NAN),
    ("checkpoint_seconds", "300"),
    ("checkpoint_seconds", True),
    ("keep_checkpoints", 0),
    ("tags", "one"),
    ("tags", 5),
    ("algo_kwargs", None),
    ("algo_kwargs", [1]),
    ("env_kwargs", "text"),
    ("algo_kwargs.num_steps", 0),
    ("algo_kwargs.num_steps", 256.9),
    ("algo_kwargs.num_steps", "16"),
    ("algo_kwargs.num_steps", True),
    ("algo_kwargs.update_epochs", 0),
    ("algo_kwargs.minibatch_size", 0),
    ("algo_kwargs.minibatch_size", 65),  # 16 steps of 4 envs give 64
    ("algo_kwargs.hidden_sizes", 64),
    ("algo_kwargs.activation", "sigmoid"),
    ("algo_kwargs.learning_rate", 0),
    ("algo_kwargs.learning_rate", -1e-3),
    ("algo_kwargs.learning_rate", NAN),
    ("algo_kwargs.learning_rate", INF),
    ("algo_kwargs.learning_rate", "3e-4"),
    ("algo_kwargs.learning_rate", True),
    ("algo_kwargs.learning_rate", None),
    ("algo_kwargs.learning_rate", [1e-3]),
    ("algo_kwargs.learning_rate", {"schedule": "cosine", "start": 1e-3}),
    ("algo_kwargs.learning_rate", {"schedule": "linear"}),
    ("algo_kwargs.learning_rate", {"start": 1e-3, "end": -1e-3}),
    ("algo_kwargs.clip_coef", 0.0),
    ("algo_kwargs.clip_coef", 1e308),
    ("algo_kwargs.learning_rate", 1e308),
    ("algo_kwargs.ent_coef", 1e308),
    ("algo_kwargs.log_std_init", -1e308),
    ("algo_kwargs.clip_vf_coef", 0.0),
    ("algo_kwargs.ent_coef", -0.1),
    ("algo_kwargs.vf_coef", "0.5"),
    ("algo_kwargs.gamma", 5),
    ("algo_kwargs.gamma", -0.1),
    ("algo_kwargs.gamma", NAN),
    ("algo_kwargs.gamma", True),
    ("algo_kwargs.gae_lambda", 1.1),
    ("algo_kwargs.normalize_advantages", 1),
    ("algo_kwargs.normalize_advantages", "yes"),
    ("algo_kwargs.max_grad_norm", 0.0),
    ("algo_kwargs.target_kl", -0.01),
    ("algo_kwargs.log_std_init", INF),
    ("algo_kwargs.adam_eps", 0.0),
    ("algo_kwargs.optimizer", "sgd"),
    ("algo_kwargs.optimizer", None),
    ("algo_kwargs.optimizer", "torch.optim:AdamW"),
    ("algo_kwargs.weight_decay", -1e-4),
    ("algo_kwargs.weight_decay", "1e-4"),
    ("algo_kwargs.weight_decay", NAN),
    ("algo_kwargs.weight_decay", 1e7),
]


@pytest.mark.parametrize(("field", "value"), BAD_VALUES, ids=str)
def test_a_bad_value_is_refused_by_field_and_value_before_any_file_is_made(
    field: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        train_ppo(_known_algo(TrainConfig(**config_values(tmp_path / "runs", field, value))))
    assert f"{field}={value!r}: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


MODELS: list[tuple[str, str, type[StrictModel]]] = [
    ("ppo", "", TrainConfig),
    ("ppo", SECTION, PPOParams),
    ("dqn", SECTION, DQNParams),
    ("sac", SECTION, SACParams),
]
WHOLE_NUMBERS = [
    (algo, section, name)
    for algo, section, model in MODELS
    for name, field in model.model_fields.items()
    if type(field.default) is int
]


@pytest.mark.parametrize(("algo", "section", "name"), WHOLE_NUMBERS, ids=str)
def test_a_whole_number_of_absurd_size_is_refused_before_any_file_is_made(
    algo: str, section: str, name: str, tmp_path: Path
) -> None:
    for value in (10**30, 2**63, 1e30, -(2**63)):
        values = {**config_values(tmp_path / "runs", section + name, value), "algo": algo}
        if algo != "ppo":
            values["algo_kwargs"] = {name: value}
        with pytest.raises(ConfigError) as caught:
            get_algorithm_spec(algo).train_fn(TrainConfig(**values))
        assert f"{section}{name}={value!r}: " in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_more_layers_than_anybody_trains_are_refused(make_config: MakeConfig) -> None:
    for algo in ("ppo", "dqn", "sac"):
        config = make_config(algo=algo, algo_kwargs={"hidden_sizes": [8] * 1_000_000})
        with pytest.raises(ConfigError, match=r"algo_kwargs\.hidden_sizes=.*at most 1000 items"):
            get_algorithm_spec(algo).train_fn(config)


def _known_algo(config: TrainConfig) -> TrainConfig:
    """Set up through the manager, which is where the algorithm's name and parameters are looked at first."""
    DefaultExperimentManager().setup(config)
    return config


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("tags", ["one", 2], "tags.1=2: "),
        ("algo_kwargs.hidden_sizes", [64, 0], "algo_kwargs.hidden_sizes.1=0: "),
        ("algo_kwargs.hidden_sizes", [64.0], "algo_kwargs.hidden_sizes.0=64.0: "),
        ("algo_kwargs.hidden_sizes", ["64"], "algo_kwargs.hidden_sizes.0='64': "),
        ("env_kwargs", {1: 2}, "env_kwargs.1"),
        ("env_kwargs", {"kinds": {1, 2}}, "env_kwargs.kinds={1, 2}: contains a set; use plain values only"),
        ("env_kwargs", {"deep": [{1: 2}]}, "env_kwargs.deep=[{1: 2}]: keys must be strings"),
        ("algo_kwargs.learning_rate", 10**400, "algo_kwargs.learning_rate=1000"),
    ],
    ids=str,
)
def test_a_bad_item_is_refused_by_its_place(field: str, value: Any, shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train_ppo(TrainConfig(**config_values(tmp_path / "runs", field, value)))
    assert shown in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("algo_kwargs.gamma", 5, "less than or equal to 1"),
        ("num_envs", 0, "greater than or equal to 1"),
        ("device", "gpu", "auto, cpu, cuda, cuda:N, mps"),
        ("vectorization", "threads", "allowed: auto, sync, async, native, or package.module:Name"),
        ("algo_kwargs.activation", "sigmoid", "'tanh', 'relu', 'elu', 'gelu', 'silu' or 'leaky_relu'"),
        ("algo_kwargs.minibatch_size", 65, "exceeds the rollout of 64 (16 steps x 4 envs)"),
        ("algo_kwargs.learning_rate", "3e-4", "give a number, or {schedule: linear"),
        ("tags", "one", "give a list"),
        ("env_kwargs", [], "give a map"),
    ],
    ids=str,
)
def test_a_refusal_says_what_is_allowed(field: str, value: Any, allowed: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_learner_params(PPOParams, TrainConfig(**config_values(tmp_path, field, value)))
    assert allowed in str(caught.value)


def test_all_problems_are_reported_at_once(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(env_id="", seed=-1, nun_envs=2)
    assert [problem.path for problem in caught.value.problems] == [("env_id",), ("seed",), ("nun_envs",)]
    assert all(problem.text in str(caught.value) for problem in caught.value.problems)


def _misspelt(name: str) -> list[tuple[str, str]]:
    middle = len(name) // 2
    return [(name, name[:middle] + name[middle + 1 :]), (name, name[:middle] + name[middle] + name[middle:])]


@pytest.mark.parametrize(
    ("name", "given"), [pair for name in TrainConfig.model_fields for pair in _misspelt(name)], ids=str
)
def test_a_misspelt_key_is_refused_with_the_nearest_name(name: str, given: str, tmp_path: Path) -> None:
    values = config_values(tmp_path / "runs", "seed", 7)
    values[given] = values.pop(name, None)
    with pytest.raises(ConfigError, match=f"{given}: unknown key; did you mean '{name}'\\?"):
        TrainConfig(**values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algo", "name", "given"),
    [
        (algo, name, given)
        for algo, section, model in MODELS
        if section
        for field in model.model_fields
        for name, given in _misspelt(field)
    ],
    ids=str,
)
def test_a_misspelt_parameter_is_refused_with_the_nearest_name(
    algo: str, name: str, given: str, tmp_path: Path
) -> None:
    values = {**config_values(tmp_path / "runs", "algo_kwargs", {given: 1}), "algo": algo}
    expected = f"algo_kwargs.{given}: unknown key; did you mean '{name}'\\?"
    with pytest.raises(ConfigError, match=expected):
        DefaultExperimentManager().setup(TrainConfig(**values))
    with pytest.raises(ConfigError, match=expected):
        get_algorithm_spec(algo).train_fn(TrainConfig(**values))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "given"), [pair for name in TrackerOptions.model_fields for pair in _misspelt(name)], ids=str
)
def test_a_misspelt_tracker_option_is_refused(name: str, given: str, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=f"{given}: unknown key"):
        make_config(tracker_options={given: "x"})


OFF_POLICY_BAD_VALUES: list[tuple[str, str, Any]] = [
    *[(algo, "tau", value) for algo in ("dqn", "sac") for value in (0, 1.1, NAN, "0.5", True)],
    *[(algo, "buffer_capacity", value) for algo in ("dqn", "sac") for value in (0, 4, 1e6, "8", None)],
    *[(algo, "batch_size", value) for algo in ("dqn", "sac") for value in (0, 8.0, True, [8])],
    *[(algo, "n_step", value) for algo in ("dqn", "sac") for value in (0, -1, 1.5)],
    *[(algo, "learning_starts", value) for algo in ("dqn", "sac") for value in (-1, 1e3, "0")],
    *[("dqn", "epsilon_start", value) for value in (-0.1, 1.1, NAN, INF, "1")],
    *[("dqn", "exploration_fraction", value) for value in (-0.1, 1.5)],
    *[("dqn", "priority_beta", value) for value in (0, NAN, 1e308, {"start": 1})],
    *[("dqn", "double", value) for value in (1, "yes", None)],
    *[("sac", "alpha", value) for value in (0, -1, NAN, INF, "AUTO", [1], 1e308)],
    *[("sac", "target_entropy", value) for value in (NAN, INF, 1e308, "auto")],
    *[("sac", "noise_correlation", value) for value in (-0.1, 1.0, NAN)],
    *[("sac", "policy_delay", value) for value in (0, 1.5)],
]


@pytest.mark.parametrize(("algo", "name", "value"), OFF_POLICY_BAD_VALUES, ids=str)
def test_a_bad_value_of_an_off_policy_algorithm_is_refused(algo: str, name: str, value: Any, tmp_path: Path) -> None:
    values = {**config_values(tmp_path / "runs", "algo_kwargs", {name: value}), "algo": algo}
    if value == {"start": 1}:
        values["algo_kwargs"] = {name: {"start": 1, "end": 2}}  # an end without a schedule
    with pytest.raises(ConfigError, match=rf"algo_kwargs\.{name}"):
        get_algorithm_spec(algo).train_fn(TrainConfig(**values))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["env_id", "algo", "device"])
def test_a_text_of_absurd_length_is_refused_in_a_short_line(field: str, make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**{field: "x" * 100_000})
    assert len(str(caught.value)) < 500


def test_a_key_of_absurd_length_is_refused_in_a_short_line(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        make_config(**{"x" * 100_000: 1})
    assert len(str(caught.value)) < 1_000


def test_a_misspelt_key_of_a_schedule_is_refused_with_the_nearest_name(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"learning_rate": {"schedule": "linear", "strat": 1e-3}})
    with pytest.raises(ConfigError, match=r"algo_kwargs\.learning_rate=.*strat: unknown key; did you mean 'start'\?"):
        resolve_learner_params(PPOParams, config)


def test_a_key_like_no_other_is_refused_with_all_known_names(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"qqq: unknown key; known here: .*env_id.*total_timesteps"):
        make_config(qqq=1)


def test_lists_and_texts_become_tuples_and_paths(make_config: MakeConfig) -> None:
    config = make_config(output_dir="some/where", tags=["a", "b"])
    assert config.output_dir == Path("some/where")
    assert config.tags == ("a", "b")


def test_whole_numbers_are_taken_where_a_float_is_meant(make_config: MakeConfig) -> None:
    params = resolve_learner_params(PPOParams, make_config(algo_kwargs={"gamma": 1, "learning_rate": 1}))
    assert (params.gamma, params.learning_rate) == (1.0, Schedule(start=1.0))


def test_a_config_cannot_be_changed(make_config: MakeConfig) -> None:
    config = make_config()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 8  # type: ignore[misc]  # what the type checker forbids must not work either
    assert config.seed == 7


def test_a_number_is_a_constant_schedule(make_config: MakeConfig) -> None:
    schedule = resolve_learner_params(PPOParams, make_config(algo_kwargs={"learning_rate": 1e-3})).learning_rate
    assert [schedule.value(step, 1000) for step in (0, 500, 1000, 2000)] == [1e-3] * 4


def test_a_linear_schedule_ends_with_the_budget_and_stays_there(make_config: MakeConfig) -> None:
    given = {"schedule": "linear", "start": 0.5, "end": 0.25}
    schedule = resolve_learner_params(PPOParams, make_config(algo_kwargs={"clip_coef": given})).clip_coef
    assert [schedule.value(step, 1000) for step in (0, 500, 1000, 2000)] == [0.5, 0.375, 0.25, 0.25]


def test_a_linear_schedule_ends_at_zero_unless_told_otherwise(make_config: MakeConfig) -> None:
    given = {"schedule": "linear", "start": 0.5}
    schedule = resolve_learner_params(PPOParams, make_config(algo_kwargs={"learning_rate": given})).learning_rate
    assert schedule.value(1000, 1000) == 0.0


def test_resolved_parameters_are_written_out_and_read_back_equal(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"learning_rate": {"schedule": "linear", "start": 1e-3}})
    params = resolve_learner_params(PPOParams, config)
    written = with_resolved_params(config, params)
    assert set(written.algo_kwargs) == set(PPOParams.model_fields)
    assert written.algo_kwargs["clip_coef"] == 0.2
    assert written.algo_kwargs["learning_rate"] == {"schedule": "linear", "start": 1e-3, "end": 0.0}
    assert resolve_learner_params(PPOParams, written) == params


def test_a_plain_config_survives_yaml(make_config: MakeConfig) -> None:
    config = make_config(tags=["a", "b"], env_kwargs={"sizes": [1, 2.5], "names": {"x": None, "y": True}})
    plain = plain_config(config)
    assert plain["output_dir"] == str(config.output_dir)
    assert plain["tags"] == ["a", "b"]
    assert TrainConfig(**yaml.safe_load(yaml.safe_dump(plain))) == config


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["3e-4", "1E5", ".5e1", "1e5x", "2024-01-01", "null", "yes", "0x1f", "1_000", "1:30", "~", "=", "<<"]
)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(env_kwargs=st.dictionaries(_TEXTS, _PLAIN, max_size=3), tags=st.lists(_TEXTS, max_size=3))
def test_what_a_run_writes_as_its_config_is_what_it_was(
    env_kwargs: dict[str, Any], tags: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    context = context_of(tmp_path_factory.getbasetemp())
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", tags=tuple(tags), env_kwargs=env_kwargs)
    write_config(context, config)
    assert load_config(context.config_path) == config


def test_an_end_without_a_linear_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="'end' needs schedule: linear"):
        PPOParams(learning_rate={"start": 1e-3, "end": 1e-5})


@pytest.mark.parametrize("given", ["~/runs", "~", "~no_such_user/runs"])
def test_a_home_directory_that_is_not_known_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: Any) -> Any:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)  # a user without an entry, as in many containers
    with pytest.raises(ConfigError, match=r"output_dir='~.*: the home directory is not known: set HOME"):
        TrainConfig(algo="ppo", env_id="x", output_dir=given)
    assert TrainConfig(algo="ppo", env_id="x").output_dir == Path("runs")


def test_a_home_directory_is_expanded() -> None:
    assert TrainConfig(algo="ppo", env_id="x", output_dir=Path("~/runs")).output_dir == Path.home() / "runs"


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [
        ("a2c", ["sac", "ppo", "dqn"], None),
        ("wrappers", ["trackers", "seed"], None),
        ("tua", ["gamma", "tau"], "tau"),
        ("lerning_raet", ["learning_rate", "learning_starts"], "learning_rate"),
        ("cartpole-v9", ["Acrobot-v1", "CartPole-v0", "CartPole-v1"], "CartPole-v1"),
        ("x", ["y"], None),
        ("gamma", [], None),
        ("n_steps", ["num_steps", "n_step_returns"], "num_steps"),
        ("n_steps", ["gamma"], None),
    ],
)
def test_a_guess_is_offered_only_for_a_name_that_is_close(given: str, known: list[str], expected: str | None) -> None:
    assert nearest_name(given, known) == expected
