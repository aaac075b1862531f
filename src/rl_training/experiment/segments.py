"""Replay segments: the transitions that were new at a checkpoint, in a file that later checkpoints refer to.

So a checkpoint costs what is new, not what is stored. A segment is never changed: its name holds its SHA-256.
"""

import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import REPLAY_FOLDER, check_folder, write_atomically
from rl_training.experiment.payload import pack, read_payload, unpack

_SEGMENT_NAME = re.compile(r"rows_\d+_\d+_[0-9a-f]{12}\.pt")

BufferState = dict[str, Any]
Reference = dict[str, Any]
"""{"first", "count", "segment": {"file", "sha256", "size"}}: which transitions, and where they are."""


def segment_files(state: BufferState) -> list[str]:
    """The names of the files that a buffer's state refers to."""
    return [block["segment"]["file"] for block in state.get("blocks", []) if "segment" in block]


def self_contained(state: BufferState) -> BufferState:
    """The state without references: its blocks must have their content."""
    if "blocks" not in state:
        return state
    if not all("content" in block for block in state["blocks"]):
        raise CheckpointError("the checkpoint was loaded without its experience, which one file must hold")
    blocks = [{"first": block["first"], "content": block["content"]} for block in state["blocks"]]
    return {**state, "blocks": blocks}


def resolve_segments(state: BufferState, checkpoint: Path) -> BufferState:
    """The state with the content of every block, read from the run that the checkpoint lies in."""
    if "blocks" not in state:
        return state
    folder = checkpoint.parent.parent / REPLAY_FOLDER
    blocks = [
        block if "content" in block else {**block, "content": _read(folder, block["segment"], checkpoint)}
        for block in state["blocks"]
    ]
    return {**state, "blocks": blocks}


def _read(folder: Path, segment: dict[str, Any], checkpoint: Path) -> Any:
    if not _SEGMENT_NAME.fullmatch(segment["file"]):
        raise CheckpointError(f"checkpoint {checkpoint} is refused: {segment['file']!r} is no segment's name")
    path = folder / segment["file"]
    told = f"segment {path} of checkpoint {checkpoint}"
    try:
        check_folder(folder)
        content = read_payload(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"{told} is missing: if the checkpoint was copied, copy the `{REPLAY_FOLDER}` folder of its run to "
            f"{folder} too"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{told} cannot be read: {error.strerror}") from None
    if len(content) != segment["size"] or hashlib.sha256(content).hexdigest() != segment["sha256"]:
        raise CheckpointError(f"{told} is damaged: {len(content)} bytes with another size or SHA-256 than expected")
    return unpack(content, told)


class SegmentStore:
    """The segments of one run, and which of them hold the transitions of its newest checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._references: list[Reference] = []
        self._unconfirmed: list[Path] = []

    @property
    def saved_until(self) -> int:
        """The number of the first transition that is not saved yet."""
        references = self._present()
        return _end(references[-1]) if references else 0

    def _present(self) -> list[Reference]:
        """The references to build upon; none when a file was removed behind our back, so that all is written again."""
        complete = all((self.directory / name).exists() for name in segment_files({"blocks": self._references}))
        return self._references if complete else []

    def externalize(self, state: BufferState) -> BufferState:
        """Write the content of the blocks, and refer to it and to all earlier segments that are still needed.

        Nothing counts as saved before `adopt` is told so; `discard` removes what was written.
        """
        if "blocks" not in state:
            return state
        oldest, new = state["added"] - state["size"], state["blocks"]
        begin = new[0]["first"] if new else state["added"]
        references = [each for each in self._present() if each["first"] < begin and _end(each) > oldest]
        references += [self._write(block) for block in new]
        known = oldest
        for reference in references:
            known = max(known, _end(reference)) if reference["first"] <= known else known
        if known != state["added"]:
            raise CheckpointError(f"transitions from {known} on are not in {self.directory} any more: save them all")
        return {**state, "blocks": references}

    def _write(self, block: dict[str, Any]) -> Reference:
        content = pack(block["content"])
        first, count = block["first"], len(block["content"]["rows"])
        digest = hashlib.sha256(content).hexdigest()
        path = self.directory / f"rows_{first}_{count}_{digest[:12]}.pt"
        self.directory.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            self._unconfirmed.append(path)
        write_atomically(path, lambda file: file.write(content))
        return {
            "first": first,
            "count": count,
            "segment": {"file": path.name, "sha256": digest, "size": len(content)},
        }

    def adopt(self, state: BufferState) -> None:
        """Build upon the segments that a checkpoint of this run refers to; without references all is written anew."""
        blocks = state.get("blocks", [])
        referring = all("segment" in block for block in blocks)
        names = ("first", "count", "segment")
        self._references = [{name: block[name] for name in names} for block in blocks] if referring else []
        self._unconfirmed = []

    def discard(self) -> None:
        """Remove what was written for a checkpoint that did not come about."""
        for path in self._unconfirmed:
            path.unlink(missing_ok=True)
        self._unconfirmed = []

    def prune(self, needed: Collection[str]) -> None:
        """Remove every segment but those named."""
        for path in self.directory.glob("rows_*.pt"):
            if _SEGMENT_NAME.fullmatch(path.name) and path.name not in needed:
                path.unlink(missing_ok=True)


def _end(reference: Reference) -> int:
    return int(reference["first"]) + int(reference["count"])
