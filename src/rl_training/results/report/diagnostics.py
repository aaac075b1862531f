"""Hints about runs that did not go well. Each check looks at logged metrics and says what it found and what to try.

The thresholds are chosen so that successful runs of the presets get no hint.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.results.curves import Curve
from rl_training.results.loading import Run
from rl_training.results.statistics import FloatArray, format_score

MIN_POINTS = 8
"""Number of logged values that a metric needs before a check looks at it."""
EARLY_SHARE = 0.25
"""Share of the budget that counts as early in a run."""
ENTROPY_SHARE = 0.05
"""Share of the initial entropy below which a PPO policy hardly explores."""
SOFT_ENTROPY_SHARE = -6.0
"""The same for SAC, whose entropy falls to -1.5 times its initial value by design."""
FLAT_SHARE = 0.05
"""Largest range of a curve that counts as not moving, as a share of its largest absolute return."""
HIGH_KL = 0.05
"""KL divergence in nats per update above which a check gives a hint; PPO usually stays several times below it."""
HIGH_CLIP_FRACTION = 0.4
"""Share of the samples of an update that are clipped."""
USUAL_CLIP = 0.2
"""The value of PPO's clip_coef that most people use."""
LOW_EXPLAINED_VARIANCE = 0.2
"""Share of the variance of returns below which a value function is of little use."""
Q_EXCESS = 3.0
"""Limit of Q values, as a multiple of the largest value that the observed rewards allow."""
DROP_OF_RANGE = 0.25
"""How far the last evaluation may be below the best one, as a share of the range of all evaluations."""
DROP_OF_LEVEL = 0.1
"""How far the last evaluation may be below the best one, as a share of the largest absolute evaluation."""

DROP_OF_ERRORS = 4.0
"""How far the last evaluation may be below the best one, in standard errors of an evaluation.

The best of many equally good evaluations is two or three standard errors above their mean by chance.
"""


@dataclass(frozen=True)
class Hint:
    """A possible problem of one run, and what to try."""

    title: str
    observation: str
    consequence: str
    advice: str


def find_hints(run: Run) -> list[Hint]:
    """Run all checks and return their hints; a healthy run has none."""
    return [hint for check in CHECKS if (hint := check(run)) is not None]


def loss_not_finite(run: Run) -> Hint | None:
    """Check whether a gradient step was rejected or a training metric was not finite."""
    refused = str(run.metadata.get("error") or "")
    names = {name for row in run.rows for name, value in row.items() if name.startswith("train/") and value is None}
    if not names and not refused.startswith("NonFiniteUpdateError"):
        return None
    return Hint(
        "Loss not finite",
        f"not finite: {', '.join(sorted(names))}" if names else refused,
        "A gradient step that is not finite is rejected, so the agent learns nothing from it.",
        f"Look at the batch with `rl-training replay {run.run_dir}`. Lower learning_rate, and check with "
        "`rl-training check-env` whether rewards and observations are bounded.",
    )


def return_never_moved(run: Run) -> Hint | None:
    """Check whether training and evaluation returns stayed where they began."""
    curves = [curve for curve in (run.training, run.evaluation) if len(curve)]
    if not any(len(curve) >= MIN_POINTS for curve in curves) or not all(_is_flat(curve) for curve in curves):
        return None
    level = curves[0].values
    return Hint(
        "Return never moved",
        f"the return stayed between {format_score(float(level.min()))} and {format_score(float(level.max()))}",
        "The agent has found nothing to learn from. Often the reward is too rare to be found by chance.",
        _advise(*_ways_to_explore(run), *_plain_advantages(run), "shape the reward", "raise the budget")
        + " If this return is the best possible, ignore this hint.",
    )


def entropy_collapsed(run: Run) -> Hint | None:
    """Check whether the policy became almost deterministic early, and the return did not rise after that."""
    entropy, least = _entropy(run)
    if len(entropy) < MIN_POINTS:
        return None
    low = entropy.steps[entropy.values < least * abs(entropy.values[0])]
    if not len(low) or low[0] > EARLY_SHARE * run.total_timesteps or _rises_after(run, low[0]):
        return None
    first = float(entropy.values[0])
    return Hint(
        "Entropy collapsed early",
        f"entropy fell from {format_score(first)} to below {format_score(least * abs(first))} by env step "
        f"{low[0]:,.0f}, and the return did not rise after that",
        "An almost deterministic policy no longer explores, so it keeps the first behaviour that worked.",
        _advise(*_ways_to_explore(run), "lower learning_rate", *_fewer_epochs(run)),
    )


def kl_too_high(run: Run) -> Hint | None:
    """Check whether updates move the policy further than PPO's objective is valid for."""
    values = run.curve("train/approx_kl").values
    if len(values) < MIN_POINTS or np.median(values) <= HIGH_KL:
        return None
    return Hint(
        "KL too high",
        f"the policy moves by a median KL of {np.median(values):.3f} per update (more than {HIGH_KL:g})",
        "PPO's objective is only valid close to the policy that collected the data.",
        _advise(*_limit_kl(run), "lower learning_rate", *_fewer_epochs(run), *_larger_minibatch(run)),
    )


def clip_fraction_high(run: Run) -> Hint | None:
    """Check whether a large share of the samples of an update is clipped."""
    values = run.curve("train/clip_fraction").values
    if len(values) < MIN_POINTS or np.median(values) <= HIGH_CLIP_FRACTION:
        return None
    return Hint(
        "Clip fraction high",
        f"in half of all updates {100 * float(np.median(values)):.0f} % or more of the samples were clipped "
        f"(more than {100 * HIGH_CLIP_FRACTION:g} %)",
        "Clipped samples have no gradient, so later epochs learn only from the rest.",
        _advise("lower learning_rate", *_fewer_epochs(run), *_wider_clip(run)),
    )


def value_unexplained(run: Run) -> Hint | None:
    """Check whether the value function never explained the returns."""
    values = _while_learning(run, run.curve("train/explained_variance"))
    if len(values) < MIN_POINTS or np.quantile(values, 0.75) >= LOW_EXPLAINED_VARIANCE:
        return None
    return Hint(
        "Value unexplained",
        f"explained variance of the returns is at most {np.quantile(values, 0.75):.2f} in three of four updates",
        "If the value function predicts nothing, the advantages are mostly noise.",
        _advise(
            *(f"set {name}" for name in ("normalize_obs", "normalize_rewards") if _params(run).get(name) is False),
            "raise vf_coef or learning_rate",
            "give the network more units",
        )
        + " Check that the observation contains what decides the return.",
    )


def q_beyond_rewards(run: Run) -> Hint | None:
    """Check whether Q values are far beyond what the observed rewards allow."""
    q_values = run.curve("train/q_mean").values
    params = _params(run)
    most = _largest_value(run, float(params.get("gamma", 0.99)))
    if len(q_values) < MIN_POINTS or most is None or params.get("normalize_rewards"):
        return None
    size = float(np.median(np.abs(q_values[-MIN_POINTS:])))
    if size <= Q_EXCESS * most:
        return None
    return Hint(
        "Q growing without return",
        f"Q values are about {format_score(size)} at the end; the observed rewards allow at most {format_score(most)}",
        "Overestimated values that grow through bootstrapping do not show which action is better.",
        _advise(
            "lower learning_rate or gamma",
            *_slower_target(run),
            *(["set double"] if params.get("double") is False else []),
            "raise batch_size",
            "set normalize_rewards",
        ),
    )


def ends_below_best(run: Run) -> Hint | None:
    """Check whether the last evaluation is far below the best one."""
    values = run.evaluation.values
    if len(values) < 3 or run.status == "running":
        return None
    best, last, where = float(values.max()), float(values[-1]), run.evaluation.steps[int(values.argmax())]
    least = max(DROP_OF_RANGE * (best - float(values.min())), DROP_OF_LEVEL * float(np.abs(values).max()))
    if best - last <= max(least, DROP_OF_ERRORS * _evaluation_error(run)):
        return None
    return Hint(
        "Ends far below its best",
        f"the last evaluation is {format_score(last)}, the best was {format_score(best)} at env step {where:,.0f}",
        "The agent has become worse again, so its final checkpoint is not the best one.",
        f"Use checkpoints/best.pt. {_advise('lower learning_rate', *_falling_rate(run))} If single evaluations are "
        "noisy, evaluate more episodes.",
    )


CHECKS: Sequence[Callable[[Run], Hint | None]] = (
    loss_not_finite,
    return_never_moved,
    entropy_collapsed,
    kl_too_high,
    clip_fraction_high,
    value_unexplained,
    q_beyond_rewards,
    ends_below_best,
)


def _params(run: Run) -> dict[str, Any]:
    """Return the parameters of the algorithm; the config of a run contains all of them, defaults included."""
    return run.config.get("algo_kwargs") or {}


def _advise(*ways: str) -> str:
    """Join the ways into a sentence."""
    *others, last = ways
    text = f"{', '.join(others)} or {last}" if others else last
    return f"{text[0].upper()}{text[1:]}."


def _ways_to_explore(run: Run) -> list[str]:
    """Return how to explore more with the run's own algorithm, beyond what its config already does."""
    params = _params(run)
    ways = ["raise ent_coef"] if "ent_coef" in params else []
    if params.get("exploration_fraction", 1.0) < 1.0:
        ways.append("raise exploration_fraction")
    if "alpha" in params:
        ways.append("raise target_entropy" if params["alpha"] == "auto" else "raise alpha")
    return ways


def _plain_advantages(run: Run) -> list[str]:
    """Advise against normalised advantages if the run uses them: without rewards, they are only amplified noise."""
    return ["set normalize_advantages to false"] if _params(run).get("normalize_advantages") else []


def _fewer_epochs(run: Run) -> list[str]:
    return ["lower update_epochs"] if _params(run).get("update_epochs", 1) > 1 else []


def _limit_kl(run: Run) -> list[str]:
    params = _params(run)
    if "target_kl" not in params:
        return []
    return ["set target_kl (such as 0.02)"] if params["target_kl"] is None else ["lower target_kl"]


def _larger_minibatch(run: Run) -> list[str]:
    params = _params(run)
    rollout = params.get("num_steps", 0) * run.config.get("num_envs", 1)
    return ["raise minibatch_size"] if params.get("minibatch_size", rollout) < rollout else []


def _wider_clip(run: Run) -> list[str]:
    clip = _params(run).get("clip_coef")
    return ["raise clip_coef, which is usually 0.2"] if isinstance(clip, float) and clip < USUAL_CLIP / 2 else []


def _slower_target(run: Run) -> list[str]:
    params = _params(run)
    if "target_update_interval" in params and params.get("tau", 1.0) == 1.0:
        return ["raise target_update_interval"]
    return ["lower tau"] if "tau" in params else []


def _falling_rate(run: Run) -> list[str]:
    return [] if isinstance(_params(run).get("learning_rate"), dict) else ["let it fall (schedule: linear)"]


def _entropy(run: Run) -> tuple[Curve, float]:
    """Return the entropy over env steps, and the share of its initial value below which it counts as collapsed."""
    loss = run.curve("train/entropy_loss")
    if len(loss):
        return Curve(loss.steps, -loss.values), ENTROPY_SHARE
    return run.curve("train/entropy"), SOFT_ENTROPY_SHARE


def _is_flat(curve: Curve) -> bool:
    return float(np.ptp(curve.values)) <= FLAT_SHARE * float(np.abs(curve.values).max())


def _rises_after(run: Run, step: float) -> bool:
    """Return whether the return rose noticeably after the step; true if too little was logged to tell."""
    curve = run.training if len(run.training) else run.evaluation
    before, after = curve.values[curve.steps <= step], curve.values[curve.steps > step]
    if not len(before) or not len(after):
        return True
    return _tail_mean(after) - float(before[-1]) > FLAT_SHARE * float(np.abs(curve.values).max())


def _tail_mean(values: FloatArray) -> float:
    return float(values[-math.ceil(len(values) / 4) :].mean())


def _while_learning(run: Run, metric: Curve) -> FloatArray:
    """Return the values of the metric while the return is below its best.

    At the best return, all episodes are alike, and there is no variance left to explain.
    """
    training = run.training
    if not len(training):
        return metric.values
    missing = training.values.max() - np.interp(metric.steps, training.steps, training.values)
    learning: FloatArray = metric.values[missing > FLAT_SHARE * float(np.abs(training.values).max())]
    return learning


def _evaluation_error(run: Run) -> float:
    """Return the typical standard error of the mean return of an evaluation; 0 if the deviation was not logged."""
    spreads = run.curve("eval/std_reward").values
    episodes = max(int(run.config.get("eval_episodes", 1)), 1)
    return float(np.median(spreads)) / math.sqrt(episodes) if len(spreads) else 0.0


def _largest_value(run: Run, gamma: float) -> float | None:
    """Return the largest value that the observed returns and rewards per step allow; None if they were not logged."""
    returns, lengths = np.abs(run.training.values), run.curve("rollout/ep_len_mean").values
    if not len(returns):
        return None
    horizon = 1.0 / max(1.0 - gamma, 1e-6)
    rate = float((returns / lengths).max()) if len(lengths) == len(returns) else 0.0
    # SAC's entropy bonus is about 1 per step, so values may reach the horizon even with smaller rewards.
    return max(float(returns.max()), horizon * max(rate, 1.0))
