"""Reads back what the real wandb package has written offline."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FILE_HEADER = 7  # magic number and version
_CHUNK_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_BLOCK = 32_768
_PATIENCE_SECONDS = 60.0
_LAST_CHUNKS = (1, 4)  # a whole record, or the last part of one


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    assert content.startswith(b":W&B")
    position, parts = _FILE_HEADER, b""
    while position + _CHUNK_HEADER.size <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _CHUNK_HEADER.size:
            position += left
            continue
        _, length, kind = _CHUNK_HEADER.unpack_from(content, position)
        position += _CHUNK_HEADER.size + length
        if position > len(content):  # still being written
            return
        parts += content[position - length : position]
        if kind in _LAST_CHUNKS:
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


class OfflineRun:
    """One offline run: what it was told of the run, its history by step, its summary and its exit code."""

    def __init__(self, path: Path) -> None:
        self.config: dict[str, Any] = {}
        self.history: dict[int, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        for record in _records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run_id, self.name, self.project = record.run.run_id, record.run.display_name, record.run.project
                self.tags = list(record.run.tags)
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                self.history.setdefault(record.history.step.num, {}).update(values)
            elif kind == "summary":
                self.summary |= {
                    item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.summary.update
                }
            elif kind == "exit":
                self.exit_code = record.exit.exit_code


def _finished(path: Path) -> OfflineRun:
    """The run once it is whole: the process behind wandb may write it a moment after wandb says that it is done."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (run := OfflineRun(path)).exit_code is None:
        assert time.monotonic() < deadline, f"{path} stays unfinished"
    return run


def offline_runs(run_dir: Path) -> list[OfflineRun]:
    """The offline runs below a run directory."""
    return [_finished(path) for path in run_dir.glob("wandb/offline-run-*/*.wandb")]
