"""Links, pipes and paths planted in run directories: refused by name, at once, and nothing outside is touched."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeConfig
from sample_runs import write_run

from rl_training.cli import main
from rl_training.errors import RunDirectoryError
from rl_training.experiment.checkpointing import prune_checkpoints, step_checkpoints
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.trackers.upload_record import load_upload_record
from rl_training.results.drawing import plot_run
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec

FILES = ("metadata.json", "metrics.jsonl", "digests.jsonl", "config.yaml")
FOLDERS = ("checkpoints", "replay", "tensorboard", "failure", "trackers")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has a replay folder, to be copied."""
    directory = tmp_path_factory.mktemp("trained")
    settings = {"buffer_capacity": 200, "batch_size": 8, "learning_starts": 32, "hidden_sizes": [8]}
    argv = ["train", "--algo", "dqn", "--env", "CartPole-v1", "--output-dir", str(directory)]
    values = {"total_timesteps": 96, "checkpoint_interval": 32, "eval_episodes": 1, "num_envs": 1}
    changes = [*values.items(), *((f"algo_kwargs.{name}", value) for name, value in settings.items())]
    assert main([*argv, *(part for name, value in changes for part in ("--set", f"{name}={value}"))]) == 0
    (run_dir,) = directory.iterdir()
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / trained.name))


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def assert_refused(argv: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert name in printed


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_in_place_of_a_file_is_refused_by_name(
    name: str, kind: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    shutil.move(run_dir / name, outside)
    before = outside.read_bytes()
    if kind == "link":
        (run_dir / name).symlink_to(outside)
    else:
        os.mkfifo(run_dir / name)
    said = "a symbolic link" if kind == "link" else "a named pipe"
    assert_refused(["resume", str(run_dir), "--total-timesteps", "128"], f"{name} is refused: it is {said}", capsys)
    assert outside.read_bytes() == before
    assert not (run_dir / "run.lock").exists()
    assert main(["list", str(run_dir.parent)]) == 0
    assert ("unreadable" in capsys.readouterr().out) == (name == "metadata.json")
    if name != "digests.jsonl":
        assert_refused(["compare", str(run_dir), str(run_dir)], run_dir.name, capsys)
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "1"]) == 0  # it needs none of them


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_in_place_of_a_folder_is_refused_by_name_and_nothing_there_is_changed(
    name: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    if (run_dir / name).exists():
        shutil.move(run_dir / name, outside)
    else:
        outside.mkdir()
    (run_dir / name).symlink_to(outside)
    before = contents(outside)
    argv = ["resume", str(run_dir), "--total-timesteps", "128", "--set", "keep_checkpoints=1"]
    assert_refused(argv, f"{run_dir / name} is a symbolic link", capsys)
    assert contents(outside) == before
    if name == "checkpoints":
        assert_refused(["eval", "--checkpoint", str(run_dir)], f"{run_dir / name} is a symbolic link", capsys)
    if name in ("checkpoints", "replay"):
        with pytest.raises(RunDirectoryError, match=f"{name} is a symbolic link"):
            prune_checkpoints(run_dir / "checkpoints", keep=1)
        assert contents(outside) == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_checkpoint_that_is_a_link_or_pipe_is_passed_over(kind: str, run_dir: Path, tmp_path: Path) -> None:
    newest = step_checkpoints(run_dir / "checkpoints")[0]
    shutil.move(newest, tmp_path / "outside.pt")
    if kind == "link":
        newest.symlink_to(tmp_path / "outside.pt")
    else:
        os.mkfifo(newest)
    said = "symbolic link" if kind == "link" else "named pipe"
    with pytest.warns(UserWarning, match=rf"{newest.name} .*a {said}.*using step_"):
        assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "1"]) == 0


def test_links_that_the_user_gives_are_followed(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "newest.pt").symlink_to(step_checkpoints(run_dir / "checkpoints")[0])
    (tmp_path / "link").symlink_to(run_dir)
    with pytest.warns(UserWarning, match="has no manifest beside it"):
        assert main(["eval", "--checkpoint", str(tmp_path / "newest.pt"), "--num-episodes", "1"]) == 0
    assert main(["resume", str(tmp_path / "link"), "--total-timesteps", "128"]) == 0
    assert read_metadata(context_of(run_dir))["global_step"] == 128


def test_files_that_a_run_writes_replace_links_and_leave_their_targets(make_config: MakeConfig, tmp_path: Path) -> None:
    """Files that are written without being read first: the table, the curve, an upload record, the best checkpoint."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    config = make_config(total_timesteps=64, trackers=[])
    run_dir = train_ppo(config).run_dir
    (run_dir / "trackers").mkdir()
    names = ("metrics.csv", "learning_curve.png", "trackers/wandb.json", "checkpoints/best.pt")
    for name in names:
        (run_dir / name).unlink(missing_ok=True)
        (run_dir / name).symlink_to(victim)
    assert main(["resume", str(run_dir), "--total-timesteps", "128", "--set", "trackers=[csv]"]) == 0
    load_upload_record(context_of(run_dir), "wandb", home="here").save()
    plot_run(context_of(run_dir))
    assert victim.read_text() == "mine"
    assert not any((run_dir / name).is_symlink() for name in names[:3])


def test_runs_behind_links_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path / "outside", 1, [1.0])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(run_dir)
    assert main(["list", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out == f"no runs below {tmp_path / 'runs'}\n"


LIST = """
import sys
from pathlib import Path
from rl_training.cli import main
code = main(["list", sys.argv[1]])
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""
BOMBS = ("[" + "[]," * 10_000_000 + "[]]", "[" * 10_000_000, '{"a": "' + "x" * 30_000_000)


def test_a_huge_or_deep_file_costs_little_time_and_memory(tmp_path: Path) -> None:
    for number, content in enumerate(BOMBS):
        (write_run(tmp_path / str(number), 1, [1.0]) / "metadata.json").write_text(content)
    command = [sys.executable, "-c", LIST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("unreadable") == 3
    assert int(done.stdout.split()[-1]) < 200 * 1024  # kB, the interpreter and its modules included


def test_what_a_failed_start_made_is_removed_and_nothing_else(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    kept = config.output_dir / "kept"
    kept.mkdir(parents=True)
    (kept / "file").write_text("mine")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rl_training.runtime.run_utils.write_config", fail)
    with pytest.raises(RunDirectoryError, match=r"run directory .* cannot be written: .*No space left"):
        get_algorithm_spec("ppo").train_fn(config, run_suffix="new")
    assert contents(tmp_path / "runs") == {"kept/file": b"mine"}
    assert [path.name for path in config.output_dir.iterdir()] == ["kept"]
    (config.output_dir / "ppo__CartPole-v1__seed7__new").mkdir()
    with pytest.raises(RunDirectoryError, match="exists"):
        get_algorithm_spec("ppo").train_fn(config, run_suffix="new")
    assert (config.output_dir / "ppo__CartPole-v1__seed7__new").is_dir()
