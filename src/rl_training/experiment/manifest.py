"""A checkpoint's manifest: the file beside it that says its format, its SHA-256 and which replay segments it needs."""

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
    """What a checkpoint file holds, as far as its manifest tells."""

    sha256: str
    size: int
    segments: list[str]
    """Names of the files that hold its replay transitions."""


def describe(content: bytes, segments: list[str]) -> Content:
    """What a manifest says about a file with this content."""
    return Content(hashlib.sha256(content).hexdigest(), len(content), segments)


def manifest_path(path: Path) -> Path:
    """Where a checkpoint's manifest lies."""
    return path.with_name(path.name + MANIFEST_SUFFIX)


def write_manifest(path: Path, content: Content, replaces: Content | None = None) -> None:
    """Vouch for `content` at the checkpoint's path, and for the one that it is about to replace there."""
    values: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(content)}
    if replaces is not None:
        values["replaces"] = asdict(replaces)
    write_text(manifest_path(path), json.dumps(values, indent=2))  # no newline: losing the last byte is noticed


def read_manifest(path: Path) -> list[Content]:
    """Every content that the checkpoint's manifest vouches for: one, or two while it is being replaced."""
    place = manifest_path(path)
    try:
        values = read_json(place)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"manifest {place} is damaged: {error}") from None
    if not isinstance(values, dict) or type(values.get("format")) is not int:
        raise CheckpointError(f"manifest {place} is damaged: it names no format")
    if not 1 <= values["format"] <= FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} has format {values['format']}, this version reads up to {FORMAT_VERSION}: upgrade"
        )
    if values["format"] == 1:  # it knew no segments, and of what is replaced only the SHA-256
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
        raise TypeError("an entry has another type than expected")
    if not all(isinstance(name, str) for name in content.segments):
        raise TypeError("a segment's name is no text")
    return content


def verify(path: Path, content: bytes) -> Content:
    """What the checkpoint's manifest says about its content; another content is refused."""
    digest = hashlib.sha256(content).hexdigest()
    for vouched in read_manifest(path):
        if vouched.sha256 == digest and vouched.size in (len(content), -1):
            return vouched
    raise CheckpointError(
        f"checkpoint {path} is damaged: {len(content)} bytes with another size or SHA-256 than its manifest says"
    )
