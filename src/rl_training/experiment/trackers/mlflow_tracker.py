"""MLflow: a tracking server, or a folder of files beside the run directories."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rl_training.errors import without_credentials
from rl_training.experiment.config import plain_config
from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun
from rl_training.experiment.trackers.ledger import Ledger, open_ledger

_DEFAULT_EXPERIMENT = "rl-training"
_MAX_PARAMS = 100  # that one request may carry
_STATUSES = {"completed": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}


class MlflowTracker:
    """An MLflow run whose steps are env steps."""

    def __init__(self, client: Any, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Add one value per metric."""
        from mlflow.entities import Metric

        news = self._ledger.news(metrics, step)
        values = [Metric(name, float(value), round(1000 * at), step) for name, value in news.items()]
        self._client.log_batch(self._ledger.run_id, metrics=values)
        self._ledger.enter(news, step)

    def close(self, outcome: Outcome) -> None:
        """Add the final numbers, and end the run."""
        self._ledger.save()
        step = int(outcome.metrics.get("global_step", 0))
        for name, value in outcome.metrics.items():
            self._client.log_metric(self._ledger.run_id, name, float(value), step=step)
        self._client.set_tag(self._ledger.run_id, "status", outcome.status)
        self._client.set_terminated(self._ledger.run_id, _STATUSES.get(outcome.status, "FAILED"))


def open_mlflow(run: TrackedRun) -> MlflowTracker:
    """A new MLflow run, or the one that this run directory had before."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a run talks to its own tracking server only
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the one store that needs neither server nor database
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    beside = run.context.run_dir.resolve().parent / "mlruns"
    uri = run.config.tracker_options.mlflow_tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or beside.as_uri()
    client = MlflowClient(tracking_uri=uri)
    home = without_credentials(uri).partition("?")[0]  # the file that it goes to is not private
    ledger = open_ledger(run.context, "mlflow", home=home)
    if ledger.run_id is not None:
        try:
            client.update_run(ledger.run_id, status="RUNNING")
            return MlflowTracker(client, ledger)
        except MlflowException:  # removed there: begin anew
            ledger = Ledger(ledger.path, home)
    with _alone(beside.parent):
        experiment_id = _experiment_id(client, run)
    ledger.run_id = _create_run(client, experiment_id, run)
    ledger.save()
    return MlflowTracker(client, ledger)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Runs that start together must not all create the experiment, which a folder of files would let them do."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _experiment_id(client: Any, run: TrackedRun) -> str:
    options = run.config.tracker_options
    name = options.mlflow_experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if experiment is None else experiment.experiment_id)


def _create_run(client: Any, experiment_id: str, run: TrackedRun) -> str:
    from mlflow.entities import Param

    tags = {"run_dir": str(run.context.run_dir.resolve()), "tags": ", ".join(run.config.tags)}
    run_id = client.create_run(experiment_id, run_name=run.context.run_id, tags=tags).info.run_id
    params = [Param(name, str(value)) for name, value in _flat(plain_config(run.config))]
    for first in range(0, len(params), _MAX_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MAX_PARAMS])
    return str(run_id)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
