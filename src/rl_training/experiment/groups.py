"""Groups: directories with one run per seed of a config, and `group.json`, which records the status of each seed."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, describe_training_differences, plain_config
from rl_training.experiment.records import (
    LOGS_FOLDER,
    RunsRecord,
    check_directory_name,
    check_files,
    read_record,
    write_record,
)
from rl_training.experiment.runs import (
    CONFIG_FILE,
    context_of,
    make_directory,
    read_intact_metadata,
    run_name,
    slug,
    unique_suffix,
    write_values,
)
from rl_training.experiment.sources import read_yaml, resolve_config
from rl_training.experiment.validation import StrictModel

GROUP_FILE = "group.json"
_MAX_SEEDS = 10_000
_GROUP_LIMIT = 32 * 2**20  # bytes of `group.json`: three times the size with `_MAX_SEEDS` seeds
_SEED_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")

SeedStatus = Literal["waiting", "running", "completed", "stopped", "interrupted", "failed"]


class SeedRecord(StrictModel):
    """The entry of one seed in `group.json`."""

    seed: int
    run_dir: Annotated[str, AfterValidator(check_directory_name)]
    """Name of the run directory inside the group directory."""
    status: SeedStatus = "waiting"
    reason: str | None = None
    """Why the run ended, unless it used up its budget."""
    global_step: int = 0
    wall_seconds: float = 0.0
    metrics: dict[str, Any] | None = None
    """Final metrics of the run."""

    @property
    def done(self) -> bool:
        """Whether the run has ended and needs no resume."""
        return self.status in ("completed", "stopped")

    @property
    def final_return(self) -> float | None:
        """Mean return of the final evaluation, if there was one."""
        return (self.metrics or {}).get("eval_return_mean")


class GroupRecord(RunsRecord):
    """The content of `group.json`, without the format number."""

    total_timesteps: int
    stop: dict[str, Any]
    """Rules that may end a run early."""
    seeds: tuple[SeedRecord, ...]

    def with_seed(self, changed: SeedRecord) -> "GroupRecord":
        """Return a copy with the record of one seed replaced."""
        seeds = tuple(changed if record.seed == changed.seed else record for record in self.seeds)
        return self.model_copy(update={"seeds": seeds})


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that a text such as `1-10`, `1,2,5` or `1-3,7` stands for, in that order."""
    seeds: list[int] = []
    for part in text.split(","):
        match = _SEED_RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(
                f"--seeds {text}: {part!r} is neither a seed nor a range; give for example 1-10, 1,2,5 or 1-3,7"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"--seeds {text}: the range {part} is empty; give {last}-{first}")
        seeds.extend(range(first, min(last, first + _MAX_SEEDS) + 1))
    return checked_seeds(seeds)


def checked_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds as a tuple. Refuse an empty list, too many seeds, and a seed given twice."""
    found = tuple(seeds)
    twice = [seed for seed, count in Counter(found).items() if count > 1]
    if twice:
        raise ConfigError(f"seed {twice[0]} is given twice: give each seed once")
    if not 1 <= len(found) <= _MAX_SEEDS:
        # `parse_seeds` cuts off a range that is too long, so the exact number is not known here.
        given = "no seeds" if not found else f"more than {_MAX_SEEDS} seeds"
        raise ConfigError(f"{given}: give from 1 to {_MAX_SEEDS}")
    return found


def format_seeds(seeds: Sequence[int]) -> str:
    """Write seeds in the short form that `parse_seeds` reads, such as `1-3,7`."""
    ranges: list[list[int]] = []
    for seed in seeds:
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], seed]
        else:
            ranges.append([seed])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def seed_config(config: TrainConfig, seed: int, group_dir: Path) -> TrainConfig:
    """Return the config of one seed's run in the group."""
    return TrainConfig(**{**plain_config(config), "seed": seed, "output_dir": group_dir})


def create_group(config: TrainConfig, seeds: Sequence[int], **about: Any) -> tuple[Path, GroupRecord]:
    """Create a group directory in which all seeds wait; `about` holds the record's fields that the config lacks."""
    suffix = unique_suffix()
    label = slug(format_seeds(seeds).replace(",", "_"))
    name = f"{slug(config.algo)}__{slug(config.env_id)}__seeds{label}__{suffix}"
    configs = [seed_config(config, seed, config.output_dir / name) for seed in seeds]
    record = GroupRecord(
        algo=config.algo,
        env_id=config.env_id,
        total_timesteps=config.total_timesteps,
        seeds=tuple(SeedRecord(seed=each.seed, run_dir=run_name(each, suffix)) for each in configs),
        **about,
    )
    group_dir = make_directory(config.output_dir, name, (LOGS_FOLDER,))
    write_group_config(group_dir, config)
    write_group(group_dir, record)
    return group_dir, record


def extended_group(record: GroupRecord, config: TrainConfig, group_dir: Path, seeds: Iterable[int]) -> GroupRecord:
    """Return the record with the config's budget, and with the given seeds that it does not contain yet."""
    known = [each.seed for each in record.seeds]
    new = checked_seeds([*known, *(seed for seed in seeds if seed not in known)])[len(known) :]
    suffix = record.seeds[0].run_dir.rpartition("__")[2]
    names = {seed: run_name(seed_config(config, seed, group_dir), suffix) for seed in new}
    added = tuple(SeedRecord(seed=seed, run_dir=name) for seed, name in names.items())
    return record.model_copy(
        update={"total_timesteps": config.total_timesteps, "seeds": (*record.seeds, *added)},
    )


def write_group_config(group_dir: Path, config: TrainConfig) -> None:
    """Write the config that all runs of the group have in common."""
    write_values(group_dir / CONFIG_FILE, _without_seed(config))


def _without_seed(config: TrainConfig) -> dict[str, Any]:
    return {name: value for name, value in plain_config(config).items() if name != "seed"}


def write_group(group_dir: Path, record: GroupRecord) -> None:
    """Replace `group.json`."""
    write_record(group_dir / GROUP_FILE, record)


def read_group(group_dir: Path) -> GroupRecord:
    """Read `group.json`. Refuse another format, and links in place of the group's files and folders."""
    record = read_record(group_dir / GROUP_FILE, GroupRecord, "group", _GROUP_LIMIT)
    logs = [log_path(group_dir, seed.seed) for seed in record.seeds]
    folders = [LOGS_FOLDER, *(seed.run_dir for seed in record.seeds)]
    check_files([group_dir / folder for folder in folders], [group_dir / CONFIG_FILE, *logs])
    return record


def read_group_config(group_dir: Path, record: GroupRecord) -> TrainConfig:
    """Read the config of the group. Refuse it if an edit would make new runs train differently from those begun."""
    config = resolve_config([read_yaml(group_dir / CONFIG_FILE)]).config
    for seed in record.seeds:
        context = context_of(group_dir / seed.run_dir)
        context.check_files()
        if not context.config_path.exists():
            continue
        try:
            begun = TrainConfig(**read_yaml(context.config_path).values)
        except ConfigError:
            continue  # the file is damaged; the checkpoint of that run contains the config
        edits = describe_training_differences(_without_seed(begun), _without_seed(config))
        if edits:
            raise ConfigError(
                f"{group_dir / CONFIG_FILE} differs from the config of seed {seed.seed} ({'; '.join(edits)}): "
                "undo the change, or start a new group"
            )
        break
    return config


def log_path(group_dir: Path, seed: int) -> Path:
    """Return the path of the file with the output of a seed's process."""
    return group_dir / LOGS_FOLDER / f"seed{seed}.log"


def read_outcome(group_dir: Path, record: SeedRecord, total_timesteps: int) -> SeedRecord:
    """Return the record of a seed, updated from its run directory after its process has ended.

    A run that has completed a smaller budget than `total_timesteps` waits for the rest.
    """
    metadata = read_intact_metadata(context_of(group_dir / record.run_dir))
    status: Any = metadata.get("status")
    if status not in get_args(SeedStatus):
        return record.model_copy(update={"status": "waiting", "reason": None})
    if status == "completed" and run_budget(group_dir / record.run_dir) < total_timesteps:
        return with_outcome(group_dir, record, "waiting", None)
    if status == "running":
        return with_outcome(group_dir, record, "interrupted", "its process no longer exists")
    return with_outcome(group_dir, record, status, metadata.get("error") or record.reason)


def with_outcome(group_dir: Path, record: SeedRecord, status: SeedStatus, reason: str | None) -> SeedRecord:
    """Return the record of a seed that ended with this status, with the numbers in its run's metadata."""
    metadata = read_intact_metadata(context_of(group_dir / record.run_dir))
    numbers = {name: value for name, value in metadata.items() if name in ("global_step", "wall_seconds", "metrics")}
    why = metadata.get("stop_reason") if status == "stopped" else reason
    try:
        return SeedRecord(**{**record.model_dump(), **numbers, "status": status, "reason": why})
    except ConfigError:  # the metadata is damaged
        return record.model_copy(update={"status": status})


def run_budget(run_dir: Path) -> float:
    """Return the budget of a run according to its metadata; infinite if the file does not say it."""
    try:
        return float(read_intact_metadata(context_of(run_dir))["total_timesteps"])
    except (LookupError, TypeError, ValueError):
        return math.inf
