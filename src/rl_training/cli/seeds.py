"""`train --seeds` and `resume` of a group: many runs of one config behind one command."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.output import show_line, shown_path
from rl_training.trust import admit_env_module

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sources import ResolvedConfig
    from rl_training.groups.many_seeds import PreparedGroup
    from rl_training.runtime.callbacks import StopRules


@dataclass(frozen=True)
class ManySeeds:
    """What `--seeds` and `--jobs` say."""

    seeds: tuple[int, ...]
    jobs: int | Literal["auto"]


def read_many_seeds(seeds: str | None, jobs: str | None, resolved: "ResolvedConfig") -> ManySeeds | None:
    """The seeds to train, or none where a single run is wanted."""
    from rl_training.experiment.groups import parse_seeds

    if seeds is None:
        refuse_jobs(jobs, "--seeds")
        return None
    if resolved.sources.get(("seed",)) == "flag":  # one in a file is a default, which many replace
        raise ConfigError(f"--seeds {seeds} and seed={resolved.config.seed}: give one of them")
    return ManySeeds(parse_seeds(seeds), parse_jobs(jobs or "auto"))


def refuse_jobs(jobs: str | None, partner: str) -> None:
    """A single run is one process."""
    if jobs is not None:
        raise ConfigError(f"--jobs {jobs} is for many seeds: it goes with {partner}")


def is_group(path: Path) -> bool:
    """Whether many seeds were trained in this directory."""
    from rl_training.experiment.groups import GROUP_FILE

    return (path / GROUP_FILE).exists()


def parse_jobs(text: str) -> int | Literal["auto"]:
    """`auto`, or a number of processes."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) > 0):
        raise ConfigError(f"--jobs {text}: give auto, or how many processes may run at once, at least 1")
    return int(text)


def train_many(config: "TrainConfig", many: ManySeeds, stop: "StopRules") -> int:
    """Train all seeds; the exit code is 0 when all are done, 1 when one failed, 128 + N after signal N."""
    from rl_training.groups.many_seeds import prepare_group

    admit_env_module(config.env_id)  # here, because the processes of the seeds get the `sys.path` of this one
    return _run(prepare_group(config, many.seeds, many.jobs, stop))


def show_many_plan(config: "TrainConfig", many: ManySeeds) -> None:
    """What `--dry-run` adds to the plan of one seed."""
    from rl_training.experiment.groups import format_seeds
    from rl_training.groups.many_seeds import resolve_jobs

    jobs = resolve_jobs(many.jobs, len(many.seeds), config.num_threads)
    print(f"\nall this for each of the seeds {format_seeds(many.seeds)}: {len(many.seeds)} runs, {jobs} at a time")


def resume_many(group_dir: Path, jobs: str | None) -> int:
    """Go on with the seeds of a group that are not done."""
    from rl_training.groups.many_seeds import is_complete, reopen_group

    group = reopen_group(group_dir, None if jobs is None else parse_jobs(jobs))
    admit_env_module(group.config.env_id)
    if is_complete(group):
        steps = sum(record.global_step for record in group.record.seeds)
        nothing_left = (
            f"is complete after {steps:,} steps of {len(group.record.seeds)} seeds: there is nothing left to do"
        )
        larger = "--total-timesteps gives a larger budget to the run directory of one seed"
        show_line(f"{shown_path(group.group_dir)} {nothing_left}; {larger}")
        return 0
    return _run(group)


def _run(group: "PreparedGroup") -> int:
    from rl_training.cli.console import show_group
    from rl_training.cli.group_progress import GroupDisplay
    from rl_training.experiment.groups import read_group
    from rl_training.groups.many_seeds import run_group

    try:
        result = run_group(group, GroupDisplay())
    except TrainingInterrupted as error:
        show_group(group.group_dir, read_group(group.group_dir))
        show_line(error, error=True)
        return 128 + error.signal_number
    show_group(result.group_dir, result.record)
    return 0 if result.record.status == "completed" else 1
