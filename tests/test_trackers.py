"""Who gets the metrics beside `metrics.jsonl`: what they hold, and that none of them can hurt a run."""

import csv
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrackerOptions
from rl_training.experiment.runs import context_of, read_digests, read_metadata, read_metrics
from rl_training.experiment.trackers.base import Metrics, Outcome
from rl_training.experiment.trackers.guard import BackgroundTracker, GuardedTracker
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training


class Record:
    """A tracker that keeps what it gets; `fail` is called first."""

    def __init__(self, fail: Callable[[], object] = lambda: None) -> None:
        self.fail = fail
        self.steps: list[int] = []
        self.outcome: Outcome | None = None

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        self.fail()
        self.steps.append(step)

    def close(self, outcome: Outcome) -> None:
        self.outcome = outcome


class AtFirstUpdate(Callback):
    """Does something to the run directory after the first rollout, before anything of it is logged."""

    def __init__(self, action: Callable[[Path], None]) -> None:
        self.action: Callable[[Path], None] | None = action

    def on_update_end(self, trainer: Any, result: Any) -> None:
        if self.action is not None:
            self.action(trainer.run_dir)
            self.action = None


def table(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def assert_table_holds_the_metrics(run_dir: Path) -> None:
    rows, lines = table(run_dir), read_metrics(context_of(run_dir))
    assert [{name: float(cell) for name, cell in row.items() if cell} for row in rows] == lines


def test_the_csv_table_has_every_metric_though_some_come_later(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(trackers=["csv"])).run_dir
    assert_table_holds_the_metrics(run_dir)
    assert [bool(row["train/loss"]) for row in table(run_dir)] == [True, False, True, False]
    assert [bool(row["eval/mean_reward"]) for row in table(run_dir)] == [False, True, False, True]
    assert {path.name for path in run_dir.iterdir()}.isdisjoint({"wandb", "trackers"})


def test_the_csv_table_is_cut_back_and_continued_on_resume(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(trackers=["csv"], total_timesteps=256)).run_dir
    for later in (run_dir / "checkpoints").glob("step_256.*"):
        later.unlink()
    (run_dir / "metrics.csv").write_text((run_dir / "metrics.csv").read_text() + "99999,torn")
    resume_training(run_dir, total_timesteps=320)
    steps = [int(row["step"]) for row in table(run_dir)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (64, 320)
    assert_table_holds_the_metrics(run_dir)


def test_a_csv_table_asked_for_on_resume_has_the_whole_run(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(trackers=[])).run_dir
    assert not list(context_of(run_dir).tensorboard_dir.iterdir())
    assert main(["resume", str(run_dir), "--total-timesteps", "192", "--set", "trackers=[csv]"]) == 0
    assert_table_holds_the_metrics(run_dir)
    assert table(run_dir)[0]["step"] == "64"


def test_what_is_not_finite_is_an_empty_cell(make_config: MakeConfig) -> None:
    class Infinite(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            trainer.metrics["odd"] = float("inf")

    run_dir = train_ppo(make_config(trackers=["csv"]), callbacks=[Infinite()]).run_dir
    assert {row["odd"] for row in table(run_dir)} == {""}


def replace_table_by_a_folder(run_dir: Path) -> None:
    (run_dir / "metrics.csv").unlink()
    (run_dir / "metrics.csv").mkdir()


def test_a_tracker_that_fails_while_logging_is_left_out_and_the_run_goes_on(make_config: MakeConfig) -> None:
    straight = train_ppo(make_config(trackers=["tensorboard"]))
    with pytest.warns(UserWarning, match=r"tracker csv failed and is left out \(\w+Error: .*metrics.csv") as caught:
        result = train_ppo(
            make_config(trackers=["csv", "tensorboard"]), callbacks=[AtFirstUpdate(replace_table_by_a_folder)]
        )
    assert len(caught) == 1
    assert result.status == "completed"
    assert result.metrics == straight.metrics
    assert len(read_metrics(context_of(result.run_dir))) == len(read_metrics(context_of(straight.run_dir)))
    assert list(context_of(result.run_dir).tensorboard_dir.iterdir())


def test_a_full_disk_costs_the_tracker_and_not_the_run() -> None:
    def write_to_full_disk() -> None:
        with Path("/dev/full").open("w") as file:
            file.write("x")

    tracker = GuardedTracker("full", lambda: Record(write_to_full_disk)).open()
    with pytest.warns(UserWarning, match="tracker full failed and is left out .*No space left"):
        tracker.log({}, 1, 0.0)
    tracker.log({}, 2, 0.0)  # nothing is said a second time: warnings are errors here
    tracker.close(Outcome("completed"))


def test_a_tracker_that_cannot_be_opened_is_left_out(make_config: MakeConfig) -> None:
    run_dir = train_ppo(make_config(trackers=[])).run_dir
    context_of(run_dir).tensorboard_dir.rmdir()
    context_of(run_dir).tensorboard_dir.write_text("in the way")
    changes = ["--set", "trackers=[tensorboard]", "--total-timesteps", "192"]
    with pytest.warns(UserWarning, match="tracker tensorboard failed and is left out") as caught:
        assert main(["resume", str(run_dir), *changes]) == 0
    assert len(caught) == 1
    assert read_metadata(context_of(run_dir))["status"] == "completed"


def test_a_tracker_in_the_background_gets_everything_in_order() -> None:
    record = Record()
    tracker = BackgroundTracker(lambda: record, closing_seconds=10.0).start()
    for step in range(100):
        tracker.log({"loss": 1.0}, step, 0.0)
    tracker.close(Outcome("completed"))
    assert record.steps == list(range(100))
    assert record.outcome == Outcome("completed")


def test_a_tracker_that_hangs_does_not_hold_up_the_run() -> None:
    never = threading.Event()

    def hang() -> Record:
        never.wait()
        return Record()

    tracker = GuardedTracker("slow", lambda: BackgroundTracker(hang, closing_seconds=0.05).start()).open()
    tracker.log({}, 1, 0.0)
    with pytest.warns(UserWarning, match=r"tracker slow failed and is left out \(TimeoutError: it did not finish"):
        tracker.close(Outcome("completed"))
    tracker.close(Outcome("completed"))
    never.set()


def test_a_tracker_that_falls_too_far_behind_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.experiment.trackers.guard._MAX_WAITING", 2)
    busy, free = threading.Event(), threading.Event()

    def be_busy() -> None:
        busy.set()
        free.wait()

    tracker = GuardedTracker("slow", lambda: BackgroundTracker(lambda: Record(be_busy), 0.0).start()).open()
    tracker.log({}, 0, 0.0)
    busy.wait()
    for step in (1, 2):
        tracker.log({}, step, 0.0)
    with pytest.warns(UserWarning, match="it is 2 log entries behind"):
        tracker.log({}, 3, 0.0)
    free.set()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_before_any_file_is_made(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as Python marks what cannot be imported
    config = make_config(trackers=[name])
    with pytest.raises(ConfigError, match=rf"trackers=\['{name}'\]: {name} not installed; .*rl-training\[{name}\]"):
        train_ppo(config)
    assert not config.output_dir.exists()


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("trackers=[wandbb]", "trackers.0='wandbb': input should be 'tensorboard', 'csv', 'wandb' or 'mlflow'"),
        ("trackers=[csv, csv]", "trackers=['csv', 'csv']: name each tracker once"),
        ("trackers=csv", "trackers='csv': give a list"),
        ("tracker_options.wandb_projct=x", "wandb_projct: unknown key; did you mean 'wandb_project'?"),
        ("tracker_options.wandb_mode=maybe", "wandb_mode='maybe': input should be 'online' or 'offline'"),
        ("tracker_options.mlflow_tracking_uri=https://me:secret@host", "remove the password"),
        ("tracker_options=5", "tracker_options=5: give a map of names to values"),
    ],
)
def test_a_wrong_tracker_or_option_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, assignment: str, message: str
) -> None:
    command = ["train", "--algo", "ppo", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs")]
    assert main([*command, "--set", assignment]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_wrong_option_is_blamed_on_its_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\ntracker_options:\n  wandb_projct: mine\n")
    assert main(["train", "--config", str(path)]) == 2
    assert f"{path}:3: tracker_options=" in capsys.readouterr().err


def test_options_from_a_file_and_a_flag_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("algo: ppo\nenv_id: CartPole-v1\ntracker_options: {wandb_project: mine}\n")
    assert main(["train", "--config", str(path), "--dry-run", "--set", "tracker_options.wandb_mode=offline"]) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert shown["tracker_options.wandb_project"] == ["mine", "file"]
    assert shown["tracker_options.wandb_mode"] == ["offline", "flag"]


def test_trackers_do_not_change_the_run(make_config: MakeConfig) -> None:
    digests = [
        read_digests(context_of(train_ppo(make_config(trackers=trackers)).run_dir))
        for trackers in ([], ["tensorboard", "csv"])
    ]
    assert digests[0] == digests[1] != {}


def test_a_server_that_never_answers_costs_one_warning(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setattr("rl_training.experiment.trackers.opening._CLOSING_SECONDS", 0.2)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and says nothing
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = make_config(trackers=["mlflow"], tracker_options=TrackerOptions(mlflow_tracking_uri=uri))
        with pytest.warns(UserWarning, match="tracker mlflow failed and is left out") as caught:
            result = train_ppo(config)
    assert len(caught) == 1
    assert result.status == "completed"
