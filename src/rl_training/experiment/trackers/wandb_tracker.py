"""The `wandb` tracker (Weights & Biases). Without a login or a network, it writes offline into the run directory."""

import os
import secrets
import warnings
from typing import Any

from rl_training.errors import describe_error
from rl_training.experiment.config import plain_config
from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun
from rl_training.experiment.trackers.upload_record import UploadRecord, load_upload_record

_DEFAULT_PROJECT = "rl-training"
_ANSWER_SECONDS = 20
_EXIT_CODES = {"completed": 0, "stopped": 0, "interrupted": 255}  # wandb uses 255 for Ctrl-C


class WandbTracker:
    """A tracker that writes to a W&B run. Its steps are env steps."""

    def __init__(self, run: Any, record: UploadRecord) -> None:
        self._run = run
        self._record = record

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Send the metrics."""
        del at  # wandb records the time itself
        unsent = self._record.unsent(metrics, step)
        if unsent:
            self._run.log(unsent, step=step)
            self._record.mark_sent(unsent, step)

    def close(self, outcome: Outcome) -> None:
        """Write the outcome into the summary, and send everything that is pending."""
        self._run.summary.update({**outcome.metrics, "status": outcome.status})
        self._record.save()
        self._run.finish(exit_code=_EXIT_CODES.get(outcome.status, 1))


def open_wandb(run: TrackedRun) -> WandbTracker:
    """Start a new W&B run, or continue the one that this run directory had before."""
    os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")  # seconds of metrics that a kill may lose
    import wandb

    options = run.config.tracker_options
    project = options.wandb_project or os.environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT
    entity = options.wandb_entity or os.environ.get("WANDB_ENTITY")
    record = load_upload_record(run.context, "wandb", home=f"{entity or ''}/{project}")
    record.run_id = record.run_id or secrets.token_hex(6)
    record.save()
    wandb.setup(wandb.Settings(silent=True))  # otherwise wandb would ask for a login inside the progress display
    tracked = wandb.init(
        id=record.run_id,
        name=run.context.run_id,
        project=project,
        entity=entity,
        group=options.wandb_run_group,
        dir=run.context.run_dir,
        mode=_resolve_mode(options.wandb_mode or os.environ.get("WANDB_MODE")),
        resume="allow",
        config=plain_config(run.config),
        tags=run.config.tags,
        settings=wandb.Settings(
            silent=True,
            console="off",
            reinit="create_new",  # leave other W&B runs that the user has open untouched
            init_timeout=_ANSWER_SECONDS,
            finish_timeout=_ANSWER_SECONDS,
            finish_timeout_raises=True,
        ),
    )
    return WandbTracker(tracked, record)


def _resolve_mode(wanted: str | None) -> Any:
    """Return the mode to use: `offline`, with a warning, if there is no login or the server does not answer."""
    import wandb

    if wanted not in (None, "online"):
        return wanted
    try:
        wandb.Api(timeout=_ANSWER_SECONDS)
    except wandb.Error as error:
        warnings.warn(
            f"W&B runs offline ({describe_error(error)}): upload the run later with `wandb sync`", stacklevel=2
        )
        return "offline"
    return "online"
