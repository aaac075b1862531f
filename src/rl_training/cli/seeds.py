"""`train --seeds` and `resume` of a group: one run per seed of the same config."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl_training.cli.command import FAILED
from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.output import show_line, shown_path
from rl_training.trust import admit_env_module

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sources import ResolvedConfig
    from rl_training.groups.many_seeds import PreparedGroup
    from rl_training.groups.places import Place
    from rl_training.runtime.callbacks import StopRules


@dataclass(frozen=True)
class ManySeeds:
    """The values of `--seeds`, `--jobs` and `--on`."""

    seeds: tuple[int, ...]
    jobs: int | Literal["auto"]
    on: str


def read_many_seeds(seeds: str | None, jobs: str | None, on: str, resolved: "ResolvedConfig") -> ManySeeds | None:
    """Read `--seeds`, `--jobs` and `--on`; without `--seeds`, return None for a single run."""
    from rl_training.experiment.groups import parse_seeds

    if seeds is None:
        refuse_group_options("--seeds", jobs=jobs, on=None if on == "here" else on)
        return None
    if resolved.sources.get(("seed",)) == "flag":  # --seeds replaces a seed in a file, but not one on the command line
        raise ConfigError(f"--seeds {seeds} and seed={resolved.config.seed}: give only one of them")
    return ManySeeds(parse_seeds(seeds), parse_jobs(jobs or "auto"), on)


def refuse_group_options(partner: str, **options: str | None) -> None:
    """Raise an error if an option that needs many seeds was given for a single run."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} {value} is for many seeds: use it with {partner}")


def is_group(path: Path) -> bool:
    """Return whether this is the directory of a group of seeds."""
    from rl_training.experiment.groups import GROUP_FILE

    return (path / GROUP_FILE).exists()


def parse_jobs(text: str) -> int | Literal["auto"]:
    """Parse `auto` or a number of processes."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 6 and int(text) > 0):
        raise ConfigError(f"--jobs {text}: give auto, or the number of runs to train at the same time, at least 1")
    return int(text)


def train_many(config: "TrainConfig", many: ManySeeds, stop: "StopRules") -> int:
    """Train all seeds; the exit code is 0 if all of them finished, and 1 if one failed."""
    from rl_training.groups.many_seeds import prepare_group
    from rl_training.groups.places import open_place

    admit_env(config)
    with open_place(many.on, config) as place:
        return _run(prepare_group(config, many.seeds, many.jobs, stop, place), place)


def admit_env(config: "TrainConfig") -> None:
    """Admit the modules of the env now, because the processes of the runs inherit `sys.path`."""
    from rl_training.experiment.config import env_code

    for name in env_code(config):
        admit_env_module(name)


def show_many_plan(config: "TrainConfig", many: ManySeeds) -> None:
    """Show what `--dry-run` adds to the plan of a single seed."""
    from rl_training.experiment.groups import format_seeds
    from rl_training.groups.many_seeds import resolve_jobs
    from rl_training.groups.places import describe_jobs, place_name

    name = place_name(many.on)
    jobs = describe_jobs(resolve_jobs(many.jobs, len(many.seeds), config.num_threads, name), name)
    print(f"\nThe plan is for one seed. Seeds {format_seeds(many.seeds)} make {len(many.seeds)} runs, {jobs}.")


def resume_many(group_dir: Path, jobs: str | None, on: str, total_timesteps: int | None, seeds: str | None) -> int:
    """Continue the seeds of a group that are not done, up to a larger budget and with more seeds if they are given."""
    from rl_training.experiment.groups import parse_seeds
    from rl_training.groups.many_seeds import is_complete, reopen_group
    from rl_training.groups.places import open_place, place_name

    group = reopen_group(
        group_dir,
        None if jobs is None else parse_jobs(jobs),
        on=place_name(on),
        total_timesteps=total_timesteps,
        seeds=() if seeds is None else parse_seeds(seeds),
    )
    admit_env(group.config)
    if is_complete(group):
        steps = sum(record.global_step for record in group.record.seeds)
        nothing_left = (
            f"is complete after {steps:,} steps of {len(group.record.seeds)} seeds: there is nothing left to do"
        )
        more = "--total-timesteps gives them a larger budget, and --seeds adds seeds"
        show_line(f"{shown_path(group.group_dir)} {nothing_left}; {more}")
        return 0
    with open_place(on, group.config) as place:
        return _run(group, place)


def _run(group: "PreparedGroup", place: "Place") -> int:
    from rl_training.cli.console import show_group
    from rl_training.cli.group_progress import GroupDisplay
    from rl_training.experiment.groups import read_group
    from rl_training.groups.many_seeds import run_group

    try:
        result = run_group(group, GroupDisplay(), place)
    except TrainingInterrupted:
        show_group(group.group_dir, read_group(group.group_dir))
        raise
    show_group(result.group_dir, result.record)
    return 0 if result.record.status == "completed" else FAILED
