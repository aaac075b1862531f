"""Hints about runs that did not go well: each check looks at logged metrics, and says what it saw and what to try.

The thresholds were chosen on runs of most presets: those that learnt well get no hint.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.results.curves import Curve
from rl_training.results.loading import Run
from rl_training.results.statistics import FloatArray, short

FEWEST_POINTS = 8
"""A metric that was logged less often says too little."""
EARLY_SHARE = 0.25
"""Of a run's budget: what happens within it happens early."""
ENTROPY_SHARE = 0.05
"""Of the entropy at the beginning: below it, a policy that PPO trains hardly explores."""
SOFT_ENTROPY_SHARE = -6.0
"""The same for SAC, whose entropy goes to minus 1.5 of its beginning by design."""
STANDSTILL_SHARE = 0.05
"""Of the largest return: a curve that stays within it has not moved."""
HIGH_KL = 0.05
"""In nats per update: several times what PPO is usually held to."""
HIGH_CLIP_FRACTION = 0.4
"""Of the samples of an update."""
LOW_EXPLAINED_VARIANCE = 0.2
"""A value function that explains less than this share of the variance of returns is of little use."""
Q_EXCESS = 3.0
"""Times the largest value that the rewards seen allow."""
DROP_OF_RANGE = 0.25
"""Of the range of all evaluations that the last one lies below the best."""
DROP_OF_LEVEL = 0.1
"""Of the largest evaluation that the last one lies below the best."""

DROP_OF_ERRORS = 4.0
"""Times the standard error of an evaluation: the best of many that are equally good lies two or three above them."""


@dataclass(frozen=True)
class Hint:
    """Something conspicuous in one run."""

    title: str
    seen: str
    matters: str
    advice: str


def find_hints(run: Run) -> list[Hint]:
    """What every check has to say of the run; nothing of a healthy one."""
    return [hint for check in CHECKS if (hint := check(run)) is not None]


def loss_not_finite(run: Run) -> Hint | None:
    """A gradient step was refused, or a training metric was no finite number."""
    refused = str(run.metadata.get("error") or "")
    names = {name for row in run.rows for name, value in row.items() if name.startswith("train/") and value is None}
    if not names and not refused.startswith("NonFiniteUpdateError"):
        return None
    return Hint(
        "Loss not finite",
        f"no finite number: {', '.join(sorted(names))}" if names else refused,
        "Weights that are not finite cannot recover.",
        f"Look at the batch with `rl-training replay {run.run_dir}`; lower learning_rate or max_grad_norm, and see "
        "with `rl-training check-env` whether rewards and observations are bounded.",
    )


def return_never_moved(run: Run) -> Hint | None:
    """Training and evaluation returns stayed where they began."""
    curves = [curve for curve in (run.training, run.evaluation) if len(curve)]
    if not any(len(curve) >= FEWEST_POINTS for curve in curves) or not all(_stands_still(curve) for curve in curves):
        return None
    level = curves[0].values
    return Hint(
        "Return never moved",
        f"the return stayed between {short(float(level.min()))} and {short(float(level.max()))}",
        "The agent has found nothing to learn from: often the reward is too rare to be met by chance.",
        "Explore more (ent_coef for PPO, a longer exploration_fraction for DQN), shape the reward, or give a larger "
        "budget. If this return is the best there is, all is well.",
    )


def entropy_collapsed(run: Run) -> Hint | None:
    """The policy became almost deterministic early, and the return did not rise any more."""
    entropy, least = _entropy(run)
    if len(entropy) < FEWEST_POINTS:
        return None
    low = entropy.steps[entropy.values < least * abs(entropy.values[0])]
    if not len(low) or low[0] > EARLY_SHARE * run.total_timesteps or _rises_after(run, low[0]):
        return None
    return Hint(
        "Entropy collapsed early",
        f"entropy fell from {short(float(entropy.values[0]))} to below {short(least * abs(entropy.values[0]))} by env "
        f"step {low[0]:,.0f}, and the return did not rise after that",
        "A policy that is almost deterministic meets nothing new, so it stays with the first habit it found.",
        "Raise ent_coef (PPO) or target_entropy (SAC), lower learning_rate, or take fewer update_epochs.",
    )


def kl_too_high(run: Run) -> Hint | None:
    """Updates move the policy further than PPO's objective is good for."""
    values = run.curve("train/approx_kl").values
    if len(values) < FEWEST_POINTS or np.median(values) <= HIGH_KL:
        return None
    return Hint(
        "KL too high",
        f"the policy moves by a median KL of {np.median(values):.3f} per update (more than {HIGH_KL:g})",
        "Far from the policy that collected the data, PPO's estimate of what gets better is no longer right.",
        "Set target_kl (such as 0.02), lower learning_rate or update_epochs, or raise minibatch_size.",
    )


def clip_fraction_high(run: Run) -> Hint | None:
    """Most of the data of an update is clipped away."""
    values = run.curve("train/clip_fraction").values
    if len(values) < FEWEST_POINTS or np.median(values) <= HIGH_CLIP_FRACTION:
        return None
    return Hint(
        "Clip fraction high",
        f"in half of all updates {100 * float(np.median(values)):.0f} % or more of the samples were clipped "
        f"(more than {100 * HIGH_CLIP_FRACTION:g} %)",
        "Clipped samples have no gradient: later epochs learn from the rest alone.",
        "Lower learning_rate or update_epochs; check that clip_coef is not far below 0.2.",
    )


def value_unexplained(run: Run) -> Hint | None:
    """The value function never explained the returns."""
    values = _while_learning(run, run.curve("train/explained_variance"))
    if len(values) < FEWEST_POINTS or np.quantile(values, 0.75) >= LOW_EXPLAINED_VARIANCE:
        return None
    return Hint(
        "Value unexplained",
        f"explained variance of the returns is at most {np.quantile(values, 0.75):.2f} in three of four updates",
        "Advantages that come from a value function which knows nothing are mostly noise.",
        "Normalise observations or rewards (normalize_obs, normalize_rewards), raise vf_coef or learning_rate, or "
        "give the network more units; check that the observation shows what decides the return.",
    )


def q_beyond_rewards(run: Run) -> Hint | None:
    """Q values are far beyond what the rewards seen allow."""
    q_values = run.curve("train/q_mean").values
    params = run.config.get("algo_kwargs") or {}
    most = _largest_value(run, float(params.get("gamma", 0.99)))
    if len(q_values) < FEWEST_POINTS or most is None or params.get("normalize_rewards"):
        return None
    size = float(np.median(np.abs(q_values[-FEWEST_POINTS:])))
    if size <= Q_EXCESS * most:
        return None
    return Hint(
        "Q growing without return",
        f"Q values are about {short(size)} at the end, while the rewards seen allow at most {short(most)}",
        "Values that feed on themselves say nothing about which action is better.",
        "Lower learning_rate or gamma, sync the target network more slowly (target_update_interval, tau), use "
        "double or a larger batch_size, or normalize_rewards.",
    )


def ends_below_best(run: Run) -> Hint | None:
    """The last evaluation is far below the best one."""
    values = run.evaluation.values
    if len(values) < 3 or run.status == "running":
        return None
    best, last, where = float(values.max()), float(values[-1]), run.evaluation.steps[int(values.argmax())]
    least = max(DROP_OF_RANGE * (best - float(values.min())), DROP_OF_LEVEL * float(np.abs(values).max()))
    if best - last <= max(least, DROP_OF_ERRORS * _evaluation_error(run)):
        return None
    return Hint(
        "Ends far below its best",
        f"the last evaluation is {short(last)}, the best was {short(best)} at env step {where:,.0f}",
        "What was learnt was lost again, so the final checkpoint is not the one to use.",
        "Use checkpoints/best.pt; let learning_rate fall (schedule: linear), lower it, or evaluate more episodes if "
        "single evaluations are noisy.",
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


def _entropy(run: Run) -> tuple[Curve, float]:
    """The entropy over env steps, and below which share of its beginning it counts as collapsed."""
    loss = run.curve("train/entropy_loss")
    if len(loss):
        return Curve(loss.steps, -loss.values), ENTROPY_SHARE
    return run.curve("train/entropy"), SOFT_ENTROPY_SHARE


def _stands_still(curve: Curve) -> bool:
    return float(np.ptp(curve.values)) <= STANDSTILL_SHARE * float(np.abs(curve.values).max())


def _rises_after(run: Run, step: float) -> bool:
    """Whether the return gained noticeably after the step; if it was not logged, nothing can be held against it."""
    curve = run.training if len(run.training) else run.evaluation
    before, after = curve.values[curve.steps <= step], curve.values[curve.steps > step]
    if not len(before) or not len(after):
        return True
    return _tail_mean(after) - float(before[-1]) > STANDSTILL_SHARE * float(np.abs(curve.values).max())


def _tail_mean(values: FloatArray) -> float:
    return float(values[-math.ceil(len(values) / 4) :].mean())


def _while_learning(run: Run, metric: Curve) -> FloatArray:
    """The metric where the return is below its best; beyond that all returns are alike, and none is left to explain."""
    training = run.training
    if not len(training):
        return metric.values
    missing = training.values.max() - np.interp(metric.steps, training.steps, training.values)
    learning: FloatArray = metric.values[missing > STANDSTILL_SHARE * float(np.abs(training.values).max())]
    return learning


def _evaluation_error(run: Run) -> float:
    """The typical standard error of the mean return of an evaluation; 0 if spreads were not logged."""
    spreads = run.curve("eval/std_reward").values
    episodes = max(int(run.config.get("eval_episodes", 1)), 1)
    return float(np.median(spreads)) / math.sqrt(episodes) if len(spreads) else 0.0


def _largest_value(run: Run, gamma: float) -> float | None:
    """The largest value that returns, and rewards per step that go on for ever, can add up to; none if not logged."""
    returns, lengths = np.abs(run.training.values), run.curve("rollout/ep_len_mean").values
    if not len(returns):
        return None
    horizon = 1.0 / max(1.0 - gamma, 1e-6)
    rate = float((returns / lengths).max()) if len(lengths) == len(returns) else 0.0
    # A bonus for entropy is about 1 per step: rewards that are smaller allow that much.
    return max(float(returns.max()), horizon * max(rate, 1.0))
