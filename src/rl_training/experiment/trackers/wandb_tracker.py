"""Weights & Biases. Without a login or a network it writes into the run directory, for `wandb sync`."""

import os
import secrets
import warnings
from typing import Any

from rl_training.errors import describe_error
from rl_training.experiment.config import plain_config
from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun
from rl_training.experiment.trackers.ledger import Ledger, open_ledger

_DEFAULT_PROJECT = "rl-training"
_ANSWER_SECONDS = 20
_EXIT_CODES = {"completed": 0, "stopped": 0, "interrupted": 255}  # 255 is what wandb gives to Ctrl-C


class WandbTracker:
    """A W&B run whose steps are env steps."""

    def __init__(self, run: Any, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Add to the history."""
        del at  # wandb takes the time itself
        news = self._ledger.news(metrics, step)
        if news:
            self._run.log(news, step=step)
            self._ledger.enter(news, step)

    def close(self, outcome: Outcome) -> None:
        """Put the outcome into the summary, and send what is left."""
        self._run.summary.update({**outcome.metrics, "status": outcome.status})
        self._ledger.save()
        self._run.finish(exit_code=_EXIT_CODES.get(outcome.status, 1))


def open_wandb(run: TrackedRun) -> WandbTracker:
    """A new W&B run, or the one that this run directory had before."""
    os.environ.setdefault("WANDB__TRANSACTION_LOG_FLUSH_INTERVAL", "1")  # seconds; a kill loses what is not on disk
    import wandb

    options = run.config.tracker_options
    project = options.wandb_project or os.environ.get("WANDB_PROJECT") or _DEFAULT_PROJECT
    entity = options.wandb_entity or os.environ.get("WANDB_ENTITY")
    ledger = open_ledger(run.context, "wandb", home=f"{entity or ''}/{project}")
    ledger.run_id = ledger.run_id or secrets.token_hex(6)
    ledger.save()
    wandb.setup(wandb.Settings(silent=True))  # or it would ask for a login in the middle of the display
    tracked = wandb.init(
        id=ledger.run_id,
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
            reinit="create_new",  # a run that the user has open beside this one stays untouched
            init_timeout=_ANSWER_SECONDS,
            finish_timeout=_ANSWER_SECONDS,
            finish_timeout_raises=True,
        ),
    )
    return WandbTracker(tracked, ledger)


def _resolve_mode(wanted: str | None) -> Any:
    """Online needs a login and a server that answers; who has not got them goes offline and is told so."""
    import wandb

    if wanted not in (None, "online"):
        return wanted
    try:
        wandb.Api(timeout=_ANSWER_SECONDS)
    except wandb.Error as error:
        warnings.warn(f"W&B is written offline, for `wandb sync` ({describe_error(error)})", stacklevel=2)
        return "offline"
    return "online"
