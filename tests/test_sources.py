"""Reading configs: YAML files, shipped presets and flags, and errors that name the file and the line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.cli import load_config
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.sources import (
    PRESETS_DIR,
    Layer,
    find_preset,
    read_assignments,
    read_yaml,
    resolve_config,
)
from rl_training.runtime.registry import get_algorithm_spec

SHOWN_PRESETS = Path(__file__).parents[1] / "configs"

BASE = """\
algo: ppo
env_id: CartPole-v1
"""


def write(directory: Path, text: str, name: str = "config.yaml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-2e3", -2e3),
        ("+1e2", 100.0),
        ("1.5e3", 1500.0),
        ("1.e3", 1000.0),
        (".5e1", 5.0),
        ("1_000e2", 1e5),
        ("0.98", 0.98),
    ],
)
def test_numbers_with_an_exponent_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    read = read_yaml(write(tmp_path, f"key: {text}\n")).values["key"]
    assert isinstance(read, float)
    assert read == value


@pytest.mark.parametrize(("text", "value"), [("98_304", 98_304), ("1e5x", "1e5x"), ("e5", "e5"), ("'3e-4'", "3e-4")])
def test_what_is_no_float_does_not_become_one(text: str, value: Any, tmp_path: Path) -> None:
    read = read_yaml(write(tmp_path, f"key: {text}\n")).values["key"]
    assert type(read) is type(value)
    assert read == value


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("seed: 1\nalgo: ppo\nseed: 2\n", 3, "seed"),
        ("algo_kwargs:\n  gamma: 0.9\n  gamma: 0.99\n", 3, "algo_kwargs.gamma"),
        ("algo_kwargs: {learning_rate: {start: 1, start: 2}}\n", 1, "algo_kwargs.learning_rate.start"),
        ("env_kwargs:\n  walls:\n    - x: 1\n      x: 2\n", 4, "env_kwargs.walls.0.x"),
    ],
)
def test_a_key_given_twice_is_refused_with_its_second_line(text: str, line: int, name: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}:{line}: '{name}' is given twice"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("algo: ppo\nenv_id: [CartPole-v1\nseed: 1\n", 3),
        ("algo: ppo\n\tenv_id: CartPole-v1\n", 2),
        ("algo: ppo\nenv_id: 'CartPole\n", 3),
        ("algo: ppo\nenv_id: a: b\n", 2),
        ("algo: ppo\ntags: *unknown\n", 2),
        ("algo: ppo\n---\nseed: 1\n", 2),
    ],
)
def test_a_syntax_error_names_file_and_line(text: str, line: int, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("value", ["2024-13-45", "!!bool perhaps", "0b_", "!!int ''", "!!timestamp noon"])
def test_a_value_that_its_kind_does_not_allow_names_file_and_line(value: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}seed: {value}\n")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    with pytest.raises(ConfigError, match="--set seed="):
        read_assignments([f"seed={value}"])


def payloads(marker: Path) -> list[str]:
    return [
        f"!!python/object/apply:os.mkdir ['{marker}']",
        f"!!python/object/new:os.mkdir ['{marker}']",
        f"!!python/object/apply:os.system ['touch {marker}']",
    ]


@pytest.mark.parametrize("kind", range(3))
def test_python_objects_are_refused_with_the_line_and_not_executed(kind: int, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    payload = payloads(marker)[kind]
    path = write(tmp_path, f"{BASE}algo_kwargs:\n  gamma: {payload}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:4: ")
    assert "python/object" in str(caught.value)
    with pytest.raises(ConfigError, match="python/object"):
        read_assignments([f"algo_kwargs.gamma={payload}"])
    assert not marker.exists()
    yaml.unsafe_load(payload)
    assert marker.exists(), "the payload itself does not work, so its refusal shows nothing"


@pytest.mark.parametrize("text", ["- algo\n- env_id\n", "ppo\n", "~\n", "3\n"])
def test_a_file_that_is_no_map_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}:1: expected a map of config keys, got ")


@pytest.mark.parametrize("text", ["env_kwargs: &self {again: *self}\n", "tags: &self [*self]\n"])
def test_a_value_that_holds_itself_is_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}:1: an alias refers to a value that contains it"


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "env_kwargs: " + "[" * 5000 + "]" * 5000)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value) == f"{path}: nested too deeply"


def test_a_few_aliases_are_fine(tmp_path: Path) -> None:
    text = "algo_kwargs: {hidden_sizes: &sizes [64, 64]}\nenv_kwargs: {a: &a {size: 1}, b: {<<: *a}, c: *sizes}\n"
    assert read_yaml(write(tmp_path, text)).values["env_kwargs"] == {"a": {"size": 1}, "b": {"size": 1}, "c": [64, 64]}


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    path = write(tmp_path, "env_kwargs: &shared {a: 1}\nalgo_kwargs:\n  <<: *shared\n  b: 2\n")
    assert read_yaml(path).values == {"env_kwargs": {"a": 1}, "algo_kwargs": {"a": 1, "b": 2}}


def test_an_empty_file_holds_no_values(tmp_path: Path) -> None:
    assert read_yaml(write(tmp_path, "# nothing yet\n")).values == {}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", b"seed: \x00\n", b"seed: \x07\n"], ids=["utf", "nul", "bell"])
def test_a_binary_file_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["missing.yaml", ".", "missing/config.yaml", "nul\0.yaml", "x" * 300])
def test_a_file_that_cannot_be_opened_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}: cannot be read (")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("seed: -1\n", 3, "seed=-1: "),
        ("sed: 1\n", 3, "sed: unknown key; did you mean 'seed'?"),
        ("algo_kwargs:\n  gamma: 5\n", 4, "algo_kwargs.gamma=5: "),
        ("algo_kwargs:\n  num_steps: 8\n  gama: 0.9\n", 5, "algo_kwargs.gama: unknown key; did you mean 'gamma'?"),
        ("algo_kwargs:\n  hidden_sizes:\n    - 64\n    - 0\n", 6, "algo_kwargs.hidden_sizes.1=0: "),
        ("algo_kwargs:\n  gamma: 0.9\n  learning_rate:\n    start: -1\n", 5, "algo_kwargs.learning_rate="),
        ("algo_kwargs:\n  num_steps: 8\n  minibatch_size: 9\n", 5, "algo_kwargs.minibatch_size=9: exceeds"),
        ("algo_kwargs: 5\n", 3, "algo_kwargs=5: give a map"),
        ("env_kwargs:\n  when: 2024-01-01\n", 4, "env_kwargs.when=datetime.date(2024, 1, 1): contains a date"),
        ("tags:\n- one\n- 2\n", 5, "tags.1=2: "),
    ],
)
def test_a_validation_error_names_the_line_of_its_key(text: str, line: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, BASE + text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:{line}: {message}")


def test_every_problem_has_its_own_line(tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}seed: -1\nnum_envs: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    first, second = str(caught.value).split("; ")
    assert first.startswith(f"{path}:3: seed=-1")
    assert second.startswith(f"{path}:4: num_envs=0")


def test_an_unknown_algorithm_names_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "env_id: CartPole-v1\nalgo: pppo\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"{path}:2: algo='pppo': unknown algorithm; did you mean 'ppo'?"


@pytest.mark.parametrize("assignment", ["seed=-1", "algo_kwargs.gamma=5", "tags=[1]"])
def test_a_bad_flag_is_not_blamed_on_the_file_it_overrides(assignment: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}seed: 3\ntags: [one]\nalgo_kwargs:\n  gamma: 0.9\n")
    resolve_config([read_yaml(path)])
    with pytest.raises(ConfigError) as caught:
        _resolve_with_params([read_yaml(path), read_assignments([assignment])])
    assert str(path) not in str(caught.value)
    assert str(caught.value).startswith(assignment.partition("=")[0])


def test_a_flag_that_overrides_a_bad_value_puts_it_right(tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}seed: -1\nalgo_kwargs: {{gamma: 5}}\n")
    config = _resolve_with_params([read_yaml(path), read_assignments(["seed=4", "algo_kwargs.gamma=0.5"])])
    assert (config.seed, config.algo_kwargs) == (4, {"gamma": 0.5})


def test_a_section_that_is_no_map_is_blamed_on_the_file_that_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, f"{BASE}algo_kwargs: 5\n")
    with pytest.raises(ConfigError) as caught:
        resolve_config([read_yaml(path), read_assignments(["algo_kwargs.gamma=0.5"])])
    assert str(caught.value) == f"{path}:3: algo_kwargs=5: give a map of names to values"


def _resolve_with_params(layers: list[Layer]) -> TrainConfig:
    config = resolve_config(layers).config
    get_algorithm_spec(config.algo).resolve_params_fn(config)
    return config


def test_assignments_are_read_as_yaml_into_their_sections() -> None:
    layer = read_assignments(
        [
            "seed=3",
            "tags=[a, b]",
            "device=cpu",
            "algo_kwargs.learning_rate=1e-3",
            "algo_kwargs.clip_coef.start=0.1",
            "algo_kwargs.clip_coef.schedule=linear",
            "env_kwargs.formula=a=b",
            "env_kwargs.nothing=",
            " seed = 4",
        ]
    )
    assert layer.source == "flag"
    assert layer.values == {
        "seed": 4,
        "tags": ["a", "b"],
        "device": "cpu",
        "algo_kwargs": {"learning_rate": 1e-3, "clip_coef": {"start": 0.1, "schedule": "linear"}},
        "env_kwargs": {"formula": "a=b", "nothing": None},
    }


@pytest.mark.parametrize(
    "assignments",
    [
        ["seed"],
        [""],
        ["=3"],
        [".seed=3"],
        ["algo_kwargs.=3"],
        ["algo_kwargs..gamma=3"],
        ["tags=[a"],
        ["env_kwargs={a: 1, a: 2}"],
        ["env_kwargs=&x [*x]"],
        ["seed=3", "seed.more=4"],
    ],
    ids=str,
)
def test_a_malformed_assignment_is_refused_by_its_text(assignments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_assignments(assignments)
    assert str(caught.value).startswith(f"--set {assignments[-1]}: ")


def test_later_layers_win_key_by_key_and_every_value_knows_its_source() -> None:
    preset = Layer(
        "preset",
        {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "algo_kwargs": {"gamma": 0.9, "num_steps": 8}},
    )
    file = Layer("file", {"seed": 2, "tags": ["a", "b"], "algo_kwargs": {"gamma": 0.8}})
    flag = Layer("flag", {"tags": ["c"], "env_kwargs": {"x": 1}})
    resolved = resolve_config([preset, file, flag])
    assert resolved.config.seed == 2
    assert resolved.config.tags == ("c",)
    assert resolved.config.algo_kwargs == {"gamma": 0.8, "num_steps": 8}
    assert resolved.sources == {
        ("algo",): "preset",
        ("env_id",): "preset",
        ("seed",): "file",
        ("tags",): "flag",
        ("algo_kwargs", "gamma"): "file",
        ("algo_kwargs", "num_steps"): "preset",
        ("env_kwargs", "x"): "flag",
    }


def test_merging_leaves_the_layers_as_they_were() -> None:
    file = Layer("file", {"algo": "ppo", "env_id": "CartPole-v1", "algo_kwargs": {"gamma": 0.9}})
    resolve_config([file, Layer("flag", {"algo_kwargs": {"gamma": 0.5}})])
    assert file.values["algo_kwargs"] == {"gamma": 0.9}


def test_the_preset_of_an_env_is_found_by_its_id() -> None:
    path = find_preset("ppo", "CartPole-v1")
    assert path is not None
    assert read_yaml(path).values["env_id"] == "CartPole-v1"


@pytest.mark.parametrize(("algo", "env_id"), [("ppo", "CartPole-v0"), ("none", "CartPole-v1"), ("ppo", "")])
def test_there_is_no_preset_for_what_is_not_shipped(algo: str, env_id: str) -> None:
    assert find_preset(algo, env_id) is None


def _presets(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.yaml"))


@pytest.mark.parametrize("name", _presets(PRESETS_DIR))
def test_every_shipped_preset_is_valid_and_found(name: str) -> None:
    path = PRESETS_DIR / name
    config = load_config(path)
    assert config.algo == path.parent.name
    assert find_preset(config.algo, config.env_id) == path


def test_the_shipped_presets_are_shown_under_configs() -> None:
    assert "ppo/cartpole.yaml" in _presets(PRESETS_DIR)
    shown = {name: (SHOWN_PRESETS.resolve() / name).read_bytes() for name in _presets(SHOWN_PRESETS.resolve())}
    assert shown == {name: (PRESETS_DIR / name).read_bytes() for name in _presets(PRESETS_DIR)}


@pytest.mark.parametrize("switch", ["on", "off", "auto"])
def test_a_bare_on_or_off_is_a_switch_and_no_truth_value(tmp_path: Path, switch: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"algo: ppo\nenv_id: CartPole-v1\ncompile: {switch}\n")
    assert resolve_config([read_yaml(path)]).config.compile == switch
    assert resolve_config([read_yaml(path), read_assignments([f"compile={switch}"])]).config.compile == switch
