"""Evaluating and resuming what is on disk, for every registered algorithm."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import CheckpointState, open_checkpoint, open_without_experience
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.agents import Agent, build_agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import check_num_episodes
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.types import MetricDict


@dataclass(frozen=True)
class Continuation:
    """A run ready to go on: in its own directory (`run_dir`), or forked into a new one."""

    config: TrainConfig
    state: CheckpointState
    run_dir: Path | None

    def train(self, run_suffix: str | None = None, callbacks: Iterable[Callback] | None = None) -> TrainResult:
        """Go on to the end."""
        place = {} if self.run_dir is None else {"run_dir": self.run_dir}
        return get_algorithm_spec(self.config.algo).train_fn(
            self.config, run_suffix=run_suffix, checkpoint_state=self.state, callbacks=callbacks, **place
        )


def checkpoint_config(state: CheckpointState) -> TrainConfig:
    """The config that a checkpoint was trained with."""
    return TrainConfig(**state.config)


def load_agent(path: Path | str, *, best: bool = False) -> Agent:
    """The agent of a checkpoint file, or of a run directory's newest intact (or best) one."""
    state = open_without_experience(path, best=best).state
    config = checkpoint_config(state)
    return build_agent(get_algorithm_spec(config.algo).build_learner_fn, config, state)


def evaluate_checkpoint(path: Path | str, num_episodes: int = 10, *, best: bool = False) -> MetricDict:
    """Play whole episodes with a saved agent."""
    check_num_episodes(num_episodes)
    agent = load_agent(path, best=best)
    return get_algorithm_spec(agent.config.algo).evaluate_fn(agent, num_episodes)


def continued_config(state: CheckpointState, total_timesteps: int | None) -> TrainConfig:
    """The checkpoint's config with the budget to go on to, which must lie beyond what is done."""
    config = checkpoint_config(state)
    if total_timesteps is not None:
        config = TrainConfig(**{**state.config, "total_timesteps": total_timesteps})
    get_algorithm_spec(config.algo).resolve_params_fn(config)
    try:
        done = int(state.trainer_state["global_step"])
    except (KeyError, TypeError, ValueError):
        raise CheckpointError("the checkpoint does not say how far it was trained") from None
    if done >= config.total_timesteps:
        raise ConfigError(
            f"total_timesteps={config.total_timesteps}: already trained for {done} steps; give a larger budget to go on"
        )
    return config


def prepare_resume(path: Path | str, total_timesteps: int | None = None) -> Continuation:
    """A run directory continues in place, a checkpoint file forks into a new directory."""
    given = Path(path)
    state = open_checkpoint(given).state
    config = continued_config(state, total_timesteps)
    if not given.is_dir():
        return Continuation(config, state, run_dir=None)
    run_dir = given.parent if given.name == "checkpoints" else given
    if not (run_dir / "metadata.json").exists():
        raise CheckpointError(f"{given} holds checkpoints but is no run directory; give one of the files to fork it")
    return Continuation(config, state, run_dir)


def resume_training(
    path: Path | str,
    total_timesteps: int | None = None,
    run_suffix: str | None = None,
    callbacks: Iterable[Callback] | None = None,
) -> TrainResult:
    """Go on from a checkpoint, to the old budget or a larger one."""
    return prepare_resume(path, total_timesteps).train(run_suffix, callbacks)
