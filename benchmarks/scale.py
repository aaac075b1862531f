"""Measure what collectors cost and gain: env steps per second, start-up time and memory, for every place.

`python benchmarks/scale.py` measures every task, each run in a new process. `--output` writes the numbers as JSON. If
that file exists, newly measured points replace old ones, so that a long measurement can be divided into several calls.
`--chart` and `--document` draw a picture and write a page from all points of the file. `--no-measuring` only does that.
The extras `mujoco`, `plots` and `ray` are required.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from scale_model import PLACES, TASKS, Job, Point, Results, Task
from scale_report import draw_chart, write_document

_CHILD = "_measure"  # the hidden subcommand
_EXCHANGES = 20  # without env steps, after the last update
_FIRST_ITERATIONS = 1  # not counted
_MB = 2**20


def make_config(job: Job, output_dir: Path) -> Any:
    """Create a config without evaluation, with checkpoints at the start and at the end."""
    from rl_training.experiment.config import TrainConfig

    task = job.task
    return TrainConfig(
        algo=task.algo,
        env_id=task.env_id,
        env_kwargs=dict(task.env_kwargs),
        total_timesteps=task.total_steps(job.collectors, job.iterations),
        output_dir=output_dir,
        device="cpu",
        num_envs=task.num_envs(job.collectors),
        vectorization=task.vectorization,
        num_threads=1,
        eval_episodes=0,
        log_interval=10**9,
        checkpoint_interval=0,
        checkpoint_seconds=0.0,
        compile=task.compile,
        collectors=job.collectors,
        collect_on=job.place,
        collector_cpus=0.01,
        algo_kwargs=task.params_for(job.collectors),
    )


class IterationClock:
    """A callback that reads the clock after every collection and update, then measures empty exchanges and memory."""

    def __init__(self, last_step: int) -> None:
        self._last_step = last_step
        self.collected_at: list[float] = []
        self.collect_cpu: list[float] = []
        self._cpu = 0.0
        self.updated_at: list[float] = []
        self._cpu_before = 0.0
        self.collector_cpu = 0.0
        self.exchanges: list[float] = []
        self.memory_mb: list[float] = []

    def on_train_start(self, trainer: Any) -> None:
        """Do nothing."""

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        """Read the clock."""
        del trainer, result
        self.collected_at.append(time.perf_counter())
        self.collect_cpu.append(time.process_time() - self._cpu)

    def on_update_end(self, trainer: Any, result: Any) -> None:
        """Read the clock; measure the rest after the last update."""
        del result
        self.updated_at.append(time.perf_counter())
        self._cpu = time.process_time()
        if len(self.updated_at) == _FIRST_ITERATIONS:
            self._cpu_before = collector_cpu_seconds()
        if trainer.global_step < self._last_step:
            return
        self.collector_cpu = (collector_cpu_seconds() - self._cpu_before) / (len(self.updated_at) - _FIRST_ITERATIONS)
        self.memory_mb = [each.memory_full_info().pss / _MB for each in collector_processes()]
        for _ in range(_EXCHANGES):
            started_at = time.perf_counter()
            trainer.env.get_attr("render_mode")
            self.exchanges.append(time.perf_counter() - started_at)

    def on_eval_end(self, trainer: Any, metrics: Any) -> None:
        """Do nothing."""

    def on_train_end(self, trainer: Any, result: Any) -> None:
        """Do nothing."""


def collector_processes() -> list[psutil.Process]:
    """Return the processes or actors of this process that collect."""
    own, found = psutil.Process(), []
    for child in own.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            command = " ".join(child.cmdline())
            if "GroupActor" in command if "ray::" in command else command == " ".join(own.cmdline()):
                found.append(child)
    return found


def collector_cpu_seconds() -> float:
    """Return the CPU time that the processes that collect have used so far."""
    return sum(sum(each.cpu_times()[:2]) for each in collector_processes())


def measure(job: Job) -> Point:
    """Train once, in a temporary directory."""
    from rl_training.runtime.registry import get_algorithm_spec

    with tempfile.TemporaryDirectory() as directory:
        config = make_config(job, Path(directory))
        clock = IterationClock(config.total_timesteps)
        started_at = time.perf_counter()
        get_algorithm_spec(config.algo).train_fn(config, callbacks=[clock])
    return make_point(job, clock, started_at)


def make_point(job: Job, clock: IterationClock, started_at: float) -> Point:
    """Compute the measured values of a finished run, without collections that had no update after them."""
    updated = clock.updated_at
    collected = clock.collected_at[len(clock.collected_at) - len(updated) :]
    collections = [end - start for start, end in zip(updated, collected[1:], strict=False)]
    updates = [
        end - start for start, end in zip(collected[_FIRST_ITERATIONS:], updated[_FIRST_ITERATIONS:], strict=True)
    ]
    iterations = [end - start for start, end in pairwise(updated)]
    collect_seconds = statistics.median(collections)
    return Point(
        task=job.task.name,
        place=job.place,
        collectors=job.collectors,
        steps_per_iteration=job.task.steps_per_iteration(job.collectors),
        iteration_seconds=statistics.fmean(iterations),
        collect_seconds=collect_seconds,
        collect_cpu_seconds=statistics.median(clock.collect_cpu[len(clock.collect_cpu) - len(collections) :]),
        collector_cpu_seconds=clock.collector_cpu,
        update_seconds=statistics.median(updates),
        exchange_seconds=statistics.median(clock.exchanges),
        start_seconds=clock.collected_at[0] - started_at - collect_seconds,
        memory_mb=statistics.fmean(clock.memory_mb) if clock.memory_mb else 0.0,
    )


def handling_seconds_per_step() -> float:
    """Measure how long it takes to decode and join the shares of 16 groups of one env, per env step."""
    import numpy as np

    from rl_training.runtime.shares import Share, Steps, join_shares

    flags = np.zeros((128, 1), np.bool_)
    obs, actions, rewards = np.zeros((129, 1, 16), np.float32), np.zeros((128, 1), np.int64), np.zeros((128, 1))
    steps = Steps(obs, obs[0, :0], actions, rewards, flags, flags, flags)
    encoded = [pickle.dumps(Share(steps, obs[-1], (), {}, None, {}, None), pickle.HIGHEST_PROTOCOL)] * 16
    times = []
    for _ in range(50):
        started_at = time.perf_counter()
        join_shares([pickle.loads(each) for each in encoded])
        times.append(time.perf_counter() - started_at)
    return min(times) / (len(encoded) * len(rewards))


def run_job(job: Job) -> Point:
    """Run a job in a new process, in a temporary directory because MuJoCo writes its log to the working directory."""
    command = [sys.executable, str(Path(__file__).resolve()), _CHILD, json.dumps(asdict(job))]
    packages = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)
    environment = {**os.environ, "PYTHONPATH": packages}
    with tempfile.TemporaryDirectory() as directory:
        answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)
    if answer.returncode != 0:
        raise RuntimeError(f"{job.task.name} {job.place} {job.collectors} failed:\n{answer.stderr}")
    return Point(**json.loads(answer.stdout.splitlines()[-1]))


def jobs_for(tasks: Sequence[Task], places: Sequence[str], counts: Sequence[int]) -> Iterator[Job]:
    """Return the jobs for all tasks, places and numbers of collectors that belong together."""
    for task in tasks:
        for collectors in task.collectors:
            for place in task.places:
                if place in places and (not counts or collectors in counts) and task.has_point(place, collectors):
                    yield Job(task, place, collectors, task.iterations)


def describe() -> dict[str, Any]:
    """Return the date, the versions, the commit and the machine."""
    from importlib.metadata import version
    from importlib.util import find_spec

    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.run_utils import describe_origin

    config = TrainConfig(algo="ppo", env_id="CartPole-v1", total_timesteps=1, output_dir=Path("runs"))
    origin = describe_origin(config)
    others = {name: version(name) for name in ("ray", "mujoco") if find_spec(name)}
    host = {"cpu": origin["host"]["cpu"], "cpus": origin["host"]["cpus"], "load": round(os.getloadavg()[0], 2)}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**origin["versions"], **others},
        "commit": origin["git_commit"],
        "host": host,
    }


def measure_all(jobs: Sequence[Job], rounds: int, results: Results, output: Path | None) -> None:
    """Measure every job `rounds` times in turn, keep the fastest round, and save the results after each point."""
    results.origin = describe()
    results.handling_seconds_per_step = handling_seconds_per_step()
    fastest: dict[tuple[str, str, int], Point] = {}
    for number in range(rounds):
        for job in jobs:
            point = run_job(job)
            print(
                f"round {number + 1}: {point.task}, {point.place}, collectors {point.collectors}: "
                f"{point.steps_per_second:,.0f} steps/s, collect {1e3 * point.collect_seconds:,.1f} ms, update "
                f"{1e3 * point.update_seconds:,.1f} ms, exchange {1e3 * point.exchange_seconds:,.2f} ms, start "
                f"{point.start_seconds:,.1f} s, {point.memory_mb:,.0f} MB",
                flush=True,
            )
            if point.key not in fastest or point.steps_per_second > fastest[point.key].steps_per_second:
                fastest[point.key] = results.points[point.key] = point
            if output is not None:
                results.save(output)


def parse_arguments() -> argparse.Namespace:
    """Parse the arguments; exit if they are invalid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [task.name for task in TASKS]
    parser.add_argument("tasks", nargs="*", help=f"tasks to measure, of {', '.join(names)} (default: all)")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--collectors", nargs="+", type=int, default=[], help="only these numbers of collectors")
    parser.add_argument("--rounds", type=int, default=2, help="measurements per point, of which the fastest counts")
    parser.add_argument("--no-measuring", action="store_true", help="only report on the file given by --output")
    parser.add_argument("--output", type=Path, help="keep the numbers in this JSON file")
    parser.add_argument("--chart", type=Path, help="draw a picture (extra `plots`)")
    parser.add_argument("--document", type=Path, help="write a page")
    args = parser.parse_args()
    unknown = sorted(set(args.tasks) - set(names))
    if unknown:
        parser.error(f"unknown tasks {', '.join(unknown)}; allowed: {', '.join(names)}")
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == [_CHILD]:
        print(json.dumps(asdict(measure(Job.from_plain(json.loads(sys.argv[2]))))), flush=True)
        return
    args = parse_arguments()
    results = Results.load(args.output)
    if not args.no_measuring:
        tasks = [task for task in TASKS if not args.tasks or task.name in args.tasks]
        measure_all(list(jobs_for(tasks, args.places, args.collectors)), args.rounds, results, args.output)
    if args.chart:
        draw_chart(args.chart, results)
    if args.document:
        write_document(args.document, results)


if __name__ == "__main__":
    main()
