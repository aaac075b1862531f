"""`resume`: continue a run or a group of seeds, fork a checkpoint, or verify that this machine repeats a run."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.cli.completion import complete_run
from rl_training.cli.options import (
    BUDGET,
    SAFETY,
    WHAT_TO_TRAIN,
    Assignments,
    JobsOption,
    PatienceOption,
    StopAfterOption,
    StopAtReturnOption,
    TrustOption,
)
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

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
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    jobs: JobsOption = None,
    force: ForceOption = False,
    trust: TrustOption = False,
) -> int:
    """Continue a run or a group of seeds, or fork a checkpoint.

    A run continues from its newest intact checkpoint.

    Examples:
        rl-training resume runs/RUN_ID
        rl-training resume runs/RUN_ID --total-timesteps 200000
        rl-training resume --checkpoint runs/RUN_ID/checkpoints/step_50176.pt
    """
    from rl_training.cli.console import show_nothing_left, show_result
    from rl_training.cli.progress import ProgressDisplay
    from rl_training.cli.seeds import is_group, refuse_jobs, resume_many
    from rl_training.experiment.sources import read_assignments
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.workflows import Finished, budget_layer, prepare_resume

    source = run or checkpoint
    if source is None or (run and checkpoint):
        raise ConfigError("give either RUN_DIR or --checkpoint")
    stop = StopRules(stop_at_return, stop_after, patience)
    changes = read_assignments(assignments or [])
    with guarded_imports(source, [str(changes.values.get("env_id"))], trust=trust):
        if is_group(source):
            if total_timesteps is not None or assignments or stop != StopRules() or force or verify:
                raise ConfigError(f"{source} is a group of seeds: it can only be resumed with --jobs and --trust")
            return resume_many(source, jobs)
        refuse_jobs(jobs, "the directory of a group")
        if verify:
            return _verify(source)
        callbacks = [ProgressDisplay(), *stop.callbacks()]
        prepared = prepare_resume(source, [changes, budget_layer(total_timesteps)], force=force)
        if isinstance(prepared, Finished):
            show_nothing_left(prepared.result)
        else:
            show_result(prepared.train(callbacks=callbacks))
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
