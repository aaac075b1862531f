import os
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig

from rl_training.errors import CheckpointError, ConfigError, RunDirectoryError, TrainingStateError
from rl_training.experiment import DefaultExperimentManager
from rl_training.experiment.checkpointing import OpenedCheckpoint, open_checkpoint
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import Callback


def test_setup_gives_a_trainer_that_trains_once(make_each: MakeConfig) -> None:
    trainer = DefaultExperimentManager().setup(make_each())
    assert trainer.train().metrics["global_step"] == 128
    with pytest.raises(TrainingStateError, match="already trained"):
        trainer.train()


def test_a_trainer_that_failed_does_not_silently_start_over(make_each: MakeConfig) -> None:
    class Fail(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            raise RuntimeError("failed")

    trainer = DefaultExperimentManager().setup(make_each(), callbacks=[Fail()])
    with pytest.raises(RuntimeError, match="failed"):
        trainer.train()
    with pytest.raises(TrainingStateError, match="resume its run directory"):
        trainer.train()


def test_setup_refuses_a_config_that_cannot_train_and_makes_nothing(make_config: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    for changes in ({"algo": "pppo"}, {"algo_kwargs": {"gamma": 5}}, {"algo_kwargs": {"minibatch_size": 10_000}}):
        config = make_config(**changes)
        with pytest.raises(ConfigError):
            manager.setup(config)
        assert not config.output_dir.exists()


def test_setup_itself_makes_no_directory(make_each: MakeConfig) -> None:
    config = make_each()
    DefaultExperimentManager().setup(config)
    assert not config.output_dir.exists()


def test_resume_hands_its_callbacks_on_and_continues_in_place(make_each: MakeConfig) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_collect_end(self, trainer: Any, result: Any) -> None:
            seen.append(trainer.global_step)

    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    trainer = manager.resume(first.run_dir, total_timesteps=256, callbacks=[Watch()])
    assert trainer.train().run_dir == first.run_dir
    with pytest.raises(TrainingStateError, match="already trained"):
        trainer.train()
    assert seen == [192, 256]
    metadata = read_metadata(context_of(first.run_dir))
    assert [entry["step"] for entry in metadata["resumed"]] == [128]
    assert (metadata["status"], metadata["global_step"]) == ("completed", 256)
    steps = [row["step"] for row in read_metrics(context_of(first.run_dir)) if "time/fps" in row]
    assert steps == [64, 128, 192, 256]


def test_a_trainer_that_is_late_sees_what_another_has_done_and_drops_nothing(make_each: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    slow = manager.resume(first.run_dir, total_timesteps=192)
    fast = manager.resume(first.run_dir, total_timesteps=256).train()
    assert fast.metrics["global_step"] == 256
    files = {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="total_timesteps=192: already trained for 256 steps"):
        slow.train()
    assert {path: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()} == files


def test_a_late_trainer_with_a_larger_budget_goes_on_from_the_newest_checkpoint(make_each: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    slow = manager.resume(first.run_dir, total_timesteps=320)
    manager.resume(first.run_dir, total_timesteps=256).train()
    assert slow.train().metrics["global_step"] == 320
    assert [note["step"] for note in read_metadata(context_of(first.run_dir))["resumed"]] == [128, 256]


def test_a_checkpoint_to_go_on_from_is_read_while_the_lock_is_held(
    make_each: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    held: list[bool] = []

    def read(path: Path) -> OpenedCheckpoint:
        held.append((path / "run.lock").exists())
        with pytest.raises(RunDirectoryError, match="in use by process"):
            RunLock(path).check_free()
        return open_checkpoint(path)

    trainer = manager.resume(first.run_dir, total_timesteps=192)
    assert not (first.run_dir / "run.lock").exists()  # a trainer that never trains blocks nobody
    monkeypatch.setattr("rl_training.runtime.workflows.open_checkpoint", read)
    trainer.train()
    assert held == [True]
    assert not (first.run_dir / "run.lock").exists()


def test_the_lock_is_given_back_when_a_resume_fails(make_each: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    trainer = manager.resume(first.run_dir, total_timesteps=192)
    for path in first.checkpoint_path.parent.glob("*.pt"):
        path.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        trainer.train()
    assert not (first.run_dir / "run.lock").exists()
    RunLock(first.run_dir).acquire().release()


def test_a_run_in_use_is_refused_before_it_is_read(make_each: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    lock = RunLock(first.run_dir).acquire()
    with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()} on "):
        manager.resume(first.run_dir, total_timesteps=192)
    lock.release()


def test_a_complete_run_gives_its_result_again_and_refuses_a_smaller_budget(make_each: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_each()).train()
    for budget in (None, 128):
        assert manager.resume(first.run_dir, budget).train() == first
    with pytest.raises(ConfigError, match="total_timesteps=100: already trained for 128 steps"):
        manager.resume(first.run_dir, 100)
    with pytest.raises(ConfigError, match="already trained for 128 steps"):
        manager.resume(first.checkpoint_path)


def test_a_late_trainer_whose_budget_another_has_used_up_returns_that_result(make_config: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_config()).train()
    slow = manager.resume(first.run_dir, total_timesteps=192)
    fast = manager.resume(first.run_dir, total_timesteps=192).train()
    assert slow.train() == fast
