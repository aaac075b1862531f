"""Choosing the values of a new trial. The choice depends only on the study's seed and its trials.

A resumed study therefore makes the same choices as an uninterrupted one, and samplers have no state to save. The order
in which a space lists its parameters matters only for a grid.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError, describe_error
from rl_training.experiment.search_space import Choices, Range, SearchSpace, Values
from rl_training.experiment.studies import StudySettings, Trial

_START_TRIALS = 10  # drawn at random before TPE learns from them
_MAX_GRID = 1_000_000
_JOURNAL = "optuna.journal"


def import_optuna() -> Any:
    """Import Optuna, or say how to install it."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tuning needs Optuna: pip install 'rl-training[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def count_grid(space: SearchSpace) -> int:
    """Return the number of points of a grid over the space. Refuse ranges whose values cannot be listed."""
    return math.prod(len(_grid_values(name, values)) for name, values in space.parameters.items())


def _grid_values(name: str, values: Values) -> Sequence[Any]:
    if isinstance(values, Choices):
        return values.choices
    if values.scale == "powers_of_two":
        return [2**power for power in range(int(math.log2(values.low)), int(math.log2(values.high)) + 1)]
    if values.is_whole and values.scale == "linear" and values.high - values.low < _MAX_GRID:
        return range(int(values.low), int(values.high) + 1)
    raise ConfigError(
        f"{name}: the grid sampler needs a list of values, powers of two, or a short range of whole numbers"
    )


def suggest(settings: StudySettings, space: SearchSpace, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the values of the next trial, given all trials before it."""
    number = len(trials)
    if settings.sampler == "grid":
        points = product(*(_grid_values(name, values) for name, values in space.parameters.items()))
        return dict(zip(space.parameters, next(p for i, p in enumerate(points) if i == number), strict=True))
    if settings.sampler == "cmaes":
        return _suggest_by_cmaes(settings, space, trials)
    optuna = import_optuna()
    seed = _draw_seed(settings, number)
    if settings.sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_START_TRIALS, multivariate=True)
    else:
        sampler = optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials(frozen_trials(settings, space, trials))
    drawn = study.ask(_distributions(space)).params
    return {name: _from_optuna(drawn[name], values) for name, values in space.parameters.items()}


def _draw_seed(settings: StudySettings, number: int) -> int:
    return int(np.random.SeedSequence((settings.seed, number)).generate_state(1)[0])


def _distributions(space: SearchSpace) -> dict[str, Any]:
    return {name: _distribution(values) for name, values in sorted(space.parameters.items())}


def _distribution(values: Values) -> Any:
    kinds = import_optuna().distributions
    if isinstance(values, Choices):
        return kinds.CategoricalDistribution([json.dumps(value) for value in values.choices])
    if values.scale == "powers_of_two":
        return kinds.IntDistribution(int(math.log2(values.low)), int(math.log2(values.high)))
    if values.scale == "one_minus_log":
        return kinds.FloatDistribution(1.0 - values.high, 1.0 - values.low, log=True)
    kind = kinds.IntDistribution if values.is_whole else kinds.FloatDistribution
    return kind(values.low, values.high, log=values.scale == "log")


def _from_optuna(drawn: Any, values: Values) -> Any:
    if isinstance(values, Choices):
        return json.loads(drawn)
    if values.scale == "powers_of_two":
        return 2**drawn
    return 1.0 - drawn if values.scale == "one_minus_log" else drawn


def _to_optuna(value: Any, values: Values) -> Any:
    if isinstance(values, Choices):
        return json.dumps(value)
    if values.scale == "powers_of_two":
        inner: Any = int(math.log2(value))
    else:
        inner = 1.0 - value if values.scale == "one_minus_log" else value
    low, high = _distribution(values).low, _distribution(values).high
    return min(max(inner, low), high)  # `at_most` may be below the range, and 1 - (1 - x) may miss x by its last bit


def frozen_trials(settings: StudySettings, space: SearchSpace, trials: Sequence[Trial]) -> list[Any]:
    """Convert trials to Optuna's: complete at the last rung, pruned at an earlier rung or if failed, else running."""
    optuna = import_optuna()
    return [_frozen(optuna.trial, settings, space, trial) for trial in trials]


def _frozen(kinds: Any, settings: StudySettings, space: SearchSpace, trial: Trial) -> Any:
    reached = [] if trial.failure else trial.values
    states = kinds.TrialState
    running = not trial.failure and not reached
    complete = len(reached) == settings.rungs
    return kinds.create_trial(
        state=states.RUNNING if running else states.COMPLETE if complete else states.PRUNED,
        value=reached[-1] if complete else None,
        params={name: _to_optuna(trial.params[name], values) for name, values in space.parameters.items()},
        distributions=_distributions(space),
        intermediate_values=dict(zip(settings.budgets, reached, strict=False)),
        user_attrs={
            "runs": [run.run_dir for run in trial.runs],
            **({"failure": trial.failure} if trial.failure else {}),
        },
    )


def _suggest_by_cmaes(settings: StudySettings, space: SearchSpace, trials: Sequence[Trial]) -> dict[str, Any]:
    """Draw numbers with CMA-ES, which learns from the values at the first rung, and draw choices at random.

    The optimizer repeats all earlier generations, so it needs no stored state.
    """
    from cmaes import CMA

    ranges = {name: values for name, values in sorted(space.parameters.items()) if isinstance(values, Range)}
    if len(ranges) < 2:
        raise ConfigError("the cmaes sampler needs a space with at least two ranges of numbers: use tpe")
    optimizer = CMA(
        mean=np.full(len(ranges), 0.5),
        sigma=0.25,
        bounds=np.tile([0.0, 1.0], (len(ranges), 1)),
        seed=_draw_seed(settings, 0),
    )
    size = optimizer.population_size
    for start in range(0, len(trials) - size + 1, size):
        for _ in range(size):  # repeats the draws of this generation
            optimizer.ask()
        optimizer.tell(_losses(ranges, trials[start : start + size]))
    for _ in range(len(trials) % size):
        optimizer.ask()
    point = optimizer.ask()
    random = np.random.default_rng(_draw_seed(settings, len(trials)))
    drawn = {name: _at(float(point[index]), values) for index, (name, values) in enumerate(ranges.items())}
    choices = {name: values.choices for name, values in sorted(space.parameters.items()) if isinstance(values, Choices)}
    return drawn | {name: options[int(random.integers(len(options)))] for name, options in choices.items()}


def _losses(ranges: Mapping[str, Range], trials: Sequence[Trial]) -> list[tuple[Any, float]]:
    """Pair the points of a generation with losses; a trial without a value counts as the worst."""
    points = [np.array([_share(trial.params[name], values) for name, values in ranges.items()]) for trial in trials]
    found = [trial.values[0] if trial.values and not trial.failure else -math.inf for trial in trials]
    worst = min((value for value in found if value > -math.inf), default=0.0)
    return [(point, -max(value, worst)) for point, value in zip(points, found, strict=True)]


def _share(value: Any, values: Range) -> float:
    """Return the position of a value in a range, from 0 (the low end) to 1 (the high end): the inverse of `_at`."""
    inner, place = _distribution(values), _to_optuna(value, values)
    low, high = (math.log(inner.low), math.log(inner.high)) if inner.log else (inner.low, inner.high)
    return ((math.log(place) if inner.log else place) - low) / (high - low)


def _at(share: float, values: Range) -> Any:
    """Return the value at a position in a range, from 0 (the low end) to 1 (the high end)."""
    inner = _distribution(values)
    low, high = (math.log(inner.low), math.log(inner.high)) if inner.log else (inner.low, inner.high)
    place = low + share * (high - low)
    place = math.exp(place) if inner.log else place
    if isinstance(inner.low, int):
        place = round(place)
    return _from_optuna(min(max(place, inner.low), inner.high), values)


def find_importance(settings: StudySettings, space: SearchSpace, trials: Sequence[Trial]) -> dict[str, float]:
    """Return how much each parameter separates good trials from others, as shares (PED-ANOVA, Watanabe et al. 2023).

    Trials are compared at the first rung, which all of them reach. The result is empty if too few trials have a value.
    """
    optuna = import_optuna()
    first = settings.model_copy(update={"rungs": 1})
    reached = [trial for trial in trials if trial.values and not trial.failure]
    if len(reached) < _START_TRIALS:
        return {}
    study = optuna.create_study(direction="maximize")
    cut = [_up_to_first_rung(trial) for trial in reached]
    study.add_trials(frozen_trials(first, space, cut))
    found = optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.PedAnovaImportanceEvaluator(), normalize=True
    )
    return {name: float(share) for name, share in found.items()}


def _up_to_first_rung(trial: Trial) -> Trial:
    runs = tuple(run.model_copy(update={"values": run.values[:1]}) for run in trial.runs)
    return trial.model_copy(update={"runs": runs})


def check_storage(settings: StudySettings) -> None:
    """Refuse an Optuna storage that cannot be opened."""
    if settings.storage is not None:
        optuna = import_optuna()
        try:
            optuna.storages.get_storage(settings.storage)
        except Exception as error:  # any error of any database
            raise ConfigError(f"storage={settings.storage!r} cannot be opened: {describe_error(error)}") from None


def write_to_storage(study_dir: Path, settings: StudySettings, space: SearchSpace, trials: Sequence[Trial]) -> None:
    """Write all trials to Optuna's storage, for its dashboard and plots; replace what an earlier call wrote."""
    optuna = import_optuna()
    if settings.storage is None:
        (study_dir / _JOURNAL).unlink(missing_ok=True)
        journal = optuna.storages.journal
        storage = optuna.storages.JournalStorage(journal.JournalFileBackend(str(study_dir / _JOURNAL)))
    else:
        storage = optuna.storages.get_storage(settings.storage)
        if study_dir.name in optuna.get_all_study_names(storage):
            optuna.delete_study(study_name=study_dir.name, storage=storage)
    study = optuna.create_study(direction="maximize", study_name=study_dir.name, storage=storage)
    study.add_trials(frozen_trials(settings, space, trials))
