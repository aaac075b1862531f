"""The algorithms there are. One row here is all that train, evaluate, resume, API and command line need."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from rl_training.algorithms.dqn import DQNParams
from rl_training.algorithms.ppo import PPOParams
from rl_training.algorithms.sac import SACParams
from rl_training.errors import Problem
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.validation import StrictModel, config_error, nearest_name
from rl_training.policies.base import Array
from rl_training.runtime.agents import Agent, BuildLearner, evaluate_agent, predict_action
from rl_training.runtime.dqn_trainer import build_dqn_learner, plan_dqn, resolve_dqn_params, train_dqn
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.ppo_trainer import build_ppo_learner, plan_ppo, resolve_ppo_params, train_ppo
from rl_training.runtime.sac_trainer import build_sac_learner, plan_sac, resolve_sac_params, train_sac
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.types import MetricDict

PLUGIN_GROUP = "rl_training.algorithms"


@dataclass(frozen=True)
class AlgorithmSpec:
    """What the layers above need to know of an algorithm."""

    name: str
    train_fn: Callable[..., TrainResult]
    """`(config, *, run_suffix, checkpoint_state, callbacks, run_dir)`."""
    evaluate_fn: Callable[[Agent, int], MetricDict]
    predict_fn: Callable[[Agent, Any, bool], int | Array]
    params_model: type[StrictModel]
    """What `algo_kwargs` may hold."""
    resolve_params_fn: Callable[[TrainConfig], StrictModel]
    """Validates `algo_kwargs`, also against the rest of the config."""
    build_learner_fn: BuildLearner
    plan_fn: Callable[[TrainConfig], TrainingPlan]


_BUILT_IN = (
    AlgorithmSpec(
        name="ppo",
        train_fn=train_ppo,
        evaluate_fn=evaluate_agent,
        predict_fn=predict_action,
        params_model=PPOParams,
        resolve_params_fn=resolve_ppo_params,
        build_learner_fn=build_ppo_learner,
        plan_fn=plan_ppo,
    ),
    AlgorithmSpec(
        name="dqn",
        train_fn=train_dqn,
        evaluate_fn=evaluate_agent,
        predict_fn=predict_action,
        params_model=DQNParams,
        resolve_params_fn=resolve_dqn_params,
        build_learner_fn=build_dqn_learner,
        plan_fn=plan_dqn,
    ),
    AlgorithmSpec(
        name="sac",
        train_fn=train_sac,
        evaluate_fn=evaluate_agent,
        predict_fn=predict_action,
        params_model=SACParams,
        resolve_params_fn=resolve_sac_params,
        build_learner_fn=build_sac_learner,
        plan_fn=plan_sac,
    ),
)


@cache
def _specs() -> dict[str, AlgorithmSpec]:
    """The built-in algorithms, and those that installed packages offer in the entry-point group."""
    specs = {spec.name: spec for spec in _BUILT_IN}
    for entry_point in entry_points(group=PLUGIN_GROUP):
        try:
            spec = entry_point.load()
        except Exception as error:  # a broken plugin must not take the others down
            warnings.warn(f"algorithm plugin {entry_point.value} cannot be loaded: {error!r}", stacklevel=2)
            continue
        if not isinstance(spec, AlgorithmSpec) or spec.name in specs:
            warnings.warn(f"algorithm plugin {entry_point.value} is no AlgorithmSpec with a new name", stacklevel=2)
            continue
        specs[spec.name] = spec
    return specs


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """All registered algorithms, by name."""
    return [spec for _, spec in sorted(_specs().items())]


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of this name, or an error that says which there are."""
    specs = _specs()
    if name in specs:
        return specs[name]
    nearest = nearest_name(name, specs)
    hint = f"did you mean '{nearest}'?" if nearest else f"registered: {', '.join(sorted(specs))}"
    raise config_error([Problem(("algo",), f"algo={name!r}: unknown algorithm; {hint}")])
