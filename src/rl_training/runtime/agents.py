"""Agents in memory: a learner rebuilt from a config or a checkpoint, ready for predictions and evaluations."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.algorithms.base import Learner
from rl_training.envs.episodes import choices_of, out_of_range
from rl_training.envs.factory import make_env
from rl_training.envs.packed import choices_of_actions, read_mask
from rl_training.errors import CheckpointError, ConfigError, EnvironmentSetupError, ObservationError, describe_error
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.packing import PackedActions, PackedObservations, select_row
from rl_training.policies.base import Array, Policy
from rl_training.runtime.evaluator import EvalResult, Evaluator, check_evaluation_env
from rl_training.runtime.run_utils import limited_threads, refusing_misfits
from rl_training.runtime.types import MetricDict
from rl_training.runtime.watchdog import Watchdog
from rl_training.stored_spaces import build_space, describe_space

AgentSpaces = tuple[spaces.Space[Any], spaces.Space[Any]]
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
    """Build an agent on the CPU, untrained or with the weights of `state`.

    The environment is made only if `state` does not contain its spaces, as in older checkpoints.
    """
    config = config.model_copy(update={"device": "cpu"})
    stored = None if state is None else state.metadata.get("spaces")
    observation_space, action_space = _env_spaces(config) if stored is None else _stored_spaces(stored)
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


def _env_spaces(config: TrainConfig) -> AgentSpaces:
    with closing(make_env(config, 0)) as env:
        return env.observation_space, env.action_space


def describe_spaces(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> dict[str, Any] | None:
    """Return the spaces of an agent as plain values for its checkpoints; none if they cannot be stored."""
    described = {"observation": describe_space(observation_space), "action": describe_space(action_space)}
    return None if None in described.values() else described


def _stored_spaces(stored: Any) -> AgentSpaces:
    if not isinstance(stored, dict) or stored.keys() != {"observation", "action"}:
        raise CheckpointError("the spaces in the checkpoint are refused: expected an observation and an action space")
    return build_space(stored["observation"], "observation"), build_space(stored["action"], "action")


def with_spaces(state: CheckpointState, agent: Agent) -> CheckpointState:
    """Return the state with the spaces of its agent, which older checkpoints do not have."""
    described = describe_spaces(agent.observation_space, agent.action_space)
    return replace(state, metadata={**state.metadata, **({"spaces": described} if described else {})})


def check_env_fits(agent: Agent) -> None:
    """Make the environment of an agent once; refuse one whose spaces are not those that the agent was trained with."""
    pairs = zip(
        ("observation", "action"), _env_spaces(agent.config), (agent.observation_space, agent.action_space), strict=True
    )
    for name, given, trained in pairs:
        if given != trained:
            raise EnvironmentSetupError(
                f"{agent.config.env_id} has the {name} space {given}, but the agent was trained with {trained}: "
                "install the version of the environment that it was trained in"
            )


def evaluate_agent(agent: Agent, num_episodes: int) -> MetricDict:
    """Play whole episodes as the config says, on the seeds that training would use at this step."""
    return play_episodes(agent, agent.learner.policy, num_episodes).metrics


def play_episodes(
    agent: Agent, policy: Policy, num_episodes: int, *, interrupted: Callable[[], bool] = lambda: False
) -> EvalResult:
    """Play the evaluation of an agent with a policy; the result has no metrics if it was interrupted."""
    check_env_fits(agent)
    check_evaluation_env(agent.config, agent.observation_space, agent.action_space)
    with (
        limited_threads(agent.config.num_threads),
        closing(Evaluator(agent.config)) as evaluator,
        Watchdog(agent.config, [evaluator.calls]),
    ):
        return evaluator.evaluate(policy, num_episodes, agent.step, interrupted=interrupted)


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
    packed = space if isinstance(space, PackedObservations) else None
    if action_masks is not None and (packed is None or packed.mask is None):
        raise ConfigError("this agent was trained without masks of legal actions: leave action_masks= out")
    if packed is not None:
        rows, single = _pack_rows(packed, choices_of_actions(agent.action_space), obs, action_masks)
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
    rows = given[None] if single else given
    _check_numbers(rows, single=single)
    return rows, single


def _check_numbers(rows: Array, *, single: bool) -> None:
    """Refuse observations that are not numbers or not finite."""
    if rows.dtype.kind not in "biuf":
        raise ConfigError(f"an observation must consist of numbers, got {rows.dtype}")
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        index, *place = np.argwhere(~np.isfinite(rows))[0].tolist()
        which = "the observation" if single else f"observation {index} of the batch"
        raise ConfigError(f"component {place} of {which} is {rows[index][tuple(place)]}")


def _pack_rows(space: PackedObservations, choices: Sequence[int], obs: Any, masks: Any) -> tuple[Array, bool]:
    """Return nested observations as rows, and whether only one was given; an action consists of these choices."""
    if masks is None and space.mask is not None:
        masks = _observed_masks(space, obs)
    try:
        first = space.leaves[0]
        given = np.shape(first.value_in(obs))
        if given == first.shape:
            return space.pack(obs, None if masks is None else read_mask(masks, choices))[None], True
        singles = [select_row(space.original, obs, row) for row in range(given[0])]
        each = [None] * len(singles) if masks is None else [read_mask(mask, choices) for mask in masks]
        return np.stack([space.pack(*pair) for pair in zip(singles, each, strict=True)]), False
    except ObservationError as error:
        raise ConfigError(str(error)) from None
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"an observation must be one of {space.original}: {describe_error(error)}") from None


def _observed_masks(space: PackedObservations, obs: Any) -> Any:
    if space.without is None:
        raise ConfigError("this agent was trained with masks of legal actions: give action_masks=")
    return obs[space.without]
