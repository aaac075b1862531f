"""Many seeds at once: runs like single ones, a group that outlives its failures, and every way it can be stopped."""

import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import yaml
from chaos import result_of
from conftest import TINY_PPO, MakeConfig, slow_except_first, wait_until

from rl_training.cli import main
from rl_training.cli.console import show_group
from rl_training.errors import ConfigError, RunDirectoryError, TrainingStateError
from rl_training.experiment.groups import format_seeds, parse_seeds, read_group
from rl_training.experiment.runs import context_of, find_runs, read_metadata, update_metadata
from rl_training.groups.executor import Started, run_jobs
from rl_training.groups.jobs import Outcome, ProgressUpdate, RunJob
from rl_training.groups.many_seeds import resolve_jobs, resume_seeds, train_seeds
from rl_training.groups.run_process import ProgressReporter
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.trainer import TrainerState

TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "sample_envs:tests/Ordered-v0",
    "total_timesteps": 128,
    "num_envs": 2,
    "eval_episodes": 2,
    "eval_interval": 64,
    "log_interval": 64,
    "checkpoint_interval": 64,
    "algo_kwargs": TINY_PPO,
}


class Place:
    """A directory with a config, orders for the envs of some seeds, and groups of runs."""

    def __init__(self, root: Path) -> None:
        self.orders, self.runs, self.config = root / "orders", root / "runs", root / "tiny.yaml"
        self.orders.mkdir()
        self.config.write_text(yaml.safe_dump({**TINY, "env_kwargs": {"orders": str(self.orders)}}))

    def argv(self, *options: str) -> list[str]:
        return ["train", "--config", str(self.config), "--output-dir", str(self.runs), *options]

    def group(self) -> Path:
        (group_dir,) = self.runs.iterdir()
        return group_dir

    def order(self, seed: int, order: str) -> None:
        (self.orders / f"run-{seed}").write_text(order)

    def hold(self, *seeds: int) -> None:
        for seed in seeds:
            os.mkfifo(self.orders / f"run-{seed}")

    def catch(self, *seeds: int) -> list[IO[str]]:
        """Wait until the envs of these seeds are held up; they continue when the returned files are closed."""
        return [(self.orders / f"run-{seed}").open("w") for seed in seeds]

    def lift(self) -> None:
        for path in self.orders.iterdir():
            path.unlink()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The exact results of single runs of seeds 1 to 3."""
    place = Place(tmp_path_factory.mktemp("singles"))
    for seed in (1, 2, 3):
        assert main(place.argv("--seed", str(seed))) == 0
    return {read_metadata(context)["seed"]: result_of(context.run_dir) for context in find_runs(place.runs)}


def results(group_dir: Path) -> dict[int, Any]:
    return {record.seed: result_of(group_dir / record.run_dir) for record in read_group(group_dir).seeds}


def statuses(group_dir: Path) -> dict[int, str]:
    return {record.seed: record.status for record in read_group(group_dir).seeds}


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1-10", tuple(range(1, 11))),
        ("1,2,5", (1, 2, 5)),
        ("1-3,7", (1, 2, 3, 7)),
        ("7, 0-1", (7, 0, 1)),
        ("4", (4,)),
        ("4-4", (4,)),
    ],
)
def test_seeds_are_numbers_and_ranges_in_the_order_given(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds
    assert parse_seeds(format_seeds(seeds)) == seeds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "'' is neither a seed nor a range"),
        ("1,,2", "'' is neither"),
        ("1-", "'1-' is neither"),
        ("-3", "'-3' is neither"),
        ("1..4", "give for example 1-10, 1,2,5 or 1-3,7"),
        ("1e3", "neither"),
        ("٣", "neither"),
        ("5-3", "the range 5-3 is empty; give 3-5"),
        ("1-3,2", "seed 2 is given twice"),
        ("1-999999999999", "give from 1 to 10000"),
    ],
)
def test_other_seeds_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        parse_seeds(text)


def test_as_many_processes_run_as_there_are_cores_for_their_threads_but_no_more_than_seeds() -> None:
    cores = len(os.sched_getaffinity(0))
    assert 1 <= resolve_jobs("auto", 10**6) <= cores
    assert resolve_jobs("auto", 10**6, num_threads=cores) == 1
    assert resolve_jobs("auto", 1) == resolve_jobs(7, 1) == 1
    assert resolve_jobs(7, 10) == 7
    with pytest.raises(ConfigError, match="jobs=0"):
        resolve_jobs(0, 10)


USER_ERRORS: dict[str, tuple[list[str], list[str]]] = {
    "seed and seeds": (["--seed", "3", "--seeds", "1-2"], ["--seeds 1-2 and seed=3: give only one of them"]),
    "seed assigned": (["--set", "seed=3", "--seeds", "1-2"], ["give only one of them"]),
    "seed too large": (["--seeds", "1,9999999999999999999"], ["seed=9999999999999999999"]),
    "no jobs": (["--seeds", "1-2", "--jobs", "0"], ["--jobs 0: give auto"]),
    "odd jobs": (["--seeds", "1-2", "--jobs", "two"], ["--jobs two: give auto"]),
    "jobs of one run": (["--jobs", "2"], ["--jobs 2 is for many seeds: use it with --seeds"]),
    "an env that cannot be made": (["--seeds", "1-2", "--set", "env_kwargs.orders=3"], ["tests/Ordered-v0"]),
    "a rule that cannot hold": (["--seeds", "1-2", "--patience", "0"], ["patience=0"]),
}


@pytest.mark.parametrize("name", USER_ERRORS)
def test_a_user_error_is_one_line_and_makes_nothing(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    options, expected = USER_ERRORS[name]
    assert main(place.argv(*options)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert all(text in printed.err for text in expected)
    assert not place.runs.exists()


def test_a_dry_run_shows_the_seeds_and_makes_nothing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(place.argv("--seeds", "1-3,7", "--jobs", "3", "--dry-run")) == 0
    assert capsys.readouterr().out.endswith("The plan is for one seed. Seeds 1-3,7 make 4 runs, 3 at a time.\n")
    assert not place.runs.exists()


def test_many_seeds_end_as_single_runs_do_to_the_last_bit(
    place: Place, singles: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(place.argv("--seeds", "1-3", "--jobs", "2")) == 0
    group_dir = place.group()
    assert re.fullmatch(r"ppo__sample_envs-tests-Ordered-v0__seeds1-3__[\d-]+-[0-9a-f]{6}", group_dir.name)
    assert results(group_dir) == singles
    printed = capsys.readouterr()
    assert "seeds 1-3, 2 at a time, in " in printed.err
    assert re.search(r"^seed 2 completed at step 128 after [\d.]+ s, evaluation [\d.]+$", printed.err, re.MULTILINE)
    assert printed.err.splitlines()[-1] == "3 completed  384/384 steps"
    assert re.search(r"^3 +completed +128 +[\d.]+ +[\d.]+ *$", printed.out, re.MULTILINE)
    assert re.search(
        r"^returns: +interquartile mean [\d.]+, mean [\d.]+, median [\d.]+ over 3 finished seeds", printed.out, re.M
    )
    assert f"{group_dir}\n" in printed.out
    assert "resume" not in printed.out
    check_group_files(group_dir)
    for directory in (place.runs, group_dir):
        assert main(["list", str(directory)]) == 0
        assert re.findall(r"(\d) +128 +[\d.]+ +completed", capsys.readouterr().out) == ["1", "2", "3"]


def check_group_files(group_dir: Path) -> None:
    """What the files of a finished group of seeds 1 to 3 say."""
    record = read_group(group_dir)
    assert (record.status, record.jobs, record.algo, record.total_timesteps) == ("completed", 2, "ppo", 128)
    assert record.started_at <= (record.ended_at or "")
    assert {"torch", "numpy", "gymnasium"} <= set(record.versions)
    for each in record.seeds:
        metadata = read_metadata(context_of(group_dir / each.run_dir))
        assert (each.status, each.reason, metadata["seed"]) == ("completed", None, each.seed)
        assert (each.metrics, each.wall_seconds) == (metadata["metrics"], metadata["wall_seconds"])
        assert "Training ppo" in (group_dir / "logs" / f"seed{each.seed}.log").read_text()
        assert (group_dir / each.run_dir / "learning_curve.png").exists()
    config = yaml.safe_load((group_dir / "config.yaml").read_text())
    assert "seed" not in config
    assert config["algo_kwargs"]["gamma"] == 0.99
    assert not list(group_dir.glob("*.lock"))


@pytest.mark.slow
def test_seeds_that_fail_or_are_killed_do_not_stop_the_others_and_can_be_resumed(
    place: Place, singles: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place.order(1, "fail")
    place.order(3, "kill")
    assert main(place.argv("--seeds", "1-3")) == 1
    group_dir = place.group()
    assert statuses(group_dir) == {1: "failed", 2: "completed", 3: "failed"}
    assert read_group(group_dir).status == "failed"
    printed = capsys.readouterr()
    failed, killed = (read_group(group_dir).seeds[index].reason or "" for index in (0, 2))
    assert re.match(r"EnvironmentStepError: env \d, episode .*: OSError: lost its simulator$", failed)
    assert killed == "it was killed by SIGKILL (out of memory?)"
    assert f": {failed}\n" in printed.err
    assert f": {killed}\n" in printed.err
    assert "lost its simulator" in (group_dir / "logs" / "seed1.log").read_text()
    assert "over 1 finished seed\n" in printed.out
    assert printed.out.endswith(f"rl-training resume {group_dir}\n")

    place.lift()
    done = group_dir / read_group(group_dir).seeds[1].run_dir
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    assert main(["resume", str(group_dir), "--jobs", "1"]) == 0
    assert results(group_dir) == singles
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*")} == before
    assert read_group(group_dir).status == "completed"
    capsys.readouterr()
    assert main(["resume", str(group_dir)]) == 0
    assert "is complete after 384 steps of 3 seeds" in capsys.readouterr().out


class Watched(io.StringIO):
    """A stream that sets an event when a certain text is written to it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.seen = text, threading.Event()

    def write(self, text: str) -> int:
        if self.text in text:
            self.seen.set()
        return super().write(text)


@pytest.fixture
def signalled(place: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int]], tuple[int, str]]:
    """Trains seeds 1 to 3, two at a time; the signals come while both are in the middle of an episode.

    SIGUSR1 comes as schedulers send it: to every process.
    """
    place.hold(1, 2)
    stderr = Watched("save and stop")

    def signal_them(numbers: Sequence[int]) -> None:
        held = place.catch(1, 2)
        locks = place.group().glob("*/run.lock") if numbers[0] == signal.SIGUSR1 else ()
        for process in [os.getpid(), *(json.loads(path.read_text())["process"] for path in locks)]:
            os.kill(process, numbers[0])
        stderr.seen.wait(150.0)
        for number in numbers[1:]:
            os.kill(os.getpid(), number)
        if numbers[1:]:  # nothing but death lets them go
            wait_until(lambda: "running" not in statuses(place.group()).values())
        for end in held:
            end.close()

    def train(numbers: Sequence[int]) -> tuple[int, str]:
        thread = threading.Thread(target=signal_them, args=(numbers,))
        thread.start()
        monkeypatch.setattr(sys, "stderr", stderr)
        code = main(place.argv("--seeds", "1-3", "--jobs", "2"))
        thread.join()
        return code, stderr.getvalue()

    return train


@pytest.mark.parametrize(
    ("number", "exit_code"),
    slow_except_first([(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 129)]),
)
def test_a_signal_lets_the_running_seeds_save_and_the_group_goes_on_exactly(
    number: int,
    exit_code: int,
    place: Place,
    singles: dict[int, Any],
    signalled: Callable[[Sequence[int]], tuple[int, str]],
) -> None:
    code, printed = signalled([number])
    group_dir = place.group()
    assert code == exit_code
    assert printed.endswith(f"interrupted with 0 of 3 seeds done; continue with: rl-training resume {group_dir}\n")
    assert statuses(group_dir) == {1: "interrupted", 2: "interrupted", 3: "waiting"}
    assert read_group(group_dir).status == "interrupted"
    for record in read_group(group_dir).seeds[:2]:
        saved = group_dir / record.run_dir / "checkpoints" / f"step_{record.global_step}.pt"
        assert record.reason == signal.Signals(exit_code - 128).name
        assert f"saved {saved}" in (group_dir / "logs" / f"seed{record.seed}.log").read_text()
        assert saved.exists()
        assert record.global_step > 0
    place.lift()
    assert main(["resume", str(group_dir)]) == 0
    assert results(group_dir) == singles


@pytest.mark.slow
def test_a_second_signal_kills_and_the_group_goes_on_exactly(
    place: Place, singles: dict[int, Any], signalled: Callable[[Sequence[int]], tuple[int, str]]
) -> None:
    assert signalled([signal.SIGINT, signal.SIGINT])[0] == 130
    group_dir = place.group()
    assert [record.reason for record in read_group(group_dir).seeds[:2]] == ["it was killed by SIGKILL"] * 2
    assert statuses(group_dir) == {1: "interrupted", 2: "interrupted", 3: "waiting"}
    place.lift()
    assert main(["resume", str(group_dir)]) == 0
    assert results(group_dir) == singles


@pytest.mark.slow
def test_seeds_whose_owner_was_killed_save_and_end_and_nobody_takes_their_runs_before(
    place: Place, singles: dict[int, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    place.hold(1, 2)
    command = [sys.executable, "-m", "rl_training", *place.argv("--seeds", "1-3", "--jobs", "2")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        held = place.catch(1, 2)
        process.kill()
    group_dir = place.group()
    (place.orders / "run-3").write_text("fail")
    with pytest.warns(UserWarning, match=f"process {process.pid} on .* ended without removing .*run.lock"):
        assert main(["resume", str(group_dir)]) == 1
    assert all("is in use by process" in (record.reason or "") for record in read_group(group_dir).seeds[:2])
    for end in held:
        end.close()
    wait_until(lambda: not list(group_dir.glob("*/run.lock")))
    for record in read_group(group_dir).seeds[:2]:
        metadata = read_metadata(context_of(group_dir / record.run_dir))
        assert (metadata["status"], metadata["stop_reason"]) == ("interrupted", "SIGTERM")
    place.lift()
    assert main(["resume", str(group_dir)]) == 0
    assert results(group_dir) == singles


def test_rules_that_end_runs_early_reach_every_seed_and_stay_with_the_group(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(total_timesteps=10**6)
    result = train_seeds(config, [4, 5], stop=StopRules(at_return=1.0))
    assert result.record.stop == {"at_return": 1.0, "after_minutes": None, "patience": None, "at": {}, "at_step": None}
    assert {record.status for record in result.record.seeds} == {"stopped"}
    assert all((record.reason or "").startswith("evaluation reached ") for record in result.record.seeds)
    assert result.record.status == "completed"
    assert result.returns.keys() == {4, 5}
    assert main(["resume", str(result.group_dir)]) == 0
    assert "there is nothing left to do" in capsys.readouterr().out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group of one seed that has run."""
    place = Place(tmp_path_factory.mktemp("finished"))
    assert main(place.argv("--seeds", "1", "--set", "eval_episodes=0")) == 0
    return place.group()


@pytest.mark.parametrize("options", [["--patience", "2"], ["--verify"], ["--force"], ["--jobs", "0"]])
def test_a_group_goes_on_as_it_began(options: list[str], finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(finished), *options]) == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(r"error: .*(only be resumed with .*--jobs and --trust|give auto, or the number .*)\n", printed)


@pytest.mark.slow
def test_a_group_gets_a_larger_budget_and_more_seeds(
    own_group: Path, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(own_group), "--total-timesteps", "192", "--seeds", "1-2", "--jobs", "2"]) == 0
    record = read_group(own_group)
    assert [(each.seed, each.status, each.global_step) for each in record.seeds] == [
        (1, "completed", 192),
        (2, "completed", 192),
    ]
    assert record.total_timesteps == yaml.safe_load((own_group / "config.yaml").read_text())["total_timesteps"] == 192
    for seed in ("1", "2"):
        assert main(place.argv("--seed", seed, "--total-timesteps", "192", "--set", "eval_episodes=0")) == 0
    assert results(own_group) == {
        read_metadata(context)["seed"]: result_of(context.run_dir) for context in find_runs(place.runs)
    }
    capsys.readouterr()
    assert main(["resume", str(own_group), "--total-timesteps", "192", "--seeds", "2"]) == 0
    assert "is complete after 384 steps of 2 seeds: there is nothing left to do" in capsys.readouterr().out


def test_a_group_that_cannot_be_extended_is_left_as_it_is(own_group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in own_group.rglob("*") if path.is_file()}
    (run_dir,) = own_group.glob("ppo__*")
    for command, expected in (
        ([str(own_group), "--total-timesteps", "64"], "total_timesteps=64: the group has 128; give a larger budget"),
        ([str(own_group), "--seeds", "2-"], "'2-' is neither a seed nor a range"),
        ([str(run_dir), "--seeds", "2"], "--seeds 2 is for many seeds: use it with the directory of a group"),
    ):
        assert main(["resume", *command]) == 2
        assert expected in capsys.readouterr().err
    assert {path: path.read_bytes() for path in own_group.rglob("*") if path.is_file()} == before


def test_a_group_without_evaluations_has_no_returns(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_group(finished, read_group(finished))
    printed = capsys.readouterr().out
    assert "Group completed" in printed
    assert "returns:" not in printed


def test_resuming_a_complete_group_says_so_in_one_line_and_changes_nothing(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    for source in ([str(finished)], ["--checkpoint", str(finished)]):
        assert main(["resume", *source]) == 0
        shown = capsys.readouterr()
        (line,) = shown.out.splitlines()
        assert f"{finished} is complete after 128 steps of 1 seeds: there is nothing left to do" in line
        assert "--total-timesteps" in line
        assert shown.err == ""
    assert resume_seeds(finished).record == read_group(finished)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_a_group_killed_after_its_last_seed_is_resumed_to_its_end(own_group: Path) -> None:
    content = json.loads((own_group / "group.json").read_text())
    (own_group / "group.json").write_text(json.dumps({**content, "status": "running", "ended_at": None}))
    assert main(["resume", str(own_group)]) == 0
    record = read_group(own_group)
    assert record.status == "completed"
    assert record.ended_at is not None


def test_a_config_that_was_edited_into_another_is_refused(
    place: Place, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("gamma: 0.99", "gamma: 0.5"))
    assert main(["resume", str(finished)]) == 2
    assert (
        "config.yaml differs from the config of seed 1 (algo_kwargs.gamma: 0.99 then, 0.5 now)"
        in capsys.readouterr().err
    )
    path.write_text(text)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is not a group directory"),
        ("[]", "is not a group directory"),
        ('{"format": 2}', "has format 2, this version reads 1"),
        ('{"format": 1, "algo": 3}', "is damaged"),
    ],
)
def test_a_file_that_no_group_has_written_is_refused(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "group.json").write_text(content)
    with pytest.raises(RunDirectoryError, match=expected):
        read_group(tmp_path)


def edit_seed(group_dir: Path, **changes: Any) -> None:
    """Change the record of the only seed."""
    content = json.loads((group_dir / "group.json").read_text())
    content["seeds"][0] |= changes
    (group_dir / "group.json").write_text(json.dumps(content))


@pytest.fixture
def own_group(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished group that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "copies" / finished.name))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory outside the group, with a file."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").write_text("mine")
    return tmp_path / "victim"


@pytest.mark.parametrize("name", ["../../victim", "../other", "{victim}", "..", ".", "", "a/b", "nul\0"])
def test_a_record_that_leads_out_of_the_group_is_refused_and_nothing_there_is_touched(
    name: str, own_group: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_seed(own_group, run_dir=name.format(victim=victim), status="failed")
    before = sorted(own_group.rglob("*"))
    assert main(["resume", str(own_group)]) == 2
    printed = capsys.readouterr().err
    assert re.fullmatch(r"error: .*group\.json is damaged: .*run_dir=.*: give the name of a directory .*\n", printed)
    assert (victim / "file").read_text() == "mine"
    assert sorted(own_group.rglob("*")) == before


@pytest.mark.parametrize("place", ["run", "logs", "log"])
def test_a_link_that_leads_out_of_the_group_is_refused_and_nothing_there_is_touched(
    place: str, own_group: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_seed(own_group, status="failed")
    name = read_group(own_group).seeds[0].run_dir
    path = {"run": own_group / name, "logs": own_group / "logs", "log": own_group / "logs" / "seed1.log"}[place]
    if place == "log":
        path.unlink()
    else:
        shutil.rmtree(path)
    path.symlink_to(victim / "file" if place == "log" else victim)
    assert main(["resume", str(own_group)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert str(path) in printed
    assert "a symbolic link" in printed
    assert [each.name for each in victim.iterdir()] == ["file"]
    assert (victim / "file").read_text() == "mine"


def test_a_pipe_in_place_of_a_groups_file_is_refused(own_group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.yaml", "group.json"):
        (own_group / name).unlink()
        os.mkfifo(own_group / name)
        assert main(["resume", str(own_group)]) == 2
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1
        assert str(own_group / name) in printed
        assert "it is a named pipe" in printed


def test_rules_that_make_no_sense_are_refused(own_group: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads((own_group / "group.json").read_text())
    for stop in ({"odd": 1}, {"at": "x"}, {"at": {"success_rate": "high"}}):
        (own_group / "group.json").write_text(json.dumps({**content, "stop": stop}))
        assert main(["resume", str(own_group)]) == 2
        assert "group.json is damaged: stop: " in capsys.readouterr().err


def test_a_run_without_checkpoints_is_set_aside_and_never_removed(
    own_group: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = read_group(own_group).seeds[0].run_dir
    context = context_of(own_group / name)
    shutil.rmtree(context.checkpoints_dir)
    update_metadata(context, status="failed")
    metrics = context.metrics_path.read_bytes()
    assert main(["resume", str(own_group)]) == 0
    aside = own_group / f"{name}.set-aside-1"
    assert (aside / "metrics.jsonl").read_bytes() == metrics
    assert "it was renamed to" in (own_group / "logs" / "seed1.log").read_text()
    assert read_metadata(context)["status"] == "completed"


def test_a_seed_whose_metadata_is_damaged_goes_on_from_its_checkpoint(own_group: Path) -> None:
    name = read_group(own_group).seeds[0].run_dir
    (own_group / name / "metadata.json").write_text('{"status": ')
    assert main(["resume", str(own_group)]) == 0
    assert (own_group / name / "metadata.json.damaged-1").exists()
    assert not list(own_group.glob("*.set-aside-*"))
    assert statuses(own_group) == {1: "completed"}


@pytest.mark.slow
def test_seeds_whose_envs_change_the_working_directory_stay_in_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "away").mkdir()
    values = {**TINY, "env_id": "sample_envs:tests/Wandering-v0", "env_kwargs": {"away": str(tmp_path / "away")}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", "config.yaml", "--output-dir", "runs", "--seeds", "1-2"]) == 0
    assert list((tmp_path / "away").iterdir()) == []
    (group_dir,) = (tmp_path / "runs").iterdir()
    assert statuses(group_dir) == {1: "completed", 2: "completed"}


def test_a_main_process_that_does_not_receive_does_not_block_a_run(make_config: MakeConfig) -> None:
    ours, theirs = Pipe()
    config = make_config()
    state = TrainerState(
        "ppo", config.output_dir, config, metrics={f"train/number_{index}": 1.0 for index in range(50)}
    )
    reporter = ProgressReporter(theirs)
    for _ in range(5_000):
        reporter.on_eval_end(state, {})
    assert ours.recv().step == 0


def test_group_json_is_plain_json(finished: Path) -> None:
    content = json.loads((finished / "group.json").read_text())
    assert content["format"] == 1
    assert [seed["seed"] for seed in content["seeds"]] == [1]


def test_a_script_that_its_own_seeds_import_does_not_begin_further_groups(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "name", "run-1")
    with pytest.raises(TrainingStateError, match="below `if __name__ =="):
        train_seeds(make_config(), [1, 2])
    assert not make_config().output_dir.exists()


class LeavingNode:
    """A place for one run at a time, which has no room for some polls after a run has ended."""

    def __init__(self, polls_away: int) -> None:
        self.polls_away, self.away, self.started = polls_away, 0, [""]

    def has_room(self) -> bool:
        return self.away == 0

    def start(self, job: RunJob) -> None:
        assert self.has_room()
        self.started.append(job.name)

    def poll(self, seconds: float) -> list[tuple[str, ProgressUpdate | Outcome]]:
        if self.away:
            self.away -= 1
            return []
        self.away = self.polls_away
        return [(self.started[-1], Outcome("completed"))]

    def stop(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def test_jobs_wait_for_a_node_that_left_and_nothing_waits_for_it_after_the_last_run() -> None:
    jobs: Any = iter([SimpleNamespace(name="1"), SimpleNamespace(name="2")])
    node = LeavingNode(polls_away=3)
    loop = run_jobs(lambda: next(jobs, None), node, 1, [])
    assert [event for event in loop if event] == [
        ("1", Started()),
        ("1", Outcome("completed")),
        ("2", Started()),
        ("2", Outcome("completed")),
    ]
    assert node.away == 3
