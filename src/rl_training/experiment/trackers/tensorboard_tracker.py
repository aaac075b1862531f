"""The `tensorboard` tracker, which writes event files into the run directory."""

from typing import Any

from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun


class TensorboardTracker:
    """A tracker that writes one scalar per metric."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Write the scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, walltime=at)

    def close(self, outcome: Outcome) -> None:
        """Flush and close the writer."""
        del outcome
        self._writer.close()


def open_tensorboard(run: TrackedRun) -> TensorboardTracker:
    """Open the tracker. On resume, TensorBoard hides what was logged after the step from which the run continues."""
    from torch.utils.tensorboard import SummaryWriter

    purge_step = None if run.resumed_at is None else run.resumed_at + 1
    return TensorboardTracker(SummaryWriter(str(run.context.tensorboard_dir), purge_step=purge_step))
