"""Agents in memory: a learner rebuilt from a config or a checkpoint, ready for predictions and evaluations."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.base import Learner
from rl_training.envs.episodes import choices_of, out_of_range
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, describe_error
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.packing import PackedActions, PackedObservations, select_row
from rl_training.policies.base import Array
from rl_training.runtime.evaluator import Evaluator, check_evaluation_env
from rl_training.runtime.run_utils import limited_threads, refusing_misfits
from rl_training.runtime.types import MetricDict
from rl_training.runtime.watchdog import Watchdog

BuildLearner = Callable[[TrainConfig, spaces.Space[Any], spaces.Space[Any]], Learner]


@dataclass(frozen=True)
class Agent:
    """A learner with the spaces it was built for; `step` is the env step up to which it was trained."""

    config: TrainConfig
    learner: Learner
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    step: int = 0


def build_agent(build_learner: BuildLearner, config: TrainConfig, state: CheckpointState | None = None) -> Agent:
    """Build an agent on the CPU, untrained or with the weights of `state`."""
    config = config.model_copy(update={"device": "cpu"})
    with closing(make_env(config, 0)) as env:
        observation_space, action_space = env.observation_space, env.action_space
    with limited_threads(config.num_threads):
        learner = build_learner(config, observation_space, action_space)
    if state is None:
        return Agent(config, learner, observation_space, action_space)
    with refusing_misfits(config):
        learner.load_state_dict(state.algorithm_state)
        step = int(state.trainer_state["global_step"])
    return Agent(config, learner, observation_space, action_space, step)


def with_evaluation(agent: Agent, **changes: Any) -> Agent:
    """Return the agent with other values of config fields such as `eval_seed`; a value of None changes nothing."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(agent, config=TrainConfig(**{**plain_config(agent.config), **given})) if given else agent


def evaluate_agent(agent: Agent, num_episodes: int) -> MetricDict:
    """Play whole episodes as the config says, on the seeds that training would use at this step."""
    check_evaluation_env(agent.config, agent.observation_space, agent.action_space)
    with (
        limited_threads(agent.config.num_threads),
        closing(Evaluator(agent.config)) as evaluator,
        Watchdog(agent.config, [evaluator.calls]),
    ):
        return evaluator.evaluate(agent.learner.policy, num_episodes, agent.step).metrics


def _check_choices(space: spaces.Space[Any], given: Array) -> None:
    """Refuse observations that are not in a Discrete space."""
    choices = choices_of(space)
    if choices is None:
        return
    if given.dtype.kind not in "iu":
        raise ConfigError(f"an observation must be an integer from {choices.start} to {choices.stop - 1}, got {given}")
    for value in given.ravel().tolist():
        if value not in choices:
            raise ConfigError(out_of_range(choices, value))


def predict_action(agent: Agent, obs: Any, deterministic: bool = True, action_masks: Any = None) -> Any:
    """Return an env action for one observation, or one per row of a batch; a single discrete action is an `int`.

    `action_masks` are needed if the agent was trained with masks that are not a part of its observations.
    """
    space = agent.observation_space
    if isinstance(space, PackedObservations):
        rows, single = _pack_rows(space, obs, action_masks)
    else:
        rows, single = _batch_of(space, obs)
    actions = agent.learner.policy.predict(rows, deterministic=deterministic)
    if isinstance(agent.action_space, PackedActions):
        unpacked = [agent.action_space.unpack(row) for row in actions]
        return unpacked[0] if single else unpacked
    if not single:
        return actions
    action: Array = actions[0]
    return int(action) if isinstance(agent.action_space, spaces.Discrete) else action


def _batch_of(space: spaces.Space[Any], obs: Any) -> tuple[Array, bool]:
    """Return observations as a batch, and whether only one was given."""
    given, expected = np.asarray(obs), space.shape
    single = given.shape == expected
    if not single and given.shape[1:] != expected:
        raise ConfigError(
            f"expected an observation of shape {expected} or a batch of shape (n, *{expected}), got {given.shape}"
        )
    _check_choices(space, given)
    return given[None] if single else given, single


def _pack_rows(space: PackedObservations, obs: Any, masks: Any) -> tuple[Array, bool]:
    """Return nested observations as rows, and whether only one was given."""
    if masks is None and space.mask is not None:
        masks = _observed_masks(space, obs)
    try:
        first = space.leaves[0]
        given = np.shape(first.value_in(obs))
        if given == first.shape:
            return space.pack(obs, masks)[None], True
        singles = [select_row(space.original, obs, row) for row in range(given[0])]
        each = [None] * len(singles) if masks is None else list(masks)
        return np.stack([space.pack(*pair) for pair in zip(singles, each, strict=True)]), False
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"an observation must be one of {space.original}: {describe_error(error)}") from None


def _observed_masks(space: PackedObservations, obs: Any) -> Any:
    if space.without is None:
        raise ConfigError("this agent was trained with masks of legal actions: give action_masks=")
    return obs[space.without]
