"""Our side of the speed benchmark: build the config of a row, and measure one training run."""

import tempfile
from pathlib import Path

from speed_common import Job, Measurement, Row, SteadyState, make_measurement, read_clocks

from rl_training.algorithms.base import UpdateResult
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import with_resolved_compile


def make_config(job: Job, output_dir: Path) -> TrainConfig:
    """Create a config without evaluation, with checkpoints at the start and at the end and one log line at the end."""
    precision = {"precision": "bfloat16"} if job.side == "bfloat16" else {}
    return TrainConfig(
        algo=job.row.algo,
        env_id=job.row.env_id,
        seed=job.seed,
        total_timesteps=job.steps,
        output_dir=output_dir,
        device="cpu",
        num_envs=job.row.num_envs,
        vectorization="auto",
        frame_stack=job.row.frame_stack,
        num_threads=job.threads,
        eval_episodes=0,
        log_interval=job.steps,
        checkpoint_interval=0,
        checkpoint_seconds=0.0,
        compile="off" if job.side == "eager" else "on",
        algo_kwargs={**job.row.params, **precision},
    )


def auto_compiles(row: Row) -> bool:
    """Return whether `compile: auto` would compile a run of a million env steps of a row on this machine."""
    config = make_config(Job("measure", row, "eager", 1_000_000), Path()).model_copy(update={"compile": "auto"})
    return with_resolved_compile(config, get_algorithm_spec(row.algo).resolve_params_fn(config)).compile == "on"


class UpdateClock(Callback):
    """A callback that reads the clocks at the end of every update."""

    def __init__(self) -> None:
        self.steady = SteadyState()

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Read the clocks."""
        del result
        self.steady.mark(trainer.global_step)


def measure(job: Job, import_seconds: float) -> Measurement:
    """Train once, in a temporary directory."""
    start, clock = read_clocks(), UpdateClock()
    with tempfile.TemporaryDirectory() as directory:
        config = make_config(job, Path(directory))
        result = get_algorithm_spec(config.algo).train_fn(config, callbacks=[clock])
        rows = read_metrics(context_of(result.run_dir))
    returns = [row["rollout/ep_rew_mean"] for row in rows if "rollout/ep_rew_mean" in row]
    return make_measurement(job, import_seconds, start, clock.steady, returns[-1] if returns else None)
