"""Native vector envs take the steps of the others, to the last bit; `auto` takes the kind that is fastest here."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chaos import result_of as outcome
from conftest import MakeConfig
from sample_vector_envs import BatchedPendulum
from test_envs import run_steps
from test_exact_resume import SignalAt, train

from rl_training.envs import choosing
from rl_training.envs.choosing import choose_vectorization, measure_step_seconds
from rl_training.envs.factory import make_vector_env, resolve_vectorization
from rl_training.envs.making import make_single_env
from rl_training.envs.vector.batched import BatchedVectorEnv
from rl_training.envs.vector.protocol import VectorEnv
from rl_training.errors import ConfigError, EnvironmentSetupError, EnvironmentStepError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.sources import Layer
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.workflows import prepare_resume


def keep_up(obs: Any) -> Any:
    """The actions of a controller that keeps the pole up."""
    return (obs[:, 2] + 0.3 * obs[:, 3] + 0.02 * obs[:, 0] + 0.1 * obs[:, 1] > 0).astype(np.int64)


def balance(envs: VectorEnv, steps: int) -> list[Any]:
    """What a controller sees that keeps the pole up, so that episodes reach their time limit."""
    obs, _ = envs.reset()
    seen: list[Any] = [obs]
    for _ in range(steps):
        obs, rewards, terminated, truncated, _ = envs.step(keep_up(obs))
        seen += [obs, rewards, terminated, truncated]
        if (terminated | truncated).any():
            obs, _ = envs.reset(options={"reset_mask": terminated | truncated})
            seen.append(obs)
    envs.close()
    return seen


@pytest.mark.parametrize("play", [run_steps, balance])
def test_native_envs_take_the_steps_of_the_others(make_config: MakeConfig, play: Any) -> None:
    sync, native = (
        play(make_vector_env(make_config(num_envs=5, vectorization=kind)), 1100) for kind in ("sync", "native")
    )
    assert len(sync) == len(native) > 1 + 4 * 1100
    for left, right in zip(sync, native, strict=True):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    if play is balance:
        assert any(truncated.any() for truncated in native[4::4] if truncated.dtype == np.bool_)


def test_native_envs_without_a_time_limit_take_the_steps_of_the_others(make_config: MakeConfig) -> None:
    config = make_config(num_envs=2, env_kwargs={"max_episode_steps": -1})
    kinds = (config.model_copy(update={"vectorization": kind}) for kind in ("sync", "native"))
    sync, native = (balance(make_vector_env(kind), 600) for kind in kinds)
    assert len(native) == 1 + 4 * 600  # no episode has ended after 500 steps
    assert all(np.array_equal(left, right) for left, right in zip(sync, native, strict=True))


@pytest.mark.parametrize("other", ["native", "sync"])
def test_a_native_run_is_resumed_exactly_in_either_kind(make_config: MakeConfig, other: str) -> None:
    config = make_config(num_envs=4, vectorization="native")
    straight = train(config)
    assert outcome(straight) == outcome(train(make_config(num_envs=4)))
    run_dir = train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, [Layer("test", {"vectorization": other})]).train()
    assert outcome(run_dir) == outcome(straight)
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])


def test_a_restored_native_env_reaches_its_time_limit_when_the_others_do(make_config: MakeConfig) -> None:
    config = make_config(num_envs=3, vectorization="native")
    with closing(make_vector_env(config)) as envs, closing(make_vector_env(config)) as restored:
        obs, _ = envs.reset()
        for _ in range(450):
            obs, *_ = envs.step(keep_up(obs))
        restored.restore(envs.state_dict(), obs)
        endings = []
        for vector in (envs, restored):
            shown, steps, truncated = obs, 450, np.zeros(3, np.bool_)
            while not truncated.any() and steps < 600:
                shown, _, _, truncated, _ = vector.step(keep_up(shown))
                steps += 1
            endings.append((steps, truncated.tolist(), shown.tolist()))
    assert endings[0][:2] == (500, [True, True, True])
    assert endings[1] == endings[0]


def test_an_env_without_a_native_vector_env_says_what_would_work(make_config: MakeConfig) -> None:
    with pytest.raises(EnvironmentSetupError, match="Pendulum-v1 has no native vector env: use vectorization sync"):
        make_vector_env(make_config(env_id="Pendulum-v1", vectorization="native"))
    with pytest.raises(EnvironmentSetupError, match="no_such"):
        make_vector_env(make_config(vectorization="native", env_kwargs={"no_such": 1}))


def test_native_envs_do_not_stack_frames(make_config: MakeConfig) -> None:
    config = make_config(num_envs=16, frame_stack=2, vectorization="auto")
    assert resolve_vectorization(config)[0].vectorization != "native"
    with pytest.raises(EnvironmentSetupError, match="Batched envs have neither nested spaces, nor masks, nor stacked"):
        make_vector_env(config.model_copy(update={"vectorization": "native"}))


@pytest.mark.parametrize("action", [2, -1])
def test_an_action_that_does_not_exist_is_refused(make_config: MakeConfig, action: int) -> None:
    envs = make_vector_env(make_config(num_envs=2, vectorization="native"))
    envs.reset()
    with pytest.raises(EnvironmentStepError, match="invalid"):
        envs.step(np.array([0, action]))


@pytest.mark.parametrize(
    ("env_id", "seconds", "num_envs", "cores", "kind", "envs_per_worker"),
    [
        ("CartPole-v1", 1e-5, 1, 8, "sync", 1),
        ("CartPole-v1", 1e-5, 64, 8, "native", 1),
        ("CartPole-v1", 1e-3, 64, 8, "native", 1),
        ("tests/Counting-v0", 1e-5, 4, 8, "sync", 1),  # so fast that processes do not pay
        ("tests/Counting-v0", 2e-3, 8, 4, "async", 2),
        ("tests/Counting-v0", 2e-3, 7, 4, "async", 2),
        ("tests/Counting-v0", 2e-3, 3, 8, "async", 1),
        ("tests/Counting-v0", 2e-3, 8, 1, "sync", 1),
    ],
)
def test_auto_takes_the_fastest_kind(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    env_id: str,
    seconds: float,
    num_envs: int,
    cores: int,
    kind: str,
    envs_per_worker: int,
) -> None:
    """The duration of a step is given, because a busy machine would measure another one."""
    monkeypatch.setattr(choosing, "available_cores", lambda: cores)
    monkeypatch.setattr(choosing, "measure_step_seconds", lambda env: seconds)
    config = make_config(env_id=env_id, num_envs=num_envs, vectorization="auto")
    chosen = choose_vectorization(config, lambda: make_single_env(env_id, {}))
    assert (chosen.kind, chosen.envs_per_worker) == (kind, envs_per_worker)
    resolved, reason = resolve_vectorization(config)
    assert (resolved.vectorization, resolved.envs_per_worker) == (kind, envs_per_worker)
    measured = f"{kind}: a step of one env takes {1e6 * seconds:.0f} us, {num_envs} envs, {cores} cores"
    assert reason == ("sync: one env" if num_envs == 1 else measured)


def test_workers_are_not_chosen_where_they_would_run_the_users_script_again(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "available_cores", lambda: 4)
    monkeypatch.setattr("multiprocessing.get_start_method", lambda allow_none: "forkserver")
    config = make_config(env_id="tests/Slow-v0", env_kwargs={"seconds": 0.002}, vectorization="auto")
    assert resolve_vectorization(config)[0].vectorization == "sync"


def test_auto_is_the_default_and_a_resumed_run_keeps_what_was_chosen(make_config: MakeConfig) -> None:
    assert TrainConfig(algo="ppo", env_id="CartPole-v1").vectorization == "auto"
    run_dir = train(make_config(num_envs=16, vectorization="auto", algo_kwargs={"num_steps": 4}))
    prepare_resume(run_dir, [Layer("test", {"total_timesteps": 256})]).train()
    assert load_checkpoint(run_dir / "checkpoints" / "step_256.pt").config["vectorization"] == "native"


@pytest.mark.parametrize("fault", ["raise", "sleep", "os._exit"])
def test_an_env_that_cannot_be_timed_is_left_to_the_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "sleep":
        monkeypatch.setattr(choosing, "_PATIENCE_SECONDS", 1.0)
    armed = tmp_path / "armed"
    armed.touch()
    kwargs = {"fault": fault, "armed": str(armed), "at": 1}  # on a busy machine, few steps are timed
    run_dir = train(make_config(env_id="tests/Faulty-v0", env_kwargs=kwargs, vectorization="auto"))
    assert not armed.exists()
    decision = read_metadata(context_of(run_dir))["decisions"]["vectorization"]
    reason = {"raise": "RuntimeError: lost", "sleep": "no answer", "os._exit": "the process ended with exit code 0"}
    assert decision.startswith(f"sync: one env could not be timed ({reason[fault]}")


def test_a_step_is_timed_with_its_share_of_resets() -> None:
    assert 0.002 <= measure_step_seconds(make_single_env("tests/Slow-v0", {"seconds": 0.002})) < 0.2


def test_the_choice_of_auto_is_kept_and_shown(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(num_envs=16, vectorization="auto", algo_kwargs={"num_steps": 8, "minibatch_size": 64})
    run_dir: Path = train(config, ProgressDisplay())
    context = context_of(run_dir)
    decision = read_metadata(context)["decisions"]["vectorization"]
    assert decision.startswith("native: a step of one env takes ")
    assert "vectorization: native" in context.config_path.read_text()
    assert f"vectorization {decision}" in capsys.readouterr().err
    with closing(make_vector_env(config)) as envs:
        assert isinstance(envs, BatchedVectorEnv)


PENDULUM = {"env_id": "Pendulum-v1", "num_envs": 3}
PLUGIN = "sample_vector_envs:BatchedPendulum"


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_batched_env_from_outside_trains_to_the_result_of_sync(make_config: MakeConfig, algo: str) -> None:
    changes = {**PENDULUM, "algo": algo, "env_kwargs": {"max_episode_steps": 30, "g": 9.0}}
    batched = train(make_config(vectorization=PLUGIN, **changes))
    assert outcome(batched) == outcome(train(make_config(vectorization="sync", **changes)))
    assert "vectorization: sample_vector_envs:BatchedPendulum" in context_of(batched).config_path.read_text()


def test_a_run_with_a_batched_env_is_resumed_exactly(make_config: MakeConfig) -> None:
    config = make_config(vectorization=PLUGIN, env_kwargs={"max_episode_steps": 30}, **PENDULUM)
    straight, run_dir = train(config), train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, []).train()
    assert outcome(run_dir) == outcome(straight)
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])


def test_observations_of_a_batched_env_get_the_dtype_of_their_space(make_config: MakeConfig) -> None:
    changes = {**PENDULUM, "env_kwargs": {"max_episode_steps": 30, "g": 9.0}}
    config = make_config(vectorization="sample_vector_envs:Float64Pendulum", **changes)
    run_dir = train(config, SignalAt(70, "collect"))
    prepare_resume(run_dir, []).train()
    assert outcome(run_dir) == outcome(train(make_config(vectorization="sync", **changes)))
    assert "not exact" not in str(read_metadata(context_of(run_dir))["resumed"])


def test_batched_envs_of_different_lengths_are_replayed_side_by_side(make_config: MakeConfig) -> None:
    config = make_config(vectorization=PLUGIN, env_kwargs={"max_episode_steps": 40}, **PENDULUM)
    with closing(make_vector_env(config)) as envs, closing(make_vector_env(config)) as restored:
        rng = np.random.default_rng(0)
        obs, _ = envs.reset()
        for step in range(25):
            obs, *_ = envs.step(rng.uniform(-2.0, 2.0, (3, 1)).astype(np.float32))
            if step == 9:  # as if env 1 had ended
                obs, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
        obs, _ = envs.reset(options={"reset_mask": np.array([False, False, True])})
        assert envs.tracker.lengths.tolist() == [25, 15, 0]
        restoration = restored.restore(envs.state_dict(), obs)
        assert restoration.failures == {}
        assert np.array_equal(restoration.obs, obs)
        for _ in range(60):
            actions = rng.uniform(-2.0, 2.0, (3, 1)).astype(np.float32)
            left, right = envs.step(actions), restored.step(actions)
            assert all(np.array_equal(one, other) for one, other in zip(left[:4], right[:4], strict=True))
            if left[3].any():
                mask = {"reset_mask": left[3]}
                assert np.array_equal(envs.reset(options=mask)[0], restored.reset(options=mask)[0])


def test_a_batched_env_that_does_not_replay_is_never_called_exact(make_config: MakeConfig) -> None:
    config = make_config(vectorization="sample_vector_envs:ForgetfulPendulum", **PENDULUM)
    run_dir = train(config, SignalAt(70, "collect"))
    with pytest.warns(UserWarning, match="not exact"):
        prepare_resume(run_dir, []).train()
    assert "led to another observation" in str(read_metadata(context_of(run_dir))["resumed"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OtherSpaces", r"gives 3 envs with the spaces .*Discrete\(2\).* are needed"),
        ("fails", "cannot be made with num_envs=3 .*: RuntimeError: no licence"),
        ("Missing", "sample_vector_envs has no Missing"),
    ],
)
def test_a_batched_env_that_does_not_fit_is_refused_in_one_line(
    make_config: MakeConfig, name: str, message: str
) -> None:
    with pytest.raises((ConfigError, EnvironmentSetupError), match=message):
        make_vector_env(make_config(vectorization=f"sample_vector_envs:{name}", **PENDULUM))


def test_a_batched_env_gets_seeds_only_for_the_envs_that_are_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[int | None]] = []

    def reset(self: Any, *, seed: list[int | None], options: dict[str, Any]) -> Any:
        given.append(seed)
        return np.zeros((3, 3)), {}

    monkeypatch.setattr(BatchedPendulum, "reset", reset)
    envs = BatchedVectorEnv(BatchedPendulum(3), 7)
    envs.reset()
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert [[seed is None for seed in seeds] for seeds in given] == [[False] * 3, [True, False, True]]


def altered_pendulum(position: int, value: Any) -> BatchedVectorEnv:
    """Four batched envs that return `value` at one position of the result of every step."""

    class Altered(BatchedPendulum):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            return *result[:position], value, *result[position + 1 :]

    return BatchedVectorEnv(Altered(4), 7, max_episode_steps=30)


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (0, np.zeros((4, 2)), "observations of shape (4, 2), expected (4, 3)"),
        (0, np.zeros((3, 3)), "observations of shape (3, 3), expected (4, 3)"),
        (0, np.zeros((4, 3), np.complex64), "observations of type complex64, expected float32"),
        (0, [[0.0], [0.0, 0.0]], "observations that are not an array: ValueError: setting an array element"),
        (1, np.zeros((4, 1)), "rewards of shape (4, 1), expected (4,)"),
        (1, np.zeros(1), "rewards of shape (1,), expected (4,)"),
        (2, np.zeros((4, 1), np.bool_), "terminated of shape (4, 1), expected (4,)"),
        (3, False, "truncated of shape (), expected (4,)"),
    ],
)
def test_a_step_of_a_batched_env_with_a_wrong_shape_is_refused_in_one_line(
    position: int, value: Any, problem: str
) -> None:
    envs = altered_pendulum(position, value)
    envs.reset()
    with pytest.raises(EnvironmentStepError, match=f"^test_vec.*Altered: step returned {re.escape(problem)}") as caught:
        envs.step(np.zeros((4, 1), np.float32))
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None  # the command line shows causes as tracebacks


def test_a_reset_of_a_batched_env_with_a_wrong_shape_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchedPendulum, "_show", lambda self: np.zeros((4, 2)))
    message = "sample_vector_envs:BatchedPendulum: reset returned observations of shape (4, 2), expected (4, 3)"
    with pytest.raises(EnvironmentStepError, match=f"^{re.escape(message)}$"):
        BatchedVectorEnv(BatchedPendulum(4), 7).reset()


@pytest.mark.parametrize(("position", "value"), [(1, [1, 2, 3, 4]), (2, [True, False] * 2), (3, [0, 1, 0, 1])])
def test_a_batched_env_may_return_lists(position: int, value: Any) -> None:
    envs = altered_pendulum(position, value)
    envs.reset()
    arrays: list[Any] = list(envs.step(np.zeros((4, 1), np.float32))[:4])
    assert arrays[position].tolist() == value
    assert [array.dtype for array in arrays] == [np.float32, np.float64, np.bool_, np.bool_]


def test_a_batched_env_may_not_be_changed_on_resume(make_config: MakeConfig) -> None:
    run_dir = train(make_config(vectorization=PLUGIN, **PENDULUM), SignalAt(70, "collect"))
    with pytest.raises(ConfigError, match=f"vectorization: {PLUGIN} then, sync now"):
        prepare_resume(run_dir, [Layer("test", {"vectorization": "sync"})])


def test_an_unknown_kind_of_vector_env_is_refused(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="vectorization='parallel': allowed: auto, sync, async, native, or package"):
        make_config(vectorization="parallel")


@pytest.mark.parametrize("kind", ["sync", "async", "native"])
def test_some_of_the_envs_take_the_steps_they_take_among_all(make_config: MakeConfig, kind: str) -> None:
    config = make_config(num_envs=5, vectorization=kind)
    with closing(make_vector_env(config)) as all_envs, closing(make_vector_env(config, range(2, 4))) as some:
        assert some.num_envs == 2
        obs, shown = all_envs.reset()[0], some.reset()[0]
        for step in range(200):
            assert np.array_equal(obs[2:4], shown)
            actions = np.array([step % 2, 1, 0, 1, step % 3 % 2])
            obs, _, terminated, truncated, _ = all_envs.step(actions)
            shown, *_ = some.step(actions[2:4])
            ended = terminated | truncated
            if ended.any():
                obs = all_envs.reset(options={"reset_mask": ended})[0]
            if ended[2:4].any():
                shown = some.reset(options={"reset_mask": ended[2:4]})[0]
        assert some.tracker.locate(1).startswith("env 3, episode ")
