"""Measure the training speed next to Stable-Baselines3: the same work on both sides, each run in its own process.

`python benchmarks/speed.py` measures every row, prints one table per row, and shows where the time of our side goes.
`--gate` compares the ratios with the targets in `speed_report.py` and exits with 1 if one is missed. `--output`,
`--chart` and `--document` write the numbers as JSON, a picture and a page. If the JSON file exists, it keeps the rows
that are not measured again, so that a long measurement can be divided into several calls. The extra `bench` is required
and, for row D, `mujoco`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from speed_common import OURS, ROWS, Growth, Job, Measurement, Outcome, Report, Row, Side, Split
from speed_report import (
    draw_chart,
    draw_growth,
    growth_chart,
    growth_table,
    load_report,
    missed_targets,
    row_table,
    save_report,
    split_table,
    write_document,
)

_CHILD = "_measure"  # the hidden subcommand
_FIRST_EXTRA_SEED = 1_001
_MOST_THREADS = 2
_SPLIT_SHARE = 0.2  # share of a row's budget for the run that shows where the time goes


def run_job(job: Job) -> Any:
    """Run a job in a new process, in a temporary directory because MuJoCo writes its log to the working directory."""
    command = [sys.executable, str(Path(__file__).resolve()), _CHILD, json.dumps(asdict(job))]
    packages = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)  # the same as in this process
    environment = {**os.environ, "PYTHONPATH": packages}
    with tempfile.TemporaryDirectory() as directory:
        answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)
    if answer.returncode != 0:
        raise RuntimeError(f"{job.row.name} {job.side} failed:\n{answer.stderr}")
    return json.loads(answer.stdout.splitlines()[-1])


def execute_job(text: str) -> None:
    """Execute one job in this process, and print its result as one line of JSON."""
    job = Job.from_plain(json.loads(text))
    if job.kind == "measure":
        started_at = time.perf_counter()
        library = import_module("speed_sb3" if job.side == "sb3" else "speed_ours")
        import_seconds = time.perf_counter() - started_at
        result = asdict(library.measure(job, import_seconds))
    else:
        parts = import_module("speed_parts")
        result = asdict(parts.split(job)) if job.kind == "split" else parts.replay_microseconds(job)
    print(json.dumps(result), flush=True)


def measure_row(row: Row, *, rounds: int, scale: float) -> Iterator[Measurement]:
    """Measure all sides in turn, with every number of threads in each round; odd rounds reverse the order of sides."""
    for number in range(rounds):
        for threads in thread_counts(row):
            seed = 1 + number * _MOST_THREADS + threads - 1
            for side in row.sides if number % 2 == 0 else reversed(row.sides):
                job = Job("measure", row, side, row.budget(scale), threads, seed)
                yield replace(Measurement(**run_job(job)), round=number)


def train_extra_runs(work: Sequence[tuple[Row, Side]], *, runs: int, scale: float) -> Iterator[Outcome]:
    """Train runs with seeds that no measurement uses, only for their returns, with one run per core at a time."""
    jobs = [
        Job("measure", row, side, row.budget(scale), seed=_FIRST_EXTRA_SEED + number)
        for row, side in work
        for number in range(runs)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, result in zip(jobs, pool.map(run_job, jobs), strict=True):
            yield Outcome(job.row.name, job.side, job.seed, result["episode_return"])


def thread_counts(row: Row) -> list[int]:
    """Return the numbers of threads to measure: 1, and 2 if there are two cores. Images are always faster with 2."""
    most = min(os.cpu_count() or 1, _MOST_THREADS)
    return [most] if row.has_images else list(range(1, most + 1))


def split_row(row: Row, side: Side, scale: float) -> Split:
    """Measure where the time of our side goes."""
    return Split(**run_job(Job("split", row, side, row.budget(_SPLIT_SHARE * scale))))


def measure_growth() -> Iterator[Growth]:
    """Measure speed over the number of envs, update time over layer width, and sampling time over replay size."""
    ppo, dqn, sac = (next(row for row in ROWS if row.algo == algo) for algo in ("ppo", "dqn", "sac"))
    for side in OURS:
        for num_envs in (1, 4, 16, 64, 256):
            row = replace(ppo, num_envs=num_envs, steps=10_000, params={**ppo.params, "num_steps": 256})
            measured = Measurement(**run_job(Job("measure", row, side, row.budget(1.0))))
            yield Growth("PPO envs", num_envs, side, measured.steps_per_wall_second, "env steps per second")
        for base in (ppo, sac):
            for width in (64, 256, 1024):
                row = replace(base, steps=800, params={**base.params, "hidden_sizes": [width, width]})
                milliseconds = split_row(row, side, 1.0 / _SPLIT_SHARE).update_milliseconds
                yield Growth(f"{base.algo.upper()} width", width, side, milliseconds, "ms per gradient step")
    for capacity in (10_000, 100_000, 1_000_000):
        row = replace(dqn, params={**dqn.params, "buffer_capacity": capacity})
        yield Growth("DQN replay", capacity, "eager", float(run_job(Job("replay", row, "eager", 0))), "us per batch")


def describe_machine() -> dict[str, Any]:
    """Return the processor, its number of cores, and its load before the first measurement."""
    from rl_training.cores import cpu_name

    return {"CPU": cpu_name(), "cores": os.cpu_count(), "load before": round(os.getloadavg()[0], 2)}


def describe_versions() -> dict[str, str]:
    """Return the versions of all packages that affect the results."""
    from rl_training.runtime.run_utils import versions

    others = {name: version(name) for name in ("stable_baselines3", "mujoco") if find_spec(name)}
    return {**versions(), **others}


def measure_all(args: argparse.Namespace) -> Report:
    """Measure the selected rows, then growth, then extra runs; save intermediate results in between."""
    from speed_ours import auto_compiles

    date = time.strftime("%Y-%m-%d")
    report = Report(date, describe_versions(), describe_machine(), args.rounds, args.steps_scale)
    rows = select_rows(args.rows)
    if earlier := load_earlier(args.output):
        report.keep(earlier, rows)
    for row in rows:
        for each in measure_row(row, rounds=args.rounds, scale=args.steps_scale):
            report.measurements.append(each)
            print(
                f"{row.name} round {each.round + 1}, {each.side}, threads {each.threads}: "
                f"{each.steps_per_wall_second:,.0f} steps/s wall, {each.steps_per_cpu_second:,.0f} CPU",
                flush=True,
            )
        report.splits += [split_row(row, side, args.steps_scale) for side in OURS]
        if auto_compiles(row):
            report.compiled_by_auto.append(row.name)
        save_if_requested(report, args.output)
    if args.growth:
        report.growth[:] = measure_growth()
        report.earlier.pop("growth", None)
    save_if_requested(report, args.output)
    work = [(row, side) for row in rows for side in row.sides]
    report.outcomes += train_extra_runs(work, runs=args.further_runs, scale=args.steps_scale)
    return report


def load_earlier(path: Path | None) -> Report | None:
    """Read the results of earlier calls; None if there is no such file."""
    return load_report(path) if path is not None and path.is_file() else None


def save_if_requested(report: Report, path: Path | None) -> None:
    """Write the results so far to the JSON file, if a path is given."""
    if path is not None:
        save_report(path, report)


def select_rows(names: Sequence[str]) -> list[Row]:
    """Return the rows with these names, or all rows if no name is given."""
    return [row for row in ROWS if not names or row.name in names]


def missing_modules(rows: Sequence[Row]) -> list[str]:
    """Return the modules that these rows need and that are not installed."""
    needed = {"stable_baselines3", *(row.needs for row in rows if row.needs)}
    return sorted(name for name in needed if find_spec(name) is None)


def parse_arguments() -> argparse.Namespace:
    """Parse and check the arguments; exit if they are invalid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="rows to measure, of A1, A2, B, C, D, E and F (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per row, side and number of threads")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="multiplies every budget")
    parser.add_argument("--further-runs", type=int, default=0, help="extra runs per row and side, for returns only")
    parser.add_argument("--growth", action="store_true", help="also measure how times grow with the problem size")
    parser.add_argument(
        "--gate",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE",
        help="exit with 1 if a target is missed; with FILE, a JSON file of --output, report on it instead of measuring",
    )
    parser.add_argument("--output", type=Path, help="write measurements and medians to this JSON file")
    parser.add_argument("--chart", type=Path, help="draw the ratios into this PNG file (extra `plots`)")
    parser.add_argument("--document", type=Path, help="write everything to this Markdown file")
    args = parser.parse_args()
    unknown = sorted(set(args.rows) - {row.name for row in ROWS})
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(row.name for row in ROWS)}")
    if args.rounds < 1 or args.steps_scale <= 0.0 or args.further_runs < 0:
        parser.error("--rounds must be at least 1, --steps-scale above 0, --further-runs at least 0")
    if args.gate not in (None, Path()):
        if not args.gate.is_file():
            parser.error(f"{args.gate} is not a file; name rows before --gate")
    elif (earlier := load_earlier(args.output)) and earlier.steps_scale != args.steps_scale:
        parser.error(f"{args.output} has rows with another --steps-scale; name another file")
    elif missing := missing_modules(select_rows(args.rows)):
        parser.error(f"{', '.join(missing)} not installed: pip install '.[bench,mujoco]', or name other rows")
    return args


def publish(report: Report, args: argparse.Namespace) -> None:
    """Print all tables and write the requested files."""
    rows = [row_table(report, name) for name in report.row_names()]
    for table in (*rows, split_table(report), *([growth_table(report)] if report.growth else [])):
        print(f"{table}\n", flush=True)
    save_if_requested(report, args.output)
    if args.chart:
        draw_chart(args.chart, report)
    if args.chart and report.growth:
        draw_growth(growth_chart(args.chart), report)
    if args.document:
        write_document(args.document, report, args.chart)


def main() -> int:
    """Measure, or load earlier measurements, and report."""
    if sys.argv[1:2] == [_CHILD]:
        execute_job(sys.argv[2])
        return 0
    args = parse_arguments()
    if args.gate not in (None, Path()):
        report = load_report(args.gate)
    else:
        with tempfile.TemporaryDirectory() as cache:  # compiled in the first round, reused in the others
            os.environ["XDG_CACHE_HOME"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            report = measure_all(args)
    publish(report, args)
    if args.gate is None:
        return 0
    missed = missed_targets(report)
    print("\n".join(missed) or "every target is reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
