"""`check-env`: try an environment before a long run."""

from typing import Annotated

import typer

from rl_training.cli.running import FAILED
from rl_training.trust import guarded_imports


def check_env(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="Gymnasium id, or module:Id-v0.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the environment: key=value.")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="Random steps to play; some checks play fewer.")
    ] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="What the checks draw depends on it alone.")] = 1,
) -> int:
    """Tell what to know of an environment before a long run; the exit code is 1 if training would go wrong."""
    from rl_training.cli.console import show_env_report
    from rl_training.envs.checks.checking import check_environment
    from rl_training.envs.checks.findings import Subject
    from rl_training.experiment.sources import read_assignments

    subject = Subject(env_id, read_assignments(assignments or []).values, steps, seed)
    with guarded_imports(None, env_id):
        report = check_environment(subject)
    show_env_report(report)
    return FAILED if report.has_problem else 0
