"""What callbacks change in envs holds wherever the envs live, and is repeated by every env that takes their place."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import chaos_envs
import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from rl_training.envs.access import VectorEnvAccess
from rl_training.envs.changes import ChangeLog, EnvChange
from rl_training.envs.replay_check import sample_difference
from rl_training.envs.restore import same_values
from rl_training.envs.samples import ReplaySample
from rl_training.envs.vector.batched import BatchedVectorEnv
from rl_training.envs.vector.native import SeededCartPole
from rl_training.envs.vector.process import AsyncEpisodeVectorEnv
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.envs.vector.sync import SyncEpisodeVectorEnv
from rl_training.errors import ConfigError, EnvironmentStepError, TrainingStateError
from rl_training.experiment.payload import pack, unpack

NUM_ENVS = 3


class SavedWalk(chaos_envs.LevelWalk):
    """Offers a state that does not contain what callbacks change."""

    def get_state(self) -> dict[str, Any]:
        return self.get_hidden()

    def set_state(self, state: dict[str, Any]) -> None:
        self.set_hidden(state)

    def fail(self) -> None:
        raise OSError("lost its simulator")

    def itself(self) -> object:
        return self


def limited(kind: type[gymnasium.Env[Any, Any]]) -> Any:
    return TimeLimit(kind(), 12)


def in_process(kind: type[gymnasium.Env[Any, Any]] = chaos_envs.LevelWalk) -> VectorEnv:
    return SyncEpisodeVectorEnv([partial(limited, kind)] * NUM_ENVS, 7)


def in_workers(kind: type[gymnasium.Env[Any, Any]] = chaos_envs.LevelWalk) -> AsyncEpisodeVectorEnv:
    return AsyncEpisodeVectorEnv([partial(limited, kind)] * NUM_ENVS, 7, envs_per_worker=2, step_timeout=60.0)


def change(envs: VectorEnv, step: int) -> None:
    """Change the envs at some steps, as a callback would, in the middle of episodes of different lengths."""
    access = VectorEnvAccess(envs)
    if step % 7 == 3:
        access.set_attr("winds", np.array([0.5, step]))
        access.call("blow")
    if step % 11 == 5:
        access.call("raise_level", amount=float(step))
    if step % 13 == 8:
        access.set_attr("level", 5.0)


def bend(envs: VectorEnv, step: int) -> None:
    """Change a CartPole at some steps."""
    if step % 9 == 4:
        VectorEnvAccess(envs).set_attr("gravity", 9.8 + step)


Change = Callable[[VectorEnv, int], None]


def go_on(envs: VectorEnv, steps: range, change: Change = change, kill: tuple[int, ...] = ()) -> list[Any]:
    """Play a fixed sequence of actions with changes in between; kill a worker before some steps and their resets."""
    shown: list[Any] = []
    for step in steps:
        disturb(envs, step in kill)
        obs, rewards, terminated, truncated, _ = envs.step(np.random.default_rng(step).integers(2, size=NUM_ENVS))
        shown += [obs, rewards, terminated, truncated]
        ended = terminated | truncated
        if ended.any():
            disturb(envs, step in kill)
            shown.append(envs.reset(options={"reset_mask": ended})[0])
        disturb(envs, step + 1000 in kill)
        change(envs, step)
    return shown


def disturb(envs: VectorEnv, kills: bool) -> None:
    if kills:
        assert isinstance(envs, AsyncEpisodeVectorEnv)
        envs.processes[0].kill()
        envs.processes[0].join()


def play(envs: VectorEnv, change: Change = change, kill: tuple[int, ...] = ()) -> list[Any]:
    with closing(envs):
        envs.reset()
        return go_on(envs, range(50), change, kill)


def test_changes_act_alike_in_this_process_and_in_workers() -> None:
    changed = play(in_process())
    assert same_values(changed, play(in_workers()))
    assert not same_values(changed, play(in_process(), lambda envs, step: None))


@pytest.mark.filterwarnings("ignore:worker")
def test_a_worker_that_is_restarted_repeats_the_changes() -> None:
    """It is killed before steps, before resets (the time limit ends episodes at step 11), and before changes."""
    kill = (9, 11, 23, 30, 1000 + 31, 1000 + 38, 1000 + 47)
    assert same_values(play(in_workers(), kill=kill), play(in_process()))


def native() -> VectorEnv:
    return BatchedVectorEnv(SeededCartPole("CartPole-v1", NUM_ENVS, {}), 7)


def cartpoles() -> VectorEnv:
    return SyncEpisodeVectorEnv([partial(gymnasium.make, "CartPole-v1")] * NUM_ENVS, 7)


@pytest.mark.parametrize("make", [in_process, in_workers, partial(in_process, SavedWalk), native])
@pytest.mark.parametrize("until", [25, 40])
def test_restored_envs_have_the_changes_and_go_on_alike(make: Callable[[], VectorEnv], until: int) -> None:
    changes = bend if make is native else change
    with closing(make()) as straight, closing(make()) as restored:
        straight.reset()
        go_on(straight, range(until), changes)
        go_on(straight, range(until, until + 1), lambda envs, step: None)
        last_obs = straight.step(np.zeros(NUM_ENVS, np.int64))[0]
        ended = straight.tracker.ended.copy()
        changes(straight, 31) if not ended.any() else None
        state = unpack(pack(straight.state_dict()), "a test")
        assert restored.restore(state, last_obs).failures == {}
        if ended.any():
            straight.reset(options={"reset_mask": ended})
        names = ("gravity",) if make is native else ("level", "winds")
        for name in names:
            assert same_values(VectorEnvAccess(restored).get_attr(name), VectorEnvAccess(straight).get_attr(name))
        assert same_values(go_on(restored, range(50, 80), changes), go_on(straight, range(50, 80), changes))


def test_a_batched_env_changes_for_all_of_its_envs() -> None:
    assert same_values(play(native(), bend), play(cartpoles(), bend))


@pytest.mark.parametrize("make", [in_process, in_workers])
def test_envs_that_had_ended_begin_with_the_changes(make: Callable[[], VectorEnv]) -> None:
    with closing(make()) as straight, closing(make()) as restored:
        obs, _ = straight.reset()
        change(straight, 5)
        while not straight.tracker.ended.any():
            obs, *_ = straight.step(np.ones(NUM_ENVS, np.int64))
        restored.restore(straight.state_dict(), obs)
        assert VectorEnvAccess(restored).get_attr("level") == [5.0] * NUM_ENVS


def record(change: Change) -> ReplaySample:
    """A sample that begins in the middle of a changed episode, and in which the env is changed again."""
    with closing(in_process()) as envs:
        obs, _ = envs.reset()
        for step in range(19):
            obs, _, terminated, truncated, _ = envs.step(np.ones(NUM_ENVS, np.int64))
            if (terminated | truncated).any():
                obs, _ = envs.reset(options={"reset_mask": terminated | truncated})
            change(envs, step)
        envs.tracker.begin_samples([None] * NUM_ENVS, obs)
        go_on(envs, range(19, 26), change)
        sample = envs.tracker.recorder.samples()[0]
        return ReplaySample.from_state(unpack(pack(sample.state_dict()), "a test"))


def test_a_recorded_sample_replays_with_its_changes_and_only_with_them() -> None:
    sample = record(change)
    make = partial(limited, chaos_envs.LevelWalk)
    assert sample_difference(make, sample) is None
    assert sample_difference(make, replace(sample, changes=())) is not None
    before = replace(sample.start, changes=replace(sample.start.changes, before=()))
    assert sample_difference(make, replace(sample, start=before)) is not None
    during = replace(sample.start, changes=replace(sample.start.changes, during=()))
    assert sample_difference(make, replace(sample, start=during)) is not None


def test_samples_of_older_checkpoints_have_no_changes() -> None:
    state = record(lambda envs, step: None).state_dict()
    del state["changes"], state["start"]["changes"]
    assert ReplaySample.from_state(state).start.changes == ChangeLog()


def test_the_newest_value_of_an_attribute_is_kept_and_calls_keep_their_order() -> None:
    def sets(value: int) -> EnvChange:
        return EnvChange("level", (value,))

    call, other = EnvChange("blow", (), {}), EnvChange("wind", (1,))
    log = ChangeLog((sets(1), sets(2), call, sets(3), other)).add(4, sets(4))
    assert log.next_episode() == ChangeLog((sets(2), call, other, sets(4)))


@pytest.mark.parametrize(
    "make", [partial(in_process, SavedWalk), partial(in_workers, SavedWalk)], ids=["sync", "async"]
)
def test_what_cannot_be_read_or_changed_is_refused_before_anything_changes(make: Callable[[], VectorEnv]) -> None:
    with closing(make()) as envs:
        envs.reset()
        access = VectorEnvAccess(envs)
        with pytest.raises(ConfigError, match=r"env 0: SavedWalk has no attribute 'levle'; did you mean 'level'\?"):
            access.set_attr("levle", 3)
        with pytest.raises(ConfigError, match=r"env 0: SavedWalk has no attribute 'difficulty'$"):
            access.get_attr("difficulty")
        with pytest.raises(ConfigError, match=r"step\(\) is called by the trainer alone"):
            access.call("step", 0)
        with pytest.raises(ConfigError, match="'level' is not a method: read it with get_attr"):
            access.call("level")
        with pytest.raises(ConfigError, match=r"set_attr\('level'\) was given a set: only plain values"):
            access.set_attr("level", {1})
        with pytest.raises(ConfigError, match="'np_random' is a Generator: only plain values"):
            access.get_attr("np_random")
        assert envs.tracker.changes == [ChangeLog()] * NUM_ENVS
        go_on(envs, range(3), lambda envs, step: None)


def test_values_are_copied_and_keep_their_kinds() -> None:
    given: dict[str, Any] = {"pair": (1, 2.5), "list": [np.float32(0.5)], "array": np.arange(3)}
    with closing(in_process()) as envs:
        envs.reset()
        access = VectorEnvAccess(envs)
        access.set_attr("winds", given)
        given["list"].append(1)
        access.get_attr("winds")[0]["array"][0] = 9
        state = unpack(pack(envs.state_dict()), "a test")
        with closing(in_process()) as others:
            others.restore(state, envs.reset()[0])
            for got in (*access.get_attr("winds"), *VectorEnvAccess(others).get_attr("winds")):
                assert (got["pair"], got["list"], got["array"].tolist()) == ((1, 2.5), [0.5], [0, 1, 2])


def test_a_method_that_fails_leaves_the_state_before_it() -> None:
    with closing(in_process(SavedWalk)) as envs:
        envs.reset()
        with pytest.raises(
            EnvironmentStepError, match=r"env 0, episode 0 \(seed \d+\), a callback after step 0: OSError"
        ):
            VectorEnvAccess(envs).call("fail")
        assert envs.tracker.changes == [ChangeLog()] * NUM_ENVS
        with pytest.raises(TrainingStateError, match="failed halfway"):
            VectorEnvAccess(envs).set_attr("level", 1.0)
        with pytest.raises(TrainingStateError, match="failed halfway"):
            envs.step(np.zeros(NUM_ENVS, np.int64))


def test_a_method_may_not_return_an_object() -> None:
    with closing(in_process(SavedWalk)) as envs:
        envs.reset()
        with pytest.raises(ConfigError, match=r"itself\(\) returned a SavedWalk: only plain values"):
            VectorEnvAccess(envs).call("itself")
        assert envs.tracker.changes[0].num_calls == 1


def test_many_calls_are_warned_of_once() -> None:
    with closing(in_process()) as envs:
        envs.reset()
        access = VectorEnvAccess(envs)
        for _ in range(998):
            envs.tracker.finish_change(EnvChange("blow", (), {}))
        access.call("blow")
        with pytest.warns(UserWarning, match="1,000 times.*use set_attr"):
            access.call("blow")
        access.call("blow")
