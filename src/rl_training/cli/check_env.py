"""`check-env`: check an environment before a long run."""

from typing import Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.trust import guarded_imports


def check_env(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id, or module:Id-v0.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set an argument of the environment, such as size=8. May be repeated."
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=1, max=100_000_000, metavar="N", help="How many random steps to play. Some checks play fewer."
        ),
    ] = 2_000,
    seed: Annotated[
        int, typer.Option(min=0, metavar="SEED", help="The seed of the environment and of the random actions.")
    ] = 1,
) -> int:
    """Check an environment before a long run.

    The checks look at its spaces, rewards, endings, determinism and speed, and say whether a resumed run will be exact.
    The exit code is 1 if training would go wrong.

    Examples:
        rl-training check-env CartPole-v1
        rl-training check-env my_module:MyEnv-v0 --set size=8
    """
    from rl_training.cli.console import show_env_report
    from rl_training.envs.checks.checking import check_environment
    from rl_training.envs.checks.findings import Subject
    from rl_training.experiment.sources import read_assignments

    subject = Subject(env_id, read_assignments(assignments or []).values, steps, seed)
    with guarded_imports(None, env_id):
        report = check_environment(subject)
    show_env_report(report)
    return FAILED if report.has_problem else 0
