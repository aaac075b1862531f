import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig

from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.callbacks import (
    EVENTS,
    Callback,
    CallbackList,
    StopAfterWallTime,
    StopAtReturn,
    StopWithoutImprovement,
)
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training


class Recorder:
    """Has the five methods and inherits nothing; may raise in one of them."""

    def __init__(self, fails_in: str | None = None) -> None:
        self.events: list[str] = []
        self.results: list[Any] = []
        self.fails_in = fails_in

    def note(self, event: str, trainer: TrainerState, result: Any = None) -> None:
        self.events.append(event)
        self.results.append(result)
        self.trainer = trainer
        if event == self.fails_in:
            raise RuntimeError(f"failed in {event}")

    def on_train_start(self, trainer: TrainerState) -> None:
        self.note("on_train_start", trainer)

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        self.note("on_collect_end", trainer, result)

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        self.note("on_update_end", trainer, result)

    def on_eval_end(self, trainer: TrainerState, metrics: Any) -> None:
        self.note("on_eval_end", trainer, metrics)

    def on_train_end(self, trainer: TrainerState, result: Any) -> None:
        self.note("on_train_end", trainer, result)


def train(config: TrainConfig, *callbacks: Any) -> Any:
    return get_algorithm_spec(config.algo).train_fn(config, callbacks=callbacks)


def always_five(make_each: MakeConfig, **changes: Any) -> TrainConfig:
    """A run on an env whose every return is 5."""
    kind = "ContinuousTimeLimitProbe" if make_each().algo == "sac" else "TimeLimitProbe"
    return make_each(env_id=f"rl_training/{kind}-v0", **changes)


def test_the_five_events_reach_an_object_without_a_base_class_in_order(make_each: MakeConfig) -> None:
    config, recorder = make_each(), Recorder()
    result = train(config, recorder)
    warm_up = [] if config.algo == "ppo" else ["on_collect_end"]
    iteration = ["on_collect_end", "on_update_end", "on_eval_end"]
    assert recorder.events == ["on_train_start", *warm_up, *iteration, *iteration, "on_train_end"]
    collected, updated, evaluated = recorder.results[-4:-1]
    gradient_steps = 4 if config.algo == "ppo" else 1
    assert (collected.num_env_steps, updated.num_gradient_steps, evaluated["eval_episodes"]) == (64, gradient_steps, 2)
    assert recorder.results[-1] == result
    state = recorder.trainer
    assert (state.algorithm, state.run_dir, state.global_step) == (config.algo, result.run_dir, 128)


PASSED_EVERYWHERE = """
from rl_training import PPO
from rl_training.experiment import DefaultExperimentManager
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training


class Watch:
    def on_train_start(self, run: object) -> None: ...
    def on_collect_end(self, run: object, collected: object) -> None: ...
    def on_update_end(self, run: object, updated: object) -> None: ...
    def on_eval_end(self, run: object, metrics: object) -> None: ...
    def LAST_EVENT(self, run: object, result: object) -> None: ...


config = TrainConfig(algo="ppo", env_id="CartPole-v1")
CallbackList([Watch()])
PPO(config).learn([Watch()])
DefaultExperimentManager().setup(config, [Watch()])
DefaultExperimentManager().resume("run", callbacks=[Watch()])
resume_training("run", callbacks=[Watch()])
train_ppo(config, callbacks=[Watch()])
"""


def test_type_checking_accepts_an_object_without_a_base_class_and_refuses_one_that_lacks_an_event(
    tmp_path: Path,
) -> None:
    whole, lacking = tmp_path / "whole.py", tmp_path / "lacking.py"
    whole.write_text(PASSED_EVERYWHERE.replace("LAST_EVENT", "on_train_end"))
    lacking.write_text(PASSED_EVERYWHERE.replace("LAST_EVENT", "on_training_end"))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(whole), str(lacking)]
    root = Path(__file__).parents[1]
    errors = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout
    refused = [line for line in errors.splitlines() if 'incompatible type "Watch"; expected "Listener"' in line]
    assert len(refused) == PASSED_EVERYWHERE.count("[Watch()]")
    assert all("lacking.py" in line for line in refused)
    assert [line for line in errors.splitlines() if "error:" in line] == refused


def test_callbacks_are_told_in_the_order_given() -> None:
    order: list[str] = []

    class Named(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_train_start(self, trainer: TrainerState) -> None:
            order.append(self.name)

    state = TrainerState("ppo", Path(), TrainConfig(algo="ppo", env_id="none"))
    CallbackList([Named("first"), Named("second")]).on_train_start(state)
    assert order == ["first", "second"]


def test_a_callback_can_ask_to_stop(make_each: MakeConfig) -> None:
    class Impatient(Callback):
        def on_update_end(self, trainer: TrainerState, result: Any) -> None:
            trainer.request_stop("seen enough")
            trainer.request_stop("the first reason counts")

    result = train(make_each(total_timesteps=10_000), Impatient())
    assert (result.status, result.metrics["global_step"]) == ("stopped", 64)
    assert result.metrics["eval_episodes"] == 2
    assert load_checkpoint(result.checkpoint_path).trainer_state["global_step"] == 64
    assert read_metadata(context_of(result.run_dir))["stop_reason"] == "seen enough"


def test_a_run_stops_once_an_evaluation_reaches_the_return(make_each: MakeConfig) -> None:
    config = always_five(make_each, total_timesteps=192)
    assert train(config, StopAtReturn(5.0)).metrics["global_step"] == 64
    assert train(config, StopAtReturn(5.01)).status == "completed"


def test_a_run_stops_after_its_wall_time(make_config: MakeConfig) -> None:
    ticks = iter(range(1000))
    stopper = StopAfterWallTime(2.5, clock=lambda: float(next(ticks)))  # started at tick 1, saved at 2: over at 4
    config = make_config(total_timesteps=10_000, checkpoint_interval=0, eval_interval=0)
    assert train(config, stopper).metrics["global_step"] == 2 * 64


def test_a_resumed_runs_wall_time_goes_on_where_it_was() -> None:
    first = StopAfterWallTime(10.0, clock=iter([0.0, 100.0, 106.0]).__next__)
    state = TrainerState("ppo", Path(), TrainConfig(algo="ppo", env_id="none"))
    first.on_train_start(state)
    second = StopAfterWallTime(10.0, clock=iter([0.0, 200.0, 203.9, 204.0]).__next__)
    second.load_state_dict(first.state_dict())
    second.on_train_start(state)
    second.on_collect_end(state, CollectResult(1, 0, {}))
    assert state.stop_reason is None
    second.on_collect_end(state, CollectResult(1, 0, {}))
    assert state.stop_reason == "10 s of wall time have passed"


def evaluate(stopper: StopWithoutImprovement, *returns: float) -> str | None:
    state = TrainerState("ppo", Path(), TrainConfig(algo="ppo", env_id="none"))
    for value in returns:
        stopper.on_eval_end(state, {"eval_return_mean": value})
    return state.stop_reason


def test_a_run_stops_when_evaluations_no_longer_improve() -> None:
    assert evaluate(StopWithoutImprovement(2), 1.0, 2.0, 2.0, 3.0, 1.0) is None
    assert evaluate(StopWithoutImprovement(2), 1.0, 2.0, 2.0, 1.0) == "no evaluation better than 2 in the last 2"
    assert evaluate(StopWithoutImprovement(2, margin=0.5), 1.0, 1.4, 1.5) == "no evaluation better than 1 in the last 2"
    with pytest.raises(ConfigError, match="patience=0"):
        StopWithoutImprovement(0)


def test_callbacks_with_a_memory_go_on_with_it_after_a_resume(make_each: MakeConfig) -> None:
    """All evaluations are equal, so the patience of four ends at the fifth, two runs taken together."""
    config = always_five(make_each, total_timesteps=192)
    first = train(config, StopWithoutImprovement(4))
    assert first.status == "completed"
    resumed = resume_training(first.run_dir, total_timesteps=10_000, callbacks=[StopWithoutImprovement(4)])
    assert resumed.metrics["global_step"] == 5 * 64


def test_a_memory_goes_to_the_callback_of_its_class_in_order() -> None:
    saved = CallbackList([StopWithoutImprovement(1), Callback(), StopWithoutImprovement(2)])
    evaluate(saved.callbacks[2], 5.0)  # type: ignore[arg-type]  # it is one
    others = CallbackList([StopAfterWallTime(1.0), StopWithoutImprovement(1), StopWithoutImprovement(2)])
    others.load_state_dict(saved.state_dict())
    assert others.state_dict()[1:] == saved.state_dict()


@pytest.mark.parametrize("event", EVENTS)
def test_an_exception_leaves_a_checkpoint_and_still_ends_the_run_for_the_others(
    make_each: MakeConfig, event: str
) -> None:
    config = make_each()
    before, after = Recorder(), Recorder()
    with pytest.raises(RuntimeError, match=f"failed in {event}"):
        train(config, before, Recorder(fails_in=event), after)
    assert before.events[-1] == after.events[-1] == "on_train_end"
    assert after.events.count("on_train_end") == 1
    (run_dir,) = config.output_dir.iterdir()
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == after.trainer.global_step
    metadata = read_metadata(context_of(run_dir))
    assert metadata["status"] == "failed"
    assert metadata["error"] == f"RuntimeError: failed in {event}"


def test_a_run_that_failed_in_a_callback_can_be_resumed(make_each: MakeConfig) -> None:
    config = make_each()
    with pytest.raises(RuntimeError):
        train(config, Recorder(fails_in="on_collect_end"))
    (run_dir,) = config.output_dir.iterdir()
    assert resume_training(run_dir).metrics["global_step"] == 128


class Kill(Callback):
    """Sends this process a signal in the middle of the run."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        for number in self.numbers:
            os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_saves_and_ends_the_run(make_each: MakeConfig, number: int) -> None:
    config, recorder = make_each(total_timesteps=10_000, eval_interval=0), Recorder()
    handler = signal.getsignal(number)
    with pytest.raises(TrainingInterrupted) as caught:
        train(config, Kill(number), recorder)
    assert caught.value.signal_number == (signal.SIGTERM if number == signal.SIGUSR1 else number)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert signal.getsignal(number) is handler
    (run_dir,) = config.output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "interrupted"
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 64
    assert recorder.events[-1] == "on_train_end"
    assert "on_eval_end" not in recorder.events  # who interrupts does not want to wait for it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once(make_each: MakeConfig, number: int) -> None:
    config, recorder = make_each(total_timesteps=10_000), Recorder()
    with pytest.raises(TrainingInterrupted, match="without saving, because a second signal came") as caught:
        train(config, recorder, Kill(number, signal.SIGINT))
    assert caught.value.signal_number == number
    assert recorder.events[-1] == "on_train_end"  # a display can give the terminal back
    (run_dir,) = config.output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "interrupted"


def test_training_outside_the_main_thread_leaves_signals_alone(make_config: MakeConfig) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(train(make_config())))
    thread.start()
    thread.join()
    assert results[0].status == "completed"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_stops_refuse_values_that_never_come(value: float) -> None:
    with pytest.raises(ConfigError):
        StopAtReturn(value)
    for seconds in (value, 0.0, -1.0):
        with pytest.raises(ConfigError):
            StopAfterWallTime(seconds)
