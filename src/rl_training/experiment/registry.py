"""The algorithms there are. One row here is all that train, evaluate, resume, API and command line need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl_training.errors import Problem
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.validation import StrictModel, config_error, nearest_name
from rl_training.policies.base import Array
from rl_training.runtime.agents import Agent, BuildLearner, evaluate_agent, predict_action
from rl_training.runtime.plan import TrainingPlan
from rl_training.runtime.ppo_trainer import build_ppo_learner, plan_ppo, resolve_ppo_params, train_ppo
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.types import MetricDict


@dataclass(frozen=True)
class AlgorithmSpec:
    """What the layers above need to know of an algorithm."""

    name: str
    train_fn: Callable[..., TrainResult]
    """`(config, *, run_suffix, checkpoint_state, callbacks, run_dir)`."""
    evaluate_fn: Callable[[Agent, int], MetricDict]
    predict_fn: Callable[[Agent, Any, bool], int | Array]
    resolve_params_fn: Callable[[TrainConfig], StrictModel]
    """Validates `algo_kwargs`, also against the rest of the config."""
    build_learner_fn: BuildLearner
    plan_fn: Callable[[TrainConfig], TrainingPlan]


_SPECS = {
    spec.name: spec
    for spec in (
        AlgorithmSpec(
            name="ppo",
            train_fn=train_ppo,
            evaluate_fn=evaluate_agent,
            predict_fn=predict_action,
            resolve_params_fn=resolve_ppo_params,
            build_learner_fn=build_ppo_learner,
            plan_fn=plan_ppo,
        ),
    )
}


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """All registered algorithms, by name."""
    return [_SPECS[name] for name in sorted(_SPECS)]


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The algorithm of this name, or an error that says which there are."""
    if name in _SPECS:
        return _SPECS[name]
    nearest = nearest_name(name, _SPECS)
    hint = f"did you mean '{nearest}'?" if nearest else f"registered: {', '.join(sorted(_SPECS))}"
    raise config_error([Problem(("algo",), f"algo={name!r}: unknown algorithm; {hint}")])
