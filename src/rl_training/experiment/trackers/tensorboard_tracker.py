"""TensorBoard event files inside the run directory."""

from typing import Any

from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun


class TensorboardTracker:
    """One scalar per metric."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Add the scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, walltime=at)

    def close(self, outcome: Outcome) -> None:
        """Flush and close."""
        del outcome
        self._writer.close()


def open_tensorboard(run: TrackedRun) -> TensorboardTracker:
    """A writer; what was measured after the step that a run goes on from is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    purge_step = None if run.resumed_at is None else run.resumed_at + 1
    return TensorboardTracker(SummaryWriter(str(run.context.tensorboard_dir), purge_step=purge_step))
