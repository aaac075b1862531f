"""Signals and streams of a run on the command line: saved, the right exit code, exact resume, nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from chaos import result_of
from conftest import TINY_PPO, TINY_REPLAY, slow_except_first, wait_until

from rl_training.cli import main
from rl_training.experiment.groups import read_group
from rl_training.experiment.runs import context_of, read_metadata

TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "sample_envs:tests/Paused-v0",
    "seed": 3,
    "total_timesteps": 256,
    "num_envs": 2,
    "vectorization": "sync",
    "action_mask": "off",
    "eval_episodes": 2,
    "eval_interval": 128,
    "log_interval": 64,
    "checkpoint_interval": 64,
    "algo_kwargs": TINY_PPO,
}
LATEST = 150.0  # seconds after which a test has failed, on a busy machine too


class Place:
    """A directory with a config. One env of its runs may be held up at a certain step."""

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.runs, self.gate, self.config = root / "runs", root / "gate", root / "tiny.yaml"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.configure()

    def configure(self, **changes: Any) -> None:
        env_kwargs = {"gate": str(self.gate), **changes.pop("env_kwargs", {})}
        self.config.write_text(yaml.safe_dump({**TINY, **changes, "env_kwargs": env_kwargs}))

    def argv(self, *options: str) -> list[str]:
        return ["train", "--config", str(self.config), "--output-dir", str(self.runs), *options]

    def start(self, argv: list[str], shell: str = "", **options: Any) -> "subprocess.Popen[bytes]":
        """Start the command line, through a shell script that ends with "$@" if one is given."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "rl_training", *argv]
        command = ["sh", "-c", shell, "sh", *command] if shell else command
        self.processes.append(subprocess.Popen(command, env=environment, **options))
        return self.processes[-1]

    def hold_at(self, step: int) -> None:
        """Let an env wait with this step of its process; 0 is its construction."""
        Path(f"{self.gate}.at").write_text(str(step))
        os.mkfifo(self.gate)

    def catch(self) -> int:
        """Wait until an env is held up; it continues when the returned descriptor is closed."""
        return os.open(self.gate, os.O_WRONLY)

    def run_dir(self) -> Path:
        (run_dir,) = self.runs.iterdir()
        return run_dir


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for process in place.processes:
        process.kill()
        process.wait()


def programs_of(process: psutil.Process) -> list[psutil.Process]:
    """The programs that the envs of a command have started, while its workers are alive."""
    return [child for child in process.children(recursive=True) if "600.125" in child.cmdline()]


def workers_with_programs(owner: psutil.Process) -> dict[psutil.Process, list[psutil.Process]]:
    """The workers whose envs have started programs, with these programs."""
    found = {}
    for child in owner.children():
        with suppress(psutil.NoSuchProcess):  # a short command, which has ended meanwhile
            if "600.125" not in child.cmdline():
                found[child] = programs_of(child)
    return {worker: programs for worker, programs in found.items() if programs}


EARLY = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGHUP, 129)]


@pytest.mark.parametrize(("number", "code"), slow_except_first(EARLY))
def test_a_signal_before_there_is_a_run_ends_the_command_without_a_traceback(
    number: signal.Signals, code: int, place: Place
) -> None:
    place.hold_at(0)
    process = place.start(place.argv(), stderr=subprocess.PIPE)
    held = place.catch()
    process.send_signal(number)
    _, printed = process.communicate(timeout=LATEST)
    os.close(held)
    assert (process.returncode, printed.decode()) == (code, f"interrupted by {number.name}\n")
    assert not place.runs.exists()


MOMENTS = {
    "collect": (70, signal.SIGHUP, 129, {}),
    "evaluation": (128 + 30, signal.SIGUSR1, 143, {}),
    "warm-up": (20, signal.SIGINT, 130, {"algo": "dqn", "algo_kwargs": TINY_REPLAY}),
}


@pytest.mark.parametrize("moment", slow_except_first(MOMENTS))
def test_a_signal_saves_the_run_which_continues_exactly(moment: str, place: Place, tmp_path: Path) -> None:
    step, number, code, changes = MOMENTS[moment]
    other = Place(tmp_path / "straight")
    for each in (other, place):
        each.configure(**changes)
    assert main(other.argv()) == 0
    place.hold_at(step)
    process = place.start(place.argv(), stderr=subprocess.PIPE)
    held = place.catch()
    process.send_signal(number)
    os.close(held)
    _, printed = process.communicate(timeout=LATEST)
    assert process.returncode == code
    assert b"Traceback" not in printed
    assert printed.splitlines()[-1].startswith(b"interrupted at step ")
    assert read_metadata(context_of(place.run_dir()))["stop_reason"] == number.name
    place.gate.unlink()
    assert main(["resume", str(place.run_dir())]) == 0
    assert result_of(place.run_dir()) == result_of(other.run_dir())


@pytest.mark.slow
def test_a_signal_while_a_resumed_run_replays_its_episodes_changes_nothing(place: Place) -> None:
    assert main(place.argv("--total-timesteps", "64")) == 0
    before = {path: path.read_bytes() for path in place.run_dir().rglob("*") if path.is_file()}
    place.hold_at(2)
    process = place.start(["resume", str(place.run_dir()), "--total-timesteps", "128"], stderr=subprocess.PIPE)
    held = place.catch()
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=LATEST)
    os.close(held)
    assert (process.returncode, printed) == (143, b"interrupted by SIGTERM\n")
    assert {path: path.read_bytes() for path in place.run_dir().rglob("*") if path.is_file()} == before


def test_a_signal_is_not_lost_where_python_ignores_exceptions(tmp_path: Path) -> None:
    script = tmp_path / "forking.py"
    script.write_text(
        """
import os, signal, time
from rl_training.signals import exiting_on_signals

os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
with exiting_on_signals():
    if os.fork() == 0:
        os._exit(0)
    time.sleep(1_000)
"""
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=LATEST)
    assert (ended.returncode, ended.stderr) == (143, b"interrupted by SIGTERM\n")


@pytest.mark.slow
def test_a_hangup_that_nohup_ignores_stays_ignored(place: Place) -> None:
    place.hold_at(70)
    process = place.start(place.argv(), shell='trap "" HUP; exec "$@"', stderr=subprocess.DEVNULL)
    held = place.catch()
    process.send_signal(signal.SIGHUP)
    os.close(held)
    assert process.wait(LATEST) == 0
    assert read_metadata(context_of(place.run_dir()))["status"] == "completed"


@pytest.mark.parametrize("options", slow_except_first([[], ["--seeds", "1-2"]]))
def test_a_closed_terminal_saves_the_run(options: list[str], place: Place) -> None:
    """What is written to a terminal that is gone gives an input/output error."""
    place.configure(total_timesteps=10**9, compile="off")  # no seed ends before its owner passes the signal on
    place.hold_at(70)
    ours, theirs = os.openpty()
    process = place.start(place.argv(*options), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    held = place.catch()
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # the kernel sends it to the process whose controlling terminal this is
    os.close(held)
    assert process.wait(LATEST) == 129
    if options:
        assert {seed.status for seed in read_group(place.run_dir()).seeds} <= {"interrupted", "waiting"}
    else:
        assert read_metadata(context_of(place.run_dir()))["status"] == "interrupted"


SEEDS = ["--seeds", "1-2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "options"),
    [("<&- >&- 2>&-", []), (">/dev/full", []), (">&-", SEEDS), ("2>&-", SEEDS), ("<&- >/dev/full", SEEDS)],
)
def test_a_run_trains_whatever_its_standard_streams_are(streams: str, options: list[str], place: Place) -> None:
    place.configure(total_timesteps=64)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = place.start(place.argv(*options), shell=f'exec "$@" {streams}', **pipes)
    output, errors = process.communicate(timeout=LATEST)
    assert process.returncode == 0
    if options:
        assert {seed.status for seed in read_group(place.run_dir()).seeds} == {"completed"}
    else:
        context = context_of(place.run_dir())
        assert read_metadata(context)["status"] == "completed"
        for file in (context.metrics_path, context.digests_path, context.config_path):  # not opened as a closed stream
            assert "Training ppo" not in file.read_text()
    assert b"Traceback" not in errors
    assert (b"warning: stdout could not be written: No space left on device" in errors) == (">/dev/full" in streams)
    assert bool(output) == (streams == "2>&-")


@pytest.mark.parametrize(
    ("starts", "vectorization"),
    slow_except_first([("session", "async"), ("orphan", "sync"), ("fork", "sync"), ("fork", "async")]),
)
def test_a_run_ends_with_the_programs_that_its_envs_have_started(starts: str, vectorization: str, place: Place) -> None:
    place.configure(total_timesteps=64, vectorization=vectorization, env_kwargs={"starts": starts})
    process = place.start(place.argv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, _ = process.communicate(timeout=LATEST)  # until nobody has the pipes open
    assert process.returncode == 0
    assert b"Run completed" in output


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["child", "session"])
def test_programs_of_envs_in_workers_end_with_a_run_that_is_killed(starts: str, place: Place) -> None:
    place.configure(
        total_timesteps=10**9, compile="off", vectorization="async", eval_episodes=0, env_kwargs={"starts": starts}
    )
    process = place.start(place.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    owner = psutil.Process(process.pid)
    wait_until(lambda: len(workers_with_programs(owner)) == 2)
    workers = workers_with_programs(owner)
    programs = [program for of_worker in workers.values() for program in of_worker]
    of_owner = [program for program in programs_of(owner) if program not in programs]
    process.kill()
    assert not psutil.wait_procs([*workers, *programs], timeout=LATEST)[1]
    assert len(programs) >= 2
    for program in of_owner:  # of the env that it made to see its spaces: nothing can end them in its place
        program.kill()


@pytest.mark.slow
def test_programs_of_a_seed_end_with_it_when_a_second_signal_kills_it(place: Place) -> None:
    place.configure(env_kwargs={"starts": "child"})
    place.hold_at(40)
    process = place.start(place.argv("--seeds", "1", "--jobs", "1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    held = place.catch()
    programs = programs_of(psutil.Process(process.pid))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any(b"save and stop" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LATEST)
    os.close(held)
    assert process.returncode == 130
    assert len(programs) >= 2
    assert not psutil.wait_procs(programs, timeout=LATEST)[1]
