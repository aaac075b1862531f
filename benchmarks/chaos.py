"""Kills training runs at random moments, resumes them, and compares with the run that was never killed.

`python benchmarks/chaos.py` kills every scenario with SIGKILL, 20 times by default, prints a table, and exits with 1
when a run was lost or ended otherwise than the straight one, to the last bit. `--output` writes the table as Markdown.
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

import gymnasium
import numpy as np
from gymnasium import spaces

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import find_checkpoint, load_checkpoint, step_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import state_digests
from rl_training.experiment.locking import LOCK_FILE
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import context_of, create_run_context, read_digests, read_metadata, read_metrics
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
_HIDDEN_ID = "chaos:HiddenWalk-v0"


class HiddenWalk(gymnasium.Env[Any, Any]):
    """Its observation shows only part of its state: a hidden walk decides rewards and, in the end, the ending."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, continuous: bool = False) -> None:
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin at 0."""
        super().reset(seed=seed, options=options)
        self.hidden, self.steps = 0.0, 0
        return np.array([self.np_random.random()], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move at random, and a little as the action says."""
        push = float(np.asarray(action).item())
        self.hidden += float(self.np_random.normal()) + 0.2 * push - 0.1
        self.steps += 1
        shown = np.array([np.round(self.hidden)], np.float32)
        return shown, abs(self.hidden), abs(self.hidden) > 6.0, self.steps >= 60, {}


gymnasium.register("HiddenWalk-v0", f"{__name__}:HiddenWalk")


@dataclass(frozen=True)
class Scenario:
    """One algorithm on one env, in one kind of vector env."""

    algo: str
    env_id: str
    vectorization: str
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    extra: str | None = None
    """Which extra of the package the env needs."""

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
    """Every algorithm on every env that it can train."""
    continuous = (("continuous", True),)
    tasks: list[tuple[str, str, tuple[tuple[str, Any], ...], str | None]] = [
        *((algo, "CartPole-v1", (), None) for algo in ("ppo", "dqn")),
        *((algo, "Pendulum-v1", (), None) for algo in ("ppo", "sac")),
        *((algo, "LunarLander-v3", (), "box2d") for algo in ("ppo", "dqn")),
        *((algo, "LunarLander-v3", continuous, "box2d") for algo in ("ppo", "sac")),
        *((algo, "HalfCheetah-v5", (), "mujoco") for algo in ("ppo", "sac")),
        *((algo, _HIDDEN_ID, (), None) for algo in ("ppo", "dqn")),
        ("sac", _HIDDEN_ID, continuous, None),
    ]
    return [
        Scenario(algo, env_id, vectorization, env_kwargs, extra)
        for algo, env_id, env_kwargs, extra in tasks
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
    exact_resumes: int


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
    """Until this life has taken the run's lock and there is something to resume."""
    while process.is_alive():
        with suppress(FileNotFoundError):
            holder = (run_dir / LOCK_FILE).read_text()
            if str(process.pid) in holder and step_checkpoints(run_dir / "checkpoints"):
                return
        time.sleep(0.002)


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
    killed = in_saves = lost = exact = attempt = 0
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
            equal &= result_of(run_dir) == straight
            exact += sum(note["exact"] for note in read_metadata(context_of(run_dir)).get("resumed", []))
        except CheckpointError:
            lost += 1
    return Outcome(killed, in_saves, lost, equal, exact)


def table(outcomes: Sequence[tuple[Scenario, Outcome]]) -> str:
    """Markdown."""
    lines = [
        "| algorithm | env | vector env | kills | in a save | exact resumes | runs lost | bit-equal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario, outcome in outcomes:
        env = scenario.env_id.removeprefix("chaos:") + (" (continuous)" if scenario.env_kwargs else "")
        lines.append(
            f"| {scenario.algo} | {env} | {scenario.vectorization} | {outcome.kills} | {outcome.in_saves} "
            f"| {outcome.exact_resumes} | {outcome.lost} | {'yes' if outcome.equal else 'NO'} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Try all scenarios, or those that contain the words given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="such as sac, Pendulum-v1 or async: scenarios with all of them")
    parser.add_argument("--kills", type=int, default=20, help="per scenario")
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
    kills = sum(outcome.kills for _, outcome in outcomes)
    bad = [scenario for scenario, outcome in outcomes if outcome.lost or not outcome.equal]
    summary = f"{kills} kills, {len(outcomes)} scenarios, {len(outcomes) - len(bad)} bit-equal to the straight run"
    print(summary)
    if args.output:
        text = (
            f"# Killed and resumed\n\n{__doc__.strip()}\n\n{summary}. {json.dumps(versions())}\n\n{table(outcomes)}\n"
        )
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(text)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
