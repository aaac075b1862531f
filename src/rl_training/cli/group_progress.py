"""The progress of a group: one live row per seed on a terminal, or a plain line every few seconds elsewhere."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.experiment.groups import GroupRecord, SeedStatus, format_seeds
from rl_training.groups.observer import SeedProgress
from rl_training.groups.places import describe_jobs
from rl_training.output import printable, shown_path
from rl_training.runtime.progress import ProgressDisplay, format_duration, progress_console

_REDRAW_SECONDS = 0.5
_LINE_SECONDS = 10.0
_LINES_BESIDES_SEEDS = 4  # the heading, the summary, and some room for the lines above

_STATUSES: tuple[SeedStatus, ...] = ("completed", "stopped", "failed", "interrupted", "running", "waiting")

# (heading, metric, format) in the order shown; a column is left out if no seed has its metric.
_COLUMNS = (
    ("return", "rollout/ep_rew_mean", ".1f"),
    ("eval", "eval/mean_reward", ".1f"),
    ("eval success", "eval/success_rate", ".2f"),
)


class GroupDisplay:
    """A display of the seeds of one group."""

    make_seed_callback = ProgressDisplay

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or progress_console()
        self._clock = clock
        self._live: Live | None = None
        self._shown_at = clock()

    def on_group_start(self, group_dir: Path, record: GroupRecord) -> None:
        """Print what is trained and where, and open the display."""
        seeds = format_seeds([each.seed for each in record.seeds])
        what = f"Training {record.algo} on {record.env_id}, seeds {seeds}, {describe_jobs(record.jobs, record.on)}"
        self.on_message(f"{what}, in {shown_path(group_dir)}")
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def on_message(self, text: str) -> None:
        """Print one line above the live display."""
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

    def on_progress(self, seeds: Sequence[SeedProgress]) -> None:
        """Show the newest numbers, unless the display is still fresh."""
        if self._clock() - self._shown_at >= (_LINE_SECONDS if self._live is None else _REDRAW_SECONDS):
            self._show(seeds)

    def on_seed_end(self, progress: SeedProgress) -> None:
        """Print how a seed ended; on a terminal, only if it failed."""
        if self._live is None or progress.status == "failed":
            self.on_message(_describe_end(progress))

    def on_group_end(self, seeds: Sequence[SeedProgress]) -> None:
        """Close the display and print a summary."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._show(seeds)

    def _show(self, seeds: Sequence[SeedProgress]) -> None:
        self._shown_at = self._clock()
        if self._live is not None:
            self._live.update(Group(self._table(seeds), Text(_summary(seeds))), refresh=True)
        else:
            self.on_message(_summary(seeds))

    def _table(self, seeds: Sequence[SeedProgress]) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("seed", justify="right")
        table.add_column("status")
        reported = [column for column in _COLUMNS if any(column[1] in each.metrics for each in seeds)]
        for heading in ("steps", "steps/s", *(heading for heading, _, _ in reported), "left"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("reason", no_wrap=True)
        for progress in self._fit_terminal(seeds):
            values = [
                f"{progress.metrics[name]:{form}}" if name in progress.metrics else "" for _, name, form in reported
            ]
            table.add_row(*map(Text, _cells(progress, values)))
        return table

    def _fit_terminal(self, seeds: Sequence[SeedProgress]) -> Sequence[SeedProgress]:
        """Return all seeds, or only the running ones if the terminal has too few lines."""
        fits = len(seeds) + _LINES_BESIDES_SEEDS <= self._console.height
        return seeds if fits else [each for each in seeds if each.status == "running"]


def _summary(seeds: Sequence[SeedProgress]) -> str:
    counts = {status: sum(each.status == status for each in seeds) for status in _STATUSES}
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    step, total = sum(each.step for each in seeds), sum(each.total for each in seeds)
    return f"{statuses}  {step:,}/{total:,} steps{_speed(seeds)}"


def _speed(seeds: Sequence[SeedProgress]) -> str:
    """Format the total speed and the time left, assuming that waiting seeds will train as fast as running ones."""
    running = [each for each in seeds if each.status == "running" and each.rate > 0.0]
    if not running:
        return ""
    rate = sum(each.rate for each in running)
    left = max(sum(each.steps_left for each in seeds) / rate, *(each.steps_left / each.rate for each in running))
    return f"  {rate:,.0f} steps/s  {format_duration(left)} left"


def _cells(progress: SeedProgress, values: Sequence[str]) -> list[str]:
    running = progress.status == "running" and progress.rate > 0.0
    return [
        str(progress.seed),
        progress.status,
        f"{progress.step:,}/{progress.total:,}",
        f"{progress.rate:,.0f}" if running else "",
        *values,
        format_duration(progress.steps_left / progress.rate) if running else "",
        printable(progress.reason or ""),
    ]


def _describe_end(progress: SeedProgress) -> str:
    evaluated = progress.metrics.get("eval/mean_reward")
    numbers = f" at step {progress.step:,} after {progress.seconds:.1f} s"
    numbers += "" if evaluated is None else f", evaluation {evaluated:.1f}"
    return f"seed {progress.seed} {progress.status}{numbers}{': ' + progress.reason if progress.reason else ''}"
