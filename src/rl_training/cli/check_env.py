"""`check-env`: check an environment before a long run."""

from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.errors import ConfigError
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.experiment.wrappers import WrapperEntry


def check_env(
    env_id: Annotated[str, typer.Argument(metavar="ENV_ID", help="A Gymnasium id, or module:Id-v0.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set an argument of the environment, such as size=8. May be repeated."
        ),
    ] = None,
    wrappers: Annotated[
        list[str] | None,
        typer.Option(
            "--wrapper",
            metavar="ENTRY",
            help="Apply a wrapper, such as 'TimeLimit: {max_episode_steps: 200}'. May be repeated, innermost first.",
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
    from rl_training.experiment.wrappers import split_entry

    applied = [_read_wrapper(text) for text in wrappers or []]
    subject = Subject(env_id, read_assignments(assignments or []).values, steps, seed, applied)
    with guarded_imports(None, [env_id, *(split_entry(entry)[0] for entry in applied)]):
        report = check_environment(subject)
    show_env_report(report)
    return FAILED if report.has_problem else 0


def _read_wrapper(text: str) -> "WrapperEntry":
    from rl_training.experiment.sources import read_value
    from rl_training.experiment.wrappers import read_wrapper

    option = f"--wrapper {text}"
    value = read_value(text, option)
    try:
        return read_wrapper(value)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
