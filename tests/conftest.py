"""Fixtures that tests of every room share."""

import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig

if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run that `nohup` started ignores it

torch.set_num_threads(1)  # what runs use; two test processes on two cores would only get in each other's way

MakeConfig = Callable[..., TrainConfig]

TINY_PPO = {"num_steps": 16, "minibatch_size": 32, "update_epochs": 2, "hidden_sizes": [8]}
TINY_REPLAY = {
    "buffer_capacity": 200,
    "batch_size": 8,
    "learning_starts": 32,
    "train_frequency": 4,
    "hidden_sizes": [8],
}
TINY = {"ppo": TINY_PPO, "dqn": TINY_REPLAY, "sac": TINY_REPLAY}


def stored_rows(saved: CheckpointState) -> torch.Tensor:
    """The replay rows of a checkpoint, oldest first."""
    state = saved.buffer_state
    oldest = state["added"] - state["size"]
    rows: dict[int, torch.Tensor] = {}
    for block in state["blocks"]:
        rows |= {block["first"] + index: row for index, row in enumerate(block["content"]["rows"])}
    return torch.stack([rows[number] for number in range(oldest, state["added"])])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run remembers of this machine stays in the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """A run that takes a fraction of a second; keywords replace fields, `algo_kwargs` adds to them."""

    def make(**changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "algo": "ppo",
            "env_id": "Pendulum-v1" if changes.get("algo") == "sac" else "CartPole-v1",
            "seed": 7,
            "total_timesteps": 128,
            "output_dir": tmp_path / "runs",
            "num_envs": 4,
            "vectorization": "sync",
            "action_mask": "off",
            "eval_episodes": 2,
            "eval_interval": 64,
            "log_interval": 64,
            "checkpoint_interval": 64,
            **changes,
        }
        values["algo_kwargs"] = {**TINY.get(values["algo"], {}), **changes.get("algo_kwargs", {})}
        return TrainConfig(**values)

    return make


@pytest.fixture(params=list(TINY))
def make_each(make_config: MakeConfig, request: pytest.FixtureRequest) -> MakeConfig:
    """`make_config` for each algorithm in turn. It updates at steps 64 and 128."""
    algo_kwargs = {} if request.param == "ppo" else {"train_frequency": 64}
    return partial(make_config, algo=request.param, algo_kwargs=algo_kwargs)
