"""Full disks and dead streams: a log or the metadata costs a warning, a checkpoint ends the run, output nothing."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY_PPO

from rl_training.cli import main
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.runs import context_of, find_runs, read_metadata, read_metrics

TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "rl_training/ActionRewardProbe-v0",
    "total_timesteps": 256,
    "num_envs": 4,
    "eval_episodes": 0,
    "log_interval": 64,
    "checkpoint_interval": 64,
    "compile": "off",
    "trackers": [],
    "algo_kwargs": TINY_PPO,
}
COMMAND = [sys.executable, "-W", "always", "-m", "rl_training"]


def limited(size: int) -> Any:
    """Let no file of the process grow beyond `size` bytes, which looks like a full disk to every single file."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def arguments(directory: Path, **changes: Any) -> list[str]:
    path = directory / "config.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return ["train", "--config", str(path), "--output-dir", str(directory / "runs")]


def train(directory: Path, size: int, **changes: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments(directory, **changes)]
    return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited(size))


def only_run(directory: Path) -> Path:
    (context,) = find_runs(directory / "runs")
    return context.run_dir


@pytest.mark.slow
def test_a_log_that_cannot_grow_costs_one_warning_and_no_half_line(tmp_path: Path) -> None:
    """A hundred lines of metrics do not fit, all checkpoints do."""
    done = train(tmp_path, size=40_000, total_timesteps=64 * 120, checkpoint_interval=0)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("metrics.jsonl cannot be written: File too large; training continues") == 1
    context = context_of(only_run(tmp_path))
    assert read_metadata(context)["status"] == "completed"
    lines = context.metrics_path.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and json.loads(line) for line in lines)
    assert 20 < len(lines) < 120


def test_a_checkpoint_that_does_not_fit_ends_the_run_with_one_line_and_keeps_the_one_before(tmp_path: Path) -> None:
    assert main(arguments(tmp_path)) == 0
    run_dir = only_run(tmp_path)
    newest = find_checkpoint(run_dir)
    content, size = newest.read_bytes(), newest.stat().st_size
    resume = ["resume", str(run_dir), "--total-timesteps", "512"]
    limit = limited(size - 2_000)
    done = subprocess.run([*COMMAND, *resume], capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot be written" in error
    assert "free disk space, then resume" in error
    assert "Traceback" not in done.stderr
    assert "while ending the failed run" not in done.stderr
    assert find_checkpoint(run_dir) == newest
    assert newest.read_bytes() == content
    assert not list(run_dir.rglob("*.tmp"))
    metadata = read_metadata(context_of(run_dir))
    assert metadata["status"] == "failed"
    assert "File too large" in metadata["error"]
    assert main(resume) == 0
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 512


@pytest.mark.slow
def test_a_run_whose_first_checkpoint_does_not_fit_fails_with_1_and_one_line(tmp_path: Path) -> None:
    done = train(tmp_path, size=6_000)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "step_0.pt cannot be written" in error
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_whose_config_cannot_be_written_is_refused_with_2_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(TINY))
    done = train(tmp_path, size=100)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: run directory ")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_metadata_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    """It has a long tag, so that the file is larger than a checkpoint."""
    assert main(arguments(tmp_path)) == 0
    run_dir = only_run(tmp_path)
    path = run_dir / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tags": ["x" * 60_000]}))
    code = f"""
import resource, signal, sys, warnings
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import resume_training
warnings.simplefilter("always")
class Fill(Callback):
    def on_train_start(self, trainer):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
print(resume_training({str(run_dir)!r}, total_timesteps=512, callbacks=[Fill()]).status)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "completed\n", done.stderr
    assert done.stderr.count("metadata.json cannot be written: ") == 1
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 512


@pytest.mark.slow
def test_a_run_goes_on_when_neither_output_nor_errors_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**TINY, "total_timesteps": 128}))
    train = f'"{sys.executable}" -m rl_training train --config "{path}" --output-dir "{tmp_path / "runs"}"'
    done = subprocess.run(["sh", "-c", f"{train} >/dev/full 2>/dev/full"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    context = context_of(only_run(tmp_path))
    assert read_metadata(context)["status"] == "completed"
    assert [row["step"] for row in read_metrics(context)] == [64, 128]


@pytest.mark.slow
def test_an_error_that_cannot_be_printed_still_has_its_exit_code(tmp_path: Path) -> None:
    train = f'"{sys.executable}" -m rl_training train --config "{tmp_path / "missing.yaml"}" 2>/dev/full'
    assert subprocess.run(["sh", "-c", train], check=False).returncode == 2


@pytest.mark.slow
def test_a_group_goes_on_when_the_logs_of_its_seeds_cannot_be_written(tmp_path: Path) -> None:
    """The logs stand at the limit already when the seeds begin to print."""
    assert main([*arguments(tmp_path), "--seeds", "1"]) == 0
    (group_dir,) = (tmp_path / "runs").iterdir()
    record = json.loads((group_dir / "group.json").read_text())
    for seed in record["seeds"]:
        log = group_dir / "logs" / f"seed{seed['seed']}.log"
        with log.open("a") as file:
            file.truncate(60_000)
        metadata = group_dir / seed["run_dir"] / "metadata.json"
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "status": "interrupted"}))
    command = [*COMMAND, "resume", str(group_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited(60_000))
    assert done.returncode == 0, done.stderr
    assert {seed["status"] for seed in json.loads((group_dir / "group.json").read_text())["seeds"]} == {"completed"}
