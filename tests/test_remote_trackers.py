"""W&B and MLflow, offline, against the real packages: what they hold after a run, a resume, a fork and a failure."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig
from wandb_files import offline_runs

from rl_training.errors import TrainingInterrupted
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.runs import context_of, create_run_context, read_digests, read_metrics
from rl_training.experiment.trackers.base import TrackedRun
from rl_training.experiment.trackers.mlflow_tracker import open_mlflow
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training, verify_resume


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account, no server, no home."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


# In a process of its own, because wandb cannot be used any more afterwards.
KILL_WANDB = """
import json, sys
import psutil
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.trackers import opening
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo

opening._CLOSING_SECONDS = 1.0

class Kill(Callback):
    def on_eval_end(self, trainer, metrics):
        if trainer.global_step == 64:
            core = []
            while not core:
                core = [child for child in psutil.Process().children() if "wandb-core" in child.name()]
            core[0].kill()
            core[0].wait(10)

print(train_ppo(TrainConfig(**json.loads(sys.argv[1])), callbacks=[Kill()]).status)
"""


class InterruptAt(Callback):
    """Ctrl-C at an env step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, result: Any) -> None:
        if trainer.global_step >= self.step:
            os.kill(os.getpid(), 2)


class Fail(Callback):
    def on_update_end(self, trainer: Any, result: Any) -> None:
        raise RuntimeError("broken")


def forget_newest_checkpoint(run_dir: Path) -> None:
    """As if the run had been killed just before it was written."""
    newest = max((run_dir / "checkpoints").glob("step_*.pt"), key=lambda path: int(path.stem.removeprefix("step_")))
    for path in newest.parent.glob(f"{newest.name}*"):
        path.unlink()


def killed_twice(config: TrainConfig) -> Path:
    """The directory of a run that lost its newest checkpoint and was resumed, and then once more, to 320 steps."""
    run_dir = train_ppo(config).run_dir
    for total_timesteps in (256, 320):
        forget_newest_checkpoint(run_dir)
        resume_training(run_dir, total_timesteps=total_timesteps)
    return run_dir


def measured(run_dir: Path) -> dict[tuple[int, str], float | None]:
    """Everything in `metrics.jsonl`, by env step and name."""
    return {
        (row["step"], name): value
        for row in read_metrics(context_of(run_dir))
        for name, value in row.items()
        if name not in ("step", "time")
    }


def without_speed(values: dict[tuple[int, str], Any]) -> dict[tuple[int, str], Any]:
    """What a repeated stretch of a run measures again to the last bit."""
    return {
        key: value
        for key, value in values.items()
        if not key[1].startswith("time/") or key[1] == "time/total_timesteps"
    }


class TestWandb:
    @pytest.fixture(autouse=True)
    def needs_wandb(self) -> None:
        pytest.importorskip("wandb")

    def logged(self, run_dir: Path) -> list[tuple[int, str, Any]]:
        return [
            (step, name, value)
            for run in offline_runs(run_dir)
            for step, row in run.history.items()
            for name, value in row.items()
            if not name.startswith("_")
        ]

    def test_a_run_is_there_with_its_metrics_config_tags_and_end(self, make_config: MakeConfig) -> None:
        config = make_config(trackers=["wandb"], tags=["one", "two"], tracker_options={"wandb_project": "mine"})
        result = train_ppo(config)
        (run,) = offline_runs(result.run_dir)
        assert (run.name, run.project, run.tags) == (result.run_dir.name, "mine", ["one", "two"])
        assert (run.config["seed"], run.config["algo_kwargs"]["num_steps"]) == (7, 16)
        assert {(step, name): value for step, name, value in self.logged(result.run_dir)} == measured(result.run_dir)
        assert run.exit_code == 0
        assert run.summary["status"] == "completed"
        assert run.summary["eval_return_mean"] == result.metrics["eval_return_mean"]

    def test_a_resumed_run_goes_on_in_its_w_and_b_run_and_tells_nothing_twice(self, make_config: MakeConfig) -> None:
        run_dir = killed_twice(make_config(trackers=["wandb"], total_timesteps=256))
        assert len({run.run_id for run in offline_runs(run_dir)}) == 1
        logged = self.logged(run_dir)
        assert set(Counter((step, name) for step, name, _ in logged).values()) == {1}
        assert without_speed({(step, name): value for step, name, value in logged}) == without_speed(measured(run_dir))

    def test_a_fork_has_a_w_and_b_run_of_its_own(self, make_config: MakeConfig) -> None:
        parent = train_ppo(make_config(trackers=["wandb"]))
        fork = resume_training(parent.checkpoint_path, total_timesteps=192)
        ids = {run.run_id for result in (parent, fork) for run in offline_runs(result.run_dir)}
        assert len(ids) == 2
        assert {step for step, _, _ in self.logged(fork.run_dir)} == {192}

    def test_a_failed_run_is_marked(self, make_config: MakeConfig) -> None:
        config = make_config(trackers=["wandb"])
        with pytest.raises(RuntimeError, match="broken"):
            train_ppo(config, callbacks=[Fail()])
        (run,) = offline_runs(next(config.output_dir.iterdir()))
        assert (run.exit_code, run.summary["status"]) == (1, "failed")

    def test_without_a_login_wandb_writes_offline_and_the_run_says_so(
        self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("WANDB_MODE")
        with pytest.warns(UserWarning, match=r"W&B runs offline .*No API key configured") as caught:
            result = train_ppo(make_config(trackers=["wandb"]))
        assert len(caught) == 1
        assert len(offline_runs(result.run_dir)) == 1

    @pytest.mark.slow
    def test_when_the_process_behind_wandb_dies_the_run_goes_on(self, make_config: MakeConfig) -> None:
        config = make_config(trackers=["wandb"])
        command = [sys.executable, "-c", KILL_WANDB, json.dumps(plain_config(config))]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stdout == "completed\n"
        assert answer.stderr.count("tracker wandb failed and is left out") == 1


class TestMlflow:
    @pytest.fixture(autouse=True)
    def needs_mlflow(self) -> None:
        pytest.importorskip("mlflow")

    def client(self, run_dir: Path) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=(run_dir.parent / "mlruns").as_uri())

    def runs(self, run_dir: Path, experiment: str = "rl-training") -> list[Any]:
        client = self.client(run_dir)
        return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))

    def logged(self, run_dir: Path, run: Any) -> list[tuple[int, str, float]]:
        client = self.client(run_dir)
        return [
            (metric.step, name, metric.value)
            for name in run.data.metrics
            if "/" in name
            for metric in client.get_metric_history(run.info.run_id, name)
        ]

    def test_a_run_is_there_with_its_metrics_params_tags_and_end(self, make_config: MakeConfig) -> None:
        options = {"mlflow_experiment_name": "mine"}
        result = train_ppo(make_config(trackers=["mlflow"], tags=["one", "two"], tracker_options=options))
        (run,) = self.runs(result.run_dir, "mine")
        assert run.info.run_name == result.run_dir.name
        assert run.info.status == "FINISHED"
        assert (run.data.tags["tags"], run.data.tags["status"]) == ("one, two", "completed")
        assert (run.data.params["seed"], run.data.params["algo_kwargs.num_steps"]) == ("7", "16")
        logged = {(step, name): value for step, name, value in self.logged(result.run_dir, run)}
        assert logged == measured(result.run_dir)
        assert run.data.metrics["eval_return_mean"] == result.metrics["eval_return_mean"]

    def test_a_resumed_run_goes_on_in_its_mlflow_run_and_tells_nothing_twice(self, make_config: MakeConfig) -> None:
        run_dir = killed_twice(make_config(trackers=["mlflow"], total_timesteps=256))
        (run,) = self.runs(run_dir)
        assert run.info.status == "FINISHED"
        logged = self.logged(run_dir, run)
        assert set(Counter((step, name) for step, name, _ in logged).values()) == {1}
        assert without_speed({(step, name): value for step, name, value in logged}) == without_speed(measured(run_dir))

    def test_a_fork_has_an_mlflow_run_of_its_own_and_verifying_has_none(self, make_config: MakeConfig) -> None:
        parent = train_ppo(make_config(trackers=["mlflow"]))
        resume_training(parent.checkpoint_path, total_timesteps=192)
        assert verify_resume(parent.run_dir).equal == (128,)
        assert len(self.runs(parent.run_dir)) == 2

    def test_a_run_that_was_removed_there_begins_anew(self, make_config: MakeConfig) -> None:
        run_dir = train_ppo(make_config(trackers=["mlflow"])).run_dir
        (run,) = self.runs(run_dir)
        self.client(run_dir).delete_run(run.info.run_id)
        resume_training(run_dir, total_timesteps=192)
        (run,) = self.runs(run_dir)
        assert {step for step, _, _ in self.logged(run_dir, run)} == {192}

    def test_failed_and_interrupted_runs_are_marked(self, make_config: MakeConfig) -> None:
        failing, interrupted = make_config(trackers=["mlflow"]), make_config(trackers=["mlflow"], seed=8)
        with pytest.raises(RuntimeError, match="broken"):
            train_ppo(failing, callbacks=[Fail()])
        with pytest.raises(TrainingInterrupted):
            train_ppo(interrupted, callbacks=[InterruptAt(64)])
        run_dir = interrupted.output_dir / "any"
        assert {run.data.params["seed"]: run.info.status for run in self.runs(run_dir)} == {
            "7": "FAILED",
            "8": "KILLED",
        }

    def test_files_that_vanish_cost_one_warning(self, make_config: MakeConfig) -> None:
        class MoveAway(Callback):
            """Takes the store away once the run is in it."""

            def on_eval_end(self, trainer: Any, metrics: Any) -> None:
                while not (trainer.run_dir / "trackers" / "mlflow.json").exists():
                    pass
                if not (elsewhere := trainer.run_dir.parent / "elsewhere").exists():
                    (trainer.run_dir.parent / "mlruns").rename(elsewhere)

        with pytest.warns(UserWarning, match="tracker mlflow failed and is left out") as caught:
            result = train_ppo(make_config(trackers=["mlflow"]), callbacks=[MoveAway()])
        assert len(caught) == 1
        assert result.status == "completed"

    def test_a_password_in_the_address_of_the_server_stays_out_of_files_and_warnings(
        self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uri = "http://me:secret@127.0.0.1:9"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with pytest.warns(UserWarning, match="tracker mlflow failed and is left out") as caught:
            result = train_ppo(make_config(trackers=["mlflow"]))
        assert "secret" not in str(caught[0].message)
        files = [path for path in result.run_dir.rglob("*") if path.is_file()]
        assert not [path for path in files if b"secret" in path.read_bytes()]

    def test_the_upload_record_names_a_server_without_its_password(
        self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://me:secret@localhost{tmp_path}/store")
        result = train_ppo(make_config(trackers=["mlflow"]))
        known = json.loads((result.run_dir / "trackers" / "mlflow.json").read_text())
        assert known["home"] == f"file://localhost{tmp_path}/store"

    def test_a_store_that_is_not_supported_is_reported(self, make_config: MakeConfig, tmp_path: Path) -> None:
        options = {"mlflow_tracking_uri": f"oddity://{tmp_path}"}
        with pytest.warns(UserWarning, match=r"tracker mlflow failed and is left out \(Unsupported"):
            assert train_ppo(make_config(trackers=["mlflow"], tracker_options=options)).status == "completed"

    def test_runs_that_start_together_share_one_experiment(self, make_config: MakeConfig) -> None:
        contexts = [create_run_context(make_config(), str(index)) for index in range(4)]
        start = threading.Barrier(len(contexts))

        def track(index: int) -> None:
            start.wait()
            open_mlflow(TrackedRun(contexts[index], make_config()))

        threads = [threading.Thread(target=track, args=[index]) for index in range(len(contexts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(self.runs(contexts[0].run_dir)) == 4
        names = [experiment.name for experiment in self.client(contexts[0].run_dir).search_experiments()]
        assert sorted(names) == ["Default", "rl-training"]


def test_both_trackers_leave_the_run_as_it_is(make_config: MakeConfig) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    digests = [
        read_digests(context_of(train_ppo(make_config(trackers=trackers)).run_dir))
        for trackers in ([], ["wandb", "mlflow"])
    ]
    assert digests[0] == digests[1] != {}
