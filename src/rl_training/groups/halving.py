"""Successive halving with promotion: which trial of a study trains next (ASHA, Li et al. 2020).

Every trial trains to the first rung. The best trials of a rung, one in `reduction`, continue to the next rung.
A trial that is not promoted is paused, so it can still be promoted when more trials have reached its rung.
"""

from collections.abc import Sequence

from rl_training.experiment.studies import Trial


def find_promotion(trials: Sequence[Trial], num_rungs: int, reduction: int) -> Trial | None:
    """Return the paused trial that has earned a promotion, at the highest rung if there are several."""
    for rung in reversed(range(num_rungs - 1)):
        ranking = _ranking(trials, rung)
        for trial in ranking[: len(ranking) // reduction]:
            if trial.status(num_rungs) == "paused" and trial.rung == rung:
                return trial
    return None


def find_last_promotion(trials: Sequence[Trial], num_rungs: int) -> Trial | None:
    """Return the best trial if none has reached the last rung yet, because a study trains at least one to the end."""
    best = find_best(trials)
    return best if best is not None and best.status(num_rungs) == "paused" else None


def find_best(trials: Sequence[Trial]) -> Trial | None:
    """Return the best trial at the highest rung that any trial has reached."""
    reached = [len(trial.values) for trial in trials if not trial.failure]
    ranking = _ranking(trials, max(reached) - 1) if any(reached) else []
    return ranking[0] if ranking else None


def _ranking(trials: Sequence[Trial], rung: int) -> list[Trial]:
    """Return the trials that have reached a rung, the best first; of equal trials, the older one comes first."""
    reached = [trial for trial in trials if len(trial.values) > rung and not trial.failure]
    return sorted(reached, key=lambda trial: -trial.values[rung])
