"""The progress and the result of a study: a live table of its trials on a terminal, or plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.cli.group_progress import GroupDisplay
from rl_training.experiment.studies import BEST_FILE, StudyRecord, StudySettings, Trial
from rl_training.groups.observer import SeedProgress
from rl_training.output import printable, shown_path
from rl_training.runtime.progress import ProgressDisplay, format_duration, progress_console

_REDRAW_SECONDS = 0.5
_LINE_SECONDS = 10.0
_LINES_BESIDES_TRIALS = 5
_SHOWN_TRIALS = 10  # in the final table


class StudyDisplay:
    """A display of the trials of a study."""

    make_run_callback = ProgressDisplay

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or progress_console()
        self._clock = clock
        self._live: Live | None = None
        self._shown_at = clock()
        self._settings: StudySettings | None = None

    def on_study_start(self, study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
        """Print what is searched and where, and open the display."""
        self._settings = settings
        budgets = ", ".join(f"{budget:,}" for budget in settings.budgets)
        what = f"Tuning {record.algo} on {record.env_id}: {settings.trials} trials, {record.jobs} runs at a time"
        self.on_message(f"{what}, compared after {budgets} env steps, in {shown_path(study_dir)}")
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def on_message(self, text: str) -> None:
        """Print one line above the live display."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def on_progress(self, record: StudyRecord, running: Mapping[str, SeedProgress]) -> None:
        """Show the newest numbers, unless the display is still fresh."""
        if self._clock() - self._shown_at < (_LINE_SECONDS if self._live is None else _REDRAW_SECONDS):
            return
        self._shown_at = self._clock()
        assert self._settings is not None
        summary = _summary(self._settings, record, running)
        if self._live is None:
            self.on_message(summary)
        else:
            room = max(self._console.height - _LINES_BESIDES_TRIALS, 1)
            table = _trial_table(self._settings, record, room)
            self._live.update(Group(table, Text(summary)), refresh=True)

    def on_study_end(self, record: StudyRecord) -> None:
        """Close the display and print a summary."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._settings is not None:
            self.on_message(_summary(self._settings, record, {}))

    def observe_confirmation(self) -> GroupDisplay:
        """Return a display of confirming runs."""
        return GroupDisplay(self._console)


def _summary(settings: StudySettings, record: StudyRecord, running: Mapping[str, SeedProgress]) -> str:
    statuses = [trial.status(settings.rungs) for trial in record.trials]
    counts = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    begun = f"{len(record.trials)} of {settings.trials} trials ({counts})" if counts else "no trial yet"
    best = "" if record.best_trial is None else f"  best {record.trials[record.best_trial].values[-1]:,.1f}"
    steps = record.steps + sum(progress.step for progress in running.values())
    return f"{begun}{best}  {steps:,} steps{_time_left(settings, record, list(running.values()))}"


def _time_left(settings: StudySettings, record: StudyRecord, running: Sequence[SeedProgress]) -> str:
    """Estimate the time left from the speed of the running trials and the steps that successive halving plans."""
    rate = sum(progress.rate for progress in running)
    if rate <= 0.0:
        return ""
    before = [0, *settings.budgets]
    parts = [settings.reduction**-rung * (budget - before[rung]) for rung, budget in enumerate(settings.budgets)]
    planned = settings.trials * settings.seeds_per_trial * sum(parts)
    left = max(planned - record.steps - sum(progress.step for progress in running), 0.0)
    return f"  {rate:,.0f} steps/s  about {format_duration(left / rate)} left"


def _trial_table(settings: StudySettings, record: StudyRecord, room: int) -> Table:
    """Return the trials, the best ones first; if there are too many, those that train and the best ones."""
    table = Table(box=None, pad_edge=False)
    for heading in ("trial", "rung", "value"):
        table.add_column(heading, justify="right")
    table.add_column("status")
    for name in settings.space:
        table.add_column(name, justify="right", no_wrap=True)
    for trial in _ranked(record.trials)[:room]:
        cells = [str(trial.number), f"{trial.rung + 1}/{settings.rungs}", _last_value(trial)]
        values = [_format_value(trial.params.get(name)) for name in settings.space]
        table.add_row(*map(Text, [*cells, trial.status(settings.rungs), *values]))
    return table


def _ranked(trials: Sequence[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: (not trial.failure, len(trial.values), trial.values[-1:]), reverse=True)


def _last_value(trial: Trial) -> str:
    return f"{trial.values[-1]:,.1f}" if trial.values else ""


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def show_study(study_dir: Path, settings: StudySettings, record: StudyRecord) -> None:
    """Print the best trials, the result of the confirmation, and where everything is."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(_trial_table(settings, record, _SHOWN_TRIALS))
    full = settings.trials * settings.seeds_per_trial * settings.budgets[-1]
    console.print(
        f"env steps of all trials: {record.steps:,}, {record.steps / full:.0%} of {settings.trials} full trials"
    )
    if record.confirmation is not None:
        start, best = (record.confirmation[side]["iqm"]["value"] for side in ("a", "b"))
        console.print(f"on new seeds: {best:,.1f} for the best trial (B), {start:,.1f} for the starting config (A)")
        console.print(printable(record.confirmation["sentence"]))
    elif record.best_trial is not None and settings.confirm == 0:
        console.print("The value of the best trial overestimates it, because it was chosen for this value.")
    console.print(f"study directory: {shown_path(study_dir)}")
    if record.best_trial is not None and (study_dir / BEST_FILE).exists():
        console.print(f"best config:     {shown_path(study_dir / BEST_FILE)}")
