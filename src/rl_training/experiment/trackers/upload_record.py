"""A record of what was sent to W&B or MLflow, so that a resumed run continues there and sends nothing twice."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.files import read_json, write_text
from rl_training.experiment.runs import RunContext
from rl_training.experiment.trackers.base import Metrics

_SAVE_SECONDS = 1.0  # metrics sent in the last second before a kill are sent again


@dataclass
class UploadRecord:
    """The id of the run at a tracker, and the last env step that was sent of each metric."""

    path: Path
    home: str
    """The server or project. The record is not valid for another one."""
    run_id: str | None = None
    logged: dict[str, int] = field(default_factory=dict)
    saved_at: float = 0.0

    def unsent(self, metrics: Metrics, step: int) -> dict[str, int | float]:
        """Return the metrics at `step` that the tracker does not have yet.

        After an exact resume, the values measured again are the same. After any other resume, the tracker keeps the
        older ones.
        """
        return {name: value for name, value in metrics.items() if step > self.logged.get(name, -1)}

    def mark_sent(self, metrics: Metrics, step: int) -> None:
        """Record that these metrics were sent."""
        self.logged |= dict.fromkeys(metrics, step)
        if time.monotonic() - self.saved_at >= _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the record in the run directory."""
        self.path.parent.mkdir(exist_ok=True)
        content = {"home": self.home, "run_id": self.run_id, "logged": self.logged}
        write_text(self.path, json.dumps(content, indent=2) + "\n")
        self.saved_at = time.monotonic()


def load_upload_record(context: RunContext, tracker: str, home: str) -> UploadRecord:
    """Load the record of this run at `home`; an empty one if the run is new there."""
    path = context.run_dir / "trackers" / f"{tracker}.json"
    known = _read(path)
    if known.get("home") != home:
        return UploadRecord(path, home)
    run_id, logged = known.get("run_id"), known.get("logged")
    if not isinstance(run_id, str) or not isinstance(logged, dict):
        return UploadRecord(path, home)
    return UploadRecord(path, home, run_id, logged)


def _read(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path)
    except (OSError, ValueError):  # missing or damaged: the tracker gets a new run
        return {}
    return known if isinstance(known, dict) else {}
