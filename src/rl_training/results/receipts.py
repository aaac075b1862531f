"""Receipts: the measured results of a preset over seeds, with everything needed to reproduce them.

Each receipt is a small JSON file. The package ships one per preset; `rl-training benchmark` writes and checks them.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.files import read_json, write_text
from rl_training.experiment.sources import PRESETS_DIR
from rl_training.experiment.validation import StrictModel, nearest_name
from rl_training.results.statistics import Interval, estimate, format_score

RECEIPTS_DIR = Path(__file__).parents[1] / "receipts"
_REFERENCE_FILE = RECEIPTS_DIR / "rl_zoo.yaml"
_SEARCHES_FILE = RECEIPTS_DIR / "searches.yaml"


class SeedScore(StrictModel):
    """The evaluation of the final agent of one seed."""

    seed: int
    return_mean: float
    return_std: float
    env_steps: int
    wall_seconds: float


class Receipt(StrictModel):
    """The measured result of a preset."""

    preset: str
    """Name of the preset, such as `ppo/cartpole`."""
    preset_sha256: str
    """SHA-256 of the preset's file."""
    env_id: str
    eval_episodes: int
    """Evaluation episodes of each seed's final agent, played with the most likely actions."""
    scores: tuple[SeedScore, ...]
    iqm: float
    """Interquartile mean of the seeds' mean returns."""
    interval: tuple[float, float] | None
    """95 % interval of the interquartile mean; None for a single seed."""
    compile: Literal["on", "off"] | None = None
    """Whether updates were compiled. This changes their last bits, and so the result of each seed.

    None in old receipts, which do not record it.
    """
    versions: dict[str, str]
    git_commit: str | None
    hardware: dict[str, str | int]
    jobs: int
    """Number of seeds that were trained at the same time; wall times depend on it."""
    created_at: str

    @property
    def returns(self) -> list[float]:
        """Mean return of every seed."""
        return [score.return_mean for score in self.scores]


class Reference(NamedTuple):
    """The result of a single run that RL Zoo reports for the same environment: mean and deviation over episodes."""

    mean: float
    deviation: float
    env_steps: int


def summarize(scores: Sequence[SeedScore]) -> tuple[float, tuple[float, float] | None]:
    """Return the interquartile mean over seeds and its interval; the interval is None for a single seed."""
    found = estimate([score.return_mean for score in scores])
    return round(found.value, 2), _rounded_ends(found.interval)


def _rounded_ends(interval: Interval) -> tuple[float, float] | None:
    return (round(interval.low, 2), round(interval.high, 2)) if interval.is_bounded else None


def preset_path(name: str) -> Path:
    """Return the file of a preset by its name, such as `ppo/cartpole`."""
    path = PRESETS_DIR / f"{name}.yaml"
    if not path.is_file() or path.parent.parent != PRESETS_DIR:
        nearest = nearest_name(name, preset_names())
        remedy = f"did you mean '{nearest}'?" if nearest else f"choose from {', '.join(preset_names())}"
        raise ConfigError(f"no preset '{name}': {remedy}")
    return path


def preset_names() -> list[str]:
    """Return the names of all shipped presets in alphabetical order."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PRESETS_DIR.glob("*/*.yaml"))


def preset_digest(name: str) -> str:
    """Return the SHA-256 of a preset's file."""
    return hashlib.sha256(preset_path(name).read_bytes()).hexdigest()


def receipt_path(directory: Path, preset: str) -> Path:
    """Return the path of a preset's receipt."""
    return directory / f"{preset}.json"


def read_receipt(path: Path) -> Receipt:
    """Read a receipt."""
    try:
        return Receipt(**read_json(path))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise RunDirectoryError(f"{path} is not a receipt: {error}") from None


def read_receipts(directory: Path) -> list[Receipt]:
    """Read all receipts below a directory, in the order of their presets."""
    return [read_receipt(path) for path in sorted(directory.glob("*/*.json"))]


def write_receipt(directory: Path, receipt: Receipt) -> Path:
    """Write a receipt. Replace an older one of the same preset."""
    path = receipt_path(directory, receipt.preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(receipt.model_dump(mode="json"), indent=1) + "\n")
    return path


def read_references() -> dict[str, Reference]:
    """Read RL Zoo's results by preset; not every preset has one."""
    values: dict[str, Any] = yaml.safe_load(_REFERENCE_FILE.read_text(encoding="utf-8"))
    return {name: Reference(*figures) for name, figures in values.items()}


def read_searches() -> dict[str, str]:
    """Read how the settings of presets were found, for those that were chosen by their results on some seeds."""
    searches: dict[str, str] = yaml.safe_load(_SEARCHES_FILE.read_text(encoding="utf-8"))
    return searches


class ReceiptCheck(NamedTuple):
    """The stored receipt of a preset and the one from training it again."""

    stored: Receipt
    repeated: Receipt

    @property
    def holds(self) -> bool:
        """Whether the new interquartile mean lies in the stored interval, or the two intervals overlap."""
        low, high = self.stored.interval or (self.stored.iqm, self.stored.iqm)
        new_low, new_high = self.repeated.interval or (self.repeated.iqm, self.repeated.iqm)
        return new_low <= high and low <= new_high

    @property
    def is_inside(self) -> bool:
        """Whether the new interquartile mean lies in the stored interval."""
        low, high = self.stored.interval or (self.stored.iqm, self.stored.iqm)
        return low <= self.repeated.iqm <= high

    @property
    def sentence(self) -> str:
        """The outcome in a sentence."""
        place = "inside" if self.is_inside else "outside"
        position = f"{format_score(self.repeated.iqm)} is {place} the stored interval, {format_interval(self.stored)}"
        if self.is_inside:
            return f"holds: {position}"
        if self.holds:
            return f"holds: {position}, but its own interval, {format_interval(self.repeated)}, overlaps it"
        return f"does not hold: {position}, and its own interval, {format_interval(self.repeated)}, does not overlap it"


def format_interval(receipt: Receipt) -> str:
    """Return the interval of a receipt as text."""
    if receipt.interval is None:
        return f"{format_score(receipt.iqm)} (one seed)"
    return f"{format_score(receipt.interval[0])} to {format_score(receipt.interval[1])}"


def reaches_reference(receipt: Receipt, reference: Reference) -> bool:
    """Return whether the preset's interval reaches RL Zoo's mean minus its deviation over episodes."""
    high = receipt.interval[1] if receipt.interval else receipt.iqm
    return high >= reference.mean - reference.deviation
