"""Metrics on disk: JSON lines as the truth, TensorBoard beside them."""

import json
import math
import time
import warnings
from typing import Any

from rl_training.experiment.runs import RunContext


class RunLogger:
    """Appends metrics and digests to the run directory; the x-axis is env steps, all envs counted."""

    def __init__(self, context: RunContext, resumed_at: int | None = None) -> None:
        # Line-buffered: a crash loses at most the line being written.
        self._file = context.metrics_path.open("a", buffering=1, encoding="utf-8")
        self._digests = context.digests_path.open("a", buffering=1, encoding="utf-8")
        self._tensorboard_dir = context.tensorboard_dir
        self._writer: Any = None
        self._tensorboard_failed = False
        self._purge_step = None if resumed_at is None else resumed_at + 1  # TensorBoard hides what came after

    def log_metrics(self, metrics: dict[str, int | float], step: int) -> None:
        """Write one line; TensorBoard gets the same numbers under the same names."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps({"step": step, "time": round(time.time(), 3), **finite}) + "\n")
        if not self._tensorboard_failed:
            self._mirror(metrics, step)

    def log_digest(self, digest: str, step: int) -> None:
        """Write what the state of the run amounts to at `step`, for whoever repeats it."""
        self._digests.write(json.dumps({"step": step, "sha256": digest}) + "\n")

    def _mirror(self, metrics: dict[str, int | float], step: int) -> None:
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self._tensorboard_dir), purge_step=self._purge_step)
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A tracker must not stop a run; the JSON lines are complete without it."""
        self._tensorboard_failed = True
        warnings.warn(f"TensorBoard logging stopped: {error}", stacklevel=3)

    def close(self) -> None:
        """Flush and close; closing twice is fine."""
        self._file.close()
        self._digests.close()
        try:
            if self._writer is not None:
                self._writer.close()
        except Exception as error:
            self._give_up(error)
