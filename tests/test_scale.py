"""The scale benchmark measures runs with collectors, and its model adds up the parts of an iteration."""

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
import scale
from scale_model import (
    SLEEPERS,
    TASKS,
    Costs,
    Job,
    Point,
    Results,
    StepCost,
    TaskCosts,
    break_even_seconds,
    efficiency,
    error_of,
    fit_costs,
    fit_line,
    half_efficiency,
    last_number,
    predict,
    task_named,
)
from scale_report import document, draw_chart, target_lines

from rl_training.runtime.registry import get_algorithm_spec

FAST = task_named("sleep-5-ms")


def point(task: str, place: str, collectors: int, **changes: Any) -> Point:
    """A point whose iteration takes two seconds."""
    values: dict[str, Any] = {
        "steps_per_iteration": task_named(task).steps_per_iteration(collectors),
        "iteration_seconds": 2.0,
        "collect_seconds": 1.5,
        "collect_cpu_seconds": 0.5,
        "collector_cpu_seconds": 0.0 if place == "here" else 0.5,
        "update_seconds": 0.4,
        "exchange_seconds": 0.1,
        "start_seconds": 3.0,
        "memory_mb": 90.0,
        **changes,
    }
    return Point(task, place, collectors, **values)


def results_of(*points: Point) -> Results:
    origin = {
        "date": "2026-01-01",
        "versions": {"torch": "2"},
        "commit": "abc",
        "host": {"cpu": "model", "cpus": 2, "load": 0.0},
    }
    return Results(origin, 1e-6, {each.key: each for each in points})


def simple_costs() -> Costs:
    """One env: 1 ms of CPU time and 4 ms of waiting per step; 10 us per env step of an update; 2 ms per collector."""
    step = dict.fromkeys(("here", "processes", "ray"), StepCost(1e-3))
    task = TaskCosts(step, step_wait=4e-3, update=(0.0, 1e-5))
    lines = {"here": (0.0, 0.0), "processes": (1e-3, 1e-3), "ray": (0.0, 2e-3)}
    return Costs(cores=2, handling=5e-6, exchange=lines, tasks={FAST.name: task})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_task_is_a_valid_config_with_whole_iterations(task: Any, tmp_path: Path) -> None:
    for collectors in task.collectors:
        config = scale.make_config(Job(task, "processes", collectors, 3), tmp_path)
        get_algorithm_spec(task.algo).resolve_params_fn(config)
        assert task.steps_per_iteration(collectors) % config.num_envs == 0


def test_a_line_by_hand() -> None:
    assert fit_line([(1, 3.0), (2, 5.0), (4, 9.0)]) == pytest.approx((1.0, 2.0))
    assert fit_line([(4, 8.0), (4, 12.0)]) == (0.0, 2.5)


def test_an_iteration_by_hand() -> None:
    # 128 steps of 1 + 4 ms. Here, two envs one after the other: 2 * 0.64 s; 256 steps of the update: 2.56 ms.
    here = predict(simple_costs(), FAST, "here", 2)
    assert (here.collect, here.handling) == pytest.approx((1.28, 0.0))
    assert here.total == pytest.approx(1.28256)
    # Eight processes: 0.64 s, which is more than 8 * 0.128 s on two cores; 9 ms; 1,024 steps of 5 and 10 us.
    apart = predict(simple_costs(), FAST, "processes", 8)
    assert apart.collect == pytest.approx(0.64)
    assert apart.total == pytest.approx(0.64 + 9e-3 + 1_024 * 15e-6)
    # 64 collectors on two cores are limited by the processors: 64 * 0.128 / 2.
    assert predict(simple_costs(), FAST, "ray", 64).collect == pytest.approx(4.096)
    assert predict(simple_costs(), FAST, "ray", 64, cores=64).collect == pytest.approx(0.64)


def test_a_step_that_costs_a_share_of_its_own_duration_by_hand() -> None:
    cost = StepCost(1e-3, per_env=5e-4, per_second=0.1)
    # Two envs: 2 ms of work and 7 ms of sleep are 9 of 10 ms, and a tenth of the 10 ms is added.
    assert cost.wall_seconds(2, 7e-3, 1.0) == pytest.approx(10e-3)
    # Five groups per core: 10 ms of work are half of the 20 ms, and five tenths of the 20 ms are added.
    assert cost.wall_seconds(2, 7e-3, 5.0) == pytest.approx(20e-3)


def test_the_efficiency_of_many_collectors_by_hand() -> None:
    # One collector: 0.64 s and 2 ms + 128 * 15 us = 3.92 ms; N collectors: 0.64 s and N times 3.92 ms.
    assert efficiency(simple_costs(), FAST, 100) == pytest.approx((0.64 + 3.92e-3) / (0.64 + 0.392))
    # Half is left where 0.64 + N * 0.00392 = 2 * 0.64392: N = 165.3.
    assert half_efficiency(simple_costs(), FAST) == 165
    assert last_number(lambda number: number <= 37) == 37
    assert last_number(lambda number: number < 1) == 1


def test_the_constants_come_from_the_points_with_few_collectors() -> None:
    results = results_of(
        point("cartpole", "here", 1, collect_cpu_seconds=1.28, collect_seconds=1.28),  # 8 envs: 10 ms per step
        point("cartpole", "here", 2, collect_cpu_seconds=1.536, collect_seconds=1.536),  # twice 4 envs: 6 ms per step
        point("cartpole", "processes", 1, exchange_seconds=0.03, collector_cpu_seconds=1.408),  # 11 ms per step
        point("cartpole", "processes", 2, exchange_seconds=0.05, collector_cpu_seconds=1.792),  # 7 ms per step
        point("cartpole", "processes", 64, exchange_seconds=9.0, collector_cpu_seconds=99.0),
    )
    costs = fit_costs(results)
    steps = {place: (cost.fixed, cost.per_env) for place, cost in costs.tasks["cartpole"].step.items()}
    assert steps == {"here": pytest.approx((2e-3, 1e-3)), "processes": pytest.approx((3e-3, 1e-3))}
    assert costs.exchange["processes"] == pytest.approx((0.01, 0.02))
    # 128 * 7 ms at the same time, 0.05 s of exchange, 1,024 us for the shares, 0.4 s of update
    assert error_of(costs, results.points["cartpole", "processes", 2]) == pytest.approx(1.347024 / 2.0 - 1.0)


def test_the_cost_of_a_step_grows_with_the_sleep_before_it() -> None:
    # A step of 5 ms costs 0.2 ms, and one of 45 ms 1 ms: 0.1 ms, and 2% of the duration.
    results = results_of(
        point("sleep-5-ms", "here", 1, collect_seconds=128 * 5e-3, collect_cpu_seconds=128 * 2e-4),
        point("sleep-50-ms", "here", 1, collect_seconds=32 * 45e-3, collect_cpu_seconds=32 * 1e-3),
        point("sleep-5-ms", "ray", 2, collect_seconds=128 * 5e-3, collector_cpu_seconds=2 * 128 * 3e-4),
        point("sleep-50-ms", "ray", 2, collect_seconds=32 * 45e-3, collector_cpu_seconds=2 * 32 * 1.5e-3),
    )
    for task in fit_costs(results).tasks.values():
        assert astuple(task.step["here"]) == pytest.approx((1e-4, 0.0, 0.02))
        assert astuple(task.step["ray"]) == pytest.approx((1.5e-4, 0.0, 0.03))


def test_collectors_pay_off_when_half_of_the_steps_take_longer_than_the_exchange() -> None:
    results = results_of(
        point("dqn-16x1-ms", "here", 2, collect_seconds=16e-3),
        point("dqn-16x1-ms", "processes", 2, collect_seconds=9e-3),
    )
    assert break_even_seconds(results, "dqn") == pytest.approx(2e-3)
    assert break_even_seconds(results, "sac") is None


def test_the_page_and_the_picture_have_every_part(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    slow = [point(task.name, place, 1) for task in SLEEPERS for place in ("here", "ray")]
    many = point("sleep-50-ms", "ray", 64, iteration_seconds=2.5)
    results = results_of(*slow, many)
    path = tmp_path / "scale.json"
    results.save(path)
    assert Results.load(path) == results
    page = document(results)
    assert "| sleep-50-ms | ray | 64 | 819 | 51.20 |" in page
    assert "of the 1 with more than 8 collectors, which had no part in the constants" in page
    assert target_lines(results) == [
        "- 50 ms per step: 64 collectors on Ray, compared with 64 times one collector: 0.800; "
        "the target is 0.85 (missed)."
    ]
    draw_chart(tmp_path / "scale.png", results)
    assert (tmp_path / "scale.png").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "processes"])
def test_a_measured_point_has_every_number(place: str) -> None:
    params = {**FAST.params, "num_steps": 16, "update_epochs": 1}
    task = replace(FAST, params=params, env_kwargs={"milliseconds": 0.1}, envs=2)
    taken = scale.run_job(Job(task, place, 2, 3))
    assert taken.key == (FAST.name, place, 2)
    assert taken.steps_per_iteration == 32
    for name in ("iteration_seconds", "collect_seconds", "update_seconds", "exchange_seconds", "start_seconds"):
        assert getattr(taken, name) > 0.0
    assert (taken.memory_mb > 0.0) == (place == "processes")
