"""Compiled updates: the same maths as eager ones, resumed exactly, used where they pay, and never needed."""

import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import gymnasium
import psutil
import pytest
import torch
from chaos import result_of as outcome
from conftest import MakeConfig, wait_until
from gymnasium.envs.classic_control import PendulumEnv
from test_exact_resume import SignalAt, train

import rl_training
from rl_training.algorithms import step_packages
from rl_training.algorithms.base import Batch, GradientStep, LossGradients, Networks, Settings
from rl_training.algorithms.optimizer import Adam, Optimizer, RMSprop, WholeStep
from rl_training.algorithms.step_packages import KEPT_PACKAGES, forget_old, package_key
from rl_training.compiling import cache_dir, compiling_pays, remember_compiling
from rl_training.errors import NonFiniteUpdateError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.policies.params import FlatLayout, HostedParams
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.training import with_resolved_compile
from rl_training.runtime.workflows import replay_failed_step, resume_training

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
PPO_ON_PENDULUM = {"minibatch_size": 24}  # the last minibatch of 32 is a smaller one
RUNS = [
    pytest.param("ppo", "Pendulum-v1", PPO_ON_PENDULUM, marks=pytest.mark.slow),
    ("dqn", "CartPole-v1", {"double": True, "dueling": True, "prioritized": True, "optimizer": "rmsprop"}),
    pytest.param(
        "sac",
        "Pendulum-v1",
        {"policy_delay": 2, "optimizer": "adamw", "weight_decay": 0.01},
        marks=pytest.mark.slow,
    ),
]


@NEEDS_COMPILER
@pytest.mark.usefixtures("shared_packages")
@pytest.mark.parametrize(("algo", "env_id", "params"), RUNS)
def test_compiled_updates_are_the_eager_ones_and_resume_exactly(
    make_config: MakeConfig, compared_steps: list[str], algo: str, env_id: str, params: dict[str, Any]
) -> None:
    config = make_config(algo=algo, env_id=env_id, num_envs=2, compile="on", algo_kwargs=params)
    straight = train(config)
    assert len(set(compared_steps)) == get_algorithm_spec(algo).resolve_params_fn(config).graphs
    run_dir = train(config, SignalAt(70, "collect"))
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(straight)


class HugeRewardsEnv(PendulumEnv):
    """Pendulum with rewards whose squares are not finite."""

    def step(self, u: Any) -> Any:
        obs, reward, *rest = super().step(u)  # type: ignore[no-untyped-call]  # of Gymnasium
        return obs, 1e30 * float(reward), *rest


gymnasium.register("tests/HugeRewards-v0", f"{__name__}:HugeRewardsEnv", max_episode_steps=200)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.usefixtures("shared_packages")
def test_a_compiled_step_that_is_not_finite_changes_nothing(make_config: MakeConfig) -> None:
    config = make_config(
        env_id="tests/HugeRewards-v0", num_envs=2, compile="on", eval_episodes=0, algo_kwargs=PPO_ON_PENDULUM
    )
    with pytest.raises(NonFiniteUpdateError, match="is rejected"):
        train(config)
    (run_dir,) = config.output_dir.iterdir()
    refused = load_checkpoint(run_dir / "failure" / "update.pt").algorithm_state
    assert not any(weight.isnan().any() for weight in refused["policy"]["params"].values())
    assert replay_failed_step(run_dir).message is not None


def test_without_a_compiler_a_run_says_so_and_goes_on(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler-here"))
    with pytest.warns(UserWarning, match=r"compiling failed \(.*compiler.*\): updates run eagerly"):
        compiled = train(make_config(compile="on"))
    eager = train(make_config(compile="off"))
    assert outcome(compiled) == outcome(eager)


@pytest.mark.slow
@NEEDS_COMPILER
def test_a_training_process_holds_no_compiler_and_a_second_one_needs_none(
    make_config: MakeConfig, compared_steps: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = make_config(compile="on")
    script = (
        "import sys, warnings; warnings.simplefilter('error'); from rl_training.experiment.config import TrainConfig; "
        f"from rl_training.runtime.ppo_trainer import train_ppo; train_ppo(TrainConfig(**{config.model_dump()})); "
        "assert not {'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", "from pathlib import *; " + script], check=True)
    (first,) = config.output_dir.iterdir()
    (package,) = (tmp_path / "cache" / "rl_training" / "steps").glob("*.pt2")
    assert {path.suffix for path in package.parent.iterdir()} == {".pt2", ".lock"}
    assert {path.stat().st_mode & 0o777 for path in package.parent.iterdir()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (package.parent, package.parents[1])} == {0o700}
    with monkeypatch.context() as without_compiler:
        without_compiler.setenv("CXX", str(tmp_path / "no-compiler-here"))
        stopped = train(config, SignalAt(70, "collect"))
        resume_training(stopped)
        assert outcome(stopped) == outcome(first)
    assert compared_steps
    intact = Path(shutil.copy(package, tmp_path))
    package.write_bytes(b"torn")
    monkeypatch.setattr(step_packages, "_compile_elsewhere", lambda step, inputs, path: shutil.copy(intact, path))
    assert outcome(train(config)) == outcome(first)  # compiled again
    assert package.stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_a_signal_ends_the_wait_for_a_compiler_and_the_update_has_not_begun(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, algo: str
) -> None:
    """The stand-in for a C++ compiler sends the signal, never ends, and has a child as a real one has."""
    env_id = "Pendulum-v1" if algo == "sac" else "CartPole-v1"
    params = {"prioritized": True} if algo == "dqn" else {}
    config = make_config(algo=algo, env_id=env_id, num_envs=2, compile="on", checkpoint_interval=0, algo_kwargs=params)
    compiler, pids = tmp_path / "compiler", tmp_path / "pids"
    compiler.write_text(f"#!/bin/sh\nsleep 600 & echo $$ $! >> {pids}; kill -TERM {os.getpid()}; wait\n")
    compiler.chmod(0o755)
    with monkeypatch.context() as hanging:
        hanging.setenv("CXX", str(compiler))
        hanging.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "empty"))
        run_dir = train(config)
    assert read_metadata(context_of(run_dir))["status"] == "interrupted"
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] > 0
    wait_until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split()))
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler-here"))  # so that both take eager steps, quickly
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "still-empty"))
    with pytest.warns(UserWarning, match="compiling failed"):
        resume_training(run_dir)
    with pytest.warns(UserWarning, match="compiling failed"):
        straight = train(config)
    assert outcome(run_dir) == outcome(straight)


class Bystander:
    """A loss that reads a tensor which it is not given."""

    def __init__(self) -> None:
        self.hidden = torch.ones(16)

    def compute(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        gradient = networks["net"]["weights"] * batch["actions"] + self.hidden
        return LossGradients({"weights": gradient}, torch.zeros(1))

    def compute_other(self, networks: Networks, batch: Batch, settings: Settings) -> LossGradients:
        gradient = self.compute(networks, batch, settings).gradients["weights"]
        return LossGradients({"weights": -gradient}, torch.zeros(1))


@pytest.mark.slow
@NEEDS_COMPILER
def test_a_loss_that_would_not_see_its_tensors_change_is_not_compiled() -> None:
    params = HostedParams({"weights": (16,)}, torch.device("cpu"))
    optimizer = Optimizer({"net": params}, Bystander().compute, Adam(), compile_as="this test")
    with pytest.warns(UserWarning, match="depends on tensors besides its networks, batch and settings"):
        optimizer.apply(GradientStep("step", {"actions": torch.ones(16)}, {"learning_rate": 0.1}))
    assert params.flat.tolist() == pytest.approx([-0.1] * 16)


def test_a_package_is_only_for_what_it_was_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = FlatLayout({"weights": (16,)})
    step = WholeStep(Bystander().compute, {"net": layout}, ("actions",), ("learning_rate",), (), Adam(), max_norm=1.0)
    inputs = [torch.ones(16)]
    keys = {
        package_key(step, inputs, "a run"),
        package_key(step, inputs, "another run"),
        package_key(step, [torch.ones(32)[::2]], "a run"),
        package_key(step, [torch.ones(16).double()], "a run"),
        package_key(replace(step, max_norm=0.5), inputs, "a run"),
        package_key(replace(step, rule=Adam(decoupled=True)), inputs, "a run"),
        package_key(replace(step, rule=RMSprop()), inputs, "a run"),
        package_key(replace(step, rule=Adam(eps=1e-5)), inputs, "a run"),
        package_key(replace(step, rule=Adam(weight_decay=1e-5)), inputs, "a run"),
        package_key(replace(step, compute=Bystander().compute_other), inputs, "a run"),
        package_key(replace(step, layouts={"net": FlatLayout({"weights": (4, 4)})}), inputs, "a run"),
    }
    monkeypatch.setattr(step_packages, "cpu_features", lambda: "fewer")
    keys.add(package_key(step, inputs, "a run"))
    assert len(keys) == 12
    assert package_key(replace(step), [torch.zeros(16)], "a run") in keys


def test_a_package_is_only_for_the_source_it_was_compiled_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def compute(networks, batch, settings):\n    raise NotImplementedError\n"
    module_path = tmp_path / "loss_from_elsewhere.py"
    module_path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    compute = importlib.import_module("loss_from_elsewhere").compute
    step = WholeStep(compute, {"net": FlatLayout({"weights": (16,)})}, ("actions",), (), (), Adam(), max_norm=1.0)
    first = package_key(step, [torch.ones(16)], "a run")
    module_path.write_text(source.replace("NotImplementedError", "ValueError"))
    assert package_key(step, [torch.ones(16)], "a run") != first
    module_path.write_text(source)
    assert package_key(step, [torch.ones(16)], "a run") == first


@pytest.mark.slow
def test_a_package_is_only_for_the_algorithms_it_was_compiled_from(tmp_path: Path) -> None:
    """A copy of the package with one line changed must not load what the original has compiled."""
    code = (
        "import torch; from rl_training.algorithms.step_packages import package_key; "
        "from rl_training.algorithms.optimizer import Adam, WholeStep; "
        "from rl_training.policies.params import FlatLayout; "
        "from rl_training.algorithms.dqn import huber_loss as loss; "
        "step = WholeStep(loss, {'net': FlatLayout({'weights': (16,)})}, ('actions',), (), (), Adam(), max_norm=1.0); "
        "print(package_key(step, [torch.ones(16)], 'a run'))"
    )
    shutil.copytree(Path(rl_training.__file__).parent, tmp_path / "rl_training")
    keys = []
    for change in ("", "# changed\n"):
        with (tmp_path / "rl_training" / "algorithms" / "dqn.py").open("a") as file:
            file.write(change)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        keys.append(done.stdout)
    assert keys[0] != keys[1]


def test_the_packages_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(KEPT_PACKAGES + 2):
        package = tmp_path / f"{age:03d}.pt2"
        package.touch()
        os.utime(package, (1e9 - age, 1e9 - age))
    (tmp_path / f"{KEPT_PACKAGES + 1:03d}.lock").touch()
    forget_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{age:03d}.pt2" for age in range(KEPT_PACKAGES)]


def test_what_killed_compilations_left_is_removed_unless_somebody_works_on_it(tmp_path: Path) -> None:
    for name in ("a.pt2", "a.lock", "b.lock", "c.4321", "c.4321.pt2", "c.lock", "e.lock"):
        (tmp_path / name).touch()
    for name in ("a.build", "d.build", "e.build"):
        (tmp_path / name / "inductor").mkdir(parents=True)
    with (tmp_path / "e.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        forget_old(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lock", "a.pt2", "e.build", "e.lock"]
    forget_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lock", "a.pt2"]


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)


def let_others_write(path: Path) -> None:
    path.chmod(0o666 if path.is_file() else 0o777)


def link_elsewhere(path: Path) -> None:
    path.replace(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


@pytest.mark.parametrize("spoil", [give_away, let_others_write, link_elsewhere])
def test_a_package_that_others_may_have_written_is_never_loaded(
    spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []

    def load(path: Path) -> object:
        loaded.append(path)
        return object()

    monkeypatch.setattr(step_packages, "_load", load)
    package = tmp_path / "key.pt2"
    package.touch(mode=0o600)
    assert step_packages._load_kept(package) is not None
    assert len(loaded) == 1
    spoil(package)
    with pytest.warns(UserWarning, match=r"key\.pt2 is not loaded, because .*: compiling again"):
        assert step_packages._load_kept(package) is None
    assert len(loaded) == 1
    assert not os.path.lexists(package)


@pytest.mark.parametrize("spoil", [give_away, let_others_write])
@pytest.mark.parametrize("folder", ["rl_training", "rl_training/steps"])
def test_a_cache_that_others_can_write_is_not_used(
    spoil: Callable[[Path], None],
    folder: str,
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler-here"))
    steps = tmp_path / "cache" / "rl_training" / "steps"
    steps.mkdir(parents=True, mode=0o700)
    steps.parent.chmod(0o700)
    spoil(tmp_path / "cache" / folder)
    with pytest.warns(UserWarning, match="compil") as caught:
        train(make_config(compile="on", total_timesteps=64, eval_episodes=0))
    texts = [str(each.message) for each in caught]
    assert any(text.startswith("compiled updates are not kept for later runs (") for text in texts)
    assert any(text.startswith("compiling failed (") for text in texts)
    assert list(steps.iterdir()) == []


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> NoReturn:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    remember_compiling(5.0)
    assert not compiling_pays(10_000, LARGE, graphs=1)
    with pytest.raises(FileNotFoundError, match="set HOME or XDG_CACHE_HOME"):
        cache_dir()


SMALL, LARGE = 64 * 64, 256 * 256


def test_auto_weighs_the_planned_steps_against_the_time_seen_here(tmp_path: Path) -> None:
    assert not compiling_pays(10_000, LARGE, graphs=1)  # unknown: taken to cost 20 s
    assert compiling_pays(20_000, LARGE, graphs=1)
    assert not compiling_pays(20_000, LARGE, graphs=2)
    assert not compiling_pays(70_000, SMALL, graphs=1)
    assert compiling_pays(80_000, SMALL, graphs=1)
    remember_compiling(5.0)
    assert json.loads((tmp_path / "cache" / "rl_training" / "compiling.json").read_text()) == {"seconds": 5.0}
    assert compiling_pays(20_000, SMALL, graphs=1)
    assert not compiling_pays(19_000, SMALL, graphs=1)
    (tmp_path / "cache" / "rl_training" / "compiling.json").write_text("torn")
    assert not compiling_pays(70_000, SMALL, graphs=1)


def test_what_cannot_be_remembered_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    remember_compiling(5.0)
    assert not compiling_pays(10_000, LARGE, graphs=1)


@pytest.mark.parametrize(
    ("algo", "params", "planned"),
    [
        ("ppo", {"num_steps": 128, "minibatch_size": 100, "update_epochs": 4}, 977 * 4 * 11),
        ("dqn", {"learning_starts": 1_000, "train_frequency": 4, "gradient_steps": 2}, 999_000 // 4 * 2),
        ("sac", {"learning_starts": 0, "train_frequency": 1, "batch_size": 64, "hidden_sizes": [512]}, 1_000_000),
    ],
)
def test_auto_is_decided_once_by_the_planned_gradient_steps(
    make_config: MakeConfig, algo: str, params: dict[str, Any], planned: int
) -> None:
    config = make_config(algo=algo, num_envs=8, total_timesteps=1_000_000, algo_kwargs=params)
    resolved = get_algorithm_spec(algo).resolve_params_fn(config)
    assert resolved.planned_gradient_steps(1_000_000, 8) == planned
    assert with_resolved_compile(config, resolved).compile == ("off" if algo == "ppo" else "on")
    fixed = config.model_copy(update={"compile": "off"})
    assert with_resolved_compile(fixed, resolved) is fixed


@pytest.mark.parametrize(("algo", "decided"), [("dqn", "on"), ("sac", "off")])
def test_auto_waits_for_every_graph_of_an_algorithm(make_config: MakeConfig, algo: str, decided: str) -> None:
    params = {"learning_starts": 0, "train_frequency": 1, "gradient_steps": 1, "batch_size": 64, "hidden_sizes": [64]}
    config = make_config(algo=algo, total_timesteps=100_000, algo_kwargs=params)
    remember_compiling(15.0)  # the run gets back 26 s, and SAC waits twice
    assert with_resolved_compile(config, get_algorithm_spec(algo).resolve_params_fn(config)).compile == decided


def test_a_short_run_is_not_compiled_and_its_checkpoint_says_so(make_config: MakeConfig) -> None:
    run_dir = train(make_config())
    assert load_checkpoint(find_checkpoint(run_dir)).config["compile"] == "off"
