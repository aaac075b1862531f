from typing import Any

import pytest
from conftest import MakeConfig

from rl_training.errors import ConfigError, TrainingStateError
from rl_training.experiment import DefaultExperimentManager
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import Callback


def test_setup_gives_a_trainer_that_trains_once(make_config: MakeConfig) -> None:
    trainer = DefaultExperimentManager().setup(make_config())
    assert trainer.train().metrics["global_step"] == 128
    with pytest.raises(TrainingStateError, match="trained already"):
        trainer.train()


def test_a_trainer_that_failed_does_not_silently_start_over(make_config: MakeConfig) -> None:
    class Fail(Callback):
        def on_update_end(self, trainer: Any, result: Any) -> None:
            raise RuntimeError("failed")

    trainer = DefaultExperimentManager().setup(make_config(), callbacks=[Fail()])
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


def test_setup_itself_makes_no_directory(make_config: MakeConfig) -> None:
    config = make_config()
    DefaultExperimentManager().setup(config)
    assert not config.output_dir.exists()


def test_resume_hands_its_callbacks_on_and_continues_in_place(make_config: MakeConfig) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_collect_end(self, trainer: Any, result: Any) -> None:
            seen.append(trainer.global_step)

    manager = DefaultExperimentManager()
    first = manager.setup(make_config()).train()
    trainer = manager.resume(first.run_dir, total_timesteps=256, callbacks=[Watch()])
    assert trainer.train().run_dir == first.run_dir
    with pytest.raises(TrainingStateError, match="trained already"):
        trainer.train()
    assert seen == [192, 256]
    metadata = read_metadata(context_of(first.run_dir))
    assert [entry["step"] for entry in metadata["resumed"]] == [128]
    assert (metadata["status"], metadata["global_step"]) == ("completed", 256)
    steps = [row["step"] for row in read_metrics(context_of(first.run_dir)) if "time/fps" in row]
    assert steps == [64, 128, 192, 256]


def test_resume_needs_a_larger_budget(make_config: MakeConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(make_config()).train()
    for budget in (None, 128, 100):
        with pytest.raises(ConfigError, match="already trained for 128 steps"):
            manager.resume(first.run_dir, budget)
