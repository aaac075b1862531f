"""Checkpoints: staged, flushed, described by a manifest with SHA-256, renamed into place; read without running code."""

import hashlib
import io
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.files import write_atomically, write_text
from rl_training.experiment.migration import migrate

FORMAT_VERSION = 2
BEST_NAME = "best.pt"
_STEP_NAME = re.compile(r"step_(\d+)\.pt")


@dataclass(frozen=True)
class CheckpointState:
    """A whole run between two steps, as tensors and plain values."""

    algorithm_state: dict[str, Any]
    buffer_state: dict[str, Any]
    trainer_state: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any]


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint that was found, and what it holds."""

    path: Path
    state: CheckpointState


def manifest_path(path: Path) -> Path:
    """Where a checkpoint's manifest lies."""
    return path.with_name(path.name + ".manifest.json")


def save_checkpoint(path: Path | str, state: CheckpointState) -> Path:
    """Write a checkpoint so that at every moment the file at `path` is whole and its manifest fits it."""
    target = Path(path)
    memory = io.BytesIO()
    torch.save({name: getattr(state, name) for name in CheckpointState.__dataclass_fields__}, memory)
    content = memory.getvalue()
    manifest = {
        "format": FORMAT_VERSION,
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if _intact(target):
            # Until the rename below, the old content is the valid one: the new manifest vouches for both.
            manifest["replaces"] = hashlib.sha256(target.read_bytes()).hexdigest()
        try:
            write_text(manifest_path(target), json.dumps(manifest, indent=2) + "\n")
            write_atomically(target, lambda file: file.write(content))
        finally:
            if not target.exists():
                manifest_path(target).unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be written: {error}") from error
    return target


def _intact(path: Path) -> bool:
    """Whether a checkpoint stands at `path` that its manifest, if it has one, vouches for."""
    if not path.exists() or not manifest_path(path).exists():
        return path.exists()
    try:
        _verify(path, path.read_bytes())
    except CheckpointError:
        return False
    return True


def load_checkpoint(path: Path | str) -> CheckpointState:
    """Read a checkpoint, refusing one that is damaged, of a newer format, or that holds anything but data."""
    target = Path(path)
    try:
        content = target.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {target} cannot be read: {error.strerror}") from None
    described = manifest_path(target).exists()
    if described:
        _verify(target, content)
    try:
        values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"checkpoint {target} is refused: it is damaged or holds code ({reason})") from None
    except Exception as error:  # what the unpickler meets in a damaged file shows as almost any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"checkpoint {target} is damaged: {reason}") from None
    names = set(CheckpointState.__dataclass_fields__)
    if (
        not isinstance(values, dict)
        or set(values) != names
        or not all(isinstance(part, dict) for part in values.values())
    ):
        raise CheckpointError(f"checkpoint {target} is not ours: expected maps named {', '.join(sorted(names))}")
    if not described:
        warnings.warn(f"{target} has no manifest beside it, so damage cannot be noticed", stacklevel=2)
    try:
        return CheckpointState(**migrate(values))
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {target} cannot be brought to today's format: {error!r}") from error


def _verify(path: Path, content: bytes) -> None:
    manifest = _read_manifest(manifest_path(path))
    if not 1 <= manifest["format"] <= FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format {manifest['format']}, this version reads up to {FORMAT_VERSION}: upgrade"
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest not in (manifest.get("sha256"), manifest.get("replaces")):
        raise CheckpointError(
            f"checkpoint {path} is damaged: {len(content)} bytes with another SHA-256 than its manifest says"
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"manifest {path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or type(manifest.get("format")) is not int:
        raise CheckpointError(f"manifest {path} is damaged: it names no format")
    return manifest


def step_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints named by step, newest first."""
    found = [(int(match[1]), path) for path, match in _step_names(directory)]
    return [path for _, path in sorted(found, reverse=True)]


def _step_names(directory: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for path in directory.glob("step_*.pt"):
        match = _STEP_NAME.fullmatch(path.name)
        if match:
            yield path, match


def find_checkpoint(path: Path | str, *, best: bool = False) -> Path:
    """The checkpoint meant by a file or a run directory: that file, or the directory's newest intact (or best) one."""
    target = Path(path)
    return open_checkpoint(target, best=best).path if target.is_dir() else target


def open_checkpoint(path: Path | str, *, best: bool = False) -> OpenedCheckpoint:
    """Find a checkpoint as `find_checkpoint` does and load it, from one read."""
    target = Path(path)
    if not target.is_dir():
        return OpenedCheckpoint(target, load_checkpoint(target))
    directory = target / "checkpoints" if (target / "checkpoints").is_dir() else target
    candidates = [directory / BEST_NAME] if best else step_checkpoints(directory)
    refused = []
    for candidate in candidates:
        try:
            opened = OpenedCheckpoint(candidate, load_checkpoint(candidate))
        except CheckpointError as error:
            refused.append(str(error))
        else:
            for reason in refused:
                warnings.warn(f"{reason}; using {candidate.name} instead", stacklevel=2)
            return opened
    raise CheckpointError(f"no intact checkpoint in {directory}" + "".join(f"; {reason}" for reason in refused))


def prune_checkpoints(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints; the best one has a name of its own and stays."""
    for path in step_checkpoints(directory)[keep:]:
        path.unlink(missing_ok=True)
        manifest_path(path).unlink(missing_ok=True)
