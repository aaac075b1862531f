"""Fixtures that tests of several layers share."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training import waits
from rl_training.algorithms.base import GradientStep
from rl_training.algorithms.optimizer import AppliedStep, Optimizer
from rl_training.envs import factory
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig

if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a test run that `nohup` started ignores it

torch.set_num_threads(1)  # what runs use; two test processes on two cores would only get in each other's way
# The C++ code around the kernels takes a third of the time to compile; the kernels are optimised as always.
os.environ["AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL"] = "O0"

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


def wait_until(condition: Callable[[], object], seconds: float = 150.0) -> None:
    """Wait for another process or thread; after these seconds it is too late, on a busy machine too."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def slow_except_first(values: Iterable[Any]) -> list[Any]:
    """Values of a parameter for tests that take long with each of them: all but the first are marked `slow`."""
    first, *others = values
    lists = [each if isinstance(each, tuple) else (each,) for each in others]
    return [first, *(pytest.param(*each, marks=pytest.mark.slow) for each in lists)]


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
    """Give each test a cache of its own, so that it does not depend on earlier runs on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce nothing that takes long: the output of a command must not depend on how busy the machine is."""
    monkeypatch.setattr(waits, "_PATIENCE_SECONDS", 3_600.0)
    monkeypatch.setattr(factory, "ANNOUNCED_SECONDS", 3_600.0)


@pytest.fixture
def shared_packages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of compiled updates that all tests with this fixture share: compiling takes 15 seconds of CPU time."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # the folder above is that of all test processes
        folder = folder.parent
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "shared_packages"))


@pytest.fixture
def compared_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compare every compiled gradient step with an eager one from the same state, and list the names of these steps.

    The weights at the end of two runs may differ more: one last bit can change what a replay buffer samples.
    """
    names: list[str] = []
    apply_compiled = Optimizer._apply_compiled

    def apply_both(optimizer: Optimizer, step: GradientStep, compile_as: str) -> AppliedStep:
        before = [tensor.clone() for tensor in optimizer._kept]
        with monkeypatch.context() as eager:
            eager.setattr(optimizer, "_compile_as", None)
            expected = optimizer.apply(step)
        expected_kept = [tensor.clone() for tensor in optimizer._kept]
        for tensor, old in zip(optimizer._kept, before, strict=True):
            tensor.copy_(old)
        applied = apply_compiled(optimizer, step, compile_as)
        assert applied.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)
        torch.testing.assert_close(applied.errors, expected.errors, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(optimizer._kept, expected_kept, rtol=1e-4, atol=1e-5)
        names.append(step.name)
        return applied

    monkeypatch.setattr(Optimizer, "_apply_compiled", apply_both)
    return names


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """Make configs of runs that take a fraction of a second; keywords replace fields, `algo_kwargs` adds to them."""

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
