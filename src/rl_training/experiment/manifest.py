"""The manifest beside a checkpoint, which holds its format number, its SHA-256 and the replay segments it needs."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.files import read_json, write_text

FORMAT_VERSION = 2
MANIFEST_SUFFIX = ".manifest.json"


@dataclass(frozen=True)
class Content:
    """A manifest's description of the content of a checkpoint file."""

    sha256: str
    size: int
    segments: list[str]
    """Names of the files with the checkpoint's replay transitions."""


def describe(content: bytes, segments: list[str]) -> Content:
    """Return the description of a checkpoint file with this content."""
    return Content(hashlib.sha256(content).hexdigest(), len(content), segments)


def manifest_path(path: Path) -> Path:
    """Return the path of a checkpoint's manifest."""
    return path.with_name(path.name + MANIFEST_SUFFIX)


def write_manifest(path: Path, content: Content, replaces: Content | None = None) -> None:
    """Write the manifest of a checkpoint. It also describes the content that is about to be replaced, if any."""
    values: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(content)}
    if replaces is not None:
        values["replaces"] = asdict(replaces)
    # Without a final newline, the loss of the last byte makes the JSON invalid, so it is detected.
    write_text(manifest_path(path), json.dumps(values, indent=2))


def read_manifest(path: Path) -> list[Content]:
    """Return every content that the manifest describes: one, or two while the checkpoint is being replaced."""
    place = manifest_path(path)
    try:
        values = read_json(place)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"manifest {place} is damaged: {error}") from None
    if not isinstance(values, dict) or type(values.get("format")) is not int:
        raise CheckpointError(f"manifest {place} is damaged: it has no format number")
    if not 1 <= values["format"] <= FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format {values['format']}, this version reads up to {FORMAT_VERSION}: "
            "upgrade rl-training"
        )
    if values["format"] == 1:  # format 1 had no segments, and stored only the SHA-256 of the replaced content
        replaced = values.get("replaces")
        values["segments"] = []
        values["replaces"] = {"sha256": replaced, "size": -1, "segments": []} if replaced else None
    described = [values] if values.get("replaces") is None else [values, values["replaces"]]
    try:
        return [_parse(each) for each in described]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"manifest {place} is damaged: {error!r}") from None


def _parse(values: dict[str, Any]) -> Content:
    content = Content(values["sha256"], values["size"], values["segments"])
    if type(content.sha256) is not str or type(content.size) is not int or type(content.segments) is not list:
        raise TypeError("an entry does not have the expected type")
    if not all(isinstance(name, str) for name in content.segments):
        raise TypeError("a segment's name is not a string")
    return content


def verify(path: Path, content: bytes) -> Content:
    """Return the manifest's description of this content. Refuse content that the manifest does not describe."""
    digest = hashlib.sha256(content).hexdigest()
    for expected in read_manifest(path):
        if expected.sha256 == digest and expected.size in (len(content), -1):
            return expected
    raise CheckpointError(
        f"checkpoint {path} is damaged: its size ({len(content)} bytes) or SHA-256 differs from its manifest"
    )
