"""Run directories: their names, their creation, and what `metadata.json` says about a run."""

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import RunDirectoryError
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.dialect import ConfigDumper
from rl_training.experiment.files import REPLAY_FOLDER, write_text

METRICS_FILE = "metrics.jsonl"
DIGESTS_FILE = "digests.jsonl"
METADATA_FILE = "metadata.json"
CURVE_FILE = "learning_curve.png"
CONFIG_FILE = "config.yaml"
_MAX_NAME = 70  # characters per part: with three of them and a seed, a whole id stays below 255


@dataclass(frozen=True)
class RunContext:
    """One run's place on disk."""

    run_id: str
    run_dir: Path
    checkpoints_dir: Path
    tensorboard_dir: Path
    config_path: Path
    metadata_path: Path

    @property
    def metrics_path(self) -> Path:
        """One JSON object per line: the truth about what was measured."""
        return self.run_dir / METRICS_FILE

    @property
    def digests_path(self) -> Path:
        """One line per log: what the state amounted to, to the last bit."""
        return self.run_dir / DIGESTS_FILE

    @property
    def failure_path(self) -> Path:
        """The newest gradient step that was refused, with the learner as it was then."""
        return self.run_dir / "failure" / "update.pt"

    @property
    def replay_dir(self) -> Path:
        """The transitions that checkpoints refer to; made when the first are saved."""
        return self.run_dir / REPLAY_FOLDER


def slug(name: str) -> str:
    """The name as one path component: letters, digits, dots, dashes and underscores, never empty or hidden."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_MAX_NAME].strip(".-")
    return cleaned or "unnamed"


def context_of(run_dir: Path) -> RunContext:
    """The places inside a run directory, whether or not it exists."""
    return RunContext(
        run_id=run_dir.name,
        run_dir=run_dir,
        checkpoints_dir=run_dir / "checkpoints",
        tensorboard_dir=run_dir / "tensorboard",
        config_path=run_dir / CONFIG_FILE,
        metadata_path=run_dir / METADATA_FILE,
    )


def run_name(config: TrainConfig, suffix: str) -> str:
    """The id of a run, and the name of its directory."""
    return f"{slug(config.algo)}__{slug(config.env_id)}__seed{config.seed}__{slug(suffix)}"


def create_run_context(config: TrainConfig, run_suffix: str | None = None) -> RunContext:
    """Create a new run directory below `output_dir`; two runs never share one."""
    suffix = run_suffix if run_suffix is not None else unique_suffix()
    return context_of(make_directory(config.output_dir, run_name(config, suffix), ("checkpoints", "tensorboard")))


def make_directory(output_dir: Path, name: str, folders: Sequence[str]) -> Path:
    """A new directory with these folders in it; one that exists is refused."""
    path = output_dir / name
    try:
        if path.resolve().parent != output_dir.resolve():
            raise RunDirectoryError(f"{path} would lie outside {output_dir}")
        output_dir.mkdir(parents=True, exist_ok=True)
        path.mkdir()  # atomic: of two processes, one fails here
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
    """The moment, and some letters for those who have the same."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def check_output_dir(config: TrainConfig) -> None:
    """Refuse, before anything is built, an output directory that could not take a run."""
    try:
        existing = config.output_dir.resolve()
        while not existing.exists():
            existing = existing.parent
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, NUL, a link to itself
        raise RunDirectoryError(f"output directory {config.output_dir} cannot be used: {error}") from None
    if not existing.is_dir():
        raise RunDirectoryError(f"output directory {config.output_dir}: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"output directory {config.output_dir}: {existing} is not writable")


def write_config(context: RunContext, config: TrainConfig) -> None:
    """Write `config.yaml`, which `train --config` reads back."""
    write_values(context.config_path, plain_config(config))


def write_values(path: Path, values: dict[str, Any]) -> None:
    """Plain config values as YAML."""
    write_text(path, yaml.dump(values, Dumper=ConfigDumper, sort_keys=False))


def read_metadata(context: RunContext) -> dict[str, Any]:
    """What `metadata.json` says."""
    try:
        values = json.loads(context.metadata_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{context.run_dir} is not a run directory: {error}") from None
    if not isinstance(values, dict):
        raise RunDirectoryError(f"{context.metadata_path} does not hold a JSON object")
    return values


def update_metadata(context: RunContext, **changes: Any) -> None:
    """Change some entries of `metadata.json`, creating it if needed."""
    values = read_metadata(context) if context.metadata_path.exists() else {}
    write_text(context.metadata_path, json.dumps({**values, **changes}, indent=2) + "\n")


def read_metrics(context: RunContext) -> list[dict[str, Any]]:
    """The lines of the metrics file; a last line that a crash has torn is left out."""
    return _read_lines(context.metrics_path)


def read_digests(context: RunContext) -> dict[int, str]:
    """The digests of the run's state, by env step."""
    return {row["step"]: row["sha256"] for row in _read_lines(context.digests_path)}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def truncate_logs(context: RunContext, step: int) -> None:
    """Drop what was measured after `step`, because it will be measured again."""
    for path in (context.metrics_path, context.digests_path):
        kept = [row for row in _read_lines(path) if row["step"] <= step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def find_runs(root: Path) -> Iterator[RunContext]:
    """Every run directory below `root`, `root` itself included."""
    for path in sorted(root.rglob(METADATA_FILE)):
        yield context_of(path.parent)
