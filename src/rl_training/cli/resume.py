"""`resume`: continue a run or a group, fork a checkpoint, or verify that this machine repeats a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import (
    Assignments,
    JobsOption,
    PatienceOption,
    StopAfterOption,
    StopAtReturnOption,
    TrustOption,
)
from rl_training.cli.running import FAILED, run_to_end, show_interruption
from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.output import show_line, shown_path
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rl_training.experiment.sources import Layer
    from rl_training.runtime.callbacks import StopRules


def resume(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN_DIR]", help="Continue this run, or this group of seeds, in place.")
    ] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint file to fork, or a run directory.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="New budget in env steps.")] = None,
    assignments: Assignments = None,
    stop_at_return: StopAtReturnOption = None,
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    force: Annotated[bool, typer.Option("--force", help="Let --set change what decides the run's course.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Only see whether this machine repeats the run.")] = False,
    jobs: JobsOption = None,
    trust: TrustOption = False,
) -> int:
    """Continue a run or a group of seeds in place, or fork a checkpoint file into a new run."""
    from rl_training.cli.seeds import is_group, refuse_jobs, resume_many
    from rl_training.experiment.sources import read_assignments
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.workflows import budget_layer

    source = run or checkpoint
    if source is None or (run and checkpoint):
        raise ConfigError("give either RUN_DIR or --checkpoint")
    stop = StopRules(stop_at_return, stop_after, patience)
    changes = read_assignments(assignments or [])
    with guarded_imports(source, changes.values.get("env_id"), trust=trust):
        if is_group(source):
            if total_timesteps is not None or assignments or stop != StopRules() or force or verify:
                allowed = "give no option but --jobs and --trust"
                raise ConfigError(f"{source} is a group, which goes on as it began: {allowed}")
            return resume_many(source, jobs)
        refuse_jobs(jobs, "the directory of a group")
        if verify:
            return _verify(source)
        return _resume(source, [changes, budget_layer(total_timesteps)], stop, force=force)


def _resume(source: Path, changes: "Sequence[Layer]", stop: "StopRules", *, force: bool) -> int:
    from rl_training.cli.progress import ProgressDisplay
    from rl_training.runtime.workflows import Finished, prepare_resume

    callbacks = [ProgressDisplay(), *stop.callbacks()]
    prepared = prepare_resume(source, changes, force=force)
    if isinstance(prepared, Finished):
        run_dir, steps = shown_path(prepared.result.run_dir), prepared.result.metrics["global_step"]
        nothing_left = f"{run_dir} is complete after {steps:,} steps: there is nothing left to do"
        show_line(f"{nothing_left}; --total-timesteps gives it a larger budget")
        return 0
    return run_to_end(lambda: prepared.train(callbacks=callbacks))


def _verify(run_dir: Path) -> int:
    from rl_training.runtime.workflows import verify_resume

    try:
        found = verify_resume(run_dir)
    except TrainingInterrupted as error:
        return show_interruption(error)
    tried = len(found.equal) + len(found.different)
    typer.echo(f"resumed from step {found.resumed_from}: {len(found.equal)} of {tried} stored digests are equal")
    if found.different:
        typer.echo(f"first difference at step {found.different[0]}: this machine does not repeat the run bit for bit")
        return FAILED
    return 0
