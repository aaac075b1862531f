"""What a tracker that only appends was told, so that a resumed run goes on in the same place and says nothing twice."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.files import read_json, write_text
from rl_training.experiment.runs import RunContext
from rl_training.experiment.trackers.base import Metrics

_SAVE_SECONDS = 1.0  # what was said in the last one before a kill is said again


@dataclass
class Ledger:
    """Under which id a tracker knows the run, and up to which env step it has each metric."""

    path: Path
    home: str
    """The server or project; another one does not know the run."""
    run_id: str | None = None
    logged: dict[str, int] = field(default_factory=dict)
    saved_at: float = 0.0

    def news(self, metrics: Metrics, step: int) -> dict[str, int | float]:
        """Those of the metrics at `step` that the tracker does not have yet.

        A run that goes on exactly measures the same values again; after any other resume the older ones stay.
        """
        return {name: value for name, value in metrics.items() if step > self.logged.get(name, -1)}

    def enter(self, metrics: Metrics, step: int) -> None:
        """Note what the tracker has got."""
        self.logged |= dict.fromkeys(metrics, step)
        if time.monotonic() - self.saved_at >= _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Keep it in the run directory."""
        self.path.parent.mkdir(exist_ok=True)
        content = {"home": self.home, "run_id": self.run_id, "logged": self.logged}
        write_text(self.path, json.dumps(content, indent=2) + "\n")
        self.saved_at = time.monotonic()


def open_ledger(context: RunContext, tracker: str, home: str) -> Ledger:
    """What is known of this run at `home`; an empty ledger for a run that is new there."""
    path = context.run_dir / "trackers" / f"{tracker}.json"
    known = _read(path)
    if known.get("home") != home:
        return Ledger(path, home)
    run_id, logged = known.get("run_id"), known.get("logged")
    if not isinstance(run_id, str) or not isinstance(logged, dict):
        return Ledger(path, home)
    return Ledger(path, home, run_id, logged)


def _read(path: Path) -> dict[str, Any]:
    try:
        known = read_json(path)
    except (OSError, ValueError):  # none yet, or damaged: the run begins anew there
        return {}
    return known if isinstance(known, dict) else {}
