"""Why a resumed run may not continue to the last bit as if it had never stopped."""

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
from rl_training.experiment.config import TrainConfig, binding_changes, plain_config
from rl_training.runtime.run_utils import hardware, versions

EAGER_NOW = "updates were compiled before, and cannot be compiled here"


def find_differences(config: TrainConfig, saved: CheckpointState, scheduled: Sequence[str]) -> list[str]:
    """Say what differs from the machine, the code and the config that the checkpoint was made with.

    `scheduled` names the parameters of the algorithm whose values depend on the planned budget.
    """
    return [
        *_changes(saved.metadata.get("versions", {}), versions(config.env_id)),
        *_changes(saved.metadata.get("hardware", {}), hardware(config)),
        *_compile_changes(config, saved.metadata),
        *_draw_changes(saved),
        *_budget_changes(config, saved, scheduled),
        *binding_changes(plain_config(TrainConfig(**saved.config)), plain_config(config)),
    ]


def check_replays(config: TrainConfig, samples: Sequence[ReplaySample]) -> list[str]:
    """Return how fresh envs failed to reproduce the env from its seed and actions; empty if they did not fail."""
    answer_seconds = RESET_PATIENCE * (config.step_timeout or WORKER_STEP_TIMEOUT)
    difference = replay_difference(replay_factory(config), samples, config.seed, answer_seconds)
    return [] if difference is None else [f"{config.env_id} {difference}"]


def packages_in_use(learner: Learner) -> list[str] | None:
    """Return the compiled packages that a learner has used; none when its updates run eagerly."""
    return learner.packages if isinstance(learner, CompilingLearner) else None


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Compare what the checkpoint names; an older one names less."""
    return [
        f"{name} {old} then, {now.get(name, 'unknown')} now" for name, old in before.items() if now.get(name) != old
    ]


def _compile_changes(config: TrainConfig, metadata: Mapping[str, Any]) -> list[str]:
    """Compiled and eager updates differ in their last bits."""
    if config.compile != "on" or "packages" not in metadata:
        return []
    before = metadata["packages"]
    if before is None:
        return ["updates ran eagerly before, and are compiled now"] if compiler_found() else []
    if compiler_found() or (before and all(map(has_package, before))):
        return []
    return [EAGER_NOW]


def _draw_changes(saved: CheckpointState) -> list[str]:
    """Older checkpoints come from runs in which all envs drew their actions from one generator."""
    return [] if "acting" in saved.trainer_state else ["actions are drawn in another way since this checkpoint"]


def _budget_changes(config: TrainConfig, saved: CheckpointState, scheduled: Sequence[str]) -> list[str]:
    """A schedule follows the planned budget from its first step on."""
    before = saved.config.get("total_timesteps")
    if before == config.total_timesteps or not scheduled:
        return []
    return [f"total_timesteps {before} then, {config.total_timesteps} now, which changes {', '.join(scheduled)}"]
