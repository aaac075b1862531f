"""The report of the scale benchmark: tables, targets, a chart and a page, from measured points and the model."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scale_model import (
    MOST_FITTED,
    OFF_POLICY,
    ON_POLICY,
    PLACES,
    SLEEPERS,
    TOLERANCE,
    Costs,
    Point,
    Results,
    StepCost,
    break_even_seconds,
    efficiency,
    error_of,
    fit_costs,
    half_efficiency,
    predict,
    task_named,
)
from speed_report import markdown

MANY = 1_000  # collectors
_STEP_BYTES = 16 * 4 + 8 + 8 + 3  # of a share: observation, action, reward, three flags
_NETWORK_BYTES = 1.25e9  # per second: 10 Gbit/s


@dataclass(frozen=True)
class Target:
    """A ratio of two measured speeds that should be reached."""

    text: str
    task: str
    place: str
    collectors: int
    ratio: float
    per_collector: bool = False
    """Whether the ratio is divided by the number of collectors."""
    baseline: str = "here"
    """The place of the one collector that it is compared with."""

    def measure(self, results: Results) -> float | None:
        """Return the measured ratio; none if a point is missing."""
        point = results.points.get((self.task, self.place, self.collectors))
        one = results.points.get((self.task, self.baseline, 1))
        if point is None or one is None:
            return None
        ratio = point.steps_per_second / one.steps_per_second
        return ratio / self.collectors if self.per_collector else ratio


TARGETS = (
    Target(
        "HalfCheetah-v5: two collectors in processes, compared with one collector", "halfcheetah", "processes", 2, 1.5
    ),
    Target(
        "50 ms per step: 64 collectors on Ray, compared with 64 times one collector",
        "sleep-50-ms",
        "ray",
        64,
        0.85,
        per_collector=True,
        baseline="ray",
    ),
)


def points_of(results: Results, names: Sequence[str]) -> list[Point]:
    """Return the points of these tasks, in the order of tasks, places and collectors."""
    found = [point for point in results.points.values() if point.task in names]
    return sorted(found, key=lambda each: (names.index(each.task), PLACES.index(each.place), each.collectors))


def point_table(results: Results, costs: Costs) -> str:
    """Format the speed of all points with PPO, and what the model predicts."""
    header = [
        "task",
        "place",
        "collectors",
        "steps/s",
        "times one here",
        "iteration ms",
        "model ms",
        "error of the model",
    ]
    lines = []
    for point in points_of(results, [task.name for task in ON_POLICY]):
        one = results.points.get((point.task, "here", 1))
        predicted = predict(costs, task_named(point.task), point.place, point.collectors).total
        lines.append(
            [
                point.task,
                point.place,
                point.collectors,
                f"{point.steps_per_second:,.0f}",
                f"{point.steps_per_second / one.steps_per_second:.2f}" if one else "-",
                f"{1e3 * point.iteration_seconds:,.1f}",
                f"{1e3 * predicted:,.1f}",
                f"{error_of(costs, point):+.0%}",
            ]
        )
    return markdown(header, lines)


def start_table(results: Results) -> str:
    """Format the start-up time and the memory of the runs whose collectors have processes of their own."""
    lines = [
        [
            point.task,
            point.place,
            point.collectors,
            f"{point.start_seconds:,.1f}",
            f"{point.memory_mb:,.0f}",
            f"{1e3 * point.exchange_seconds:,.2f}",
        ]
        for point in points_of(results, [task.name for task in ON_POLICY])
        if point.place != "here"
    ]
    return markdown(["task", "place", "collectors", "start-up s", "MB per collector", "empty exchange ms"], lines)


def off_policy_table(results: Results) -> str:
    """Format how long DQN and SAC collect between two updates, here and in two processes."""
    lines = []
    for task in OFF_POLICY:
        here, apart = (results.points.get((task.name, place, 2)) for place in ("here", "processes"))
        if here is None or apart is None:
            continue
        times = [f"{1e3 * each.collect_seconds:,.2f}" for each in (here, apart)]
        frequency, milliseconds = task.params["train_frequency"], task.env_kwargs["milliseconds"]
        gain = here.collect_seconds / apart.collect_seconds
        lines.append([task.algo.upper(), frequency, f"{milliseconds:g}", *times, f"{gain:.2f}"])
    header = ["algorithm", "train_frequency", "ms of sleep per step", "here ms", "two processes ms", "times as fast"]
    return markdown(header, lines)


def target_lines(results: Results) -> list[str]:
    """Return one line for each target whose points are measured."""
    lines = []
    for target in TARGETS:
        measured = target.measure(results)
        if measured is not None:
            verdict = "reached" if measured >= target.ratio else "missed"
            lines.append(f"- {target.text}: {measured:.3f}; the target is {target.ratio:g} ({verdict}).")
    return lines


def misses_of_model(results: Results, costs: Costs) -> str:
    """Say how many points the model meets, and how many of those it was not fitted to; name the points it misses."""
    points = points_of(results, [task.name for task in ON_POLICY])
    wrong = [point for point in points if abs(error_of(costs, point)) > TOLERANCE]
    predicted = [point for point in points if point.collectors > MOST_FITTED]
    met = len([point for point in predicted if point not in wrong])
    listed = ", ".join(f"{' '.join(map(str, point.key))} ({error_of(costs, point):+.0%})" for point in wrong)
    return (
        f"It meets {len(points) - len(wrong)} of {len(points)} iterations within {TOLERANCE:.0%}, among them {met} of "
        f"the {len(predicted)} with more than {MOST_FITTED} collectors, which had no part in the constants."
        f"{' It misses ' + listed + '.' if wrong else ''}"
    )


def many_table(costs: Costs) -> str:
    """Format what the model says about many collectors on Ray, each on a core of its own."""
    header = ["task", "collectors", "steps/s", "efficiency", "env steps %", "exchange %", "shares %", "update %"]
    lines = []
    for task in SLEEPERS:
        for collectors in (64, 256, MANY):
            parts = predict(costs, task, "ray", collectors, cores=collectors)
            shares = [parts.collect, parts.exchange, parts.handling, parts.update]
            lines.append(
                [
                    task.name,
                    f"{collectors:,}",
                    f"{parts.steps_per_second:,.0f}",
                    f"{efficiency(costs, task, collectors):.0%}",
                    *(f"{part / parts.total:.0%}" for part in shares),
                ]
            )
    return markdown(header, lines)


def draw_chart(path: Path, results: Results) -> None:
    """Draw the speed over the number of collectors: measured points, and the model up to 1,000 collectors on Ray."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib.figure import Figure

    costs = fit_costs(results)
    figure = Figure(figsize=(8.0, 3.6), layout="constrained", dpi=120)
    counts = [round(10 ** (number / 10)) for number in range(31)]
    for axes, task in zip(figure.subplots(1, len(SLEEPERS)), SLEEPERS, strict=True):
        one = predict(costs, task, "ray", 1, cores=1).steps_per_second
        predicted = [predict(costs, task, "ray", count, cores=count).steps_per_second for count in counts]
        axes.plot(counts, [count * one for count in counts], color="0.7", linestyle=":", label="N times one collector")
        axes.plot(counts, predicted, color="C0", label="model, Ray, one core each")
        for place, marker in (("processes", "s"), ("ray", "o")):
            points = [point for point in points_of(results, [task.name]) if point.place == place]
            speeds = [point.steps_per_second for point in points]
            axes.plot([point.collectors for point in points], speeds, marker, label=f"measured, {place}, two cores")
        axes.set(
            xscale="log", yscale="log", xlabel="collectors", title=f"{task.env_kwargs['milliseconds']:g} ms per step"
        )
    figure.axes[0].set_ylabel("env steps per second")
    figure.axes[0].legend(fontsize="small")
    figure.savefig(path, metadata={"Software": None})


def constants_text(results: Results, costs: Costs) -> str:
    """Describe the constants of the model in words."""
    lines = [
        f"- **Exchange, {place}**: {1e3 * max(fixed, 0.0):.2f} ms, and {1e3 * per:.3f} ms per collector. This sends "
        "the weights and the orders, and receives the states of the envs."
        for place, (fixed, per) in costs.exchange.items()
    ]
    lines.append(
        f"- **Shares**: {1e6 * results.handling_seconds_per_step:.2f} us per env step, to decode and join them."
    )
    for name in [task.name for task in ON_POLICY if task.name in costs.tasks]:
        own = costs.tasks[name]
        steps = "; ".join(f"{place} {_describe_step(own.step[place])}" for place in PLACES if place in own.step)
        lines.append(
            f"- **{name}**: a step of a group keeps a core busy for this time: {steps}. An env waits for "
            f"{1e3 * own.step_wait:,.2f} ms. An update takes {1e3 * max(own.update[0], 0.0):,.1f} ms, and "
            f"{1e6 * own.update[1]:,.1f} us per env step."
        )
    return "\n".join(lines)


def _describe_step(cost: StepCost) -> str:
    growth = f"{1e6 * cost.per_env:,.0f} us per env" if cost.per_env else f"{cost.per_second:.1%} of its duration"
    return f"{1e6 * max(cost.fixed, 0.0):,.0f} us and {growth}"


def document(results: Results) -> str:
    """Write the page."""
    costs = fit_costs(results)
    origin: dict[str, Any] = results.origin
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    values = {
        "origin": f"{origin['date']}, commit {str(origin['commit'])[:12]}. CPU: {origin['host']['cpu']}, cores: "
        f"{origin['host']['cpus']}, load before: {origin['host']['load']}. {versions}.",
        "points": point_table(results, costs),
        "starts": start_table(results),
        "targets": "\n".join(target_lines(results)),
        "constants": constants_text(results, costs),
        "fitted": str(MOST_FITTED),
        "accuracy": misses_of_model(results, costs),
        "many": many_table(costs),
        "bytes": _describe_bytes(),
        "limits": _limits(costs),
        "pays": _break_even(results),
    }
    return _PAGE.format_map(values)


def write_document(path: Path, results: Results) -> None:
    """Write the page to a file."""
    path.write_text(document(results))


def _describe_bytes() -> str:
    largest = max(task.steps_per_iteration(MANY) for task in SLEEPERS) * _STEP_BYTES
    return f"{_STEP_BYTES} bytes, {largest / 1e6:.0f} MB in an iteration of {MANY:,} collectors: " + (
        f"{1e3 * largest / _NETWORK_BYTES:.0f} ms at 10 Gbit/s"
    )


def _limits(costs: Costs) -> str:
    lines = []
    for task in SLEEPERS:
        parts = predict(costs, task, "ray", MANY, cores=MANY)
        serial = {"the exchange": parts.exchange, "the shares": parts.handling, "the update": parts.update}
        largest = max(serial, key=lambda name: serial[name])
        work = sum(serial.values())
        lines.append(
            f"- {task.env_kwargs['milliseconds']:g} ms per step, {task.steps_per_env} steps per env and iteration: "
            f"{MANY:,} collectors take {parts.steps_per_second:,.0f} env steps per second, which is "
            f"{efficiency(costs, task, MANY):.0%} of {MANY:,} times one. Half of the efficiency is left at "
            f"{half_efficiency(costs, task):,} collectors. The learner's process works for {work:.2f} s per iteration, "
            f"most of it on {largest} ({serial[largest]:.2f} s), so it cannot take more than "
            f"{parts.env_steps / work:,.0f} env steps per second, however many collectors there are."
        )
    return "\n".join(lines)


def _break_even(results: Results) -> str:
    parts = []
    for algo in ("dqn", "sac"):
        seconds = break_even_seconds(results, algo)
        if seconds is not None:
            parts.append(f"{math.ceil(1e4 * seconds) / 10:g} ms for {algo.upper()}")
    if not parts:
        return "This is not measured yet."
    text = f"Two collectors in processes pay off if these env steps together take longer than {' and '.join(parts)}."
    return f"{text}\n\n{off_policy_table(results)}"


_PAGE = (Path(__file__).parent / "scale_page.md").read_text()
