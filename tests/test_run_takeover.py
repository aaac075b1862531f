"""Two copies of one run: the continuation waits for the first one, which stops if its lock was given away."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeConfig
from test_locking import answer, start_holder

from rl_training.errors import RunDirectoryError
from rl_training.experiment.locking import RunLock
from rl_training.experiment.runs import find_runs, read_metadata
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.trainer import TrainerState

STRANGER = {"process": 1, "host": "elsewhere", "token": "f00"}


def test_a_continuation_waits_until_the_lock_is_free(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    assert answer(holder) == "held"
    with pytest.raises(RunDirectoryError, match=f"in use by process {holder.pid} on "):
        RunLock(tmp_path).wait_free(0.0)
    waiting = threading.Thread(target=RunLock(tmp_path).wait_free, args=(150.0,))
    waiting.start()
    assert waiting.is_alive()
    holder.kill()
    holder.communicate()
    waiting.join()
    RunLock(tmp_path).check_free()


def take_over(path: Path, *, anew: bool) -> None:
    """Write the lock file as another machine does to which the file server has given the lock."""
    if anew:
        path.unlink()
    path.write_text(json.dumps(STRANGER))


@pytest.mark.parametrize("anew", [False, True])
def test_a_lock_that_was_given_away_is_noticed_and_left_to_its_new_holder(tmp_path: Path, anew: bool) -> None:
    lock = RunLock(tmp_path).acquire()
    lock.check_held()
    take_over(lock.path, anew=anew)
    with pytest.raises(RunDirectoryError, match=r"process 1 on elsewhere has taken over .*: this process stops"):
        lock.check_held()
    lock.release()
    assert json.loads(lock.path.read_text()) == STRANGER


def test_a_lock_file_that_was_only_removed_stops_nobody(tmp_path: Path) -> None:
    lock = RunLock(tmp_path).acquire()
    lock.path.unlink()
    lock.check_held()
    lock.release()


class TakeOver(Callback):
    """Takes the run over at its first evaluation, and remembers the files that the run had then."""

    def __init__(self) -> None:
        self.files: dict[Path, bytes] = {}

    def on_eval_end(self, trainer: TrainerState, metrics: Any) -> None:
        if not self.files:
            take_over(trainer.run_dir / "run.lock", anew=False)
            self.files = contents(trainer.run_dir)


def contents(run_dir: Path) -> dict[Path, bytes]:
    """The files of a run that say how far it is; TensorBoard's own file is only a picture of them."""
    files = [path for path in run_dir.rglob("*") if path.is_file() and "tfevents" not in path.name]
    return {path: path.read_bytes() for path in files}


@pytest.mark.filterwarnings("ignore:while ending the failed run", "ignore:.*metadata.json cannot be written")
def test_a_run_that_was_taken_over_stops_and_writes_nothing_more(make_config: MakeConfig) -> None:
    take_over_once = TakeOver()
    config = make_config()
    with pytest.raises(RunDirectoryError, match="process 1 on elsewhere has taken over"):
        train_ppo(config, callbacks=[take_over_once])
    (context,) = find_runs(config.output_dir)
    assert take_over_once.files
    assert contents(context.run_dir) == take_over_once.files
    assert read_metadata(context)["status"] == "running"
