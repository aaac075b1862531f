import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import MakeConfig

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.registry import get_algorithm_spec

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = pytest.mark.parametrize(
    ("algo", "script"), [("ppo", "ppo_cartpole_reference"), ("dqn", "dqn_cartpole_reference")]
)


def check_weights(make_config: MakeConfig, algo: str, script: str) -> None:
    """Train with the script and with the trainer, and compare all weights."""
    linear = {"learning_rate": {"schedule": "linear", "start": 1e-2}}  # shows at which step a rate is taken
    num_envs = 4 if algo == "ppo" else 1
    config = make_config(algo=algo, total_timesteps=320, num_envs=num_envs, device="cpu", algo_kwargs=linear)
    torch.manual_seed(123)  # neither of the two may depend on it
    learner = importlib.import_module(script).train(config)
    result = get_algorithm_spec(algo).train_fn(config)
    trained = load_checkpoint(result.checkpoint_path).algorithm_state["policy"]["params"]
    own = learner.state_dict()["policy"]["params"]
    assert own.keys() == trained.keys()
    assert all(torch.equal(own[name], trained[name]) for name in own)


def check_program(script: str, cwd: Path | None = None) -> None:
    """Run the script as a program, and count its lines."""
    path = EXAMPLES / f"{script}.py"
    assert len(path.read_text().splitlines()) < 120
    command = [sys.executable, str(path), "--total-timesteps", "300", "--eval-episodes", "1"]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=cwd)
    assert "evaluation:" in answer.stdout


@SCRIPTS
def test_a_script_ends_with_the_weights_of_the_trainer(make_config: MakeConfig, algo: str, script: str) -> None:
    check_weights(make_config, algo, script)


@SCRIPTS
def test_a_script_runs_and_fits_on_one_page(algo: str, script: str) -> None:
    check_program(script)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["own_network", "success_rate"])
def test_the_other_scripts_run_and_fit_on_one_page(script: str, tmp_path: Path) -> None:
    check_program(script, tmp_path)
