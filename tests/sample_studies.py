"""Study directories with known numbers, written as `tune` writes them."""

import math
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig, plain_config
from rl_training.experiment.studies import (
    StudyRecord,
    StudySettings,
    Trial,
    create_study,
    make_trial,
    write_study,
)
from rl_training.groups.halving import find_best, find_last_promotion, find_promotion

SPACE: dict[str, Any] = {
    "num_steps": {"low": 32, "high": 1024, "scale": "powers_of_two"},
    "minibatch_size": {"low": 16, "high": 1024, "scale": "powers_of_two", "at_most": "num_steps * num_envs"},
    "learning_rate": {"low": 1e-5, "high": 1e-2, "scale": "log"},
    "gamma": {"low": 0.9, "high": 0.9999, "scale": "one_minus_log"},
    "clip_coef": {"low": 0.1, "high": 0.4},
    "hidden_sizes": [[64], [64, 64], [256, 256]],
    "activation": ["tanh", "relu"],
}
START: dict[str, Any] = {
    "num_steps": 64,
    "minibatch_size": 64,
    "learning_rate": {"schedule": "linear", "start": 1e-3, "end": 0.0},
    "gamma": 0.99,
    "clip_coef": 0.2,
    "hidden_sizes": [64, 64],
    "activation": "tanh",
}
CONFIRMATION: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "score": "final",
    "metric": "return",
    "verdict": "better",
    "sentence": "B is better than A: its interquartile mean is 90.0 higher than that of A.",
    "notes": ["a note about the comparison"],
    "a": {
        "label": "start",
        "seeds": [2, 3, 4, 5],
        "scores": [300.0, 310.0, 290.0, 305.0],
        "iqm": {"value": 302.5, "interval": {"low": 290.0, "high": 310.0, "confidence": 0.95}},
    },
    "b": {
        "label": "trial0000",
        "seeds": [2, 3, 4, 5],
        "scores": [390.0, 400.0, 385.0, 395.0],
        "iqm": {"value": 392.5, "interval": {"low": 385.0, "high": 400.0, "confidence": 0.95}},
    },
}


def drawn(number: int) -> dict[str, Any]:
    """The parameters of a trial, spread over the whole space."""
    share = (number * 0.6180339887) % 1.0
    return {
        "num_steps": 2 ** (5 + number % 6),
        "minibatch_size": 2 ** min(4 + number % 7, 5 + number % 6),  # at most the steps of a rollout
        "learning_rate": 10.0 ** (-5.0 + 3.0 * share),
        "gamma": 1.0 - 10.0 ** (-1.0 - 3.0 * ((number * 0.414) % 1.0)),
        "clip_coef": 0.1 + 0.3 * ((number * 0.732) % 1.0),
        "hidden_sizes": SPACE["hidden_sizes"][number % 3],
        "activation": SPACE["activation"][number % 2],
    }


def _value(trial: Trial, rung: int) -> float:
    rate = math.log10(trial.params["learning_rate"])
    return 100.0 * (rung + 2) - 40.0 * abs(rate + 3.0) + 10.0 * math.sin(trial.number)


def write_sample_study(
    output_dir: Path, trials: int = 9, *, failures: tuple[int, ...] = (), rungs: int = 3, **changes: Any
) -> Path:
    """A study whose trials were promoted as `tune` does; keywords change the content of `study.json`.

    `failures` are the numbers of trials that failed before they had a value.
    """
    config = TrainConfig(
        algo="ppo", env_id="CartPole-v1", total_timesteps=9_000, num_envs=1, algo_kwargs=START, output_dir=output_dir
    )
    settings = StudySettings(config=plain_config(config), space=SPACE, trials=max(trials, 1), rungs=rungs)
    study_dir, record = create_study(
        output_dir,
        settings,
        jobs=1,
        started_at="2026-01-01T00:00:00+0000",
        command=["/usr/bin/rl-training", "tune", "--algo", "ppo"],
        versions={"torch": "2.13"},
        git_commit="abc",
        host={"name": "here", "cpus": 2},
    )
    for number in range(trials):
        trial = make_trial(settings, number, drawn(number))
        if number in failures:
            record = record.with_trial(trial.model_copy(update={"failure": f"trial {number} met NaN"}))
        else:
            record = _trained(record, settings, trial)
            while promoted := find_promotion(record.trials, rungs, settings.reduction):
                record = _promoted(record, settings, promoted)
    while promoted := find_last_promotion(record.trials, rungs):
        record = _promoted(record, settings, promoted)
    best = find_best(record.trials)
    ended = {"status": "completed", "ended_at": "2026-01-01T00:10:00+0000", "best_trial": best.number if best else None}
    write_study(study_dir, record.model_copy(update={**ended, **changes}))
    return study_dir


def _promoted(record: StudyRecord, settings: StudySettings, trial: Trial) -> StudyRecord:
    return _trained(record, settings, trial.model_copy(update={"rung": trial.rung + 1}))


def _trained(record: StudyRecord, settings: StudySettings, trial: Trial) -> StudyRecord:
    """Add the value of the trial at its rung."""
    (run,) = trial.runs
    values = (*run.values, _value(trial, trial.rung))
    return record.with_trial(
        trial.with_run(run.model_copy(update={"values": values, "steps": settings.budgets[trial.rung]}))
    )


def confirmation_of(trial: int) -> dict[str, Any]:
    """The result of a confirmation of this trial."""
    return {**CONFIRMATION, "b": {**CONFIRMATION["b"], "label": f"trial{trial:04d}"}}
