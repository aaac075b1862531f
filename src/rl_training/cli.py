"""The command line. Imports wait inside the commands, so that `--help` answers at once."""

import atexit
import errno
import multiprocessing
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training import __version__
from rl_training.commands.benchmark import benchmark
from rl_training.commands.options import TrustOption
from rl_training.commands.recording import record
from rl_training.commands.report import report
from rl_training.commands.results import compare, plot
from rl_training.errors import (
    ConfigError,
    EnvironmentStepError,
    NonFiniteUpdateError,
    RLTrainingError,
    TrainingInterrupted,
)
from rl_training.output import drop_lost_output, printable_warnings, show_line, warn_of_lost_output
from rl_training.processes import kill_children, mark_children
from rl_training.signals import exiting_on_signals
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.commands.seeds import ManySeeds
    from rl_training.experiment.config import TrainConfig
    from rl_training.experiment.sources import Layer, ResolvedConfig
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.trainer import Trainer

FAILED = 1
USER_ERROR = 2

app = typer.Typer(
    name="rl-training",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train reinforcement-learning agents; evaluate, resume and list their runs."""
    del version


CheckpointOption = Annotated[
    Path,
    typer.Option("--checkpoint", help="A checkpoint file, or a run directory (its newest intact checkpoint)."),
]


Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any config value: key=value, algo_kwargs.gamma=0.98.")
]
StopAtReturnOption = Annotated[float | None, typer.Option(help="Stop once an evaluation reaches this.")]
StopAfterOption = Annotated[
    float | None, typer.Option(help="Stop after this many minutes of wall time, pauses (Ctrl-Z) included.")
]
JobsOption = Annotated[str | None, typer.Option(help="With many seeds: runs at once, auto (one per core) or a number.")]
PatienceOption = Annotated[int | None, typer.Option(help="Stop after this many evaluations without a better one.")]


def load_config(path: Path | str) -> "TrainConfig":
    """Read and validate a YAML config, the algorithm's parameters too."""
    from rl_training.experiment.sources import read_yaml

    return _resolve([read_yaml(Path(path))]).config


def _resolve(layers: "Sequence[Layer]") -> "ResolvedConfig":
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.sources import located, resolve_config

    resolved = resolve_config(layers)
    try:
        get_algorithm_spec(resolved.config.algo).resolve_params_fn(resolved.config)
    except ConfigError as error:
        raise located(error, layers) from None
    return resolved


@app.command()
def train(
    config: Annotated[Path | None, typer.Option(help="A YAML config.")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; with --env instead of a config.")] = None,
    env: Annotated[str | None, typer.Option(help="Gymnasium environment id.")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where run directories go.")] = None,
    total_timesteps: Annotated[int | None, typer.Option(help="Budget in env steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Many seeds, a run each: 1-10 or 1-3,7.")] = None,
    jobs: JobsOption = None,
    assignments: Assignments = None,
    stop_at_return: StopAtReturnOption = None,
    stop_after: StopAfterOption = None,
    patience: PatienceOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show config and plan, train nothing.")] = False,
    trust: TrustOption = False,
) -> int:
    """Train an agent, or one per seed, from a YAML config, or from --algo and --env."""
    from rl_training.commands.seeds import read_many_seeds, train_many
    from rl_training.experiment.sources import Layer, read_assignments
    from rl_training.runtime.callbacks import StopRules

    flags = {"algo": algo, "env_id": env, "total_timesteps": total_timesteps, "seed": seed}
    flags["output_dir"] = str(output_dir) if output_dir is not None else None
    given = Layer("flag", {name: value for name, value in flags.items() if value is not None})
    resolved = _resolve([*_files(config, algo, env), given, read_assignments(assignments or [])])
    many = read_many_seeds(seeds, jobs, resolved)
    stop = StopRules(stop_at_return, stop_after, patience)
    typed = resolved.config.env_id if resolved.sources[("env_id",)] == "flag" else None
    with guarded_imports(config, typed, trust=trust):
        if dry_run:
            return _show_plan(resolved, many)
        return _train(resolved.config, stop) if many is None else train_many(resolved.config, many, stop)


def _files(config: Path | None, algo: str | None, env: str | None) -> "list[Layer]":
    """The config file that was named, or the shipped preset if there is one."""
    from rl_training.experiment.sources import find_preset, read_yaml

    if config is not None:
        return [read_yaml(config)]
    if algo is None or env is None:
        raise ConfigError("give --config FILE, or --algo and --env")
    preset = find_preset(algo, env)
    return [read_yaml(preset, "preset")] if preset else []


def _show_plan(resolved: "ResolvedConfig", many: "ManySeeds | None") -> int:
    from rl_training.commands.seeds import show_many_plan
    from rl_training.console import show_plan
    from rl_training.experiment.registry import get_algorithm_spec

    spec = get_algorithm_spec(resolved.config.algo)
    show_plan(resolved, spec.resolve_params_fn(resolved.config), spec.plan_fn(resolved.config))
    if many is not None:
        show_many_plan(resolved.config, many)
    return 0


def _train(config: "TrainConfig", stop: "StopRules") -> int:
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.runtime.progress import ProgressDisplay

    return _run(DefaultExperimentManager().setup(config, [ProgressDisplay(), *stop.callbacks()]))


def _run(trainer: "Trainer") -> int:
    from rl_training.console import show_result

    try:
        show_result(trainer.train())
    except TrainingInterrupted as error:
        return _show_interruption(error)
    return 0


def _show_interruption(error: TrainingInterrupted) -> int:
    """Say what was saved; returns the exit code, since typer would answer every KeyboardInterrupt with 130."""
    show_line(error, error=True)
    return 128 + error.signal_number


@app.command("eval")
def evaluate(
    checkpoint: CheckpointOption,
    num_episodes: Annotated[int, typer.Option(help="Whole episodes to play.")] = 10,
    best: Annotated[bool, typer.Option("--best", help="Of a run directory, the best checkpoint.")] = False,
    trust: TrustOption = False,
) -> int:
    """Play episodes with a trained agent."""
    from rl_training.console import show_metrics
    from rl_training.runtime.workflows import evaluate_checkpoint

    with guarded_imports(checkpoint, trust=trust):
        metrics = evaluate_checkpoint(checkpoint, num_episodes, best=best)
    show_metrics("Evaluation", metrics)
    return 0


@app.command()
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
    from rl_training.commands.seeds import is_group, refuse_jobs, resume_many
    from rl_training.experiment.default_manager import DefaultExperimentManager
    from rl_training.experiment.sources import read_assignments
    from rl_training.runtime.callbacks import StopRules
    from rl_training.runtime.progress import ProgressDisplay

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
        callbacks = [ProgressDisplay(), *stop.callbacks()]
        manager = DefaultExperimentManager()
        return _run(manager.resume(source, total_timesteps, callbacks, changes=changes, force=force))


def _verify(run_dir: Path) -> int:
    from rl_training.runtime.workflows import verify_resume

    try:
        found = verify_resume(run_dir)
    except TrainingInterrupted as error:
        return _show_interruption(error)
    tried = len(found.equal) + len(found.different)
    typer.echo(f"resumed from step {found.resumed_from}: {len(found.equal)} of {tried} stored digests are equal")
    if found.different:
        typer.echo(f"first difference at step {found.different[0]}: this machine does not repeat the run bit for bit")
        return FAILED
    return 0


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run that stopped at a bad update.")],
    trust: TrustOption = False,
) -> int:
    """Repeat the gradient step that a run refused because it was not finite."""
    from rl_training.console import show_failed_step
    from rl_training.runtime.workflows import replay_failed_step

    with guarded_imports(run, trust=trust):
        failed = replay_failed_step(run)
    show_failed_step(failed)
    return FAILED if failed.message is None else 0


@app.command("list")
def list_runs(
    directory: Annotated[Path, typer.Argument(help="Where to look for runs.")] = Path("runs"),
) -> int:
    """List the runs below a directory."""
    from rl_training.console import show_runs

    show_runs(directory)
    return 0


@app.command("check-env")
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
    from rl_training.console import show_env_report
    from rl_training.envs.checking import check_environment
    from rl_training.envs.checks.findings import Subject
    from rl_training.experiment.sources import read_assignments

    subject = Subject(env_id, read_assignments(assignments or []).values, steps, seed)
    with guarded_imports(None, env_id):
        report = check_environment(subject)
    show_env_report(report)
    return FAILED if report.has_problem else 0


app.command()(compare)
app.command()(plot)
app.command()(report)
app.command()(record)
app.command()(benchmark)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for a failed run or env, 2 for a user's error, 128 + N for signal N."""
    command = typer.main.get_command(app)
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        with printable_warnings():
            return int(command.main(args=args or ["--help"], prog_name="rl-training", standalone_mode=False) or 0)
    except (typer.TyperException, RLTrainingError) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        if isinstance(error, EnvironmentStepError) and error.__cause__ is not None:
            cause = "".join(traceback.format_exception(error.__cause__))  # the env's author needs it
            show_line(cause.rstrip("\n"), error=True)
        show_line(f"error: {' '.join(message.split())}", error=True)
        return FAILED if _is_failure(error) else USER_ERROR
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        show_line(f"error: {str(error.filename)[:60]}...: the name of a file or directory is too long", error=True)
        return USER_ERROR


def _is_failure(error: Exception) -> bool:
    """Return whether a run or an env failed, as opposed to a mistake of the user."""
    in_run = isinstance(error, RLTrainingError) and error.ended_run
    return in_run or isinstance(error, (EnvironmentStepError, NonFiniteUpdateError))


def entry_point() -> None:
    """The console script."""
    drop_lost_output()
    mark_children()
    atexit.register(_kill_children)  # registered first, called last
    try:
        with exiting_on_signals():
            code = main()
    finally:
        warn_of_lost_output()
        for process in multiprocessing.active_children():  # of an env: Python would wait for them, maybe for ever
            process.kill()
    sys.exit(code)


def _kill_children() -> None:
    """Kill programs that envs left running: they would keep open the pipes that they inherited from this command."""
    if "rl_training.envs.pool" in sys.modules:  # no env was made without it
        kill_children()
