import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import torch
from conftest import MakeConfig

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.ppo_trainer import train_ppo

EXAMPLES = Path(__file__).parents[1] / "examples"
PPO_SCRIPT = EXAMPLES / "ppo_cartpole_reference.py"


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_ppo_script_ends_with_the_weights_of_the_trainer(make_config: MakeConfig) -> None:
    config = make_config(total_timesteps=640, device="cpu")
    torch.manual_seed(123)  # neither of the two may depend on it
    learner = load_script(PPO_SCRIPT).train(config)
    trained = load_checkpoint(train_ppo(config).checkpoint_path).algorithm_state["policy"]["params"]
    own = learner.policy.state_dict()["params"]
    assert own.keys() == trained.keys()
    assert all(torch.equal(own[name], trained[name]) for name in own)


def test_the_ppo_script_runs_and_fits_on_one_page() -> None:
    assert len(PPO_SCRIPT.read_text().splitlines()) < 120
    answer = subprocess.run(
        [sys.executable, str(PPO_SCRIPT), "--total-timesteps", "512", "--eval-episodes", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "evaluation:" in answer.stdout
