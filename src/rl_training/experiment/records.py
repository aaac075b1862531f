"""Records of several runs, such as `group.json`: strict JSON files with a format number."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from rl_training.errors import ConfigError, RunDirectoryError, describe_error
from rl_training.experiment.files import check_folder, check_regular, read_json, write_text
from rl_training.experiment.runs import json_text
from rl_training.experiment.validation import StrictModel

LOGS_FOLDER = "logs"
_FORMAT = 1

PlaceName = Literal["here", "ray"]
RecordT = TypeVar("RecordT", bound=StrictModel)


class RunsRecord(StrictModel):
    """The fields that every record of several runs has."""

    algo: str
    env_id: str
    status: Literal["running", "completed", "interrupted", "failed"] = "running"
    jobs: int
    on: PlaceName = "here"
    """Where the runs were last trained: on this machine, or on a Ray cluster."""
    started_at: str
    ended_at: str | None = None
    command: list[str]
    versions: dict[str, str]
    git_commit: str | None
    host: dict[str, Any]


def check_directory_name(name: str) -> str:
    """Refuse a path in place of the name of a run directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("give the name of a directory inside the group or study, without a path")
    return name


def write_record(path: Path, record: StrictModel) -> None:
    """Replace a record."""
    write_text(path, json_text({"format": _FORMAT, **record.model_dump(mode="json")}) + "\n")


def read_record(path: Path, model: type[RecordT], kind: str, limit: int) -> RecordT:
    """Read the record of a directory of this kind, such as a group, from at most `limit` bytes."""
    try:
        content = read_json(path, limit)
        found = content.pop("format")
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path.parent} is not a {kind} directory: {describe_error(error)}") from None
    if found != _FORMAT:
        raise RunDirectoryError(
            f"{path} has format {found}, this version reads {_FORMAT}: use the version of rl-training that wrote it"
        )
    try:
        return model(**content)
    except (ConfigError, TypeError) as error:
        raise RunDirectoryError(f"{path} is damaged: {error}") from None


def check_files(folders: Iterable[Path], files: Iterable[Path]) -> None:
    """Refuse links and pipes in place of folders and files that are written to."""
    for folder in folders:
        check_folder(folder)
    for path in files:
        try:
            check_regular(path)
        except OSError as error:
            raise RunDirectoryError(f"{path} is refused: {error.strerror}") from None
