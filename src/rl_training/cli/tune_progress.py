"""The progress and the result of a study: live tables on a terminal, or plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.cli.group_progress import GroupDisplay
from rl_training.experiment.studies import BEST_FILE, StudyRecord, StudySettings, Trial, job_name
from rl_training.groups.observer import SeedProgress
from rl_training.output import printable, shown_path
from rl_training.results.report.axes import parameter_text
from rl_training.results.report.study_model import searched_values
from rl_training.results.statistics import format_score
from rl_training.runtime.progress import ProgressDisplay, RecentRate, format_duration, progress_console

_REDRAW_SECONDS = 0.5
_LINE_SECONDS = 10.0
_RATE_SECONDS = 300.0  # over which the speed is measured; trials may differ much in speed
_LINES_BESIDES_RUNS = 8  # headings, blank lines, the best trial and the summary
_SHOWN_TRIALS = 10  # in the final table

Running = Mapping[str, SeedProgress]


class StudyDisplay:
    """A display of the trials of a study."""

    make_run_callback = ProgressDisplay

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or progress_console()
        self._clock = clock
        self._live: Live | None = None
        self._shown_at = clock()
        self._settings: StudySettings | None = None
        self._rate = RecentRate(_RATE_SECONDS)
        self._is_confirming = False
        self._known: dict[int, int] = {}  # the number of values of each trial that has been printed

    def on_study_start(self, study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
        """Print what is searched and where, and open the display."""
        self._settings = settings
        self._known = {trial.number: len(trial.values) for trial in record.trials}
        budgets = ", ".join(f"{budget:,}" for budget in settings.budgets)
        at_once = f"{record.jobs} run{'s' * (record.jobs != 1)} at a time"
        what = f"Tuning {record.algo} on {record.env_id}: {settings.trials} trials, {at_once}"
        self.on_message(f"{what}, compared after {budgets} env steps, in {shown_path(study_dir)}")
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def on_message(self, text: str) -> None:
        """Print one line above the live display."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def on_progress(self, record: StudyRecord, running: Running) -> None:
        """Show the newest numbers, unless the display is still fresh."""
        assert self._settings is not None
        self._rate.add(self._clock(), _used_steps(record, running))
        if self._live is None:
            self._print_new_values(record)
        if self._clock() - self._shown_at < (_LINE_SECONDS if self._live is None else _REDRAW_SECONDS):
            return
        self._shown_at = self._clock()
        summary = _summary(self._settings, record, running, self._rate.value)
        if self._live is None:
            self.on_message(summary)
        else:
            room = max(self._console.height - _LINES_BESIDES_RUNS - self._settings.rungs, 1)
            self._live.update(_live_view(self._settings, record, running, room, summary), refresh=True)

    def _print_new_values(self, record: StudyRecord) -> None:
        assert self._settings is not None
        for trial in record.trials:
            reached = len(trial.values)
            if reached > self._known.get(trial.number, 0):
                self._known[trial.number] = reached
                rung = f"rung {reached} of {self._settings.rungs}"
                self.on_message(f"trial {trial.number}: {format_score(trial.values[-1])} at {rung}")

    def on_study_end(self, record: StudyRecord) -> None:
        """Close the display and print a summary."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._settings is not None:
            self.on_message(_summary(self._settings, record, {}, 0.0))

    def observe_confirmation(self) -> GroupDisplay:
        """Return a display of confirming runs, which train the starting config first and then the best trial."""
        if not self._is_confirming:
            self._is_confirming = True
            self.on_message("Confirmation: the starting config and the best trial are trained on new seeds")
        return GroupDisplay(self._console)


def _used_steps(record: StudyRecord, running: Running) -> int:
    """Return the env steps so far. The record has the steps up to a run's last end, so only newer ones are added."""
    recorded = {job_name(trial.number, run.seed): run.steps for trial in record.trials for run in trial.runs}
    return record.steps + sum(max(each.step - recorded.get(name, 0), 0) for name, each in running.items())


def _summary(settings: StudySettings, record: StudyRecord, running: Running, rate: float) -> str:
    statuses = [record.describe_status(trial, settings.rungs) for trial in record.trials]
    counts = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(sorted(statuses)))
    begun = f"{len(record.trials)} of {settings.trials} trials" + (f" ({counts})" if counts else "")
    best = None if record.best_trial is None else record.trials[record.best_trial]
    found = "" if best is None else f"  best {format_score(best.values[-1])} (trial {best.number})"
    used = _used_steps(record, running)
    return f"{begun}{found}  {used:,} steps{_speed(settings, record, running, rate)}"


def _speed(settings: StudySettings, record: StudyRecord, running: Running, rate: float) -> str:
    """Format the speed of the whole study and the time left.

    The speed is that of the last five minutes, with starts and evaluations. The steps that are left are those of the
    promotions that successive halving plans, and those of the confirmation, unless the best trial has been confirmed.
    """
    if rate <= 0.0:
        return ""
    left = _trial_steps_left(settings, record, running)
    if record.confirmation is None:
        left += 2 * settings.confirm * settings.budgets[-1]
    return f"  {rate:,.0f} steps/s  about {format_duration(left / rate)} left"


def _trial_steps_left(settings: StudySettings, record: StudyRecord, running: Running) -> int:
    """Return the env steps that the trials still need.

    One in `reduction` trials reaches the second rung, one in `reduction` of those the third, and so on; at least one
    reaches the last. More may have been promoted already.
    """
    left, before = 0, 0
    for rung, budget in enumerate(settings.budgets):
        reached = sum(len(trial.values) > rung for trial in record.trials)
        begun = sum(trial.rung >= rung and not trial.failure for trial in record.trials)
        failed = sum(trial.failure is not None and len(trial.values) <= rung for trial in record.trials)
        planned = max((settings.trials - failed) // settings.reduction**rung, begun, 1)
        left += max(planned - reached, 0) * settings.seeds_per_trial * (budget - before)
        before = budget
    recorded = {job_name(trial.number, run.seed): run.steps for trial in record.trials for run in trial.runs}
    return max(left - sum(max(each.step - recorded.get(name, 0), 0) for name, each in running.items()), 0)


def _live_view(settings: StudySettings, record: StudyRecord, running: Running, room: int, summary: str) -> Group:
    """Return the runs that train now, the rungs, the best trial with its parameters, and a summary."""
    parts: list[Any] = [_run_table(settings, running, room), Text(""), _rung_table(settings, record), Text("")]
    if record.best_trial is not None:
        best = record.trials[record.best_trial]
        texts = ", ".join(f"{name} {parameter_text(value)}" for name, value in best.params.items())
        parts.append(Text(printable(f"best: trial {best.number} with {texts}")))
    return Group(*parts, Text(summary))


def _run_table(settings: StudySettings, running: Running, room: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("training")
    for heading in ("rung", "steps", "steps/s", "return"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, progress in list(running.items())[:room]:
        rung = settings.budgets.index(progress.total) + 1 if progress.total in settings.budgets else 0
        value = progress.metrics.get("rollout/ep_rew_mean")
        cells = [
            name,
            f"{rung}/{settings.rungs}",
            f"{progress.step:,}/{progress.total:,}",
            f"{progress.rate:,.0f}" if progress.rate else "",
        ]
        table.add_row(*map(Text, [*cells, "" if value is None else format_score(value)]))
    return table


def _rung_table(settings: StudySettings, record: StudyRecord) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("rung", "env steps", "reached", "training", "best"):
        table.add_column(heading, justify="right", no_wrap=True)
    for rung, budget in enumerate(settings.budgets):
        values = [trial.values[rung] for trial in record.trials if len(trial.values) > rung and not trial.failure]
        training = sum(trial.rung == rung and bool(trial.unfinished_runs) for trial in record.trials)
        best = format_score(max(values)) if values else ""
        table.add_row(*map(Text, [str(rung + 1), f"{budget:,}", str(len(values)), str(training), best]))
    return table


def show_study(study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
    """Print the best trials, the parameters of the best, the result of the confirmation, and where everything is."""
    console = Console(highlight=False, soft_wrap=True)
    if record.trials:
        console.print(_trial_table(settings, record), "")
    if record.best_trial is not None:
        console.print(_parameter_table(settings, record.trials[record.best_trial]), "")
    full = max(len(record.trials), 1) * settings.seeds_per_trial * settings.budgets[-1]
    share = f"{100.0 * record.steps / full:.0f} % of training all {len(record.trials)} trials to the end"
    console.print(f"env steps of the trials: {record.steps:,}, {share}")
    if record.confirmation is not None:
        start, best = (record.confirmation[side]["iqm"]["value"] for side in ("a", "b"))
        console.print(f"on new seeds: {best:,.1f} for the best trial (B), {start:,.1f} for the starting config (A)")
        console.print(printable(record.confirmation["sentence"]), markup=False)
    elif record.best_trial is not None and settings.confirm == 0:
        console.print("The value of the best trial is probably too high, because the trial was chosen for this value.")
    _show_places(console, study_dir, record)


def _show_places(console: Console, study_dir: Path, record: StudyRecord) -> None:
    places = {"study directory": str(shown_path(study_dir))}
    if record.best_trial is not None and (study_dir / BEST_FILE).exists():
        places["best config"] = str(shown_path(study_dir / BEST_FILE))
    if record.trials:
        places["page"] = f"rl-training report {shown_path(study_dir)}"
    for label, value in places.items():
        console.print(Text(printable(f"{label + ':':17}{value}")))


def _trial_table(settings: StudySettings, record: StudyRecord) -> Table:
    """Return a table of the best trials: those at the highest rungs, ordered by their value there."""
    table = Table(box=None, pad_edge=False)
    for heading in ("trial", "rung", "steps", "value"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("status")
    ranked = sorted(record.trials, key=_rank, reverse=True)
    for trial in ranked[:_SHOWN_TRIALS]:
        value = format_score(trial.values[-1]) if trial.values else "-"
        steps = f"{sum(run.steps for run in trial.runs):,}"
        cells = [str(trial.number), f"{len(trial.values)}/{settings.rungs}", steps, value]
        table.add_row(*map(Text, [*cells, record.describe_status(trial, settings.rungs)]))
    if len(ranked) > _SHOWN_TRIALS:
        table.add_row(Text("..."))
    return table


def _rank(trial: Trial) -> tuple[bool, int, list[float]]:
    return not trial.failure, len(trial.values), trial.values[-1:]


def _parameter_table(settings: StudySettings, best: Trial) -> Table:
    """Return the searched parameters of the starting config and of the best trial."""
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter")
    for heading in ("start", f"trial {best.number}"):
        table.add_column(heading, justify="right", no_wrap=True)
    start = searched_values(settings.space, settings.train_config)
    for name, value in best.params.items():
        table.add_row(*map(Text, [name, printable(parameter_text(start.get(name))), printable(parameter_text(value))]))
    return table
