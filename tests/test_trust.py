"""Who may run code: modules of the working directory only where the user typed or trusted them."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from conftest import TINY_PPO
from test_cli import TINY, assert_one_error_line

import rl_training
from rl_training.cli import main
from rl_training.experiment.checkpointing import load_checkpoint, save_checkpoint

SOURCE = Path(rl_training.__file__).parents[1]
SCRIPT = [sys.executable, "-c", "import sys; sys.path.pop(0); from rl_training.cli import entry_point; entry_point()"]
MODULE = [sys.executable, "-m", "rl_training"]
ENV_MODULE = """
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

import {helper}

Path({marker!r}).touch()
gymnasium.register("Local-v0", CartPoleEnv, max_episode_steps=20)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    place = tmp_path / "workplace"
    place.mkdir()
    return place


@pytest.fixture
def start(workplace: Path) -> Run:
    """Start a command as a program in the working directory."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def call(*arguments: str, command: list[str] = SCRIPT, **changes: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *arguments], cwd=workplace, env={**environment, **changes}, capture_output=True, text=True
        )

    return call


@pytest.fixture
def run(
    workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run a command in this process, as if it had just started in the working directory."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def forget() -> None:
        for name in ("local_env", "local_helper", "other_env"):
            sys.modules.pop(name, None)
            importlib.invalidate_caches()
        for name in ("Local-v0", "Other-v0"):
            gymnasium.registry.pop(name, None)

    def call(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", list(sys.path))
            for name, value in changes.items():
                patch.setenv(name, value)
            code = main(arguments)
            forget()
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    yield call
    forget()


@pytest.fixture
def marker(workplace: Path) -> Path:
    """Exists when the module of the environment in the working directory has run."""
    (workplace / "local_helper.py").touch()
    marker = workplace.parent / "imported"
    (workplace / "local_env.py").write_text(ENV_MODULE.format(marker=str(marker), helper="local_helper"))
    return marker


def write_config(workplace: Path, **changes: Any) -> Path:
    path = workplace / "config.yaml"
    path.write_text(yaml.safe_dump({**TINY, "env_id": "local_env:Local-v0", "algo_kwargs": TINY_PPO, **changes}))
    return path


def plant_modules(workplace: Path, names: set[str]) -> Path:
    """Modules of these names that say so when they are imported."""
    marker = workplace.parent / "hijacked"
    for name in names:
        code = f"with open({str(marker)!r}, 'a') as file: file.write(__name__ + ' ')\nraise ImportError('hijacked')\n"
        (workplace / f"{name}.py").write_text(code)
    return marker


def everything() -> set[str]:
    """The names of all modules that a command may import."""
    ours = {"yaml", "numpy", "torch", "typer", "rich", "gymnasium", "pydantic", "psutil", "matplotlib", "tensorboard"}
    return {name for name in sys.stdlib_module_names if not name.startswith("_")} | ours


def imported_by_python_itself() -> set[str]:
    """The modules that `python -m` imports before it imports a package."""
    code = "import runpy, sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("command", [SCRIPT, MODULE], ids=["script", "module"])
def test_no_command_imports_a_file_of_the_working_directory_in_place_of_a_module(
    command: list[str], workplace: Path, start: Run
) -> None:
    hijacked = plant_modules(workplace, everything() - imported_by_python_itself())
    answer = start("list", ".", command=command)
    assert not hijacked.exists(), hijacked.read_text()
    assert (answer.returncode, answer.stdout) == (0, "no runs below .\n"), answer.stderr


@pytest.mark.slow
def test_no_process_of_a_group_imports_a_file_of_the_working_directory(workplace: Path, start: Run) -> None:
    config = write_config(
        workplace, env_id="CartPole-v1", vectorization="async", num_envs=2, envs_per_worker=1, compile="on"
    )
    hijacked = plant_modules(workplace, everything())
    answer = start("train", "--config", str(config), "--seeds", "1-2", "--output-dir", "out", CXX="false")
    assert not hijacked.exists(), hijacked.read_text()
    assert answer.returncode == 0, answer.stderr
    logs = "".join(path.read_text() for path in workplace.glob("out/*/logs/*.log"))
    assert "InvalidCxxCompiler" in logs  # the process that compiles has come as far as it can


@pytest.mark.slow
def test_no_plugin_of_the_working_directory_is_loaded(workplace: Path, start: Run) -> None:
    hijacked = plant_modules(workplace, {"local_plugin"})
    package = workplace / "local_plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: local_plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[rl_training.algorithms]\nlocal = local_plugin:SPEC\n[gymnasium.envs]\n__root__ = local_plugin:f\n"
    )
    answer = start("train", "--algo", "ppo", "--env", "CartPole-v1", "--dry-run", command=MODULE)
    assert answer.returncode == 0, answer.stderr
    assert not hijacked.exists()


def test_what_the_user_types_is_imported_and_trusted_from_then_on(
    workplace: Path, marker: Path, run: Run, tmp_path: Path
) -> None:
    typed = run("check-env", "local_env:Local-v0", "--steps", "50")
    assert "exact resume:" in typed.stdout, typed.stderr
    assert marker.exists()
    memory = tmp_path / "state" / "rl_training" / "trusted_modules.json"
    assert json.loads(memory.read_text()) == [str(workplace / "local_env.py")]
    assert (memory.stat().st_mode & 0o777, memory.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    answer = run("train", "--config", str(write_config(workplace)), "--total-timesteps", "64")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(memory.read_text()) == [str(workplace / "local_env.py")]


@pytest.mark.parametrize(
    "changes",
    [{"env_id": "local_env:CartPoleEnv"}, {"env_id": "CartPole-v1", "wrappers": ["local_env:Wrapper"]}],
    ids=["factory", "wrapper"],
)
def test_the_module_of_a_factory_or_wrapper_is_not_imported_before_it_is_trusted(
    changes: dict[str, Any], workplace: Path, marker: Path, run: Run
) -> None:
    answer = run("train", "--config", str(write_config(workplace, **changes)))
    assert answer.returncode == 2
    assert "add --trust to run it" in answer.stderr
    assert not marker.exists()


@pytest.mark.parametrize("how", [["--env", "local_env:Local-v0"], ["--set", "env_id=local_env:Local-v0"]])
def test_a_flag_counts_as_typed(how: list[str], workplace: Path, marker: Path, run: Run) -> None:
    config = write_config(workplace, env_id="CartPole-v1")
    answer = run("train", "--config", str(config), *how, "--total-timesteps", "64")
    assert answer.returncode == 0, answer.stderr
    assert marker.exists()


def test_an_encoder_counts_as_typed_by_a_flag_alone(workplace: Path, run: Run) -> None:
    network = workplace / "other_env.py"
    network.write_text("from sample_networks import double_outputs as net\n")
    config = str(write_config(workplace, env_id="CartPole-v1"))
    answer = run("train", "--config", config, "--set", "encoder=other_env:net")
    assert_one_error_line(answer.stderr, "other_env:net", "must give outputs of type float32")  # it was imported
    network.rename(workplace / "local_env.py")
    named = {**TINY_PPO, "encoder": "local_env:net"}
    answer = run("train", "--config", str(write_config(workplace, env_id="CartPole-v1", algo_kwargs=named)))
    assert_one_error_line(answer.stderr, f"{config} names the encoder local_env:net", "add --trust")


def untrusted(answer: "subprocess.CompletedProcess[str]", source: str, workplace: Path) -> None:
    assert answer.returncode == 2, answer.stderr
    names = f"{source} names the environment local_env:Local-v0"
    assert_one_error_line(answer.stderr, names, f"({workplace / 'local_env.py'})", "add --trust")


def test_a_module_that_only_a_config_names_is_not_imported_before_it_is_trusted(
    workplace: Path, marker: Path, run: Run
) -> None:
    config = str(write_config(workplace))
    for more in ([], ["--seeds", "1-2"]):
        untrusted(run("train", "--config", config, *more), config, workplace)
    assert not marker.exists()
    assert not (workplace / "runs").exists()
    answer = run("train", "--config", config, "--seeds", "1-2", "--set", "vectorization=async", "--trust")
    assert answer.returncode == 0, answer.stderr
    assert marker.exists()
    answer = run("train", "--config", config)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_a_module_that_only_a_run_or_a_group_names_is_not_imported_before_it_is_trusted(
    workplace: Path, marker: Path, run: Run, tmp_path: Path
) -> None:
    config = str(write_config(workplace))
    for more in ([], ["--seeds", "1-2", "--jobs", "1"]):
        answer = run("train", "--config", config, "--trust", "--output-dir", "got", *more)
        assert answer.returncode == 0, answer.stderr
    group_dir, run_dir = sorted(f"got/{path.name}" for path in (workplace / "got").iterdir())[::-1]
    marker.unlink()
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "other")}
    commands = [
        ["eval", "--checkpoint", run_dir],
        ["record", run_dir],
        ["resume", run_dir, "--total-timesteps", "256"],
        ["resume", group_dir],
    ]
    for command in commands:
        source = group_dir if group_dir in command else run_dir
        untrusted(run(*command, **elsewhere), source, workplace)
    answer = run("report", run_dir, **elsewhere)
    assert answer.returncode == 0
    assert "no film: " in answer.stderr
    assert "add --trust" in answer.stderr
    assert not marker.exists()
    assert run("eval", "--checkpoint", run_dir, "--trust", **elsewhere).returncode == 0
    assert run("resume", group_dir, **elsewhere).returncode == 0  # trusted before


def test_a_module_that_python_finds_elsewhere_needs_no_trust(
    workplace: Path, marker: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(workplace)  # as `PYTHONPATH` would
    answer = run("train", "--config", str(write_config(workplace)))
    assert answer.returncode == 0, answer.stderr
    assert marker.exists()


def test_another_module_of_the_same_directory_is_not_trusted_along(workplace: Path, marker: Path, run: Run) -> None:
    (workplace / "other_env.py").write_text((workplace / "local_env.py").read_text().replace("Local-v0", "Other-v0"))
    assert run("check-env", "local_env:Local-v0", "--steps", "50").returncode in (0, 1)
    answer = run("train", "--config", str(write_config(workplace, env_id="other_env:Other-v0")))
    assert answer.returncode == 2
    assert "other_env.py" in answer.stderr


def test_a_seed_whose_checkpoint_names_another_environment_is_not_resumed(
    workplace: Path, marker: Path, run: Run
) -> None:
    assert run("train", "--config", str(write_config(workplace)), "--seeds", "1-2", "--trust").returncode == 0
    other = marker.with_name("other imported")
    (workplace / "other_env.py").write_text(ENV_MODULE.format(marker=str(other), helper="local_helper"))
    (group_dir,) = (workplace / "runs").iterdir()
    for path in group_dir.glob("*/checkpoints/step_*.pt"):
        state = load_checkpoint(path)
        save_checkpoint(path, replace(state, config={**state.config, "env_id": "other_env:Other-v0"}))
    for path in group_dir.glob("*/metadata.json"):
        path.write_text(path.read_text().replace("completed", "interrupted"))
    answer = run("resume", str(group_dir))
    assert answer.returncode == 1
    assert "other_env:Other-v0 then, local_env:Local-v0 now" in answer.stdout.replace("\n", " "), answer.stderr
    assert not other.exists()


@pytest.mark.parametrize("memory", ["torn", "loose", "none"])
def test_without_a_memory_that_is_the_users_own_nothing_is_trusted(
    memory: str, workplace: Path, marker: Path, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "rl_training" / "trusted_modules.json"
    path.parent.mkdir(parents=True)
    path.write_text("[" if memory == "torn" else json.dumps([str(workplace / "local_env.py")]))
    path.chmod(0o666 if memory == "loose" else 0o600)
    changes = {"XDG_STATE_HOME": str(path)} if memory == "none" else {}  # a file where a folder should be
    config = str(write_config(workplace))
    untrusted(run("train", "--config", config, **changes), config, workplace)
    assert run("train", "--config", config, "--trust", **changes).returncode == 0
