"""Kills training runs at random moments, resumes them, and compares with the run that was never killed.

`python benchmarks/chaos.py` kills every scenario with SIGKILL, 24 times by default, and prints a table. `--output`
writes it as Markdown. On an env that is a function of its seed and its actions, a run must end as the straight one, to
the last bit. Other envs cannot be brought back; there, a run that differs must not have been called exact. The exit
code is 1 when a run was lost, when one differed that should not have, or when exactness was claimed falsely.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, set_start_method
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint, step_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import state_digests
from rl_training.experiment.locking import LOCK_FILE
from rl_training.experiment.runs import context_of, create_run_context, read_digests, read_metadata, read_metrics
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.run_utils import versions
from rl_training.runtime.workflows import resume_training

_SMALL_REPLAY = {"buffer_capacity": 2_000, "learning_starts": 200, "batch_size": 64, "hidden_sizes": [64, 64]}
_SMALL_ROLLOUT = {"num_steps": 64, "minibatch_size": 64, "update_epochs": 4, "normalize_obs": True}
_PARAMS: dict[str, dict[str, Any]] = {
    "ppo": {**_SMALL_ROLLOUT, "normalize_rewards": True},
    "dqn": {**_SMALL_REPLAY, "prioritized": True, "n_step": 3, "train_frequency": 4},
    "sac": {**_SMALL_REPLAY, "train_frequency": 2},
}
_BUDGETS = {"ppo": 16_384, "dqn": 12_000, "sac": 6_000}
_SHARE_OF_LATE_KILLS = 0.8  # the others may come while a life is still being set up
_WALKS = "chaos_envs:"


@dataclass(frozen=True)
class Scenario:
    """One algorithm on one env, in one kind of vector env."""

    algo: str
    env_id: str
    vectorization: str
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    replays: bool = True
    """Whether the env is a function of its seed and its actions."""

    def config(self, output_dir: Path) -> TrainConfig:
        """A run of some seconds that saves often."""
        budget = _BUDGETS[self.algo]
        return TrainConfig(
            algo=self.algo,
            env_id=self.env_id,
            env_kwargs=dict(self.env_kwargs),
            vectorization=self.vectorization,
            num_envs=4,
            seed=11,
            total_timesteps=budget,
            output_dir=output_dir,
            eval_episodes=2,
            eval_interval=budget // 6,
            log_interval=budget // 60,
            checkpoint_interval=budget // 30,
            checkpoint_seconds=0.3,
            device="cpu",
            algo_kwargs=_PARAMS[self.algo],
        )


def all_scenarios() -> list[Scenario]:
    """Every algorithm on every env that it can train, then envs that do not replay."""
    continuous = (("continuous", True),)
    tasks: list[tuple[str, str, tuple[tuple[str, Any], ...], bool]] = [
        *((algo, "CartPole-v1", (), True) for algo in ("ppo", "dqn")),
        *((algo, "Pendulum-v1", (), True) for algo in ("ppo", "sac")),
        *((algo, "LunarLander-v3", (), True) for algo in ("ppo", "dqn")),
        *((algo, "LunarLander-v3", continuous, True) for algo in ("ppo", "sac")),
        *((algo, "HalfCheetah-v5", (), True) for algo in ("ppo", "sac")),
        *((algo, f"{_WALKS}HiddenWalk-v0", (), True) for algo in ("ppo", "dqn")),
        ("sac", f"{_WALKS}HiddenWalk-v0", continuous, True),
        ("sac", f"{_WALKS}SmoothWalk-v0", continuous, True),
        *((algo, "BipedalWalker-v3", (), False) for algo in ("ppo", "sac")),
        *((algo, f"{_WALKS}WornWalk-v0", (), False) for algo in ("ppo", "dqn")),
        ("ppo", f"{_WALKS}CountedWalk-v0", (), False),
        ("dqn", f"{_WALKS}UnseededWalk-v0", (), False),
        ("ppo", f"{_WALKS}ForgetfulWalk-v0", (), False),
        ("sac", f"{_WALKS}LaggingWalk-v0", continuous, False),
    ]
    return [
        Scenario(algo, env_id, vectorization, env_kwargs, replays)
        for algo, env_id, env_kwargs, replays in tasks
        for vectorization in ("sync", "async")
    ]


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario."""

    kills: int
    in_saves: int
    """Kills that left a half-written file behind."""
    lost: int
    equal: bool
    resumes: int
    exact_resumes: int
    """Resumes that said that they were exact."""
    false_claims: int
    """Runs that differ from the straight one, although every resume said that it was exact."""

    def is_good(self, scenario: Scenario) -> bool:
        """Whether every promise was kept."""
        return not self.lost and not self.false_claims and (self.equal or not scenario.replays)


def live(config: TrainConfig, suffix: str) -> None:
    """One life of a run: begin it, or go on from what the life before has left."""
    warnings.simplefilter("ignore")  # that a dead process has left its lock is the point
    set_start_method("fork", force=True)  # env workers as in a run from the command line, not as this process began
    run_dir = run_dir_of(config, suffix)
    if step_checkpoints(context_of(run_dir).checkpoints_dir):
        resume_training(run_dir)
    else:  # killed before it had done anything
        shutil.rmtree(run_dir, ignore_errors=True)
        get_algorithm_spec(config.algo).train_fn(config, run_suffix=suffix)


def run_dir_of(config: TrainConfig, suffix: str) -> Path:
    """Where `train_fn` will put a run."""
    with tempfile.TemporaryDirectory() as elsewhere:
        named = create_run_context(config.model_copy(update={"output_dir": Path(elsewhere)}), suffix)
    return config.output_dir / named.run_id


def result_of(run_dir: Path) -> tuple[dict[str, str], list[dict[str, Any]], dict[int, str]]:
    """The digests of the final state, the metrics without what clocks measured, and the digests on the way."""
    context = context_of(run_dir)
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time")} for row in read_metrics(context)
    ]
    return state_digests(load_checkpoint(find_checkpoint(run_dir))), rows, read_digests(context)


def start(config: TrainConfig, suffix: str) -> BaseProcess:
    """A life in a process of its own, forked from a server that has done nothing but import."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rl_training.runtime.workflows", "torch.utils.tensorboard"])
    process = context.Process(target=live, args=(config, suffix))
    process.start()
    return process


def wait_until_it_trains(process: BaseProcess, run_dir: Path) -> None:
    """Wait until this life has noted in the metadata that it trains, and there is something to resume."""
    before = _metadata_time(run_dir)
    while process.is_alive():
        with suppress(FileNotFoundError):
            holder = (run_dir / LOCK_FILE).read_text()
            trains = str(process.pid) in holder and _metadata_time(run_dir) != before
            if trains and step_checkpoints(run_dir / "checkpoints"):
                return
        time.sleep(0.002)


def _metadata_time(run_dir: Path) -> int:
    try:
        return context_of(run_dir).metadata_path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def try_scenario(scenario: Scenario, kills: int, moments: random.Random, directory: Path) -> Outcome:
    """The straight run, then runs that are killed until `kills` are used up and the last one may end."""
    config = scenario.config(directory)
    straight_dir = run_dir_of(config, "straight")
    process = start(config, "straight")
    wait_until_it_trains(process, straight_dir)
    began = time.monotonic()
    process.join()
    longest_life = (time.monotonic() - began) / 8
    straight = result_of(straight_dir)
    killed = in_saves = lost = resumes = exact = false_claims = attempt = 0
    equal = True
    while killed < kills:
        attempt += 1
        suffix = f"killed-{attempt}"
        run_dir = run_dir_of(config, suffix)
        process = start(config, suffix)
        halves: set[Path] = set()
        while killed < kills:
            if moments.random() < _SHARE_OF_LATE_KILLS:
                wait_until_it_trains(process, run_dir)
            process.join(moments.uniform(0.0, longest_life))
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            killed += 1
            left, halves = halves, set(run_dir.rglob("*.tmp"))
            in_saves += bool(halves - left)
            process = start(config, suffix)
        process.join()
        try:
            same = result_of(run_dir) == straight
            claims = [note["exact"] for note in read_metadata(context_of(run_dir)).get("resumed", [])]
            equal &= same
            resumes, exact = resumes + len(claims), exact + sum(claims)
            false_claims += bool(claims) and all(claims) and not same
        except CheckpointError:
            lost += 1
    return Outcome(killed, in_saves, lost, equal, resumes, exact, false_claims)


def table(outcomes: Sequence[tuple[Scenario, Outcome]]) -> str:
    """Markdown."""
    lines = [
        "| algorithm | env | replays | vector env | kills | in a save | resumes called exact | runs lost | bit-equal "
        "| false claims |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario, outcome in outcomes:
        env = scenario.env_id.removeprefix(_WALKS) + (" (continuous)" if scenario.env_kwargs else "")
        different = "NO" if scenario.replays else "no"
        lines.append(
            f"| {scenario.algo} | {env} | {'yes' if scenario.replays else 'no'} | {scenario.vectorization} "
            f"| {outcome.kills} | {outcome.in_saves} | {outcome.exact_resumes} of {outcome.resumes} | {outcome.lost} "
            f"| {'yes' if outcome.equal else different} | {outcome.false_claims} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Try all scenarios, or those that contain the words given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="such as sac, Pendulum-v1 or async: scenarios with all of them")
    parser.add_argument("--kills", type=int, default=24, help="per scenario")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of death")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the table to this Markdown file")
    args = parser.parse_args()
    chosen = [each for each in all_scenarios() if set(args.words) <= {each.algo, each.env_id, each.vectorization}]

    def attempt(scenario: Scenario) -> tuple[Scenario, Outcome]:
        with tempfile.TemporaryDirectory() as directory:
            moments = random.Random(f"{args.seed} {scenario}")
            outcome = try_scenario(scenario, args.kills, moments, Path(directory))
        print(table([(scenario, outcome)]).splitlines()[-1], flush=True)
        return scenario, outcome

    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(attempt, chosen))
    summary = summarize(outcomes)
    print(summary)
    if args.output:
        text = (
            f"# Killed and resumed\n\n{__doc__.strip()}\n\n{summary}. {json.dumps(versions())}\n\n{table(outcomes)}\n"
        )
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text)
    return 0 if all(outcome.is_good(scenario) for scenario, outcome in outcomes) else 1


def summarize(outcomes: Sequence[tuple[Scenario, Outcome]]) -> str:
    """Return one sentence about all scenarios."""
    replaying = [outcome for scenario, outcome in outcomes if scenario.replays]
    kills, lost, false_claims = (
        sum(getattr(outcome, name) for _, outcome in outcomes) for name in ("kills", "lost", "false_claims")
    )
    return (
        f"{kills} kills in {len(outcomes)} scenarios: {lost} runs lost, {false_claims} false claims of exactness; "
        f"{sum(outcome.equal for outcome in replaying)} of {len(replaying)} scenarios whose env replays are bit-equal "
        "to the straight run"
    )


if __name__ == "__main__":
    sys.exit(main())
