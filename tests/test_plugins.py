"""An algorithm from another distribution joins through the entry-point group, without touching this package."""

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from rl_training.algorithms.ppo import PPOLearner, PPOParams
from rl_training.runtime.on_policy import on_policy_algorithm

SPEC = on_policy_algorithm("tinyplug", PPOParams, PPOLearner)
"""


def install(site: Path, name: str, code: str, target: str) -> None:
    """What an installer leaves behind: a module and its metadata."""
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rl_training.algorithms]\n{name} = {target}\n")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from rl_training.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_a_plugin_trains_evaluates_and_resumes_through_the_command_line(tmp_path: Path) -> None:
    install(tmp_path, "tinyplug", PLUGIN, "tinyplug:SPEC")
    settings = ["--set", "algo_kwargs.num_steps=32", "--set", "algo_kwargs.minibatch_size=32"]
    flags = ["--algo", "tinyplug", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs")]
    trained = run(tmp_path, "train", *flags, "--total-timesteps", "64", "--set", "eval_episodes=1", *settings)
    assert trained.returncode == 0, trained.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert run_dir.name.startswith("tinyplug__CartPole-v1__")
    evaluated = run(tmp_path, "eval", "--checkpoint", str(run_dir), "--num-episodes", "1")
    assert evaluated.returncode == 0, evaluated.stderr
    resumed = run(tmp_path, "resume", str(run_dir), "--total-timesteps", "96")
    assert resumed.returncode == 0, resumed.stderr


def test_a_broken_plugin_is_reported_and_the_others_still_work(tmp_path: Path) -> None:
    install(tmp_path, "brokenplug", "raise RuntimeError('no such thing')", "brokenplug:SPEC")
    install(tmp_path, "oddplug", "SPEC = 42", "oddplug:SPEC")
    planned = run(tmp_path, "train", "--algo", "ppo", "--env", "CartPole-v1", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "brokenplug:SPEC cannot be loaded: RuntimeError('no such thing')" in planned.stderr
    assert "oddplug:SPEC is not an AlgorithmSpec" in planned.stderr
