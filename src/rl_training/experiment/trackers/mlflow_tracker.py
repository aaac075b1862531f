"""The `mlflow` tracker, which writes to a tracking server or to a folder beside the run directories."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rl_training.errors import without_credentials
from rl_training.experiment.config import plain_config
from rl_training.experiment.trackers.base import Metrics, Outcome, TrackedRun
from rl_training.experiment.trackers.upload_record import UploadRecord, load_upload_record

_DEFAULT_EXPERIMENT = "rl-training"
_MAX_PARAMS = 100  # per request
_STATUSES = {"completed": "FINISHED", "stopped": "FINISHED", "interrupted": "KILLED"}


class MlflowTracker:
    """A tracker that writes to an MLflow run. Its steps are env steps."""

    def __init__(self, client: Any, record: UploadRecord) -> None:
        self._client = client
        self._record = record

    def log(self, metrics: Metrics, step: int, at: float) -> None:
        """Send one value per metric."""
        from mlflow.entities import Metric

        unsent = self._record.unsent(metrics, step)
        values = [Metric(name, float(value), round(1000 * at), step) for name, value in unsent.items()]
        self._client.log_batch(self._record.run_id, metrics=values)
        self._record.mark_sent(unsent, step)

    def close(self, outcome: Outcome) -> None:
        """Send the final metrics and end the run."""
        self._record.save()
        step = int(outcome.metrics.get("global_step", 0))
        for name, value in outcome.metrics.items():
            self._client.log_metric(self._record.run_id, name, float(value), step=step)
        self._client.set_tag(self._record.run_id, "status", outcome.status)
        self._client.set_terminated(self._record.run_id, _STATUSES.get(outcome.status, "FAILED"))


def open_mlflow(run: TrackedRun) -> MlflowTracker:
    """Start a new MLflow run, or continue the one that this run directory had before."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # connect to the user's tracking server only
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store without a server or a database
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    beside = run.context.run_dir.resolve().parent / "mlruns"
    uri = run.config.tracker_options.mlflow_tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or beside.as_uri()
    client = MlflowClient(tracking_uri=uri)
    home = without_credentials(uri).partition("?")[0]  # it is saved in the run directory, which others may read
    record = load_upload_record(run.context, "mlflow", home=home)
    if record.run_id is not None:
        try:
            client.update_run(record.run_id, status="RUNNING")
            return MlflowTracker(client, record)
        except MlflowException:  # the run was removed there: create a new one
            record = UploadRecord(record.path, home)
    with _exclusive(beside.parent):
        experiment_id = _experiment_id(client, run)
    record.run_id = _create_run(client, experiment_id, run)
    record.save()
    return MlflowTracker(client, record)


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory, so that runs that start together do not each create the experiment in a folder."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # the file system does not support locks
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
