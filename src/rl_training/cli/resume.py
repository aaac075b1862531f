"""`resume`: continue a run, a group or a study, fork a checkpoint, or verify that this machine repeats a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.cli.completion import complete_run
from rl_training.cli.options import (
    BUDGET,
    MANY_SEEDS,
    SAFETY,
    WHAT_TO_TRAIN,
    Assignments,
    JobsOption,
    OnOption,
    PatienceOption,
    StopAfterOption,
    StopAtOption,
    StopAtReturnOption,
    TrustOption,
    read_thresholds,
)
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.experiment.sources import Layer
    from rl_training.runtime.callbacks import Callback

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN_DIR", autocompletion=complete_run, help="The run or group of seeds to continue in place."
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        rich_help_panel=WHAT_TO_TRAIN,
        autocompletion=complete_run,
        help="A checkpoint file to fork into a new run. A run directory is continued in place.",
    ),
]
VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify",
        rich_help_panel=WHAT_TO_TRAIN,
        help="Only check whether this machine repeats the run bit for bit. The run stays as it is.",
    ),
]
TotalTimestepsOption = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        rich_help_panel=BUDGET,
        help="The new total budget in environment steps, including those already trained.",
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        metavar="SEEDS", rich_help_panel=MANY_SEEDS, help="Add these seeds to a group, such as 11-20, and train them."
    ),
]
SkipEpisodeOption = Annotated[
    bool,
    typer.Option(
        "--skip-episode",
        rich_help_panel=SAFETY,
        help="Begin the next episode of the environment that failed, instead of repeating its last action.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option("--force", rich_help_panel=SAFETY, help="Allow --set to change values that alter the run's course."),
]


def resume(
    run: RunArgument = None,
    checkpoint: CheckpointOption = None,
    assignments: Assignments = None,
    verify: VerifyOption = False,
    total_timesteps: TotalTimestepsOption = None,
    stop_at_return: StopAtReturnOption = None,
    stop_at: StopAtOption = None,
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    on: OnOption = "here",
    skip_episode: SkipEpisodeOption = False,
    force: ForceOption = False,
    trust: TrustOption = False,
) -> int:
    """Continue a run, a group or a study, or fork a checkpoint.

    A run continues from its newest intact checkpoint.

    Examples:
        rl-training resume runs/RUN_ID
        rl-training resume runs/RUN_ID --total-timesteps 200000
        rl-training resume runs/GROUP --seeds 11-20
        rl-training resume --checkpoint runs/RUN_ID/checkpoints/step_50176.pt
    """
    from rl_training.cli.seeds import is_group
    from rl_training.experiment.sources import read_assignments
    from rl_training.experiment.studies import is_study
    from rl_training.runtime.callbacks import StopRules

    source = run or checkpoint
    if source is None or (run and checkpoint):
        raise ConfigError("give either RUN_DIR or --checkpoint")
    stop = StopRules(stop_at_return, stop_after, patience, read_thresholds(stop_at))
    many = _ManyRuns(jobs, on, seeds, total_timesteps)
    changes_course = bool(assignments or stop != StopRules() or force or verify or skip_episode)
    if is_study(source):
        return many.resume_study(source, changes_course=changes_course, trust=trust)
    changes = read_assignments(assignments or [])
    with guarded_imports(source, [str(changes.values.get("env_id"))], trust=trust):
        if is_group(source):
            return many.resume_group(source, changes_course=changes_course)
        many.refuse()
        if verify:
            return _verify(source)
        return _train(source, changes, total_timesteps, stop.callbacks(), force=force, skip_episode=skip_episode)


@dataclass(frozen=True)
class _ManyRuns:
    """The options with which a group or a study can be resumed."""

    jobs: str | None
    on: str
    seeds: str | None
    total_timesteps: int | None

    def resume_study(self, study_dir: Path, *, changes_course: bool, trust: bool) -> int:
        """Continue a study, unless other options were given."""
        from rl_training.cli.tune import resume_study

        if changes_course or self.total_timesteps or self.seeds:
            raise ConfigError(f"{study_dir} is a study: it can only be resumed with --on, --jobs and --trust")
        return resume_study(study_dir, self.jobs, self.on, None, trust=trust)

    def resume_group(self, group_dir: Path, *, changes_course: bool) -> int:
        """Continue a group of seeds, unless other options were given."""
        from rl_training.cli.seeds import resume_many

        if changes_course:
            allowed = "--total-timesteps, --seeds, --on, --jobs and --trust"
            raise ConfigError(f"{group_dir} is a group of seeds: it can only be resumed with {allowed}")
        return resume_many(group_dir, self.jobs, self.on, self.total_timesteps, self.seeds)

    def refuse(self) -> None:
        """Raise an error if an option is not for a single run."""
        from rl_training.cli.seeds import refuse_group_options

        on = None if self.on == "here" else self.on
        refuse_group_options("the directory of a group", jobs=self.jobs, on=on, seeds=self.seeds)


def _train(
    source: Path,
    changes: "Layer",
    total_timesteps: int | None,
    callbacks: "Sequence[Callback]",
    *,
    force: bool,
    skip_episode: bool,
) -> int:
    from rl_training.cli.console import show_nothing_left, show_result
    from rl_training.runtime.progress import ProgressDisplay
    from rl_training.runtime.workflows import Finished, budget_layer, prepare_resume

    prepared = prepare_resume(source, [changes, budget_layer(total_timesteps)], force=force, skip_episode=skip_episode)
    if isinstance(prepared, Finished):
        show_nothing_left(prepared.result)
    else:
        show_result(prepared.train(callbacks=[ProgressDisplay(), *callbacks]))
    return 0


def _verify(run_dir: Path) -> int:
    from rl_training.runtime.workflows import verify_resume

    found = verify_resume(run_dir)
    total = len(found.equal) + len(found.different)
    typer.echo(f"resumed from step {found.resumed_from}: {len(found.equal)} of {total} stored digests are equal")
    if found.different:
        typer.echo(f"first difference at step {found.different[0]}: this machine does not repeat the run bit for bit")
        return FAILED
    return 0
