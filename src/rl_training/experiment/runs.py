"""Run directories: their names, their creation, and their config, metadata and log files."""

import json
import math
import os
import re
import secrets
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.dialect import YAML_LIMIT, ConfigDumper
from rl_training.experiment.files import (
    REPLAY_FOLDER,
    check_folder,
    check_regular,
    keep_copy,
    parse_json,
    read_json,
    read_lines,
    set_aside,
    write_text,
)

METRICS_FILE = "metrics.jsonl"
DIGESTS_FILE = "digests.jsonl"
METADATA_FILE = "metadata.json"
CURVE_FILE = "learning_curve.png"
CONFIG_FILE = "config.yaml"
_FOLDERS = ("checkpoints", REPLAY_FOLDER, "tensorboard", "failure", "trackers", "wandb")  # all that a run writes to
_LINE_START = b'{"step": '
_MAX_NAME = 70  # characters per part, so that an id of three parts and a seed stays below 255


@dataclass(frozen=True)
class RunContext:
    """The paths of a run on disk."""

    run_id: str
    run_dir: Path
    checkpoints_dir: Path
    tensorboard_dir: Path
    config_path: Path
    metadata_path: Path

    @property
    def metrics_path(self) -> Path:
        """The metrics log, with one JSON object per line."""
        return self.run_dir / METRICS_FILE

    @property
    def digests_path(self) -> Path:
        """The digest log, with the SHA-256 of the run's state whenever metrics are logged."""
        return self.run_dir / DIGESTS_FILE

    @property
    def failure_path(self) -> Path:
        """The inputs of the last rejected gradient step, with the learner's state before it."""
        return self.run_dir / "failure" / "update.pt"

    @property
    def replay_dir(self) -> Path:
        """The folder with the replay segments of the checkpoints; created when the first one is saved."""
        return self.run_dir / REPLAY_FOLDER

    def check_files(self) -> None:
        """Refuse links and pipes in place of the run's files and folders."""
        for folder in _FOLDERS:
            check_folder(self.run_dir / folder)
        for path in (self.metadata_path, self.config_path, self.metrics_path, self.digests_path):
            try:
                check_regular(path)
            except OSError as error:
                raise RunDirectoryError(f"{path} is refused: {error.strerror}") from None


def slug(name: str) -> str:
    """Turn a name into a path component of letters, digits, dots, dashes and underscores, never empty or hidden."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_MAX_NAME].strip(".-")
    return cleaned or "unnamed"


def context_of(run_dir: Path) -> RunContext:
    """Return the paths of a run directory, whether or not it exists."""
    return RunContext(
        run_id=run_dir.name,
        run_dir=run_dir,
        checkpoints_dir=run_dir / "checkpoints",
        tensorboard_dir=run_dir / "tensorboard",
        config_path=run_dir / CONFIG_FILE,
        metadata_path=run_dir / METADATA_FILE,
    )


def run_name(config: TrainConfig, suffix: str) -> str:
    """Return the id of a run, which is also the name of its directory."""
    return f"{slug(config.algo)}__{slug(config.env_id)}__seed{config.seed}__{slug(suffix)}"


def create_run_context(
    config: TrainConfig, run_suffix: str | None = None, *, output_dir: Path | None = None
) -> RunContext:
    """Create a new run directory below the config's `output_dir`; two runs never share one.

    Give an absolute `output_dir` if the working directory may have changed since the config was read.
    """
    suffix = run_suffix if run_suffix is not None else unique_suffix()
    place = (output_dir or config.output_dir).absolute()
    return context_of(make_directory(place, run_name(config, suffix), ("checkpoints", "tensorboard")))


def make_directory(output_dir: Path, name: str, folders: Sequence[str]) -> Path:
    """Create a directory with these folders in it. Refuse a directory that exists already."""
    path = output_dir / name
    try:
        if path.resolve().parent != output_dir.resolve():
            raise RunDirectoryError(f"{path} would be outside {output_dir}")
        output_dir.mkdir(parents=True, exist_ok=True)
        path.mkdir()  # atomic: if two processes try, one fails here
        for folder in folders:
            (path / folder).mkdir()
    except FileExistsError:
        if not output_dir.is_dir():
            raise RunDirectoryError(f"output directory {output_dir} is a file") from None
        raise RunDirectoryError(
            f"{path} exists: choose another suffix, or continue it with `rl-training resume`"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise RunDirectoryError(f"output directory {output_dir} cannot be written: {error}") from None
    return path


def unique_suffix() -> str:
    """Return a timestamp plus random letters, so that two runs started in the same second get different names."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def check_output_dir(config: TrainConfig) -> None:
    """Refuse an output directory in which no run directory can be created."""
    try:
        existing = config.output_dir.resolve()
        while not existing.exists():
            existing = existing.parent
    except (OSError, ValueError, RuntimeError) as error:  # the name is too long, contains NUL, or links to itself
        raise RunDirectoryError(f"output directory {config.output_dir} cannot be used: {error}") from None
    if not existing.is_dir():
        raise RunDirectoryError(f"output directory {config.output_dir}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"output directory {config.output_dir}: {existing} is not writable")


def write_config(context: RunContext, config: TrainConfig) -> None:
    """Write `config.yaml`, which `train --config` reads back."""
    write_values(context.config_path, plain_config(config))


def write_values(path: Path, values: dict[str, Any]) -> None:
    """Write plain config values as YAML. Refuse a config that is too large to be read again."""
    text = yaml.dump(values, Dumper=ConfigDumper, sort_keys=False)
    if len(text.encode()) > YAML_LIMIT:
        raise ConfigError(
            f"the config has more than {YAML_LIMIT:,} bytes: put large values into a file and its name into env_kwargs"
        )
    write_text(path, text)


def read_metadata(context: RunContext) -> dict[str, Any]:
    """Read `metadata.json`."""
    try:
        values = read_json(context.metadata_path)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{context.run_dir} is not a run directory: {error}") from None
    if not isinstance(values, dict):
        raise RunDirectoryError(f"{context.metadata_path} does not contain a JSON object")
    return values


def read_intact_metadata(context: RunContext) -> dict[str, Any]:
    """Read `metadata.json`; return an empty dict if it is missing or damaged."""
    try:
        return read_metadata(context)
    except RunDirectoryError:
        return {}


def repair_metadata(context: RunContext, known: dict[str, Any]) -> None:
    """Rename a damaged `metadata.json`, warn about it, and write the `known` values in its place."""
    try:
        values = read_metadata(context)
        if isinstance(values.get("wall_seconds", 0.0), (int, float)) and isinstance(values.get("resumed", []), list):
            return
        reason = f"{context.metadata_path} has an entry of an unexpected type"
    except RunDirectoryError as error:
        reason = str(error)
    aside = set_aside(context.metadata_path, "damaged")
    warnings.warn(
        f"{reason}; {METADATA_FILE} is renamed to {aside.name} and written again from the checkpoint", stacklevel=2
    )
    write_text(context.metadata_path, json_text(known) + "\n")


def update_metadata(context: RunContext, **changes: Any) -> None:
    """Change some entries of `metadata.json`. Create the file if needed."""
    values = read_metadata(context) if os.path.lexists(context.metadata_path) else {}
    write_text(context.metadata_path, json_text({**values, **changes}) + "\n")


def json_text(values: dict[str, Any]) -> str:
    """Return the values as JSON text. NaN and infinity become null, because JSON cannot express them."""
    return json.dumps(finite(values), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace NaN and infinity in a tree of plain values by None, for formats that cannot express them."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(context: RunContext) -> list[dict[str, Any]]:
    """Return the lines of the metrics file, without incomplete or damaged ones."""
    return _read_log(context.metrics_path).rows


def read_digests(context: RunContext) -> dict[int, str]:
    """Return the digests of the run's state by env step."""
    rows = _read_log(context.digests_path).rows
    return {row["step"]: row["sha256"] for row in rows if isinstance(row.get("sha256"), str)}


@dataclass(frozen=True)
class _Log:
    """The readable lines of a log."""

    rows: list[dict[str, Any]]
    damaged: bool
    """Whether damaged lines were left out. An incomplete last line does not count: a killed process may leave one."""


def _read_log(path: Path) -> _Log:
    if not os.path.lexists(path):
        return _Log([], damaged=False)
    rows: list[dict[str, Any]] = []
    damaged, torn = False, False
    try:
        for line in read_lines(path):
            damaged, torn = damaged or torn, False
            row = _parse_line(line)
            if row is not None:
                rows.append(row)
            elif _is_torn(line):
                torn = True  # damage unless this is the last line
            else:
                damaged = True
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from None
    return _Log(rows, damaged)


def _is_torn(line: bytes) -> bool:
    """Return whether this is the beginning of a log line, without its end."""
    return not line.endswith(b"\n") and line[: len(_LINE_START)] == _LINE_START[: len(line)]


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Parse a log line, which is a JSON object with an env step; None if it is anything else."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def truncate_logs(context: RunContext, step: int) -> None:
    """Remove the lines after `step`, because the run will write them again. Keep a copy of a damaged log."""
    for path in (context.metrics_path, context.digests_path):
        log = _read_log(path)
        if log.damaged:
            copy = keep_copy(path, "damaged")
            warnings.warn(f"{path} has damaged lines, which are removed; a copy is kept as {copy.name}", stacklevel=2)
        kept = [row for row in log.rows if row["step"] <= step]
        write_text(path, "".join(json.dumps(finite(row), allow_nan=False) + "\n" for row in kept))


def find_runs(root: Path) -> Iterator[RunContext]:
    """Yield every run directory below `root`, including `root` itself."""
    for path in sorted(root.rglob(METADATA_FILE)):
        yield context_of(path.parent)
