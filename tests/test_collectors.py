"""Groups of envs collect the same experience wherever they live, and after the loss of any of them."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sample_envs  # noqa: F401  # registers the envs
from chaos import result_of as outcome
from conftest import MakeConfig, slow_except_first
from test_exact_resume import SignalAt, train

from rl_training.errors import CheckpointError, ConfigError, EnvironmentStepError, RLTrainingError, TrainingInterrupted
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.sources import Layer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.grouped_collector import split_envs
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import prepare_resume, resume_training

WALK = "chaos_envs:HiddenWalk-v0"
RUNS = {
    "ppo": ("chaos_envs:PanelWalk-v0", {"hidden_sizes": [8]}),  # images, nested observations, masks
    "dqn": (WALK, {"train_frequency": 40, "normalize_obs": True, "normalize_rewards": True}),
    "sac": ("Pendulum-v1", {"train_frequency": 40, "normalize_obs": True}),
}


def grouped(make_config: MakeConfig, algo: str, **changes: Any) -> TrainConfig:
    """A run of five envs in three groups."""
    env_id, params = RUNS[algo]
    values = {"algo": algo, "env_id": env_id, "num_envs": 5, "collectors": 3, "total_timesteps": 240, **changes}
    return make_config(**values, action_mask="auto", algo_kwargs=params)


class KillCollectors(Callback):
    """Kills a collector's process after every collection, another one each time."""

    def __init__(self) -> None:
        self.killed = 0

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        workers = sorted(multiprocessing.active_children(), key=lambda process: process.name)
        os.kill(workers[self.killed % len(workers)].pid or 0, signal.SIGKILL)
        self.killed += 1


def test_envs_are_divided_evenly_and_in_order() -> None:
    assert split_envs(5, 3) == [range(2), range(2, 4), range(4, 5)]
    assert split_envs(4, 1) == [range(4)]


@pytest.mark.parametrize("algo", slow_except_first(RUNS))
def test_weights_are_equal_wherever_groups_live_and_whichever_are_killed(make_config: MakeConfig, algo: str) -> None:
    here = outcome(train(grouped(make_config, algo)))
    assert outcome(train(grouped(make_config, algo, collect_on="processes"))) == here
    killer = KillCollectors()
    with pytest.warns(UserWarning, match="collector . .envs .* failed: it was killed by SIGKILL; restarting it"):
        run_dir = train(grouped(make_config, algo, collect_on="processes"), killer)
    assert outcome(run_dir) == here
    assert killer.killed >= 3


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_one_collector_in_a_process_trains_like_one_here(make_config: MakeConfig, algo: str) -> None:
    here, rows_here, _ = outcome(train(grouped(make_config, algo, collectors=1)))
    run_dir = train(grouped(make_config, algo, collectors=1, collect_on="processes"), SignalAt(70, "update"))
    resume_training(run_dir)
    elsewhere, rows, _ = outcome(run_dir)
    assert [elsewhere[part] for part in ("algorithm", "buffer")] == [here[part] for part in ("algorithm", "buffer")]
    assert rows == rows_here


@pytest.mark.parametrize(
    ("algo", "place"), slow_except_first([("ppo", "processes"), ("dqn", "here"), ("sac", "processes")])
)
def test_a_run_in_groups_is_resumed_exactly_in_any_place(make_config: MakeConfig, algo: str, place: str) -> None:
    config = grouped(make_config, algo, collect_on=place)
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(70, "collect"))
    for step, event in ((110, "update"), (150, "evaluate")):
        with pytest.raises(TrainingInterrupted):
            resume_training(run_dir, callbacks=[SignalAt(step, event)])
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    assert [note["exact"] for note in read_metadata(context_of(run_dir))["resumed"]] == [True] * 3


def faulty(make_config: MakeConfig, tmp_path: Path, fault: str, **changes: Any) -> TrainConfig:
    """A run whose env misbehaves once, at the fifth step of its second episode."""
    armed = tmp_path / "armed"
    armed.touch()
    kwargs = {"fault": fault, "armed": str(armed), "at": 5, "episode": 2}
    return make_config(
        env_id="tests/Faulty-v0",
        env_kwargs=kwargs,
        collectors=2,
        collect_on="processes",
        total_timesteps=192,
        **changes,
    )


@pytest.mark.parametrize(
    "fault",
    [
        "raise",
        "abort",
        "os._exit",
        "sleep",
        "C code",
        pytest.param("C code with the GIL", marks=pytest.mark.slow),
        "nan",
    ],
)
def test_a_fault_of_one_env_changes_nothing_but_a_warning(make_config: MakeConfig, tmp_path: Path, fault: str) -> None:
    with pytest.warns(UserWarning, match="collector . .envs .* failed: .*; restarting it"):
        run_dir = train(faulty(make_config, tmp_path, fault, step_timeout=0.5))
    undisturbed = faulty(make_config, tmp_path, "fork")
    (tmp_path / "armed").unlink()
    assert outcome(run_dir) == outcome(train(undisturbed))


def always_faulty(make_config: MakeConfig, tmp_path: Path, fault: str, **changes: Any) -> TrainConfig:
    """A run whose env misbehaves at the fifth step of its second episode as long as the file `armed` is there."""
    config = faulty(make_config, tmp_path, fault, **changes)
    return config.model_copy(update={"env_kwargs": {**config.env_kwargs, "always": True}})


def test_an_exception_that_comes_again_ends_the_run_with_its_traceback(make_config: MakeConfig, tmp_path: Path) -> None:
    config = always_faulty(make_config, tmp_path, "raise", env_restarts=3)
    with (
        pytest.warns(UserWarning, match="restarting it") as warned,
        pytest.raises(
            EnvironmentStepError, match=r"^env \d, episode 1 .seed \d+., step 5 .*lost its simulator \(tried 2 times\)"
        ) as raised,
    ):
        get_algorithm_spec("ppo").train_fn(config)
    assert "misbehave" in str(raised.value.__cause__)  # the traceback of the other process
    assert all("1 of at most 3 times" in str(each.message) for each in warned)


def test_an_env_that_always_crashes_its_process_is_named_and_the_run_can_be_resumed(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    config = always_faulty(make_config, tmp_path, "abort", env_restarts=1)
    text = r"^collector \d \(envs \d to \d\) failed: it was killed by SIGABRT \(tried 2 times\)$"
    with pytest.warns(UserWarning, match="restarting it"), pytest.raises(EnvironmentStepError, match=text):
        get_algorithm_spec("ppo").train_fn(config)
    (run_dir,) = config.output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "failed"
    (tmp_path / "armed").unlink()
    resume_training(run_dir)
    assert outcome(run_dir) == outcome(train(config))


def test_callbacks_change_the_envs_of_every_group_and_a_lost_group_gets_the_changes_again(
    make_config: MakeConfig,
) -> None:
    values = {"env_id": "chaos_envs:LevelWalk-v0", "num_envs": 5, "collectors": 3, "total_timesteps": 320}
    values["callbacks"] = [{"chaos_envs:RaiseLevel": {"updates": 1}}]
    here = outcome(train(make_config(**values)))
    with pytest.warns(UserWarning, match="restarting it"):
        assert outcome(train(make_config(**values, collect_on="processes"), KillCollectors())) == here
    run_dir = train(make_config(**values), SignalAt(160, "update"))
    resume_training(run_dir)
    assert outcome(run_dir) == here


class ReadEnvs(Callback):
    """Reads and sets attributes of the envs when the run starts."""

    def __init__(self, wrong: str | None = None) -> None:
        self.wrong = wrong
        self.levels: list[Any] = []

    def on_train_start(self, trainer: TrainerState) -> None:
        trainer.env.set_attr(self.wrong or "level", 2.0)
        self.levels = [trainer.env.get_attr("level"), trainer.env.call("raise_level", 1.5)]


@pytest.mark.parametrize("place", ["here", "processes"])
def test_attributes_are_read_and_set_in_the_envs_of_every_group(make_config: MakeConfig, place: str) -> None:
    config = make_config(env_id="chaos_envs:LevelWalk-v0", collectors=2, collect_on=place)
    reader = ReadEnvs()
    train(config, reader)
    assert reader.levels == [[2.0] * 4, [3.5] * 4]
    with pytest.raises(RLTrainingError, match=r"env \d: LevelWalk has no attribute 'lewel'; did you mean 'level'\?"):
        train(config, ReadEnvs("lewel"))


def test_more_collectors_than_envs_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="collectors=5: at most one per env, and num_envs=4"):
        train(make_config(collectors=5))


def test_env_workers_inside_collector_processes_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="vectorization='async': with collect_on='processes'"):
        train(make_config(collectors=2, collect_on="processes", vectorization="async"))


def test_a_run_keeps_its_number_of_collectors(make_config: MakeConfig) -> None:
    run_dir = train(make_config(collectors=2), SignalAt(64, "update"))
    with pytest.raises(ConfigError, match="collectors: 2 then, 1 now"):
        prepare_resume(run_dir, [Layer("test", {"collectors": 1})])
    with pytest.raises(CheckpointError, match="of a run with collectors=2, not 1"):
        prepare_resume(run_dir, [Layer("test", {"collectors": 1})], force=True).train()
