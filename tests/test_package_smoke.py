import os
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import rl_training

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # so that nothing needs to be installed


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`."""
    code = f"import sys; {statement}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return set(answer.stdout.split())


def test_importing_the_package_or_its_command_line_does_not_import_torch_or_trackers() -> None:
    for statement in ("import rl_training", "import rl_training.cli", "from rl_training import TrainConfig"):
        assert not {"torch", "tensorboard", "wandb", "mlflow"} & loaded_by(statement)


@pytest.mark.slow
def test_extras_are_imported_when_they_are_used() -> None:
    extras = {"tensorboard", "wandb", "mlflow", "matplotlib", "PIL", "imageio_ffmpeg", "pygame"}
    for module in ("rl_training.recording.episodes", "rl_training.results.report.film"):
        assert not extras & loaded_by(f"import {module}")


def test_the_console_script_is_the_command_line() -> None:
    scripts = entry_points(group="console_scripts", name="rl-training")
    if not scripts:
        pytest.skip("rl-training is not installed")
    (script,) = scripts
    assert script.value == "rl_training.cli:entry_point"


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "rl_training", "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert answer.stdout.strip() == rl_training.__version__


def test_the_wheel_holds_presets_and_type_marker(tmp_path: Path) -> None:
    """Built by the backend directly, so that nothing is downloaded."""
    code = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "rl_training/py.typed" in names
    assert {f"rl_training/results/report/report.{kind}" for kind in ("css", "js")} <= set(names)
    presets = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "configs").resolve().rglob("*.yaml")}
    assert presets
    assert presets <= set(names)
