"""A run that was stopped and resumed ends, to the last bit, as the run that was never stopped."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sample_envs
from chaos import result_of as outcome
from conftest import MakeConfig, slow_except_first

from rl_training.envs import episodes
from rl_training.envs.replay_check import find_difference
from rl_training.envs.restore import restore_env
from rl_training.envs.samples import RunningEpisode, SampleRecorder
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.errors import EnvironmentStepError, TrainingInterrupted
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training

RUNS = [
    ("ppo", "CartPole-v1", {"normalize_obs": True, "normalize_rewards": True}),
    ("ppo", "Pendulum-v1", {}),
    ("ppo", "chaos_envs:HiddenWalk-v0", {}),
    ("dqn", "CartPole-v1", {"prioritized": True, "n_step": 3, "normalize_obs": True, "normalize_rewards": True}),
    ("dqn", "chaos_envs:HiddenWalk-v0", {}),
    ("sac", "Pendulum-v1", {"normalize_obs": True}),
]


def train(config: TrainConfig, *callbacks: Any) -> Path:
    """Train, and give the run directory, however the run ends."""
    try:
        return get_algorithm_spec(config.algo).train_fn(config, callbacks=callbacks).run_dir
    except TrainingInterrupted:
        return max(config.output_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)


class SignalAt(Callback):
    """Sends this process a signal when the run has come to `step`, in the given event."""

    def __init__(self, step: int, event: str, number: int = signal.SIGTERM) -> None:
        self.step, self.event, self.number = step, event, number

    def _look(self, trainer: TrainerState, event: str) -> None:
        if event == self.event and trainer.global_step >= self.step:
            os.kill(os.getpid(), self.number)

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        self._look(trainer, "collect")

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        self._look(trainer, "update")

    def on_eval_end(self, trainer: TrainerState, metrics: Any) -> None:
        self._look(trainer, "evaluate")


@pytest.mark.parametrize(("algo", "env_id", "params"), RUNS)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_run_stopped_again_and_again_ends_as_if_it_had_never_stopped(
    make_config: MakeConfig, algo: str, env_id: str, params: dict[str, Any], vectorization: str
) -> None:
    config = make_config(
        algo=algo, env_id=env_id, vectorization=vectorization, num_envs=2, total_timesteps=320, algo_kwargs=params
    )
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(50, "collect"))
    for step, event in ((100, "update"), (150, "evaluate"), (200, "collect"), (230, "update")):
        with pytest.raises(TrainingInterrupted):
            resume_training(run_dir, callbacks=[SignalAt(step, event)])
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    resumed = read_metadata(context_of(run_dir))["resumed"]
    assert [note["exact"] for note in resumed] == [True] * 5


@pytest.mark.parametrize("algo", slow_except_first(["ppo", "sac"]))
def test_correlated_noise_goes_on_where_it_stopped_and_is_the_same_sync_or_async(
    make_config: MakeConfig, algo: str
) -> None:
    outcomes = []
    for vectorization in ("sync", "async"):
        config = make_config(
            algo=algo,
            env_id="chaos_envs:HiddenWalk-v0",  # short episodes, so that the noise begins anew on the way
            env_kwargs={"continuous": True},
            vectorization=vectorization,
            num_envs=2,
            total_timesteps=320,
            algo_kwargs={"noise_correlation": 0.9},
        )
        outcomes.append(outcome(train(config)))
        run_dir = train(config, SignalAt(50, "collect"))
        with pytest.raises(TrainingInterrupted):
            resume_training(run_dir, callbacks=[SignalAt(200, "update")])
        resume_training(run_dir)
        outcomes.append(outcome(run_dir))
    assert all(one == outcomes[0] for one in outcomes)


@pytest.mark.parametrize("env", ["Dials", "Switches"])
def test_composite_actions_go_on_where_they_stopped_and_are_the_same_sync_or_async(
    make_config: MakeConfig, env: str
) -> None:
    outcomes = []
    for vectorization in ("sync", "async"):
        env_id = f"sample_spaces_envs:tests/{env}-v0"
        config = make_config(env_id=env_id, vectorization=vectorization, num_envs=2, total_timesteps=320)
        outcomes.append(outcome(train(config)))
        run_dir = train(config, SignalAt(50, "collect"))
        resume_training(run_dir)
        outcomes.append(outcome(run_dir))
    assert all(one == outcomes[0] for one in outcomes)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str, int], None]:
    """Lets the env class fire at its `at`th step from now on."""

    def set_to(kind: type, name: str, at: int) -> None:
        monkeypatch.setattr(kind, "steps_of_all", 0)
        monkeypatch.setattr(kind, name, at)

    return set_to


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("signal_at", [1, 37, 130, 190])
def test_a_signal_in_the_middle_of_collecting_or_evaluating_costs_nothing(
    make_config: MakeConfig, counted: Callable[[type, str, int], None], algo: str, signal_at: int
) -> None:
    config = make_config(algo=algo, env_id="tests/Signalling-v0", num_envs=2, total_timesteps=192)
    straight = outcome(train(config))
    counted(sample_envs.SignallingEnv, "signal_at", signal_at)
    run_dir = train(config)
    assert read_metadata(context_of(run_dir))["status"] == "interrupted"
    resume_training(run_dir)
    assert outcome(run_dir) == straight


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("breaks_at", [20, 45])
def test_a_step_that_failed_is_taken_again_as_it_was(
    make_config: MakeConfig, counted: Callable[[type, str, int], None], algo: str, breaks_at: int
) -> None:
    config = make_config(algo=algo, env_id="tests/Breaking-v0", num_envs=2, total_timesteps=192, eval_interval=0)
    straight = outcome(train(config))
    counted(sample_envs.BreakingEnv, "breaks_at", breaks_at)
    with pytest.raises(EnvironmentStepError, match=r"env \d, episode \d+ \(seed \d+\), step \d+ with action \d: OSErr"):
        train(config)
    run_dir = max(config.output_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    resume_training(run_dir)
    assert outcome(run_dir) == straight


@pytest.mark.parametrize("event", ["on_train_start", "on_collect_end", "on_update_end", "on_eval_end"])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_run_that_a_callback_broke_goes_on_exactly(make_config: MakeConfig, algo: str, event: str) -> None:
    config = make_config(algo=algo, env_id="chaos_envs:HiddenWalk-v0", num_envs=2, total_timesteps=192)
    straight = outcome(train(config))

    class Break(Callback):
        """Raises in its second event."""

        count = 0

        def raise_at_the_second(self, *_: Any) -> None:
            self.count += 1
            if self.count == (1 if event == "on_train_start" else 2):
                raise ValueError("broken")

    breaking = Break()
    setattr(breaking, event, breaking.raise_at_the_second)
    with pytest.raises(ValueError, match="broken"):
        train(config, breaking)
    run_dir = max(config.output_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    resume_training(run_dir)
    assert outcome(run_dir) == straight


def test_an_env_that_gives_its_state_is_brought_back_through_it(make_config: MakeConfig) -> None:
    """Replaying could not do it: the env draws from a generator of its own."""
    config = make_config(env_id="tests/State-v0", num_envs=2, total_timesteps=64)
    run_dir = train(config)
    saved = load_checkpoint(find_checkpoint(run_dir)).trainer_state
    seen: list[Any] = []

    class Look(Callback):
        def on_train_start(self, trainer: TrainerState) -> None:
            seen.append(trainer.resumed)
            trainer.request_stop("seen")

    resume_training(run_dir, total_timesteps=128, callbacks=[Look()])
    assert seen[0].exact
    again = load_checkpoint(find_checkpoint(run_dir)).trainer_state
    assert state_equal(again["envs"]["states"], saved["envs"]["states"])


def state_equal(left: Any, right: Any) -> bool:
    return digest(left) == digest(right)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_an_env_that_cannot_be_brought_back_begins_anew_and_the_run_says_so(make_config: MakeConfig, algo: str) -> None:
    config = make_config(algo=algo, env_id="tests/Unrepeatable-v0", num_envs=1, total_timesteps=64)
    config = config.model_copy(
        update={"algo_kwargs": {**config.algo_kwargs, "minibatch_size": 16}} if algo == "ppo" else {}
    )
    run_dir = train(config)
    with pytest.warns(UserWarning, match=r"resumed from step 64 \(not exact: env 0 began a new episode, because"):
        resume_training(run_dir, total_timesteps=128)
    (note,) = read_metadata(context_of(run_dir))["resumed"]
    assert not note["exact"]
    assert "another observation" in note["reasons"][0]
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["global_step"] == 128


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("name", ["WornWalk", "CountedWalk", "UnseededWalk", "ForgetfulWalk", "LaggingWalk"])
def test_a_resume_is_not_called_exact_when_the_env_remembers_more_than_a_replay_brings_back(
    make_config: MakeConfig, name: str, vectorization: str
) -> None:
    config = make_config(
        env_id=f"chaos_envs:{name}-v0", vectorization=vectorization, num_envs=2, total_timesteps=448, eval_episodes=0
    )
    run_dir = train(config, SignalAt(380, "collect"))
    with pytest.warns(UserWarning, match=r"resumed from step \d+ \(not exact: "):
        resume_training(run_dir)
    (note,) = read_metadata(context_of(run_dir))["resumed"]
    assert not note["exact"]
    assert any("does not replay: " in reason for reason in note["reasons"])


def test_a_memory_inside_a_wrapper_around_the_state_is_brought_back_by_replaying(make_config: MakeConfig) -> None:
    config = make_config(env_id="chaos_envs:SmoothWalk-v0", num_envs=2, total_timesteps=192)
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(70, "collect"))
    assert load_checkpoint(find_checkpoint(run_dir)).trainer_state["envs"]["states"] == [None, None]
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    assert read_metadata(context_of(run_dir))["resumed"][0]["exact"]


def test_bipedal_walker_is_not_called_exact(make_config: MakeConfig) -> None:
    """Its physics world survives resets, and the difference often shows long after the checkpoint."""
    pytest.importorskip("Box2D", reason="needs the extra `box2d`")
    config = make_config(env_id="BipedalWalker-v3", num_envs=2, total_timesteps=640, eval_episodes=0)
    run_dir = train(config, SignalAt(500, "collect"))
    with pytest.warns(UserWarning, match="BipedalWalker-v3 does not replay: "):
        resume_training(run_dir)


def test_what_the_run_itself_did_is_compared_and_not_only_random_play() -> None:
    """The env remembers an episode of nothing but ones, which random actions never are."""
    envs = SyncEpisodeVectorEnv([sample_envs.RewardedEnv], run_seed=3)
    obs, _ = envs.reset()
    for _ in range(2):
        envs.tracker.begin_samples(envs.state_dict()["states"], obs)
        for _ in range(30):
            obs, *_ = envs.step(np.array([1]))
            if envs.tracker.ended[0]:
                obs, _ = envs.reset()
    samples = envs.tracker.recorder.samples()
    assert find_difference(sample_envs.RewardedEnv, (), seed=3) is None
    assert find_difference(sample_envs.RewardedEnv, samples, seed=3) == (
        "replaying its actions gave the return 12.0, not 18.0"
    )


def test_a_comparison_that_runs_out_of_time_is_not_called_exact(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.envs.replay_check._CPU_SECONDS", 1e-9)
    run_dir = train(make_config(env_id="chaos_envs:HiddenWalk-v0", num_envs=2, total_timesteps=64, eval_episodes=0))
    with pytest.warns(UserWarning, match="HiddenWalk-v0 could not be compared with fresh envs .*only 1 of 8 samples"):
        resume_training(run_dir, total_timesteps=128)


def test_all_envs_get_their_turn_to_be_sampled() -> None:
    recorder = SampleRecorder()
    assert [recorder.choose(range(6)) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 0, 1], [2, 3, 4, 5]]
    assert recorder.choose([]) == []


def test_samples_are_part_of_checkpoints_and_survive_a_resume(make_config: MakeConfig) -> None:
    config = make_config(env_id="chaos_envs:HiddenWalk-v0", num_envs=2, total_timesteps=448, eval_episodes=0)
    run_dir = train(config, SignalAt(300, "collect"))
    before = load_checkpoint(find_checkpoint(run_dir)).trainer_state["samples"]
    assert any(sample["episode_number"] > 0 for sample in before)
    resume_training(run_dir)
    after = load_checkpoint(find_checkpoint(run_dir)).trainer_state["samples"]
    assert len(after) > len(before)
    assert digest(after[0]) == digest(before[0])


def test_a_replay_that_earns_another_return_is_not_taken_for_the_same_episode() -> None:
    env = sample_envs.StepEnv()
    taken = RunningEpisode(seed=1, length=2, episode_return=2.0, actions=np.zeros(2, np.int64))
    shown = np.array([2.0], np.float32)
    assert restore_env(env, taken, shown).failure is None
    assert restore_env(env, replace(taken, episode_return=2.5), shown).failure == (
        "replaying its actions gave the return 2.0, not 2.5"
    )


def test_an_episode_longer_than_what_is_kept_begins_anew(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "MAX_REPLAYED_STEPS", 5)
    config = make_config(env_id="chaos_envs:HiddenWalk-v0", num_envs=2, total_timesteps=64)
    run_dir = train(config)
    with pytest.warns(UserWarning, match="steps is too long to replay"):
        resume_training(run_dir, total_timesteps=128)


def test_the_atari_emulator_is_brought_back_through_its_own_state(make_config: MakeConfig) -> None:
    pytest.importorskip("ale_py", reason="needs the extra `atari`")
    config = make_config(
        env_id="ale_py:ALE/Pong-v5", num_envs=2, total_timesteps=96, eval_episodes=0, algo_kwargs={"minibatch_size": 16}
    )
    straight = outcome(train(config))
    run_dir = train(config, SignalAt(33, "collect"))
    saved = load_checkpoint(find_checkpoint(run_dir)).trainer_state["envs"]
    assert all(isinstance(state["emulator"], bytes) for state in saved["states"])
    resume_training(run_dir)
    assert outcome(run_dir) == straight
    assert read_metadata(context_of(run_dir))["resumed"][0]["exact"]
