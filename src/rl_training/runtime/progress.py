"""The progress of a run: a live display on a terminal, or a plain line every few seconds elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from typing import TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from rl_training.output import DroppingStream, printable, shown_path
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import CollectResult
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.types import MetricDict

_LINE_SECONDS = 5.0
_WINDOW_SECONDS = 30.0  # from whose speed the time left is estimated
_SPACING_SECONDS = 1.0

# (label, metric, format) in the order shown.
_SHOWN = (
    ("return", "rollout/ep_rew_mean", ".1f"),
    ("success", "rollout/success_rate", ".2f"),
    ("eval", "eval/mean_reward", ".1f"),
    ("eval success", "eval/success_rate", ".2f"),
    ("loss", "train/loss", ".3g"),
    ("value loss", "train/value_loss", ".3g"),
)


def progress_console() -> Console:
    """Make a console on stderr that drops what cannot be written; the default one would raise and end the run."""
    return Console(file=cast(TextIO, DroppingStream(sys.stderr)))


class RecentRate:
    """Env steps per second over the last `window` seconds; over a longer time if the updates are further apart."""

    def __init__(self, window: float = _WINDOW_SECONDS) -> None:
        self._window = window
        self._kept: deque[tuple[float, int]] = deque()
        self._newest = (0.0, 0)

    def add(self, clock: float, step: int) -> None:
        """Add the env step that a run has reached at time `clock`, in seconds."""
        self._newest = (clock, step)
        if not self._kept or clock - self._kept[-1][0] >= _SPACING_SECONDS:
            self._kept.append(self._newest)
        while len(self._kept) > 2 and self._kept[1][0] <= clock - self._window:
            self._kept.popleft()

    @property
    def value(self) -> float:
        """The rate; 0 until there are two updates."""
        if not self._kept:
            return 0.0
        (started_at, first_step), (clock, step) = self._kept[0], self._newest
        return max(step - first_step, 0) / max(clock - started_at, 1e-6)


def format_duration(seconds: float) -> str:
    """Format seconds as `1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class ProgressDisplay(Callback):
    """A callback that shows steps, steps per second, time left, returns and losses."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or progress_console()
        self._clock = clock
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._shown_at = clock()
        self._rate = RecentRate()

    def on_train_start(self, trainer: TrainerState) -> None:
        """Print what is trained and where, and open the display."""
        self._shown_at = self._clock()
        self._rate.add(self._shown_at, trainer.global_step)
        config = trainer.config
        self._console.print(
            printable(
                f"Training {trainer.algorithm} on {config.env_id}, seed {config.seed}, in {shown_path(trainer.run_dir)}"
            ),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        notes = [f"{name} {decision}" for name, decision in trainer.decisions.items()]
        for note in [*notes, str(trainer.resumed)] if trainer.resumed is not None else notes:
            self._console.print(printable(note), highlight=False, markup=False, soft_wrap=True)
        if _can_redraw(self._console):
            self._bar = Progress(
                BarColumn(bar_width=12, table_column=Column(min_width=12)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[rate]}/s", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
                TextColumn("{task.fields[numbers]}", table_column=Column(ratio=1)),
                console=self._console,
                expand=True,
            )
            self._task = self._bar.add_task(
                "", total=config.total_timesteps, completed=trainer.global_step, rate="-", left="-", numbers=""
            )
            self._bar.start()

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Show the newest numbers."""
        del result
        self._rate.add(self._clock(), trainer.global_step)
        if self._bar is not None:
            self._bar.update(
                self._task,
                completed=min(trainer.global_step, trainer.config.total_timesteps),
                rate=f"{self._rate.value:,.0f}",
                left=self._time_left(trainer),
                numbers=_format_metrics(trainer.metrics),
            )
        elif self._clock() - self._shown_at >= _LINE_SECONDS:
            self._shown_at = self._clock()
            self._print_line(trainer)

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Close the display, or print the last line."""
        del result
        if self._bar is not None:
            self._bar.stop()
        else:
            self._print_line(trainer)

    def _time_left(self, trainer: TrainerState) -> str:
        """Format the time left if the run goes on as fast as lately; a dash if that is not known yet."""
        steps, rate = max(trainer.config.total_timesteps - trainer.global_step, 0), self._rate.value
        return format_duration(steps / rate) if rate > 0.0 else "-"

    def _print_line(self, trainer: TrainerState) -> None:
        self._console.print(
            f"{trainer.global_step:,}/{trainer.config.total_timesteps:,} steps  {self._rate.value:,.0f} steps/s  "
            f"{self._time_left(trainer)} left  {_format_metrics(trainer.metrics)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _can_redraw(console: Console) -> bool:
    """Return whether a live display works here; in a notebook, it needs the package ipywidgets."""
    return console.is_terminal and (not console.is_jupyter or find_spec("ipywidgets") is not None)


def _format_metrics(metrics: MetricDict) -> str:
    return "  ".join(f"{label} {metrics[name]:{form}}" for label, name, form in _SHOWN if name in metrics)
