"""Replay segments: files with the transitions that were new at a checkpoint. Later checkpoints refer to them.

So a checkpoint writes only what is new, not the whole buffer. A segment never changes; its name contains its SHA-256.
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import REPLAY_FOLDER, check_folder, write_bytes
from rl_training.experiment.payload import pack, read_payload, unpack

_SEGMENT_NAME = re.compile(r"rows_\d+_\d+_[0-9a-f]{12}\.pt")

BufferState = dict[str, Any]
Reference = dict[str, Any]
"""A range of transitions and its file: {"first", "count", "segment": {"file", "sha256", "size"}}."""


def segment_files(state: BufferState) -> list[str]:
    """Return the names of the segment files that a buffer's state refers to."""
    return [block["segment"]["file"] for block in state.get("blocks", []) if "segment" in block]


def self_contained(state: BufferState) -> BufferState:
    """Return the state without references to segments. Refuse a state whose blocks have no content."""
    if "blocks" not in state:
        return state
    if not all("content" in block for block in state["blocks"]):
        raise CheckpointError(
            "the checkpoint was loaded without its replay segments, so it cannot be saved into a single file"
        )
    blocks = [{"first": block["first"], "content": block["content"]} for block in state["blocks"]]
    return {**state, "blocks": blocks}


def resolve_segments(state: BufferState, checkpoint: Path) -> BufferState:
    """Return the state with the content of every block, read from the replay folder of the checkpoint's run."""
    if "blocks" not in state:
        return state
    folder = checkpoint.parent.parent / REPLAY_FOLDER
    blocks = [
        block if "content" in block else {**block, "content": _read_segment(folder, block["segment"], checkpoint)}
        for block in state["blocks"]
    ]
    return {**state, "blocks": blocks}


def _read_segment(folder: Path, segment: dict[str, Any], checkpoint: Path) -> Any:
    if not _SEGMENT_NAME.fullmatch(segment["file"]):
        raise CheckpointError(f"checkpoint {checkpoint} is refused: {segment['file']!r} is not the name of a segment")
    path = folder / segment["file"]
    label = f"segment {path} of checkpoint {checkpoint}"
    try:
        check_folder(folder)
        content = read_payload(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{label} is missing: if the checkpoint was copied, copy the `{REPLAY_FOLDER}` folder of its run to "
            f"{folder} too"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{label} cannot be read: {error.strerror}") from None
    if len(content) != segment["size"] or hashlib.sha256(content).hexdigest() != segment["sha256"]:
        raise CheckpointError(
            f"{label} is damaged: its size ({len(content)} bytes) or SHA-256 differs from the checkpoint's reference"
        )
    return unpack(content, label)


class SegmentStore:
    """The segment files of one run, and the references of its newest checkpoint to them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._references: list[Reference] = []
        self._unconfirmed: list[Path] = []

    @property
    def saved_until(self) -> int:
        """Number of the first transition that is not saved yet."""
        references = self._usable_references()
        return _end(references[-1]) if references else 0

    def _usable_references(self) -> list[Reference]:
        """Return the references; an empty list if a file has disappeared, so that all transitions are written again."""
        complete = all((self.directory / name).exists() for name in segment_files({"blocks": self._references}))
        return self._references if complete else []

    def externalize(self, state: BufferState) -> BufferState:
        """Write the blocks as segments. Return the state with references to them and to earlier segments still needed.

        The segments count as saved only after `adopt`. `discard` removes them.
        """
        if "blocks" not in state:
            return state
        oldest, new = state["added"] - state["size"], state["blocks"]
        begin = new[0]["first"] if new else state["added"]
        references = [each for each in self._usable_references() if each["first"] < begin and _end(each) > oldest]
        references += [self._write(block) for block in new]
        covered_until = oldest
        for reference in references:
            if reference["first"] <= covered_until:
                covered_until = max(covered_until, _end(reference))
        if covered_until != state["added"]:
            raise CheckpointError(
                f"transitions from {covered_until} on are missing in {self.directory}: save all of them again"
            )
        return {**state, "blocks": references}

    def _write(self, block: dict[str, Any]) -> Reference:
        content = pack(block["content"])
        first, count = block["first"], len(block["content"]["rows"])
        digest = hashlib.sha256(content).hexdigest()
        path = self.directory / f"rows_{first}_{count}_{digest[:12]}.pt"
        self.directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._unconfirmed.append(path)
        write_bytes(path, content)
        return {
            "first": first,
            "count": count,
            "segment": {"file": path.name, "sha256": digest, "size": len(content)},
        }

    def adopt(self, state: BufferState) -> None:
        """Reuse the segments that a checkpoint of this run refers to; without references, write all of them again."""
        blocks = state.get("blocks", [])
        referring = all("segment" in block for block in blocks)
        names = ("first", "count", "segment")
        self._references = [{name: block[name] for name in names} for block in blocks] if referring else []
        self._unconfirmed = []

    def discard(self) -> None:
        """Remove the segments that were written for a checkpoint that could not be saved."""
        for path in self._unconfirmed:
            path.unlink(missing_ok=True)
        self._unconfirmed = []

    def prune(self, needed: Collection[str]) -> None:
        """Remove all segments except those named in `needed`."""
        for path in self.directory.glob("rows_*.pt"):
            if _SEGMENT_NAME.fullmatch(path.name) and path.name not in needed:
                path.unlink(missing_ok=True)


def _end(reference: Reference) -> int:
    return int(reference["first"]) + int(reference["count"])
