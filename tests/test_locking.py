import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MakeConfig

from rl_training.errors import RunDirectoryError
from rl_training.experiment.locking import RunLock
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training

HOLD = """
import sys, time
from pathlib import Path
from rl_training.errors import RunDirectoryError
from rl_training.experiment.locking import RunLock
try:
    RunLock(Path(sys.argv[1])).acquire()
except RunDirectoryError:
    print("refused", flush=True)
else:
    print("held", flush=True)
    time.sleep(600)
"""


def start_holder(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_eight_processes_one_gets_the_directory(tmp_path: Path) -> None:
    processes = [start_holder(tmp_path) for _ in range(8)]
    try:
        assert sorted(answer(process) for process in processes) == ["held"] + ["refused"] * 7
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_lock_says_who_holds_it_and_ends_with_its_holder(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    assert answer(holder) == "held"
    with pytest.raises(RunDirectoryError, match=f"in use by process {holder.pid} on "):
        RunLock(tmp_path).acquire()
    holder.kill()
    holder.communicate()
    with pytest.warns(UserWarning, match=f"process {holder.pid} on .* ended without removing .*run.lock"):
        lock = RunLock(tmp_path).acquire()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


HOLD_WITH_WORKER = """
import os, sys, time
from pathlib import Path
from rl_training.experiment.locking import RunLock
RunLock(Path(sys.argv[1])).acquire()
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(600)
"""


def test_a_worker_process_does_not_keep_its_dead_parents_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD_WITH_WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        worker = int(answer(holder))
        holder.kill()
    try:
        with pytest.warns(UserWarning, match="takes over the run"):
            RunLock(tmp_path).acquire().release()
    finally:
        os.kill(worker, 9)


def test_a_directory_that_this_process_holds_is_refused_and_stays_held(tmp_path: Path) -> None:
    lock = RunLock(tmp_path).acquire()
    for attempt in (RunLock(tmp_path).acquire, RunLock(tmp_path).check_free):
        with pytest.raises(RunDirectoryError, match=f"in use by process {os.getpid()} on "):
            attempt()
    other = start_holder(tmp_path)
    assert answer(other) == "refused"
    other.communicate()
    lock.release()
    RunLock(tmp_path).acquire().release()


def test_looking_whether_a_directory_is_free_changes_nothing(tmp_path: Path) -> None:
    RunLock(tmp_path).check_free()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run.lock").write_text('{"process": 1}')
    RunLock(tmp_path).check_free()
    assert (tmp_path / "run.lock").read_text() == '{"process": 1}'
    holder = start_holder(tmp_path)
    assert answer(holder) == "held"
    with pytest.raises(RunDirectoryError, match=f"in use by process {holder.pid} on "):
        RunLock(tmp_path).check_free()
    holder.kill()
    holder.communicate()


def test_a_lock_file_that_is_a_link_or_a_pipe_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    run_dir, victim = tmp_path / "run", tmp_path / "victim"
    run_dir.mkdir()
    victim.write_text("mine")
    (run_dir / "run.lock").symlink_to(victim)
    with pytest.raises(RunDirectoryError, match=r"run\.lock cannot be opened: it is a symbolic link"):
        RunLock(run_dir).acquire()
    (run_dir / "run.lock").unlink()
    os.mkfifo(run_dir / "run.lock")
    with pytest.raises(RunDirectoryError, match=r"run\.lock cannot be opened: it is a named pipe"):
        RunLock(run_dir).acquire()
    assert victim.read_text() == "mine"


def test_a_lock_file_that_cannot_be_read_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run.lock").write_bytes(b"\xff torn")
    RunLock(tmp_path).acquire().release()


def test_a_run_in_progress_cannot_be_resumed_and_can_be_afterwards(make_config: MakeConfig) -> None:
    refused: list[str] = []

    class Resume(Callback):
        """Tries what only another process may not do: record locks never stop the process that holds them."""

        def on_update_end(self, trainer: TrainerState, result: object) -> None:
            code = (
                f"from rl_training.runtime.workflows import resume_training; resume_training({str(trainer.run_dir)!r})"
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            refused.append(done.stderr.strip().splitlines()[-1])

    config = make_config(total_timesteps=192, checkpoint_interval=1)
    result = train_ppo(config.model_copy(update={"total_timesteps": 128}), callbacks=[Resume()])
    assert f"in use by process {os.getpid()}" in refused[-1]
    assert resume_training(result.run_dir, total_timesteps=192).metrics["global_step"] == 192
    assert not (result.run_dir / "run.lock").exists()
