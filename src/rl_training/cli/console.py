"""The tables and result lines that commands print."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.errors import RLTrainingError, RunDirectoryError
from rl_training.experiment.config import plain_config
from rl_training.experiment.metrics import RETURN
from rl_training.experiment.records import LOGS_FOLDER
from rl_training.experiment.runs import RunContext, context_of, find_runs, read_metadata
from rl_training.experiment.studies import (
    CONFIRMATION_FOLDER,
    StudyRecord,
    StudySettings,
    find_runs_and_studies,
    is_study,
    read_settings,
    read_study,
)
from rl_training.output import printable, show_line, shown_path
from rl_training.results.drawing import plot_run
from rl_training.results.receipts import format_interval, read_references
from rl_training.results.statistics import format_score, interquartile_mean

if TYPE_CHECKING:
    from rl_training.deploy.export import Export
    from rl_training.envs.checks.checking import EnvReport
    from rl_training.experiment.groups import GroupRecord
    from rl_training.experiment.sources import ResolvedConfig
    from rl_training.experiment.validation import StrictModel
    from rl_training.recording.episodes import RecordedVideo
    from rl_training.results.comparison import Comparison, Side
    from rl_training.results.receipts import Receipt
    from rl_training.runtime.plan import TrainingPlan
    from rl_training.runtime.trainer import TrainResult
    from rl_training.runtime.workflows import FailedStep


_RUN_COLUMNS = ("algorithm", "env", "seed", "steps", "best return", "status", "run")
_STUDY_COLUMNS = ("algorithm", "env", "trials", "steps", "best value", "status", "study")
_SCORE_NAMES = {"final": "Final evaluation", "best": "Best evaluation", "auc": "Mean height of the evaluation curve"}
_STATUS_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def _console() -> Console:
    """Make a console as wide as the terminal, or wide enough for long rows if the output is not a terminal."""
    console = Console(markup=False)
    return console if console.is_terminal else Console(width=160, markup=False)


def _text(content: object) -> Text:
    """Make a table cell or a line without control characters, which a file or an environment may contain."""
    return Text(printable(content))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=_text(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    return table


def show_metrics(title: str, metrics: Mapping[str, int | float]) -> None:
    """Show a table with one metric per row."""
    table = _table(title, "metric", "value")
    for name, value in metrics.items():
        table.add_row(_text(name), f"{value:,}" if isinstance(value, int) else f"{value:.2f}")
    _console().print(table)


def show_nothing_left(result: "TrainResult") -> None:
    """Say that a resumed run is complete, and how to train it further."""
    complete = f"{shown_path(result.run_dir)} is complete after {result.metrics['global_step']:,} steps"
    show_line(f"{complete}: there is nothing left to do; --total-timesteps gives it a larger budget")


def show_result(result: "TrainResult") -> None:
    """Draw the learning curve, and show the final metrics and the paths of the run's files."""
    context = context_of(result.run_dir)
    try:
        seconds = {"wall seconds": float(read_metadata(context)["wall_seconds"])}
    except (RunDirectoryError, LookupError):  # the disk was full, and a warning has said so
        seconds = {}
    show_metrics(f"Run {result.status}", {**result.metrics, **seconds})
    for label, value in (
        ("run directory", shown_path(result.run_dir)),
        ("checkpoint", shown_path(result.checkpoint_path)),
        ("learning curve", _draw_curve(context)),
    ):
        show_line(f"{label + ':':16}{value}")


def _draw_curve(context: RunContext) -> str:
    """Draw the learning curve, and return its path or the reason why there is none."""
    try:
        curve = plot_run(context)
        return "not drawn: pip install 'rl-training[plots]'" if curve is None else str(shown_path(curve))
    except RunDirectoryError as error:
        return f"not drawn: {error}"


def show_group(group_dir: Path, record: "GroupRecord") -> None:
    """Show one row per seed, statistics over the finished seeds, and how to continue the failed ones."""
    group_dir = shown_path(group_dir)
    finals = {"return": "eval_return_mean"}
    if any("eval_success_rate" in (each.metrics or {}) for each in record.seeds):
        finals["success rate"] = "eval_success_rate"
    table = _table(f"Group {record.status}", "seed", "status", "steps", *finals, "seconds", "reason")
    for each in record.seeds:
        found = [(each.metrics or {}).get(name) for name in finals.values()]
        shown = ["-" if value is None else f"{value:.2f}" for value in found]
        cells = (str(each.seed), each.status, f"{each.global_step:,}", *shown, f"{each.wall_seconds:.1f}")
        table.add_row(*map(_text, [*cells, each.reason or ""]))
    _console().print(table)
    returns = [each.final_return for each in record.seeds if each.done and each.final_return is not None]
    lines = {"group": str(group_dir)}
    if returns:
        finished = np.array(returns)
        lines["returns"] = (
            f"interquartile mean {interquartile_mean(finished):.2f}, mean {finished.mean():.2f}, "
            f"median {np.median(finished):.2f} over {len(returns)} finished {'seed' if len(returns) == 1 else 'seeds'}"
        )
    if record.status == "failed":
        lines |= {"logs": str(group_dir / LOGS_FOLDER), "continue with": f"rl-training resume {group_dir}"}
    for label, value in lines.items():
        show_line(f"{label + ':':16}{value}")


def show_recording(recording: "RecordedVideo") -> None:
    """Show one row per recorded episode, then the path, length and size of the video."""
    table = _table("Recorded episodes", "episode", "seed", "return", "length", "")
    for number, episode in enumerate(recording.episodes, start=1):
        cut = "cut" if episode.cut else ""
        table.add_row(str(number), str(episode.seed), f"{episode.episode_return:.2f}", f"{episode.length:,}", cut)
    _console().print(table)
    seconds, size = recording.num_frames / recording.fps, recording.path.stat().st_size / 2**20
    show_line(
        f"video: {recording.path} ({recording.num_frames:,} frames, {seconds:.1f} s at {recording.fps:g} per second, "
        f"{size:.1f} MiB)"
    )


def show_export(exported: "Export") -> None:
    """Show the files of an export and how it was checked."""
    for path in exported.files:
        show_line(f"exported: {path} ({path.stat().st_size:,} bytes)")
    check = exported.check
    show_line(
        f"checked on {check.num_played:,} observations of episodes and {check.num_sampled:,} random ones: "
        f"largest difference {check.largest_difference:.1e}, {check.num_ties:,} ties"
    )
    if check.not_played is not None:
        show_line(f"no episode was played: {check.not_played}")


def show_failed_step(failed: "FailedStep") -> None:
    """Show each field of the batch of a rejected gradient step, then what happened when the step was repeated."""
    title = f"{failed.step.name} at env step {failed.global_step:,}"
    table = _table(title, "field", "shape", "lowest", "highest", "mean", "not finite")
    for name, field in failed.step.batch.items():
        values = field.double()
        numbers = [f"{number:.4g}" for number in (values.min(), values.max(), values.mean())]
        table.add_row(_text(name), str(tuple(field.shape)), *numbers, str(int((~values.isfinite()).sum())))
    _console().print(table)
    show_line(failed.message or "the repeated step is finite: this machine does not reproduce the failure")


def show_plan(resolved: "ResolvedConfig", params: "StrictModel", plan: "TrainingPlan") -> None:
    """Show every config value and its source, then what the run would do."""
    table = _table("Config", "key", "value", "from")
    for path, value in _flat_values(plain_config(resolved.config), params.model_dump(mode="json")):
        table.add_row(*map(_text, [".".join(path), str(value), resolved.sources.get(path, "default")]))
    console = _console()
    console.print(table)
    counts = {
        **plan.details,
        "env steps": plan.env_steps,
        "gradient steps": plan.gradient_steps,
        "evaluations": plan.evaluations,
        "checkpoints": plan.checkpoints,
    }
    planned = _table("\nPlan", "quantity", "value")
    for name, count in counts.items():
        planned.add_row(name, f"{count:,}" if isinstance(count, int) else count)
    planned.add_row("memory", f"{plan.memory_bytes / 2**20:.1f} MiB for experience and parameters")
    console.print(planned)


def _flat_values(config: dict[str, Any], params: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    sections = {**config, "algo_kwargs": params}
    yield from (((name,), value) for name, value in sections.items() if not isinstance(value, dict))
    for section, values in sections.items():
        if isinstance(values, dict):
            yield from (((section, name), value) for name, value in values.items())


def show_runs(directory: Path) -> None:
    """Show one row per run and per study, including unreadable ones; in a study directory, one row per trial."""
    if not directory.is_dir():
        raise RunDirectoryError(f"{directory} is not a directory")
    if is_study(directory):
        _show_trials(directory)
        confirming = list(find_runs(directory / CONFIRMATION_FOLDER))
        tables = [_run_table("Runs of the confirmation", directory, confirming)] if confirming else []
    else:
        runs, studies = find_runs_and_studies(directory)
        tables = [_run_table(f"Runs below {directory}", directory, runs)] if runs else []
        tables += [_study_table(directory, studies)] if studies else []
        if not tables:
            show_line(f"no runs below {directory}")
    for table in tables:
        _console().print(table)


def _run_table(title: str, directory: Path, runs: Iterable[RunContext]) -> Table:
    table = _table(title, *_RUN_COLUMNS)
    for context in runs:
        name = str(context.run_dir.relative_to(directory))
        try:
            table.add_row(*map(_text, [*_run_row(read_metadata(context)), name]))
        except (RunDirectoryError, TypeError, ValueError):
            table.add_row(*map(_text, [*"?????", "unreadable", name]))
    return table


def _study_table(directory: Path, studies: Iterable[Path]) -> Table:
    table = _table(f"Studies below {directory}", *_STUDY_COLUMNS)
    for study_dir in studies:
        name = str(study_dir.relative_to(directory))
        try:
            cells = [*_study_row(read_settings(study_dir), read_study(study_dir)), name]
        except (RLTrainingError, LookupError, TypeError, ValueError):
            cells = [*"?????", "unreadable", name]
        table.add_row(*map(_text, cells))
    return table


def _study_row(settings: StudySettings, record: StudyRecord) -> list[str]:
    best = None if record.best_trial is None else record.trials[record.best_trial]
    value = "-" if best is None else f"{best.values[-1]:.1f} (trial {best.number})"
    trials = f"{len(record.trials):,} of {settings.trials:,}"
    return [record.algo, record.env_id, trials, f"{record.steps:,}", value, record.status]


def _show_trials(study_dir: Path) -> None:
    settings, record = read_settings(study_dir), read_study(study_dir)
    title = f"Trials of {study_dir} ({record.status})"
    table = _table(title, "trial", "status", "rung", "steps", "value", "run")
    for trial in record.trials:
        value = f"{trial.values[-1]:.1f}" if trial.values else "-"
        rung, steps = f"{len(trial.values)} of {settings.rungs}", f"{sum(run.steps for run in trial.runs):,}"
        names = "\n".join(run.run_dir for run in trial.runs)
        table.add_row(
            *map(_text, [trial.number, record.describe_status(trial, settings.rungs), rung, steps, value, names])
        )
    _console().print(table)


def _run_row(metadata: dict[str, Any]) -> list[str]:
    best = metadata.get("best_return")
    return [
        str(metadata.get("algo")),
        str(metadata.get("env_id")),
        str(metadata.get("seed")),
        f"{metadata.get('global_step', 0):,}",
        "-" if best is None else f"{best:.1f}",
        str(metadata.get("status")),
    ]


def show_receipts(receipts: "Iterable[Receipt]") -> None:
    """Show one row per receipt, with the result of RL Zoo if there is one."""
    references = read_references()
    columns = ("preset", "env steps", "seeds", "IQM", "95 % interval", "RL Zoo", "every seed")
    table = _table("Receipts", *columns)
    for each in receipts:
        zoo = references.get(each.preset)
        figure = f"{format_score(zoo.mean)} +- {format_score(zoo.deviation)}" if zoo else "-"
        steps = f"{max(score.env_steps for score in each.scores):,}"
        interval = "-" if each.interval is None else format_interval(each)
        cells = (each.preset, steps, str(len(each.scores)), format_score(each.iqm), interval, figure)
        table.add_row(*map(_text, [*cells, ", ".join(map(format_score, each.returns))]))
    _console().print(table)


def show_comparison(comparison: "Comparison") -> None:
    """Show the statistics of both sides, the score of every seed, the differences and the verdict."""
    percent = f"{100 * comparison.confidence:g} %"
    columns = ("group", "algorithm", "seeds", "IQM", f"{percent} interval", "mean", "median")
    metric = "" if comparison.metric == RETURN else f" of {comparison.metric}"
    table = _table(f"{_SCORE_NAMES[comparison.score]}{metric} on {comparison.env_id}", "", *columns)
    sides = {"A": comparison.a, "B": comparison.b}
    for name, side in sides.items():
        iqm, mean, median = map(format_score, (side.iqm.value, side.mean, side.median))
        cells = [side.label, side.algo, str(len(side.seeds)), iqm, str(side.iqm.interval), mean, median]
        table.add_row(*map(_text, [name, *cells]))
    console = _console()
    console.print(table)
    by_seed = _table("", "seed", *sides)
    for seed in sorted({seed for side in sides.values() for seed in side.seeds}):
        by_seed.add_row(str(seed), *(_scores_of(side, seed) for side in sides.values()))
    console.print(by_seed)
    improvement = comparison.probability_of_improvement
    chance = f"{improvement.value:.2f} ({percent} interval: {improvement.interval})"
    console.print(f"a run of B beats a run of A with probability {chance}", soft_wrap=True)
    console.print(f"difference of the means: {format_score(comparison.mean_difference)}")
    show_notes(comparison.notes)
    console.print(_text(comparison.sentence), soft_wrap=True)


def _scores_of(side: "Side", seed: int) -> str:
    found = [format_score(score) for own, score in zip(side.seeds, side.scores, strict=True) if own == seed]
    return ", ".join(found) or "-"


def show_notes(notes: Iterable[str]) -> None:
    """Print each note once to stderr, apart from the result on stdout."""
    for note in dict.fromkeys(notes):
        show_line(f"note: {note}", error=True)


def show_env_report(report: "EnvReport") -> None:
    """Show one row per check, then whether a resumed run will be exact, and the speed."""
    table = _table(f"Checks of {report.subject.env_id}", "check", "result", "what was found", "what to do")
    for finding in report.findings:
        status = Text(finding.status, style=_STATUS_STYLES[finding.status])
        table.add_row(_text(finding.check), status, _text(finding.found), _text(finding.remedy))
    console = _console()
    console.print(table)
    speed = report.steps_per_second
    for label, value in (
        ("exact resume", report.exact_resume),
        ("steps per second", "not measured" if speed is None else f"{speed:,.0f}"),
    ):
        console.print(_text(f"{label + ':':18}{value}"), soft_wrap=True)
