"""`resume`: continue a run or a group of seeds, fork a checkpoint, or verify that this machine repeats a run."""

from collections.abc import Sequence
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
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.workflows import Continuation, Finished, Fork

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
    skip_episode: SkipEpisodeOption = False,
    force: ForceOption = False,
    trust: TrustOption = False,
) -> int:
    """Continue a run, a group of seeds or a study, or fork a checkpoint.

    A run continues from its newest intact checkpoint.

    Examples:
        rl-training resume runs/RUN_ID
        rl-training resume runs/RUN_ID --total-timesteps 200000
        rl-training resume runs/GROUP --seeds 11-20
        rl-training resume --checkpoint runs/RUN_ID/checkpoints/step_50176.pt
    """
    from rl_training.cli.seeds import is_group, refuse_group_options, resume_many
    from rl_training.cli.tune import resume_study
    from rl_training.experiment.sources import read_assignments
    from rl_training.experiment.studies import is_study
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.workflows import budget_layer, prepare_resume

    source = run or checkpoint
    if source is None or (run and checkpoint):
        raise ConfigError("give either RUN_DIR or --checkpoint")
    stop = StopRules(stop_at_return, stop_after, patience, read_thresholds(stop_at))
    changes = read_assignments(assignments or [])
    if is_study(source):
        if assignments or stop != StopRules() or force or verify or skip_episode or total_timesteps or seeds:
            raise ConfigError(f"{source} is a study: it can only be resumed with --jobs and --trust")
        return resume_study(source, jobs, None, trust=trust)
    with guarded_imports(source, [str(changes.values.get("env_id"))], trust=trust):
        if is_group(source):
            if assignments or stop != StopRules() or force or verify or skip_episode:
                allowed = "--total-timesteps, --seeds, --jobs and --trust"
                raise ConfigError(f"{source} is a group of seeds: it can only be resumed with {allowed}")
            return resume_many(source, jobs, total_timesteps, seeds)
        refuse_group_options("the directory of a group", jobs=jobs, seeds=seeds)
        if verify:
            return _verify(source)
        callbacks = stop.callbacks()
        layers = [changes, budget_layer(total_timesteps)]
        return _train(prepare_resume(source, layers, force=force, skip_episode=skip_episode), callbacks)


def _train(prepared: "Continuation | Finished | Fork", callbacks: "Sequence[Callback]") -> int:
    from rl_training.cli.console import show_nothing_left, show_result
    from rl_training.runtime.progress import ProgressDisplay
    from rl_training.runtime.workflows import Finished

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
