import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chaos_envs
import numpy as np
import pytest
import sample_envs
import yaml
from chaos import result_of as outcome
from conftest import MakeConfig

from rl_training import DQN, PPO, SAC
from rl_training.api.algorithms import Algorithm
from rl_training.errors import ConfigError, TrainingInterrupted, TrainingStateError
from rl_training.experiment import DefaultExperimentManager
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import context_of, read_metadata, read_metrics
from rl_training.runtime.callbacks import (
    EVENTS,
    Callback,
    CallbackList,
    StopAfterWallTime,
    StopAtReturn,
    StopWithoutImprovement,
)
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training, verify_resume


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


class Watcher:
    """Takes every event, and has no base class."""

    def on_train_start(self, run: object) -> None: ...
    def on_collect_end(self, run: object, collected: object) -> None: ...
    def on_update_end(self, run: object, updated: object) -> None: ...
    def on_eval_end(self, run: object, metrics: object) -> None: ...
    def on_train_end(self, run: object, result: object) -> None: ...


class Lacking:
    """Takes every event but the last."""

    def on_train_start(self, run: object) -> None: ...
    def on_collect_end(self, run: object, collected: object) -> None: ...
    def on_update_end(self, run: object, updated: object) -> None: ...
    def on_eval_end(self, run: object, metrics: object) -> None: ...
    def on_training_end(self, run: object, result: object) -> None: ...


if TYPE_CHECKING:  # never run: type checking accepts the first everywhere, and complains if it accepts the second

    def _pass_everywhere(config: TrainConfig, whole: Watcher, lacking: Lacking) -> None:
        CallbackList([whole])
        PPO(config).learn([whole])
        DefaultExperimentManager().setup(config, [whole])
        DefaultExperimentManager().resume("run", callbacks=[whole])
        resume_training("run", callbacks=[whole])
        train_ppo(config, callbacks=[whole])
        CallbackList([lacking])  # type: ignore[list-item]
        PPO(config).learn([lacking])  # type: ignore[list-item]
        DefaultExperimentManager().setup(config, [lacking])  # type: ignore[list-item]
        DefaultExperimentManager().resume("run", callbacks=[lacking])  # type: ignore[list-item]
        resume_training("run", callbacks=[lacking])  # type: ignore[list-item]
        train_ppo(config, callbacks=[lacking])  # type: ignore[list-item]


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


class Hands(Callback):
    """Does something with the run in one of the events, and keeps what came of it."""

    def __init__(self, event: str, use: Callable[[TrainerState], Any]) -> None:
        self.event, self.use = event, use
        self.got: list[Any] = []
        self.trainer: TrainerState | None = None

    def _look(self, trainer: TrainerState, event: str) -> None:
        self.trainer = trainer
        if event == self.event:
            self.got.append(self.use(trainer))

    def on_train_start(self, trainer: TrainerState) -> None:
        self._look(trainer, "start")

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        self._look(trainer, "update")

    def on_train_end(self, trainer: TrainerState, result: Any) -> None:
        self._look(trainer, "end")


def obs_of(config: TrainConfig) -> Any:
    return np.full(3 if config.env_id == "Pendulum-v1" else 4, 0.1, np.float32)


def test_a_callback_predicts_evaluates_and_saves_with_the_weights_of_the_moment(make_each: MakeConfig) -> None:
    config = make_each()

    def use(trainer: TrainerState) -> Any:
        path = trainer.save(config.output_dir / f"agent-{trainer.global_step}")
        drawn = trainer.predict(obs_of(config), deterministic=False)
        return path, trainer.predict(obs_of(config)), trainer.evaluate(2), np.shape(drawn)

    hands = Hands("update", use)
    straight, used = train(config), train(config, hands)
    assert outcome(used.run_dir) == outcome(straight.run_dir)  # the run was not disturbed
    for path, action, metrics, _ in hands.got:
        model = load_model(path)
        assert path.suffix == ".pt"
        assert np.array_equal(model.predict(obs_of(config)), action)
        assert model.evaluate(2) == metrics
    path = hands.got[0][0]
    assert load_model(path).learn().metrics == used.metrics  # it can be continued, with its experience


def load_model(path: Path) -> Algorithm:
    state = load_checkpoint(path)
    kind = {"ppo": PPO, "dqn": DQN, "sac": SAC}[state.config["algo"]]
    return kind.load(path)


def test_a_model_in_a_callback_of_its_own_run_has_the_weights_of_the_moment(make_each: MakeConfig) -> None:
    config = make_each()
    model = {"ppo": PPO, "dqn": DQN, "sac": SAC}[config.algo](config)

    def use(trainer: TrainerState) -> None:
        assert np.array_equal(model.predict(obs_of(config)), trainer.predict(obs_of(config)))
        assert model.evaluate(1) == trainer.evaluate(1)
        saved = model.save(config.output_dir / "agent.pt")
        assert load_checkpoint(saved).trainer_state["global_step"] == trainer.global_step

    model.predict(obs_of(config))  # builds the agent of the untrained model
    events = [Hands(event, use) for event in ("start", "update", "end")]
    result = model.learn(events)
    assert [len(hands.got) for hands in events] == [1, 2, 1]
    saved = load_checkpoint(model.save(config.output_dir / "agent.pt"))
    assert digest(saved.algorithm_state) == digest(load_checkpoint(result.checkpoint_path).algorithm_state)


def test_a_run_can_be_used_only_while_it_lasts(make_config: MakeConfig) -> None:
    ending: list[str] = []

    def use(trainer: TrainerState) -> None:
        trainer.predict(obs_of(trainer.config))
        for late in (lambda: trainer.env, lambda: trainer.log("late", 1)):
            with pytest.raises(
                TrainingStateError, match="the run has ended and its last checkpoint is written"
            ) as error:
                late()
            ending.append(str(error.value))

    hands = Hands("end", use)
    train(make_config(), hands)
    assert ending[0].endswith("the envs are not available")
    assert hands.trainer is not None
    for late in (hands.trainer.evaluate, lambda: TrainerState("ppo", Path(), make_config()).env):
        with pytest.raises(TrainingStateError, match="no run is in progress: use this in a callback"):
            late()


def test_a_metric_of_a_callback_is_logged_and_goes_on_after_a_resume(make_config: MakeConfig) -> None:
    hands = Hands("start", lambda trainer: trainer.log("curriculum/level", np.int64(3)))
    first = train(make_config(), hands)
    rows = read_metrics(context_of(first.run_dir))
    assert [row["curriculum/level"] for row in rows if "train/loss" in row] == [3, 3]
    resume_training(first.run_dir, total_timesteps=192)
    assert read_metrics(context_of(first.run_dir))[-2]["curriculum/level"] == 3


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("train/loss", 1.0, "names that begin with rollout, train, eval, time, step belong to the package"),
        ("step", 1, "belong to the package"),
        ("a b", 1, "use letters, digits"),
        ("", 1, "use letters, digits"),
        ("level", float("nan"), "was given nan: give a finite number"),
        ("level", True, "was given True"),
        ("level", "3", "was given '3'"),
    ],
)
def test_a_metric_with_a_wrong_name_or_value_is_refused(name: str, value: Any, told: str) -> None:
    state = TrainerState("ppo", Path(), TrainConfig(algo="ppo", env_id="none"))
    state.log("curriculum/level.mean-2", 0.5)
    with pytest.raises(ConfigError, match=told):
        state.log(name, value)
    assert state.metrics == {"curriculum/level.mean-2": 0.5}


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_collection_that_a_signal_cuts_in_two_is_one_event(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    """Otherwise a callback that counts collections would act at another step than in the uninterrupted run."""
    config = make_config(algo=algo, env_id="tests/Signalling-v0", num_envs=2)
    events: list[Any] = []
    for signal_at in (-1, 101):
        monkeypatch.setattr(sample_envs.SignallingEnv, "steps_of_all", 0)
        monkeypatch.setattr(sample_envs.SignallingEnv, "signal_at", signal_at)
        parts = [Recorder(), Recorder()]
        if signal_at < 0:
            train(config, parts[0])
        else:
            with pytest.raises(TrainingInterrupted):
                train(config, parts[0])
            run_dir = max(config.output_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            resume_training(run_dir, callbacks=[parts[1]])
        told = [result for part in parts for result in part.results if isinstance(result, CollectResult)]
        events.append([(each.num_env_steps, each.episodes, each.metrics) for each in told])
    assert events[0] == events[1]


def test_the_best_checkpoint_knows_what_callbacks_did_in_its_evaluation(make_config: MakeConfig) -> None:
    class Count(Callback):
        evaluations = 0

        def on_eval_end(self, trainer: TrainerState, metrics: Any) -> None:
            self.evaluations += 1

        def state_dict(self) -> dict[str, Any]:
            return {"evaluations": self.evaluations}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.evaluations = state["evaluations"]

    result = train(make_config(env_id="rl_training/TimeLimitProbe-v0"), Count())  # the first evaluation is the best
    best = load_checkpoint(result.checkpoint_path.with_name("best.pt"))
    assert best.trainer_state["global_step"] == 64
    assert best.trainer_state["callbacks"][0]["state"] == {"evaluations": 1}


LEVELS = {"env_id": "chaos_envs:LevelWalk-v0", "callbacks": [{"chaos_envs:RaiseLevel": {"updates": 1}}]}


def test_callbacks_of_a_config_are_there_again_after_a_resume(make_config: MakeConfig) -> None:
    config = make_config(
        callbacks=[{"StopWithoutImprovement": {"patience": 4}}], env_id="rl_training/TimeLimitProbe-v0"
    )
    first = train(config)
    resumed = resume_training(first.run_dir, total_timesteps=10_000)
    assert (resumed.metrics["global_step"], resumed.status) == (5 * 64, "stopped")
    written = yaml.safe_load((first.run_dir / "config.yaml").read_text())
    assert written["callbacks"] == [{"StopWithoutImprovement": {"patience": 4}}]
    assert TrainConfig(**written).callbacks == config.callbacks


@pytest.mark.parametrize(("algo", "vectorization"), [("ppo", "async"), ("dqn", "sync")])
def test_a_curriculum_that_is_stopped_again_and_again_ends_as_if_it_had_never_stopped(
    make_config: MakeConfig, algo: str, vectorization: str
) -> None:
    budget = {"total_timesteps": 384, "checkpoint_interval": 128}
    config = make_config(algo=algo, vectorization=vectorization, num_envs=2, **budget, **LEVELS)
    straight = outcome(train(config).run_dir)
    assert any("curriculum/level" in row for row in straight[1])
    with pytest.raises(TrainingInterrupted):
        train(config, Kill(signal.SIGTERM))
    run_dir = max(config.output_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with pytest.raises(TrainingInterrupted):
        resume_training(run_dir, callbacks=[Kill(signal.SIGTERM)])
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    assert [note["exact"] for note in read_metadata(context_of(run_dir))["resumed"]] == [True] * 2
    assert verify_resume(run_dir).different == ()


def test_a_resume_without_the_callback_that_changed_the_envs_is_not_exact(make_config: MakeConfig) -> None:
    config = make_config(env_id=LEVELS["env_id"])
    first = train(config, chaos_envs.RaiseLevel(updates=1))
    with pytest.warns(UserWarning, match="callback RaiseLevel is missing, and callbacks have changed the envs"):
        resume_training(first.run_dir, total_timesteps=192)
    assert [note["exact"] for note in read_metadata(context_of(first.run_dir))["resumed"]] == [False]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("StopAtReturns", r"callbacks: unknown callback 'StopAtReturns'; did you mean 'StopAtReturn'\?"),
        ("Nonsense", "unknown callback 'Nonsense'; known: StopAtReturn, .* and package.module:Name"),
        ("no_such_module:Name", "no_such_module cannot be imported"),
        ("chaos_envs:Nobody", "chaos_envs has no Nobody"),
        ("chaos_envs:_WALKS", "has no _WALKS"),
        ("chaos_envs:Reset", "is a GenericAlias: give a class or a function|has no on_train_start"),
        ("StopAtReturn", "callbacks: StopAtReturn: missing a required argument: 'threshold'; its arguments: threshold"),
        ({"StopAtReturn": {"limit": 3}}, "StopAtReturn: .*'threshold'|StopAtReturn: got an unexpected"),
        ({"StopAtReturn": {"threshold": "high"}}, "StopAtReturn with {'threshold': 'high'}: TypeError"),
        ("pathlib:Path", "callbacks: pathlib:Path with {}: ConfigError: callback .*Path has no on_train_start"),
    ],
)
def test_a_wrong_callback_in_a_config_is_refused_before_anything_starts(
    make_config: MakeConfig, entry: Any, told: str
) -> None:
    config = make_config(callbacks=[entry])
    for start in (train, get_algorithm_spec("ppo").plan_fn):
        with pytest.raises(ConfigError, match=told):
            start(config)
    assert not config.output_dir.exists()


def test_a_class_in_place_of_a_callback_is_refused_before_anything_starts(make_config: MakeConfig) -> None:
    config = make_config()
    with pytest.raises(ConfigError, match=r"callback Local is a class: give an object, Local\(\.\.\.\)"):
        train(config, Local)
    assert not config.output_dir.exists()


class Local(Callback):
    """A class that other processes find."""


@pytest.mark.parametrize(
    "entry", [3, {}, {"a": {}, "b": {}}, {"StopAtReturn": [1]}, {"StopAtReturn": {1: 2}}, "", [Local]]
)
def test_an_entry_that_is_no_callback_is_refused_with_the_config(make_config: MakeConfig, entry: Any) -> None:
    with pytest.raises(ConfigError, match=r"callbacks\.0"):
        make_config(callbacks=[entry])


def test_a_class_may_be_given_in_place_of_its_name(make_config: MakeConfig) -> None:
    config = make_config(callbacks=[Local, (StopAtReturn, {"threshold": 5.0})])
    assert config.callbacks == (
        "test_callbacks:Local",
        {"rl_training.runtime.callbacks:StopAtReturn": {"threshold": 5.0}},
    )

    class Inner(Callback):
        pass

    with pytest.raises(ConfigError, match="the class Inner was defined in a script or notebook: move it to a module"):
        make_config(callbacks=[Inner])
