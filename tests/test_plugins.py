"""Algorithms of other packages join through the entry-point group, without touching this package."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import result_of as outcome
from conftest import MakeConfig
from test_exact_resume import SignalAt, train

from rl_training.cli import main
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime import registry
from rl_training.runtime.workflows import evaluate_checkpoint, load_agent, prepare_resume

TESTS = Path(__file__).parent
PLUGINS = {"a2c": ("plugin_a2c:A2C", 120), "td3": ("plugin_td3:TD3", 180)}
ALGORITHMS = pytest.mark.parametrize("algo", list(PLUGINS))
REPLAY = {"buffer_capacity": 2_000, "batch_size": 64, "learning_starts": 200, "train_frequency": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {"num_steps": 4, "hidden_sizes": [32], "learning_rate": 1e-2, "gamma": 0.9},
    "td3": {**REPLAY, "gradient_steps": 4, "hidden_sizes": [32], "learning_rate": 3e-3, "gamma": 0.9, "tau": 0.05},
}
PROBES = {"a2c": ("MatchProbe", 4_000), "td3": ("ContinuousMatchProbe", 3_000)}


def install(site: Path, name: str, target: str, code: str | None = None) -> None:
    """What an installer leaves behind: a module, unless it is importable, and its metadata."""
    if code is not None:
        (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rl_training.algorithms]\n{name} = {target}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    site.mkdir()
    for name, (target, _) in PLUGINS.items():
        install(site, name, target)
    monkeypatch.syspath_prepend(str(site))
    registry._specs.cache_clear()
    yield
    registry._specs.cache_clear()


@ALGORITHMS
def test_an_algorithm_takes_few_lines_and_few_modules(algo: str) -> None:
    target, most_lines = PLUGINS[algo]
    source = (TESTS / f"{target.partition(':')[0]}.py").read_text()
    assert len(source.splitlines()) <= most_lines
    imports = [node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    assert len({name for name in imports if str(name).startswith("rl_training")}) <= 6


@pytest.mark.usefixtures("installed")
@ALGORITHMS
def test_a_plugin_solves_a_probe(make_config: MakeConfig, algo: str) -> None:
    probe, steps = PROBES[algo]
    config = make_config(
        algo=algo,
        env_id=f"rl_training/{probe}-v0",
        num_envs=8,
        total_timesteps=steps,
        eval_episodes=0,
        checkpoint_interval=0,
        algo_kwargs=SETTINGS[algo],
    )
    run_dir = train(config)
    policy = load_agent(run_dir).learner.policy
    actions = policy.predict(np.array([[-1.0], [1.0]], np.float32))
    if algo == "a2c":
        assert actions.tolist() == [0, 1]
        assert evaluate_checkpoint(run_dir, 20)["eval_return_mean"] == 1.0
    else:
        assert actions[:, 0] == pytest.approx([0.25, 0.75], abs=0.08)


@pytest.mark.usefixtures("installed")
@ALGORITHMS
def test_a_plugin_is_resumed_exactly(make_config: MakeConfig, algo: str) -> None:
    env_id = "CartPole-v1" if algo == "a2c" else "Pendulum-v1"
    params = {"learning_starts": 32, "batch_size": 16, "buffer_capacity": 200} if algo == "td3" else {"num_steps": 8}
    config = make_config(algo=algo, env_id=env_id, num_envs=2, total_timesteps=160, algo_kwargs=params)
    straight, run_dir = train(config), train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, []).train()
    assert outcome(run_dir) == outcome(straight)
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = f"sys.path[:0] = {[str(site), str(TESTS)]!r}"
    code = f"import sys; {paths}; from rl_training.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_plugin_trains_evaluates_and_resumes_through_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains in a process of its own, which finds the plugin when it starts."""
    flags = ["--algo", "a2c", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs")]
    settings = ["--set", "algo_kwargs.num_steps=32", "--set", "eval_episodes=1"]
    trained = run(tmp_path / "site", "train", *flags, "--total-timesteps", "64", *settings)
    assert trained.returncode == 0, trained.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("a2c__CartPole-v1__")
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "1"]) == 0
    assert main(["resume", str(run_dir), "--total-timesteps", "96"]) == 0
    capsys.readouterr()
    assert main(["train", *flags, "--set", "algo_kwargs.num_stepz=32"]) == 2
    assert "did you mean 'num_steps'?" in capsys.readouterr().err


@pytest.mark.slow
def test_a_broken_plugin_is_reported_and_the_others_still_work(tmp_path: Path) -> None:
    install(tmp_path, "brokenplug", "brokenplug:SPEC", "raise RuntimeError('no such thing')")
    install(tmp_path, "oddplug", "oddplug:SPEC", "SPEC = 42")
    planned = run(tmp_path, "train", "--algo", "ppo", "--env", "CartPole-v1", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "brokenplug:SPEC cannot be loaded: RuntimeError('no such thing')" in planned.stderr
    assert "oddplug:SPEC is not an AlgorithmSpec" in planned.stderr
