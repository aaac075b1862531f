"""Times training beside Stable-Baselines3: the same work on both sides, each measurement in a process of its own.

`python benchmarks/speed.py` measures every row, prints a table each, and shows where our time goes. `--gate` compares
the ratios with the bars of `speed_report.py` and exits with 1 when one is missed; `--output`, `--chart` and
`--document` keep the numbers as JSON, a picture and a page. Needs the extras `bench` and, for row D, `mujoco`.
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

from speed_common import OURS, ROWS, SIDE_NAMES, Growth, Job, Measurement, Outcome, Report, Row, Side, Split
from speed_report import (
    draw_chart,
    draw_growth,
    growth_chart,
    growth_table,
    load_report,
    missed_bars,
    row_table,
    save_report,
    split_table,
    write_document,
)

_CHILD = "_measure"  # the hidden subcommand
_FIRST_FURTHER_SEED = 1_001
_SPLIT_SHARE = 0.2  # of a row's budget, for the run that shows where the time goes


def take(job: Job) -> Any:
    """The answer of a fresh process to a job, in a throw-away directory, since MuJoCo logs into the current one."""
    command = [sys.executable, str(Path(__file__).resolve()), _CHILD, json.dumps(asdict(job))]
    packages = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)  # those of this process
    environment = {**os.environ, "PYTHONPATH": packages}
    with tempfile.TemporaryDirectory() as directory:
        answer = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)
    if answer.returncode != 0:
        raise RuntimeError(f"{job.row.name} {job.side} failed:\n{answer.stderr}")
    return json.loads(answer.stdout.splitlines()[-1])


def answer_job(text: str) -> None:
    """Do one job in this process, and print its outcome as one line of JSON."""
    job = Job.from_plain(json.loads(text))
    if job.kind == "measure":
        begun = time.perf_counter()
        library = import_module("speed_sb3" if job.side == "sb3" else "speed_ours")
        import_seconds = time.perf_counter() - begun
        outcome = asdict(library.measure(job, import_seconds))
    else:
        parts = import_module("speed_parts")
        outcome = asdict(parts.split(job)) if job.kind == "split" else parts.replay_microseconds(job)
    print(json.dumps(outcome), flush=True)


def measure_row(row: Row, sides: Sequence[Side], *, rounds: int, scale: float) -> Iterator[Measurement]:
    """Alternate between the sides, in each round with every number of threads; every other round begins at the end."""
    for number in range(rounds):
        for threads in thread_counts():
            seed = 1 + number * len(thread_counts()) + threads - 1
            for side in sides if number % 2 == 0 else reversed(sides):
                job = Job("measure", row, side, row.budget(scale), threads, seed)
                yield replace(Measurement(**take(job)), round=number)


def train_further(rows: Sequence[Row], sides: Sequence[Side], *, runs: int, scale: float) -> Iterator[Outcome]:
    """Returns of seeds that no measurement has, as many runs at once as there are cores."""
    jobs = [
        Job("measure", row, side, row.budget(scale), seed=_FIRST_FURTHER_SEED + number)
        for row in rows
        for side in sides
        for number in range(runs)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for job, taken in zip(jobs, pool.map(take, jobs), strict=True):
            yield Outcome(job.row.name, job.side, job.seed, taken["episode_return"])


def thread_counts() -> list[int]:
    """One, and two where there are two cores."""
    return [1] if os.cpu_count() == 1 else [1, 2]


def split_row(row: Row, side: Side, scale: float) -> Split:
    """Where the time of our side goes."""
    return Split(**take(Job("split", row, side, row.budget(_SPLIT_SHARE * scale))))


def measure_growth() -> Iterator[Growth]:
    """Speed over the number of envs, update time over the width, sampling time over the size of the replay buffer."""
    ppo, dqn, sac = (next(row for row in ROWS if row.algo == algo) for algo in ("ppo", "dqn", "sac"))
    for side in OURS:
        for num_envs in (1, 4, 16, 64, 256):
            row = replace(ppo, num_envs=num_envs, steps=10_000, params={**ppo.params, "num_steps": 256})
            measured = Measurement(**take(Job("measure", row, side, row.budget(1.0))))
            yield Growth("PPO envs", num_envs, side, measured.steps_per_wall_second, "env steps per second")
        for base in (ppo, sac):
            for width in (64, 256, 1024):
                row = replace(base, steps=800, params={**base.params, "hidden_sizes": [width, width]})
                milliseconds = split_row(row, side, 1.0 / _SPLIT_SHARE).update_milliseconds
                yield Growth(f"{base.algo.upper()} width", width, side, milliseconds, "ms per gradient step")
    for capacity in (10_000, 100_000, 1_000_000):
        row = replace(dqn, params={**dqn.params, "buffer_capacity": capacity})
        yield Growth("DQN replay", capacity, "eager", float(take(Job("replay", row, "eager", 0))), "us per batch")


def describe_machine() -> dict[str, Any]:
    """The processor, its cores, and how busy it is before the first measurement."""
    from rl_training.cores import cpu_name

    return {"CPU": cpu_name(), "cores": os.cpu_count(), "load before": round(os.getloadavg()[0], 2)}


def describe_versions() -> dict[str, str]:
    """The versions that decide a result, on both sides."""
    from rl_training.runtime.run_utils import versions

    others = {name: version(name) for name in ("stable_baselines3", "mujoco") if find_spec(name)}
    return {**versions(), **others}


def measure_all(args: argparse.Namespace) -> Report:
    """Every row asked for with our parts, then growth, then further returns; what there is, is kept in between."""
    from speed_ours import auto_compiles

    date = time.strftime("%Y-%m-%d")
    report = Report(date, describe_versions(), describe_machine(), args.rounds, args.steps_scale)
    rows = chosen_rows(args.rows)
    for row in rows:
        for each in measure_row(row, tuple(SIDE_NAMES), rounds=args.rounds, scale=args.steps_scale):
            report.measurements.append(each)
            print(
                f"{row.name} round {each.round + 1}, {each.side}, threads {each.threads}: "
                f"{each.steps_per_wall_second:,.0f} steps/s wall, {each.steps_per_cpu_second:,.0f} CPU",
                flush=True,
            )
        report.splits += [split_row(row, side, args.steps_scale) for side in OURS]
        if auto_compiles(row):
            report.compiled_by_auto.append(row.name)
        keep(report, args.output)
    if args.growth:
        report.growth += measure_growth()
    keep(report, args.output)
    report.outcomes += train_further(rows, tuple(SIDE_NAMES), runs=args.further_runs, scale=args.steps_scale)
    return report


def keep(report: Report, path: Path | None) -> None:
    """Write what there is so far to the JSON file, if one is wanted."""
    if path is not None:
        save_report(path, report)


def chosen_rows(names: Sequence[str]) -> list[Row]:
    """The rows named, or all of them."""
    return [row for row in ROWS if not names or row.name in names]


def missing_modules(rows: Sequence[Row]) -> list[str]:
    """What these rows need and cannot import."""
    needed = {"stable_baselines3", *(row.needs for row in rows if row.needs)}
    return sorted(name for name in needed if find_spec(name) is None)


def parse_arguments() -> argparse.Namespace:
    """What the caller wants; a mistake ends here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="of A1, A2, B, C, D; all when none is named")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps-scale", type=float, default=1.0, help="multiplies every budget")
    parser.add_argument("--further-runs", type=int, default=0, help="of each side, for their returns alone")
    parser.add_argument("--growth", action="store_true", help="also measure how times grow with sizes")
    parser.add_argument(
        "--gate",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE",
        help="exit with 1 when a bar is missed; FILE: a JSON file of --output, reported on instead of measuring anew",
    )
    parser.add_argument("--output", type=Path, help="write measurements and medians to this JSON file")
    parser.add_argument("--chart", type=Path, help="draw the ratios into this PNG file (extra `plots`)")
    parser.add_argument("--document", type=Path, help="write all of it to this Markdown file")
    args = parser.parse_args()
    unknown = sorted(set(args.rows) - {row.name for row in ROWS})
    if unknown:
        parser.error(f"unknown rows {', '.join(unknown)}; allowed: {', '.join(row.name for row in ROWS)}")
    if args.rounds < 1 or args.steps_scale <= 0.0 or args.further_runs < 0:
        parser.error("--rounds must be at least 1, --steps-scale above 0, --further-runs at least 0")
    if args.gate not in (None, Path()):
        if not args.gate.is_file():
            parser.error(f"{args.gate} is no file; name rows before --gate")
    elif missing := missing_modules(chosen_rows(args.rows)):
        parser.error(f"{', '.join(missing)} not installed: pip install '.[bench,mujoco]', or name other rows")
    return args


def publish(report: Report, args: argparse.Namespace) -> None:
    """Print every table, and write the files asked for."""
    rows = [row_table(report, name) for name in report.row_names()]
    for table in (*rows, split_table(report), *([growth_table(report)] if report.growth else [])):
        print(f"{table}\n", flush=True)
    keep(report, args.output)
    if args.chart:
        draw_chart(args.chart, report)
    if args.chart and report.growth:
        draw_growth(growth_chart(args.chart), report)
    if args.document:
        write_document(args.document, report, args.chart)


def main() -> int:
    """Measure, or read what was measured, and report."""
    if sys.argv[1:2] == [_CHILD]:
        answer_job(sys.argv[2])
        return 0
    args = parse_arguments()
    if args.gate not in (None, Path()):
        report = load_report(args.gate)
    else:
        with tempfile.TemporaryDirectory() as cache:  # compiled code: made in the first round, found in the others
            os.environ["XDG_CACHE_HOME"] = os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            report = measure_all(args)
    publish(report, args)
    if args.gate is None:
        return 0
    missed = missed_bars(report)
    print("\n".join(missed) or "every bar is reached")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
