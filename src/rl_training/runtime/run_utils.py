"""Utilities that every trainer needs: device, threads, run directory, checkpoints."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from rl_training import __version__
from rl_training.cores import cpu_name
from rl_training.envs.making import env_packages
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError, RunDirectoryError, without_credentials
from rl_training.experiment.checkpointing import CheckpointState, remove_newer_checkpoints, save_run_checkpoint
from rl_training.experiment.config import TrainConfig, env_code, plain_config
from rl_training.experiment.files import sync_directory
from rl_training.experiment.locking import RunLock
from rl_training.experiment.logging import RunLogger
from rl_training.experiment.runs import (
    RunContext,
    context_of,
    create_run_context,
    read_metadata,
    truncate_logs,
    update_metadata,
    write_config,
)
from rl_training.experiment.segments import SegmentStore
from rl_training.experiment.trackers.base import TrackedRun
from rl_training.experiment.trackers.opening import open_trackers
from rl_training.memory import keep_freed_memory
from rl_training.provenance import package_versions
from rl_training.runtime.saved import ResumeNote
from rl_training.runtime.types import MetricDict

_PLAIN_GIT_KEYS = r"^(core\.(filemode|autocrlf|eol|symlinks|ignorecase)|extensions\.objectformat)$"


@dataclass
class TrainingRun:
    """An open run directory; `close` it when training ends."""

    run_context: RunContext
    logger: RunLogger
    lock: RunLock
    segments: SegmentStore
    _metadata_failed: bool = False

    def note(self, **changes: Any) -> None:
        """Change some entries of the metadata. If that fails, warn once and continue."""
        try:
            self.lock.check_held()
            update_metadata(self.run_context, **changes)
        except (OSError, RunDirectoryError) as error:
            if not self._metadata_failed:
                self._metadata_failed = True
                warnings.warn(f"{self.run_context.metadata_path} cannot be written: {error}", stacklevel=2)

    def amend_resume(self, note: ResumeNote) -> None:
        """Replace what the metadata says about the newest resume, unless the metadata was damaged meanwhile."""
        with suppress(RunDirectoryError, LookupError, TypeError, ValueError):
            *earlier, newest = read_metadata(self.run_context)["resumed"]
            self.note(resumed=[*earlier, {**newest, **note.to_metadata()}])

    def end(self, **outcome: Any) -> None:
        """Write how the run ended into the metadata."""
        self.note(ended_at=now(), **outcome)

    def close(self) -> None:
        """Close the files and release the lock of the directory."""
        try:
            self.logger.close()
        finally:
            self.lock.release()


def resolve_device(name: str) -> torch.device:
    """Return the device; `auto` means CUDA if a small allocation works there, else the CPU."""
    if name == "auto":
        return torch.device("cuda") if torch.cuda.is_available() and _is_usable("cuda") else torch.device("cpu")
    if name != "cpu" and not _is_usable(name):
        raise ConfigError(f"device={name!r}: not usable on this machine; use 'auto' or 'cpu'")
    return torch.device(name)


def _is_usable(name: str) -> bool:
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError):  # torch without CUDA support asserts
        return False
    return True


@contextmanager
def limited_threads(num_threads: int | Literal["auto"]) -> Iterator[None]:
    """Limit torch and NumPy's BLAS to this many threads inside the context; `auto` means one."""
    threads = 1 if num_threads == "auto" else num_threads
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def tuned_for_training(config: TrainConfig) -> Iterator[None]:
    """Use the config's threads and matrix precision inside the context, and keep freed memory for the next step."""
    keep_freed_memory()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(config.matmul_precision)
    try:
        with limited_threads(config.num_threads):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def serialize_train_config(config: TrainConfig) -> dict[str, Any]:
    """Return the config as plain values: paths as strings, tags as a list."""
    return plain_config(config)


def create_training_run(
    config: TrainConfig, run_suffix: str | None = None, *, output_dir: Path | None = None
) -> TrainingRun:
    """Create the run directory with config and metadata, and open its logger.

    `output_dir` is as in `create_run_context`.
    """
    context = create_run_context(config, run_suffix, output_dir=output_dir)
    lock = RunLock(context.run_dir)
    try:
        lock.acquire()
        with _refusing_unwritable(context):
            write_config(context, config)
            update_metadata(context, **_describe_run(context, config))
            _warn_of_unsynced(context)
        logger = RunLogger(context, open_trackers(TrackedRun(context, config)))
        return TrainingRun(context, logger, lock, SegmentStore(context.replay_dir))
    except BaseException:
        lock.release()
        shutil.rmtree(context.run_dir, ignore_errors=True)  # it was created above
        raise


def reopen_training_run(lock: RunLock, config: TrainConfig, note: ResumeNote) -> TrainingRun:
    """Open the run directory of a held lock to continue from `note.step`; drop later metrics and checkpoints."""
    context = context_of(lock.run_dir)
    with _refusing_unwritable(context):
        write_config(context, config)
        truncate_logs(context, note.step)
        remove_newer_checkpoints(context.checkpoints_dir, note.step)
        outcome = {"ended_at": None, "stop_reason": None, "error": None, "metrics": None}
        update_metadata(context, status="running", total_timesteps=config.total_timesteps, **outcome)
        note_resume(context, note)
        _warn_of_unsynced(context)
    logger = RunLogger(context, open_trackers(TrackedRun(context, config, resumed_at=note.step)))
    return TrainingRun(context, logger, lock, SegmentStore(context.replay_dir))


@contextmanager
def _refusing_unwritable(context: RunContext) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunDirectoryError(f"run directory {context.run_dir} cannot be written: {error}") from None


def _warn_of_unsynced(context: RunContext) -> None:
    if not sync_directory(context.run_dir):
        warnings.warn(
            f"the file system of {context.run_dir} cannot sync directories: "
            "a power failure may lose the newest checkpoint",
            stacklevel=3,
        )


def note_resume(context: RunContext, note: ResumeNote) -> None:
    """Write into the metadata from which step the run was resumed, and whether exactly."""
    resumed = [*read_metadata(context).get("resumed", []), {**note.to_metadata(), "at": now()}]
    update_metadata(context, resumed=resumed)


def save_training_checkpoint(
    *,
    run_context: RunContext,
    config: TrainConfig,
    algorithm_state: dict[str, Any],
    buffer_state: dict[str, Any] | None,
    trainer_state: dict[str, Any],
    metrics: MetricDict,
    name: str | None = None,
) -> Path:
    """Write `step_<global_step>.pt`, or `name`, into the run's checkpoint directory.

    A `buffer_state` of None, for a learner without a buffer, is loaded as an empty dict. Loading the agent needs its
    environment, because the checkpoint does not contain the spaces.
    """
    if "global_step" not in trainer_state:
        raise CheckpointError(
            f"no checkpoint is written into {run_context.checkpoints_dir}: trainer_state has no 'global_step'; "
            "give the number of env steps taken so far"
        )
    state = CheckpointState(
        algorithm_state=algorithm_state,
        buffer_state={} if buffer_state is None else buffer_state,
        trainer_state=trainer_state,
        config=serialize_train_config(config),
        metadata=describe_checkpoint(run_context, config, metrics),
    )
    name = name or f"step_{trainer_state['global_step']}.pt"
    return save_run_checkpoint(run_context.checkpoints_dir / name, state, SegmentStore(run_context.replay_dir))


def describe_checkpoint(
    run_context: RunContext,
    config: TrainConfig,
    metrics: MetricDict,
    packages: list[str] | None = None,
    spaces: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the metadata of a checkpoint: where, when, with which versions and for which spaces it was made.

    `packages` are the compiled packages that the learner uses; none if its updates run eagerly.
    """
    described = {"spaces": spaces} if spaces else {}
    return described | {
        "run_id": run_context.run_id,
        "metrics": dict(metrics),
        "versions": dict(versions(*env_code(config))),
        "hardware": hardware(config),
        "packages": packages,
        "saved_at": now(),
    }


@contextmanager
def refusing_misfits(config: TrainConfig) -> Iterator[None]:
    """Raise `CheckpointError` if a saved state does not fit the objects that were built from its config."""
    try:
        yield
    except RLTrainingError:  # its message is clear already
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not fit {config.algo} on {config.env_id}: {error!r}") from error


@cache  # the versions at the start of the run count
def versions(*names: str) -> Mapping[str, str]:
    """Return the versions of the packages that affect a result, including those of an env and its wrappers."""
    core = {
        "rl_training": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
    }
    return {**package_versions({"rl_training", *env_packages(names)}), **core}


def hardware(config: TrainConfig) -> dict[str, str]:
    """Return the hardware that affects the last bits of a matrix product."""
    device = resolve_device(config.device)
    return {
        "processor": cpu_name(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def _describe_run(context: RunContext, config: TrainConfig) -> dict[str, Any]:
    return {
        "run_id": context.run_id,
        "status": "running",
        "algo": config.algo,
        "env_id": config.env_id,
        "seed": config.seed,
        "total_timesteps": config.total_timesteps,
        "global_step": 0,
        "started_at": now(),
        "ended_at": None,
        **describe_origin(config),
        "tags": list(config.tags),
    }


def describe_origin(config: TrainConfig) -> dict[str, Any]:
    """Return the command, the versions, the git commit and the host of this process."""
    return {
        "command": [without_credentials(argument) for argument in sys.argv],
        "versions": dict(versions(*env_code(config))),
        "git_commit": _git_commit(),
        "host": {
            "name": socket.gethostname(),
            "platform": platform.platform(),
            "cpu": cpu_name(),
            "cpus": os.cpu_count(),
            "process": os.getpid(),
        },
    }


def _git_commit() -> str | None:
    """Return the commit of the current directory, with "-dirty" if its files have changes.

    The config of an untrusted repository may make git run programs: file monitors, filters, hooks, fetch helpers. So
    git compares the files with the help of a temporary git directory, which has a safe config and a copy of the index.
    """
    try:
        names = ("--show-toplevel", "--absolute-git-dir", "--git-path", "objects", "--verify", "HEAD")
        top, git_dir, objects, commit = _git("rev-parse", *names).splitlines()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("objects", "refs"):
                Path(folder, name).mkdir()
            Path(folder, "HEAD").write_text(f"{commit}\n")
            Path(folder, "config").write_text(_plain_git_config())
            shutil.copy2(Path(git_dir, "index"), Path(folder, "index"))  # git needs its modification time
            variables = {"GIT_DIR": folder, "GIT_WORK_TREE": top, "GIT_INDEX_FILE": f"{folder}/index"}
            variables["GIT_OBJECT_DIRECTORY"] = str(Path(objects).absolute())
            compare = ("diff-index", "--name-only", "--ignore-submodules", "HEAD")
            _git("update-index", "-q", "--refresh", "--ignore-submodules", variables=variables, check=False)
            return f"{commit}-dirty" if _git(*compare, variables=variables) else commit
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _plain_git_config() -> str:
    """Return the git settings that affect how files are compared and that cannot name a program."""
    text = "[core]\nrepositoryformatversion = 1\n"
    for line in _git("config", "--get-regexp", _PLAIN_GIT_KEYS, check=False).splitlines():
        key, _, value = line.partition(" ")
        section, _, name = key.partition(".")
        if value.isalnum():
            text += f"[{section}]\n{name} = {value}\n"
    return text


def _git(*arguments: str, variables: dict[str, str] | None = None, check: bool = True) -> str:
    command = ["git", *arguments]
    environment = {**os.environ, **(variables or {})}
    answer = subprocess.run(command, capture_output=True, text=True, timeout=5, check=check, env=environment)
    return answer.stdout


def now() -> str:
    """Return the current time in the format of the run's files."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
