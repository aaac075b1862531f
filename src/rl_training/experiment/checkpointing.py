"""Writing, reading and removing checkpoints.

A checkpoint is written atomically, with a manifest beside it that holds its SHA-256. Reading one never runs code.
"""

import errno
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import REPLAY_FOLDER, check_folder, remove_stale, write_bytes
from rl_training.experiment.manifest import (
    MANIFEST_SUFFIX,
    Content,
    describe,
    manifest_path,
    read_manifest,
    verify,
    write_manifest,
)
from rl_training.experiment.migration import migrate
from rl_training.experiment.payload import find_unsupported, pack, read_payload, unpack
from rl_training.experiment.segments import (
    SegmentStore,
    resolve_segments,
    segment_files,
    self_contained,
)
from rl_training.waits import announced

BEST_NAME = "best.pt"
_STEP_NAME = re.compile(r"step_(\d+)\.pt")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class CheckpointState:
    """The complete state of a run between two steps, as tensors and plain values."""

    algorithm_state: dict[str, Any]
    buffer_state: dict[str, Any]
    trainer_state: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class OpenedCheckpoint:
    """The path of a checkpoint and its loaded state."""

    path: Path
    state: CheckpointState


def save_checkpoint(path: Path | str, state: CheckpointState) -> Path:
    """Write a checkpoint into a single file.

    A crash at any moment leaves either the old or the new checkpoint, with a manifest that matches it.
    """
    target = Path(path)
    _check_loadable(target, state)
    content = pack(vars(replace(state, buffer_state=self_contained(state.buffer_state))))
    try:
        _write(target, content, segments=[])
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be written: {error}") from error
    return target


def save_model(path: Path | str, state: CheckpointState) -> Path:
    """Write a checkpoint into a single file, which gets the suffix `.pt` if its name has none."""
    target = Path(path)
    return save_checkpoint(target if target.suffix else target.with_suffix(".pt"), state)


def save_run_checkpoint(path: Path, state: CheckpointState, store: SegmentStore) -> Path:
    """Write a checkpoint of a run, and its new transitions into the run's segment store.

    If the disk is full, remove older checkpoints and try once more.
    """
    _check_loadable(path, state)
    try:
        return _save_with_segments(path, state, store)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise CheckpointError(f"checkpoint {path} cannot be written: {error}") from error
        warnings.warn(f"{path} cannot be written ({error}): removing older checkpoints and trying again", stacklevel=2)
    try:
        prune_checkpoints(path.parent, keep=1)
        return _save_with_segments(path, state, store)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path} cannot be written: {error}; the previous one is kept: free disk space, then resume"
        ) from error


def _save_with_segments(path: Path, state: CheckpointState, store: SegmentStore) -> Path:
    try:
        buffer_state = store.externalize(state.buffer_state)
        content = pack(vars(replace(state, buffer_state=buffer_state)))
        _write(path, content, segment_files(buffer_state))
    except BaseException:
        store.discard()
        raise
    store.adopt(buffer_state)
    return path


def _check_loadable(path: Path, state: CheckpointState) -> None:
    unsupported = find_unsupported(vars(state))
    if unsupported:
        raise CheckpointError(
            f"checkpoint {path} is not written, because it could not be loaded again: {unsupported}; "
            "use tensors, numbers, strings, lists and dicts"
        )


def _write(path: Path, content: bytes, segments: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new, old, replacing = describe(content, segments), _describe_existing(path), path.exists()
    try:
        # Until the checkpoint itself is replaced, the old content is still in place, so the manifest describes both.
        write_manifest(path, new, replaces=old)
        write_bytes(path, content)
    except BaseException:
        if not replacing:
            _remove(path)
        raise
    if old is not None:
        with suppress(OSError):  # a manifest that also describes the replaced content is still valid
            write_manifest(path, new)


def _describe_existing(path: Path) -> Content | None:
    """Describe the intact checkpoint that is already at `path`, if any. One without a manifest counts as intact."""
    if not path.exists():
        return None
    try:
        content = read_payload(path)
        return verify(path, content) if manifest_path(path).exists() else describe(content, segments=[])
    except (CheckpointError, OSError):
        return None


def load_checkpoint(path: Path | str) -> CheckpointState:
    """Read a checkpoint and its replay segments. Refuse one that is damaged, contains code or has a newer format."""
    target = Path(path)
    return with_experience(load_without_experience(target), target)


def load_without_experience(path: Path | str) -> CheckpointState:
    """Read a checkpoint without its replay segments: enough to choose actions, not enough to continue training."""
    target = Path(path)
    try:
        content = read_payload(Path(os.path.realpath(target)))  # follow a link that the user gives
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be read: {error.strerror}") from None
    described = verify(target, content) if manifest_path(target).exists() else None
    values = unpack(content, f"checkpoint {target}")
    names = set(CheckpointState.__dataclass_fields__)
    if (
        not isinstance(values, dict)
        or set(values) != names
        or not all(isinstance(part, dict) for part in values.values())
    ):
        raise CheckpointError(
            f"{target} is not an rl_training checkpoint: expected dicts named {', '.join(sorted(names))}"
        )
    with _refuse_malformed_state(target):
        state = CheckpointState(**migrate(values))
        needed = segment_files(state.buffer_state)
    if described is None:
        warnings.warn(f"{target} has no manifest beside it, so damage cannot be detected", stacklevel=2)
    elif needed != described.segments:
        raise CheckpointError(
            f"manifest {manifest_path(target)} is damaged: it lists other segments than the checkpoint"
        )
    return state


def with_experience(state: CheckpointState, path: Path) -> CheckpointState:
    """Return the state of the checkpoint at `path` with the replay segments that it refers to."""
    with _refuse_malformed_state(path):
        return replace(state, buffer_state=resolve_segments(state.buffer_state, path))


@contextmanager
def _refuse_malformed_state(path: Path) -> Iterator[None]:
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not an rl_training checkpoint: its parts do not fit together ({error!r})"
        ) from error


def step_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints that are named by step, newest first."""
    named = [path for path in directory.glob("step_*.pt") if _STEP_NAME.fullmatch(path.name)]
    return sorted(named, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the env step in a checkpoint's name."""
    match = _STEP_NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path.name} has no step in its name; expected a name such as step_1000.pt")
    return int(match[1])


def find_checkpoint(path: Path | str, *, best: bool = False) -> Path:
    """Return `path` itself if it is a file, or the newest intact checkpoint (or the best) of a run directory."""
    target = Path(path)
    return open_checkpoint(target, best=best).path if target.is_dir() else target


def open_checkpoint(path: Path | str, *, best: bool = False) -> OpenedCheckpoint:
    """Find a checkpoint as `find_checkpoint` does, and load it with its replay segments.

    A checkpoint with a missing or damaged segment does not count as intact.
    """
    return _open(Path(path), load_checkpoint, best=best)


def open_without_experience(path: Path | str, *, best: bool = False) -> OpenedCheckpoint:
    """Find and load a checkpoint as `open_checkpoint` does, but neither read nor check its replay segments."""
    return _open(Path(path), load_without_experience, best=best)


def _open(target: Path, load: Callable[[Path], CheckpointState], *, best: bool) -> OpenedCheckpoint:
    if not target.is_dir():
        with announced(f"reading {target.name}"):
            return OpenedCheckpoint(target, load(target))
    directory = target / "checkpoints" if (target / "checkpoints").is_dir() else target
    if directory != target:
        check_folder(directory)
    candidates = [directory / BEST_NAME] if best else step_checkpoints(directory)
    refused = []
    for candidate in candidates:
        try:
            if candidate.is_symlink():
                raise CheckpointError(f"checkpoint {candidate} is a symbolic link, which is not followed")
            with announced(f"reading {candidate.name}"):
                opened = OpenedCheckpoint(candidate, load(candidate))
        except CheckpointError as error:
            refused.append(str(error))
        else:
            for reason in refused:
                warnings.warn(f"{reason}; using {candidate.name} instead", stacklevel=3)
            return opened
    hint = ""
    if not refused and directory == target:
        hint = f": it is not the directory of a run; `rl-training list {target}` shows the runs below it"
    elif not refused:
        hint = ": the run has saved nothing yet; start it again with `rl-training train --config`"
    raise CheckpointError(f"no intact checkpoint in {directory}{hint}" + "".join(f"; {reason}" for reason in refused))


def prune_checkpoints(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one, and the segments that no checkpoint needs."""
    _check_folders(directory)
    try:
        for path in step_checkpoints(directory)[keep:]:
            _remove(path)
        _remove_unused_files(directory)
    except OSError as error:
        warnings.warn(f"old checkpoints in {directory} cannot be removed: {error}", stacklevel=2)


def remove_newer_checkpoints(directory: Path, step: int) -> None:
    """Remove the checkpoints of steps after `step`, because the run continues from there and will write them again.

    Keep the best one even if its step is later, because the continued run may not become as good again.
    """
    _check_folders(directory)
    for path in step_checkpoints(directory):
        if step_of(path) > step:
            _remove(path)
    _remove_unused_files(directory)


def _check_folders(directory: Path) -> None:
    """Refuse folders that are links, so that no file outside the run directory is removed."""
    for folder in (directory, directory.parent / REPLAY_FOLDER):
        check_folder(folder)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    manifest_path(path).unlink(missing_ok=True)


def _remove_unused_files(directory: Path) -> None:
    """Remove the temporary files of killed processes, manifests without a checkpoint, and unused segments."""
    replay = directory.parent / REPLAY_FOLDER
    for folder in (directory, replay):
        remove_stale(folder)
    for manifest in directory.glob(f"*.pt{MANIFEST_SUFFIX}"):
        path = manifest.with_name(manifest.name.removesuffix(MANIFEST_SUFFIX))
        if not path.exists():
            manifest.unlink(missing_ok=True)
    with suppress(CheckpointError):  # a checkpoint without a readable manifest may need any of the segments
        checkpoints = sorted(directory.glob("*.pt"))
        needed = {name for path in checkpoints for content in read_manifest(path) for name in content.segments}
        SegmentStore(replay).prune(needed)
