"""Hints of a report: each threshold from both sides, and none for a run that learns well."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.runs import context_of
from rl_training.results.loading import Run
from rl_training.results.report.diagnostics import (
    CHECKS,
    HIGH_CLIP_FRACTION,
    HIGH_KL,
    LOW_EXPLAINED_VARIANCE,
    Q_EXCESS,
    find_hints,
)

RISING = [float(10 * number) for number in range(1, 11)]


def make_run(**metrics: Sequence[float | None]) -> Run:
    """A run of 10,000 steps with ten lines; a keyword `train__loss` gives the values of `train/loss`."""
    named: dict[str, Sequence[float | None]] = {"rollout__ep_rew_mean": RISING, "rollout__ep_len_mean": [10.0] * 10}
    columns = {name.replace("__", "/"): values for name, values in {**named, **metrics}.items()}
    rows: list[dict[str, Any]] = [
        {"step": 1_000 * (index + 1), **{name: values[index] for name, values in columns.items()}}
        for index in range(10)
    ]
    return Run(
        run_dir=context_of(Path("runs/one")).run_dir,
        algo="ppo",
        env_id="CartPole-v1",
        seed=1,
        status="completed",
        global_step=10_000,
        total_timesteps=10_000,
        config={"eval_episodes": 4, "algo_kwargs": {"gamma": 0.9}},
        metadata={},
        rows=tuple(rows),
    )


def titles(run: Run) -> list[str]:
    return [hint.title for hint in find_hints(run)]


def test_a_run_that_learns_gets_no_hint() -> None:
    run = make_run(
        eval__mean_reward=RISING,
        eval__std_reward=[1.0] * 10,
        train__entropy_loss=[-0.69 + 0.04 * number for number in range(10)],
        train__approx_kl=[0.01] * 10,
        train__clip_fraction=[0.1] * 10,
        train__explained_variance=[0.1, 0.4, *[0.9] * 8],
    )
    assert titles(run) == []


def test_a_run_without_metrics_gets_no_hint() -> None:
    assert titles(make_run(rollout__ep_rew_mean=[None] * 10, rollout__ep_len_mean=[None] * 10)) == []


def test_every_check_can_speak_and_says_what_why_and_what_to_try() -> None:
    bad = make_run(
        rollout__ep_rew_mean=[5.0] * 10,
        eval__mean_reward=[5.0] * 10,
        train__loss=[None] * 10,
        train__entropy_loss=[-0.69, *[-0.001] * 9],
        train__approx_kl=[1.0] * 10,
        train__clip_fraction=[0.9] * 10,
        train__q_mean=[1e6] * 10,
    )
    poor = make_run(eval__mean_reward=[*RISING[:9], 10.0], train__explained_variance=[0.0] * 10)
    hints = [hint for check in CHECKS for run in (bad, poor) if (hint := check(run)) is not None]
    assert len({hint.title for hint in hints}) == len(CHECKS)
    assert all(hint.observation and hint.consequence and hint.advice for hint in hints)


@pytest.mark.parametrize(
    ("metric", "threshold", "title"),
    [
        ("train__approx_kl", HIGH_KL, "KL too high"),
        ("train__clip_fraction", HIGH_CLIP_FRACTION, "Clip fraction high"),
    ],
)
def test_a_median_above_its_threshold_is_reported(metric: str, threshold: float, title: str) -> None:
    few = [2 * threshold] * 4 + [threshold / 2] * 6
    many = [2 * threshold] * 6 + [threshold / 2] * 4
    assert titles(make_run(**{metric: few})) == []
    assert titles(make_run(**{metric: many})) == [title]


def test_a_refused_gradient_step_is_reported_with_the_command_that_shows_it() -> None:
    (hint,) = find_hints(replace(make_run(), metadata={"error": "NonFiniteUpdateError: the loss is nan"}))
    assert hint.title == "Loss not finite"
    assert hint.observation == "NonFiniteUpdateError: the loss is nan"
    assert "rl-training replay runs/one" in hint.advice
    assert titles(replace(make_run(), metadata={"error": "ValueError: no such thing"})) == []


def advice(params: dict[str, Any], **metrics: Sequence[float | None]) -> str:
    """The advice for a run with these parameters that has one problem."""
    config = {"eval_episodes": 4, "num_envs": 8, "algo_kwargs": params}
    (hint,) = find_hints(replace(make_run(**metrics), config=config))
    return hint.advice


def test_advice_names_only_what_the_algorithm_has_and_the_run_does_not_do_already() -> None:
    ppo = {"ent_coef": 0.0, "update_epochs": 10, "target_kl": None, "num_steps": 16, "minibatch_size": 64}
    high_kl = {"train__approx_kl": [1.0] * 10}
    assert advice(ppo, **high_kl) == (
        "Set target_kl (such as 0.02), lower learning_rate, lower update_epochs or raise minibatch_size."
    )
    done = {**ppo, "update_epochs": 1, "target_kl": 0.02, "minibatch_size": 128}
    assert advice(done, **high_kl) == "Lower target_kl or lower learning_rate."
    still = {"rollout__ep_rew_mean": [5.0] * 10}
    assert advice(ppo, **still).startswith("Raise ent_coef, shape the reward or raise the budget.")
    assert advice({"exploration_fraction": 0.2}, **still).startswith("Raise exploration_fraction, shape")
    assert advice({"exploration_fraction": 1.0}, **still).startswith("Shape the reward or")
    assert advice({"alpha": 0.1}, **still).startswith("Raise alpha, shape")
    unexplained = {"train__explained_variance": [0.0] * 10}
    assert advice({"normalize_obs": True, "normalize_rewards": False}, **unexplained).startswith(
        "Set normalize_rewards, raise vf_coef"
    )
    large = {"train__q_mean": [1e6] * 10}
    dqn = {"target_update_interval": 500, "tau": 1.0, "double": True}
    assert advice(dqn, **large) == (
        "Lower learning_rate or gamma, raise target_update_interval, raise batch_size or set normalize_rewards."
    )
    assert "lower tau, set double, raise" in advice({**dqn, "tau": 0.1, "double": False}, **large)
    worse = {"eval__mean_reward": [*RISING[:9], 10.0]}
    falling = {"schedule": "linear", "start": 1e-3, "end": 0.0}
    assert "let it fall (schedule: linear)" in advice({"learning_rate": 1e-3}, **worse)
    assert "Lower learning_rate. If" in advice({"learning_rate": falling}, **worse)
    clipped = {"train__clip_fraction": [0.9] * 10}
    assert advice({"clip_coef": 0.05}, **clipped).endswith("or raise clip_coef, which is usually 0.2.")
    assert advice({"clip_coef": 0.2}, **clipped) == "Lower learning_rate."


def test_a_gradient_that_is_not_finite_is_no_reason_to_clip_more() -> None:
    assert "max_grad_norm" not in advice({"max_grad_norm": 0.5}, train__loss=[1.0] * 9 + [None])


def test_a_metric_that_was_not_finite_is_named() -> None:
    (hint,) = find_hints(make_run(train__loss=[1.0] * 9 + [None]))
    assert hint.observation == "not finite: train/loss"


def test_a_return_that_stays_where_it_began_is_reported() -> None:
    still = [-200.0] * 10
    assert titles(make_run(rollout__ep_rew_mean=still)) == ["Return never moved"]
    assert titles(make_run(rollout__ep_rew_mean=still, eval__mean_reward=[-200.0] * 9 + [-180.0])) == []
    plain = "normalize_advantages to false"
    assert plain in advice({"normalize_advantages": True}, rollout__ep_rew_mean=still)
    assert plain not in advice({"normalize_advantages": False}, rollout__ep_rew_mean=still)


def test_entropy_that_collapses_early_is_reported_only_if_the_return_stands_still() -> None:
    collapsed = [-0.69, *[-0.01] * 9]
    stuck = [10.0, *[30.0] * 9]
    assert titles(make_run(rollout__ep_rew_mean=stuck, train__entropy_loss=collapsed)) == ["Entropy collapsed early"]
    assert titles(make_run(train__entropy_loss=collapsed)) == []  # it goes on learning
    late = [-0.69] * 5 + [-0.01] * 5
    assert titles(make_run(rollout__ep_rew_mean=stuck, train__entropy_loss=late)) == []


def test_the_entropy_of_sac_may_fall_below_zero_by_design() -> None:
    stuck = [10.0, *[30.0] * 9]
    assert titles(make_run(rollout__ep_rew_mean=stuck, train__entropy=[0.6, *[-1.0] * 9])) == []
    collapsed = make_run(rollout__ep_rew_mean=stuck, train__entropy=[0.6, *[-4.0] * 9])
    assert titles(collapsed) == ["Entropy collapsed early"]


def test_a_value_function_that_never_explained_is_reported_unless_nothing_was_left_to_explain() -> None:
    low, high = LOW_EXPLAINED_VARIANCE / 2, 0.9
    assert titles(make_run(train__explained_variance=[low] * 10)) == ["Value unexplained"]
    assert titles(make_run(train__explained_variance=[low] * 5 + [high] * 5)) == []
    solved = [10.0, 20.0, *[500.0] * 8]
    assert titles(make_run(rollout__ep_rew_mean=solved, train__explained_variance=[low] * 10)) == []


def test_q_values_are_held_against_what_the_rewards_allow() -> None:
    most = 100.0  # the largest return; the largest reward per step, 10, for ever at gamma 0.9 is 100 too
    assert titles(make_run(train__q_mean=[Q_EXCESS * most] * 10)) == []
    assert titles(make_run(train__q_mean=[-Q_EXCESS * most * 1.01] * 10)) == ["Q growing without return"]
    scaled = make_run(train__q_mean=[1e9] * 10)
    scaled.config["algo_kwargs"]["normalize_rewards"] = True  # their scale is not that of the returns
    assert titles(scaled) == []


def test_an_end_far_below_the_best_is_reported_unless_it_is_noise_or_not_the_end() -> None:
    fallen = [*RISING[:9], 40.0]
    assert titles(make_run(eval__mean_reward=fallen)) == ["Ends far below its best"]
    assert titles(replace(make_run(eval__mean_reward=fallen), status="running")) == []
    assert titles(make_run(eval__mean_reward=fallen, eval__std_reward=[30.0] * 10)) == []  # four errors are 60
    assert titles(make_run(eval__mean_reward=[93.0, *[95.0] * 8, 93.0])) == []  # much of the range, little of the level
