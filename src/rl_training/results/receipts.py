"""Receipts: what a preset came to over its seeds, with everything that somebody needs to get it again.

One small JSON file per preset. The shipped ones lie beside the presets; `rl-training benchmark` writes and checks them.
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
from rl_training.results.statistics import Interval, estimate, short

RECEIPTS_DIR = Path(__file__).parents[1] / "receipts"
_REFERENCE_FILE = RECEIPTS_DIR / "rl_zoo.yaml"
_SEARCHES_FILE = RECEIPTS_DIR / "searches.yaml"


class SeedScore(StrictModel):
    """The final agent of one seed."""

    seed: int
    return_mean: float
    return_std: float
    env_steps: int
    wall_seconds: float


class Receipt(StrictModel):
    """A preset's result."""

    preset: str
    """Such as `ppo/cartpole`."""
    preset_sha256: str
    """Of the preset's file."""
    env_id: str
    eval_episodes: int
    """Of every seed's final agent, with the likeliest actions."""
    scores: tuple[SeedScore, ...]
    iqm: float
    """Of the seeds' mean returns."""
    interval: tuple[float, float] | None
    """Of the interquartile mean, 95 %; none for a single seed."""
    compile: Literal["on", "off"] | None = None
    """Whether updates were to be compiled, which decides their last bits, and with them where a seed ends.

    None in receipts from before this was recorded.
    """
    versions: dict[str, str]
    git_commit: str | None
    hardware: dict[str, str | int]
    jobs: int
    """Seeds that were trained at once, which the wall times depend on."""
    created_at: str

    @property
    def returns(self) -> list[float]:
        """The mean return of every seed."""
        return [score.return_mean for score in self.scores]


class Reference(NamedTuple):
    """What RL Zoo reports for the same environment: one run, its mean and deviation over episodes."""

    mean: float
    deviation: float
    env_steps: int


def summarize(scores: Sequence[SeedScore]) -> tuple[float, tuple[float, float] | None]:
    """The interquartile mean over seeds, and its interval where there are several."""
    found = estimate([score.return_mean for score in scores])
    return round(found.value, 2), _ends(found.interval)


def _ends(interval: Interval) -> tuple[float, float] | None:
    return (round(interval.low, 2), round(interval.high, 2)) if interval.is_bounded else None


def preset_path(name: str) -> Path:
    """The file of a preset that is named `ppo/cartpole`."""
    path = PRESETS_DIR / f"{name}.yaml"
    if not path.is_file() or path.parent.parent != PRESETS_DIR:
        nearest = nearest_name(name, preset_names())
        remedy = f"did you mean '{nearest}'?" if nearest else f"there are {', '.join(preset_names())}"
        raise ConfigError(f"no preset '{name}': {remedy}")
    return path


def preset_names() -> list[str]:
    """All shipped presets, in the order of their names."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PRESETS_DIR.glob("*/*.yaml"))


def preset_digest(name: str) -> str:
    """SHA-256 of a preset's file."""
    return hashlib.sha256(preset_path(name).read_bytes()).hexdigest()


def receipt_path(directory: Path, preset: str) -> Path:
    """Where a preset's receipt lies."""
    return directory / f"{preset}.json"


def read_receipt(path: Path) -> Receipt:
    """What a receipt says."""
    try:
        return Receipt(**read_json(path))
    except (OSError, ValueError, TypeError, ConfigError) as error:
        raise RunDirectoryError(f"{path} is not a receipt: {error}") from None


def read_receipts(directory: Path) -> list[Receipt]:
    """All receipts below a directory, in the order of their presets."""
    return [read_receipt(path) for path in sorted(directory.glob("*/*.json"))]


def write_receipt(directory: Path, receipt: Receipt) -> Path:
    """Write a receipt in place of an older one of the same preset."""
    path = receipt_path(directory, receipt.preset)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(receipt.model_dump(mode="json"), indent=1) + "\n")
    return path


def read_references() -> dict[str, Reference]:
    """RL Zoo's figures by preset, where it has one."""
    values: dict[str, Any] = yaml.safe_load(_REFERENCE_FILE.read_text(encoding="utf-8"))
    return {name: Reference(*figures) for name, figures in values.items()}


def read_searches() -> dict[str, str]:
    """How the settings of presets were found, where seeds had a say in it."""
    searches: dict[str, str] = yaml.safe_load(_SEARCHES_FILE.read_text(encoding="utf-8"))
    return searches


class Verification(NamedTuple):
    """A preset trained again, beside its receipt."""

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
        """The outcome in plain words."""
        place = "inside" if self.is_inside else "outside"
        said = f"{short(self.repeated.iqm)} lies {place} the stored interval, {told_interval(self.stored)}"
        if self.is_inside:
            return f"holds: {said}"
        if self.holds:
            return f"holds: {said}, but its own interval, {told_interval(self.repeated)}, overlaps it"
        return f"does not hold: {said}, and its own interval, {told_interval(self.repeated)}, does not overlap it"


def told_interval(receipt: Receipt) -> str:
    """The interval of a receipt in words."""
    if receipt.interval is None:
        return f"{short(receipt.iqm)} of one seed"
    return f"{short(receipt.interval[0])} to {short(receipt.interval[1])}"


def is_at_least(receipt: Receipt, reference: Reference) -> bool:
    """Whether the preset's interval reaches RL Zoo's figure, or the deviation of that over episodes reaches it."""
    high = receipt.interval[1] if receipt.interval else receipt.iqm
    return high >= reference.mean - reference.deviation
