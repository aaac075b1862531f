"""Envs in this process that fail, hang or exit, in training and in evaluations: named, saved, and resumed exactly."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_envs  # noqa: F401  (registers the envs)
from conftest import MakeConfig, slow_except_first, wait_until

from rl_training.cli import main
from rl_training.envs.guard import STEP_PATIENCE, EnvCalls, EnvInterrupt
from rl_training.errors import EnvironmentStepError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_digests, read_metadata, read_metrics
from rl_training.runtime.agents import evaluate_agent
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.watchdog import Watchdog
from rl_training.runtime.workflows import load_agent, resume_training

TESTS = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent / "src", TESTS, TESTS.parent / "benchmarks"])),
}

# By name: where in an env's life it fails, so that this happens there first, and what the error calls the place.
PLACES: dict[str, tuple[dict[str, int], str]] = {
    "training step": ({"at": 10}, r"^env 0, episode 0 \(seed \d+\), step 10 with action [01]: "),
    "training reset": ({"at": 0, "episode": 2}, r"^env 0, episode 1 \(seed \d+\), reset: "),
    "evaluation step": (
        {"at": 40, "limit": 50},
        r"^evaluation at step 64, env 0, episode 0 \(seed \d+\), step 40 with action [01]: ",
    ),
    "evaluation reset": (
        {"at": 0, "episode": 2, "limit": 50},
        r"^evaluation at step 128, env 0, episode 0 \(seed \d+\), reset: ",
    ),
}
HANG = "no answer within .* s; raise step_timeout"
FAULTS = {
    "raise": "RuntimeError: lost its simulator",
    "sys.exit": r"it called sys\.exit\(0\)",
    "os._exit": r"it called os\._exit\(0\)",
    "shape": r"expected an observation of shape \(2,\) and type float32, got shape \(3,\)",
    "dtype": r"expected an observation .* got shape \(2,\) and type complex64",
    "nan": r"component \[1\] of the observation is nan",
    "sleep": HANG,
}
EVERYWHERE = [(fault, place) for fault in FAULTS for place in PLACES]
HANGS = [(fault, "training step") for fault in ("lock", "loop", "swallow")]
TIMED = ("sleep", "lock", "loop", "swallow", "stop", "C code")  # those that last longer than a step may
IN_STEPS = [("nan reward", place) for place in ("training step", "evaluation step")]

MakeFaulty = Callable[..., TrainConfig]


@pytest.fixture
def faulty(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeFaulty:
    """A run on an env that fails once."""
    monkeypatch.setattr("rl_training.envs.guard.RESET_PATIENCE", 1.5)  # a hanging reset is noticed soon

    def make(fault: str, place: str, **changes: Any) -> TrainConfig:
        armed = tmp_path / "armed"
        armed.touch()
        kwargs = {"fault": fault, "armed": str(armed), **PLACES[place][0]}
        changes = {"env_id": "tests/Faulty-v0", "env_kwargs": kwargs, "total_timesteps": 256, **changes}
        return make_config(step_timeout=1.0 if fault in TIMED else 60.0, **changes)

    return make


def course(run_dir: Path) -> tuple[dict[int, str], list[Any]]:
    """Return the digests of a run's state, and its evaluations."""
    context = context_of(run_dir)
    evaluations = [(row["step"], row["eval/mean_reward"]) for row in read_metrics(context) if "eval/mean_reward" in row]
    return read_digests(context), evaluations


def straight_course(config: TrainConfig, tmp_path: Path) -> tuple[dict[int, str], list[Any]]:
    assert not (tmp_path / "armed").exists()
    elsewhere = config.model_copy(update={"output_dir": tmp_path / "straight"})
    return course(get_algorithm_spec(config.algo).train_fn(elsewhere).run_dir)


def only_run(config: TrainConfig) -> Path:
    (run_dir,) = config.output_dir.iterdir()
    return run_dir


@pytest.mark.parametrize(("fault", "place"), [*EVERYWHERE, *HANGS, *IN_STEPS])
def test_an_env_that_fails_is_named_and_the_run_goes_on_exactly_later(
    faulty: MakeFaulty, tmp_path: Path, fault: str, place: str
) -> None:
    config = faulty(fault, place)
    text = {**FAULTS, "nan reward": "the reward is nan"}.get(fault, HANG)
    with pytest.raises(EnvironmentStepError, match=PLACES[place][1] + text):
        train_ppo(config)
    metadata = read_metadata(context_of(only_run(config)))
    assert metadata["status"] == "failed"
    assert metadata["error"].startswith("EnvironmentStepError: ")
    assert resume_training(only_run(config)).status == "completed"
    assert course(only_run(config)) == straight_course(config, tmp_path)
    assert read_metadata(context_of(only_run(config)))["resumed"][0]["exact"]


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("fault", ["raise", "sys.exit", "os._exit", "shape", "nan", "nan reward", "sleep"])
def test_an_evaluation_is_guarded_when_training_runs_in_workers_too(
    faulty: MakeFaulty, tmp_path: Path, fault: str, algo: str
) -> None:
    config = faulty(fault, "evaluation step", algo=algo, vectorization="async", envs_per_worker=4)
    with pytest.raises(EnvironmentStepError, match=PLACES["evaluation step"][1]):
        get_algorithm_spec(algo).train_fn(config)
    assert resume_training(only_run(config)).status == "completed"
    assert course(only_run(config)) == straight_course(config, tmp_path)


@pytest.mark.parametrize(
    ("fault", "text"), [(SystemExit(0), r"it called sys\.exit\(0\)"), (RuntimeError("lost"), "RuntimeError: lost")]
)
def test_a_native_env_that_fails_is_named(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, fault: BaseException, text: str
) -> None:
    def fail(env: Any, actions: Any) -> Any:
        raise fault

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv.step", fail)
    config = make_config(vectorization="native")
    with pytest.raises(EnvironmentStepError, match=rf"^env 0, episode 0 \(seed \d+\), step 1 with action [01]: {text}"):
        train_ppo(config)
    assert read_metadata(context_of(only_run(config)))["status"] == "failed"


def command(config: TrainConfig, *more: str) -> list[str]:
    """The command line that trains this config, in a process of its own."""
    values = {**config.env_kwargs, "armed": config.env_kwargs["armed"]}
    assignments = [f"env_kwargs.{name}={json.dumps(value)}" for name, value in values.items()]
    fields = ("num_envs", "eval_interval", "eval_episodes", "log_interval", "checkpoint_interval", "step_timeout")
    assignments += [f"{name}={getattr(config, name)}" for name in (*fields, "vectorization", "action_mask")]
    assignments += [f"algo_kwargs.{name}={json.dumps(value)}" for name, value in config.algo_kwargs.items()]
    flags = ["--algo", config.algo, "--env", f"sample_envs:{config.env_id}", "--seed", str(config.seed)]
    flags += ["--total-timesteps", str(config.total_timesteps), "--output-dir", str(config.output_dir)]
    sets = [part for assignment in (*assignments, *more) for part in ("--set", assignment)]
    return [sys.executable, "-m", "rl_training", "train", *flags, *sets]


def run_command(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT)


@pytest.mark.parametrize(
    ("fault", "place"),
    slow_except_first(
        [
            ("sys.exit", "training step"),
            ("C code", "training step"),
            ("os._exit", "evaluation step"),
            ("C code", "evaluation step"),
        ]
    ),
)
def test_the_command_line_never_ends_with_0_because_of_an_env(
    faulty: MakeFaulty, tmp_path: Path, fault: str, place: str
) -> None:
    config = faulty(fault, place)
    answer = run_command(command(config))
    assert answer.returncode == 1, answer.stderr
    assert re.match(PLACES[place][1].replace("^", "error: "), answer.stderr.splitlines()[-1])
    metadata = read_metadata(context_of(only_run(config)))
    assert metadata["status"] == "failed"
    assert metadata["error"].startswith("EnvironmentStepError: ")
    assert resume_training(only_run(config)).status == "completed"
    expected = straight_course(config.model_copy(update={"env_id": "sample_envs:tests/Faulty-v0"}), tmp_path)
    assert course(only_run(config)) == expected


@pytest.mark.slow
def test_a_process_that_was_stopped_has_not_hung(faulty: MakeFaulty, tmp_path: Path) -> None:
    config = faulty("stop", "training step")
    with subprocess.Popen(command(config), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        deadline = threading.Timer(150.0, process.kill)
        deadline.start()
        wait_until(lambda: not (tmp_path / "armed").exists() or process.poll() is not None)
        time.sleep(2.5)  # far longer than the timeout of a step
        process.send_signal(signal.SIGCONT)
        _, errors = process.communicate()
        deadline.cancel()
    assert process.returncode == 0, errors


def test_a_child_that_an_env_forks_may_exit(faulty: MakeFaulty) -> None:
    assert train_ppo(faulty("fork", "training step")).status == "completed"


def test_training_in_another_thread_works_and_an_exit_is_refused_there_too(faulty: MakeFaulty) -> None:
    errors: list[str] = []

    def train(config: TrainConfig) -> None:
        try:
            train_ppo(config)
        except EnvironmentStepError as error:
            errors.append(str(error))

    thread = threading.Thread(target=train, args=(faulty("os._exit", "training step"),))
    thread.start()
    thread.join()
    assert "it called os._exit(0)" in errors[0]


@pytest.mark.slow
def test_a_hang_in_another_thread_ends_the_process_with_the_run_saved(faulty: MakeFaulty, tmp_path: Path) -> None:
    config = faulty("sleep", "training step")
    code = (
        "import sys, threading; from rl_training.cli import main\n"
        "thread = threading.Thread(target=main, args=(sys.argv[1:],)); thread.start(); thread.join()"
    )
    answer = run_command([sys.executable, "-c", code, *command(config)[3:]])
    assert answer.returncode == 1
    assert "step 10 with action" in answer.stderr.splitlines()[-1]
    assert resume_training(only_run(config)).status == "completed"
    expected = straight_course(config.model_copy(update={"env_id": "sample_envs:tests/Faulty-v0"}), tmp_path)
    assert course(only_run(config)) == expected


@pytest.mark.parametrize("fault", ["raise", "sys.exit", "os._exit", "shape", "dtype", "nan", "nan reward", "sleep"])
def test_evaluating_a_saved_agent_names_what_its_env_does_wrong(
    faulty: MakeFaulty, tmp_path: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = faulty(fault, "evaluation step", eval_episodes=0, total_timesteps=64)
    run_dir = train_ppo(config).run_dir
    text = {**FAULTS, "nan reward": "the reward is nan"}[fault]
    with pytest.raises(EnvironmentStepError, match=PLACES["evaluation step"][1] + text):
        evaluate_agent(load_agent(run_dir), 2)
    (tmp_path / "armed").touch()
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "2"]) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("error: evaluation at step 64, env 0, episode 0 (seed ")
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "2"]) == 0


def test_an_env_that_exits_when_it_is_made_is_refused(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sample_envs.CountingEnv.__init__", lambda env: sys.exit(0))
    output = str(make_config().output_dir)
    assert main(["train", "--algo", "ppo", "--env", "tests/Counting-v0", "--output-dir", output]) == 2
    assert "SystemExit: 0" in capsys.readouterr().err


def test_a_debugger_session_is_no_hang(make_config: MakeConfig) -> None:
    calls = EnvCalls()
    look_at = {"__name__": "pdb", "sleep": time.sleep}
    exec("def interaction(seconds): sleep(seconds)", look_at)  # a frame of the debugger's module is on the stack
    calls.patience = STEP_PATIENCE
    with Watchdog(make_config(step_timeout=0.2), [calls]):
        calls.begin(str)
        look_at["interaction"](1.5)  # type: ignore[operator]  # the function above
        calls.end()


def test_a_slow_first_step_and_a_reset_get_longer_than_a_step(make_config: MakeConfig) -> None:
    calls = EnvCalls()
    with Watchdog(make_config(step_timeout=0.2), [calls]):
        with calls.slow("env {}, reset".format):
            time.sleep(1.0)
        calls.patience = STEP_PATIENCE
        calls.begin("env {}, step 2".format)
        with pytest.raises(EnvInterrupt, match=r"no answer within 0\.2 s"):
            time.sleep(60.0)
        calls.end()


def test_many_short_calls_are_no_hang(make_config: MakeConfig) -> None:
    calls = EnvCalls()
    calls.patience = STEP_PATIENCE
    with Watchdog(make_config(step_timeout=1.5), [calls]):
        for _ in range(40):
            calls.begin("env {}, step".format)
            time.sleep(0.05)
            calls.end()


def test_exit_and_signal_handler_are_given_back(make_config: MakeConfig) -> None:
    before = os._exit, signal.getsignal(signal.SIGURG)
    with Watchdog(make_config(), []):
        assert os._exit != before[0]
    assert (os._exit, signal.getsignal(signal.SIGURG)) == before
