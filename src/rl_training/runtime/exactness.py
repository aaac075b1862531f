"""Reasons why a resumed run may not continue bit for bit like an uninterrupted one."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import CompilingLearner, Learner
from rl_training.algorithms.step_packages import has_package
from rl_training.compiling import compiler_found
from rl_training.envs.factory import WORKER_STEP_TIMEOUT, replay_factory
from rl_training.envs.guard import RESET_PATIENCE
from rl_training.envs.replay_check import replay_difference
from rl_training.envs.samples import ReplaySample
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig, describe_training_differences, env_code, plain_config
from rl_training.runtime.run_utils import hardware, versions

EAGER_NOW = "updates were compiled before but cannot be compiled here"


def find_differences(config: TrainConfig, saved: CheckpointState, scheduled: Sequence[str]) -> list[str]:
    """Describe how machine, code and config differ from those that the checkpoint was made with.

    `scheduled` names the parameters of the algorithm whose values depend on the planned budget.
    """
    return [
        *_changed_entries(saved.metadata.get("versions", {}), versions(*env_code(config))),
        *_changed_entries(saved.metadata.get("hardware", {}), hardware(config)),
        *_compile_changes(config, saved.metadata),
        *_draw_changes(saved),
        *_budget_changes(config, saved, scheduled),
        *describe_training_differences(plain_config(TrainConfig(**saved.config)), plain_config(config)),
    ]


def check_replays(config: TrainConfig, samples: Sequence[ReplaySample]) -> list[str]:
    """Check that fresh envs reproduce the recorded samples; return a description of the first difference, if any."""
    answer_seconds = RESET_PATIENCE * (config.step_timeout or WORKER_STEP_TIMEOUT)
    difference = replay_difference(replay_factory(config), samples, config.seed, answer_seconds)
    return [] if difference is None else [f"{config.env_id} {difference}"]


def packages_in_use(learner: Learner) -> list[str] | None:
    """Return the compiled packages that a learner has used; none if its updates run eagerly."""
    return learner.packages if isinstance(learner, CompilingLearner) else None


def _changed_entries(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describe the changed entries; entries that an older checkpoint lacks are not compared."""
    return [
        f"{name} {old} then, {now.get(name, 'unknown')} now" for name, old in before.items() if now.get(name) != old
    ]


def _compile_changes(config: TrainConfig, metadata: Mapping[str, Any]) -> list[str]:
    """Report a change between compiled and eager updates, which differ in their last bits."""
    if config.compile != "on" or "packages" not in metadata:
        return []
    before = metadata["packages"]
    if before is None:
        return ["updates ran eagerly before and are compiled now"] if compiler_found() else []
    if compiler_found() or (before and all(map(has_package, before))):
        return []
    return [EAGER_NOW]


def _draw_changes(saved: CheckpointState) -> list[str]:
    """Report an older checkpoint, from a run in which all envs drew their actions from one generator."""
    known = saved.trainer_state.keys() & {"acting", "groups"}
    return [] if known else ["actions are drawn differently since this checkpoint was saved"]


def _budget_changes(config: TrainConfig, saved: CheckpointState, scheduled: Sequence[str]) -> list[str]:
    """Report a changed budget if a schedule depends on it."""
    before = saved.config.get("total_timesteps")
    if before == config.total_timesteps or not scheduled:
        return []
    return [f"total_timesteps {before} then, {config.total_timesteps} now, which changes {', '.join(scheduled)}"]
