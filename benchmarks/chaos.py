"""Kill training runs at random moments, resume them, and compare them with uninterrupted runs.

`python benchmarks/chaos.py` kills the runs of every scenario with SIGKILL, 24 times by default, and prints a table.
`--output` writes it as Markdown. If an env depends only on its seed and its actions, it replays: a killed run must end
bit-equal to the uninterrupted one. Other envs cannot be restored; if a run on such an env ends differently, its resumes
must not have been reported as exact. The exit code is 1 if a run was lost, if a run on a replaying env ended
differently, or if a run was falsely reported as exact.
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

import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpointing import CheckpointState, find_checkpoint, load_checkpoint, step_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.digests import digest
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
_LATE_KILL_SHARE = 0.8  # these kills wait until the run trains; the others may happen during its set-up
_WALKS = "chaos_envs:"


@dataclass(frozen=True)
class Scenario:
    """One algorithm on one env with one kind of vector env."""

    algo: str
    env_id: str
    vectorization: str
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    replays: bool = True
    """Whether the env depends only on its seed and its actions."""
    callbacks: tuple[str, ...] = ()

    def config(self, output_dir: Path) -> TrainConfig:
        """Return the config of a run that takes some seconds and saves often."""
        budget = _BUDGETS[self.algo]
        return TrainConfig(
            algo=self.algo,
            env_id=self.env_id,
            env_kwargs=dict(self.env_kwargs),
            vectorization=self.vectorization,
            callbacks=self.callbacks,
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
    """Return every algorithm on every env that it can train, then envs that do not replay, then curricula."""
    continuous = (("continuous", True),)
    tasks: list[tuple[str, str, tuple[tuple[str, Any], ...], bool]] = [
        *((algo, "CartPole-v1", (), True) for algo in ("ppo", "dqn")),
        *((algo, "Pendulum-v1", (), True) for algo in ("ppo", "sac")),
        *((algo, "LunarLander-v3", (), True) for algo in ("ppo", "dqn")),
        *((algo, "LunarLander-v3", continuous, True) for algo in ("ppo", "sac")),
        *((algo, "HalfCheetah-v5", (), True) for algo in ("ppo", "sac")),
        *((algo, f"{_WALKS}HiddenWalk-v0", (), True) for algo in ("ppo", "dqn")),
        *((algo, f"{_WALKS}PanelWalk-v0", (), True) for algo in ("ppo", "dqn")),
        ("sac", f"{_WALKS}HiddenWalk-v0", continuous, True),
        ("sac", f"{_WALKS}SmoothWalk-v0", continuous, True),
        *((algo, "BipedalWalker-v3", (), False) for algo in ("ppo", "sac")),
        *((algo, f"{_WALKS}WornWalk-v0", (), False) for algo in ("ppo", "dqn")),
        ("ppo", f"{_WALKS}CountedWalk-v0", (), False),
        ("dqn", f"{_WALKS}UnseededWalk-v0", (), False),
        ("ppo", f"{_WALKS}ForgetfulWalk-v0", (), False),
        ("sac", f"{_WALKS}LaggingWalk-v0", continuous, False),
    ]
    curricula = [("ppo", ()), ("dqn", ()), ("sac", continuous)]
    return [
        Scenario(algo, env_id, vectorization, env_kwargs, replays)
        for algo, env_id, env_kwargs, replays in tasks
        for vectorization in ("sync", "async")
    ] + [
        Scenario(algo, f"{_WALKS}LevelWalk-v0", vectorization, env_kwargs, callbacks=(f"{_WALKS}RaiseLevel",))
        for algo, env_kwargs in curricula
        for vectorization in ("sync", "async")
    ]


@dataclass(frozen=True)
class Outcome:
    """The result of a scenario."""

    kills: int
    in_saves: int
    """The number of kills that left a half-written file behind."""
    lost: int
    equal: bool
    resumes: int
    exact_resumes: int
    """The number of resumes that were reported as exact."""
    false_claims: int
    """The number of runs that differ from the uninterrupted one although every resume was reported as exact."""

    def passed(self, scenario: Scenario) -> bool:
        """Return whether no run was lost, falsely reported as exact, or different on an env that replays."""
        return not self.lost and not self.false_claims and (self.equal or not scenario.replays)


def train_or_resume(config: TrainConfig, suffix: str) -> None:
    """Start a run, or resume it if an earlier process has left a checkpoint."""
    warnings.simplefilter("ignore")  # the lock of a killed process causes a warning, which is expected here
    set_start_method("fork", force=True)  # start env workers as the command line does, not as this process was started
    run_dir = run_dir_of(config, suffix)
    if step_checkpoints(context_of(run_dir).checkpoints_dir):
        resume_training(run_dir)
    else:  # killed before the first checkpoint
        shutil.rmtree(run_dir, ignore_errors=True)
        get_algorithm_spec(config.algo).train_fn(config, run_suffix=suffix)


def run_dir_of(config: TrainConfig, suffix: str) -> Path:
    """Return the directory in which `train_fn` will write a run."""
    with tempfile.TemporaryDirectory() as directory:
        context = create_run_context(config.model_copy(update={"output_dir": Path(directory)}), suffix)
    return config.output_dir / context.run_id


def result_of(run_dir: Path) -> tuple[dict[str, str], list[dict[str, Any]], dict[int, str]]:
    """Return the digests of the final state, the metrics without measured times, and the digests of all log lines."""
    context = context_of(run_dir)
    rows = [
        {name: value for name, value in row.items() if not name.startswith("time")} for row in read_metrics(context)
    ]
    return state_digests(load_checkpoint(find_checkpoint(run_dir))), rows, read_digests(context)


def state_digests(state: CheckpointState) -> dict[str, str]:
    """Return a digest for each part of a checkpoint that decides how the run continues; measured times are left out."""
    trainer = {name: value for name, value in state.trainer_state.items() if name not in ("callbacks", "samples")}
    metrics = trainer.get("metrics", {})
    trainer["metrics"] = {name: value for name, value in metrics.items() if not name.startswith("time/")}
    return {
        "algorithm": digest(state.algorithm_state),
        "buffer": digest(_join_blocks(state.buffer_state)),
        "trainer": digest(trainer),
    }


def _join_blocks(buffer_state: dict[str, Any]) -> dict[str, Any]:
    """Join the blocks of a replay buffer's state, so that the digest does not depend on how often it was saved."""
    if "blocks" not in buffer_state:
        return buffer_state
    pieces: dict[str, list[torch.Tensor]] = {}
    for block in buffer_state["blocks"]:
        content = block["content"]
        outdated = max(0, buffer_state["added"] - buffer_state["size"] - block["first"])
        for name, field in content.items():
            # `beyond` has an entry only for rows that ended an episode.
            skipped = int(content["ended"][:outdated].sum()) if name == "beyond" else outdated
            pieces.setdefault(name, []).append(field[skipped:])
    return {**buffer_state, "blocks": {name: torch.cat(fields) for name, fields in pieces.items()}}


def start_process(config: TrainConfig, suffix: str) -> BaseProcess:
    """Start or resume a run in a new process, forked from a server that has only imported modules."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["rl_training.runtime.workflows", "torch.utils.tensorboard"])
    process = context.Process(target=train_or_resume, args=(config, suffix))
    process.start()
    return process


def wait_until_training(process: BaseProcess, run_dir: Path) -> None:
    """Wait until the process has written the metadata and there is a checkpoint to resume from."""
    before = _metadata_time(run_dir)
    while process.is_alive():
        with suppress(FileNotFoundError):
            holder = (run_dir / LOCK_FILE).read_text()
            is_training = str(process.pid) in holder and _metadata_time(run_dir) != before
            if is_training and step_checkpoints(run_dir / "checkpoints"):
                return
        time.sleep(0.002)


def _metadata_time(run_dir: Path) -> int:
    try:
        return context_of(run_dir).metadata_path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def run_scenario(scenario: Scenario, kills: int, generator: random.Random, directory: Path) -> Outcome:
    """Train an uninterrupted run, then runs that are killed, until there were `kills` kills in total."""
    config = scenario.config(directory)
    reference_dir = run_dir_of(config, "uninterrupted")
    process = start_process(config, "uninterrupted")
    wait_until_training(process, reference_dir)
    started_at = time.monotonic()
    process.join()
    max_delay = (time.monotonic() - started_at) / 8
    reference = result_of(reference_dir)
    killed = in_saves = lost = resumes = exact = false_claims = attempt = 0
    equal = True
    while killed < kills:
        attempt += 1
        suffix = f"killed-{attempt}"
        run_dir = run_dir_of(config, suffix)
        process = start_process(config, suffix)
        partial_files: set[Path] = set()
        while killed < kills:
            if generator.random() < _LATE_KILL_SHARE:
                wait_until_training(process, run_dir)
            process.join(generator.uniform(0.0, max_delay))
            if process.exitcode is not None:
                break
            process.kill()
            process.join()
            killed += 1
            earlier, partial_files = partial_files, set(run_dir.rglob("*.tmp"))
            in_saves += bool(partial_files - earlier)
            process = start_process(config, suffix)
        process.join()
        try:
            same = result_of(run_dir) == reference
            claims = [note["exact"] for note in read_metadata(context_of(run_dir)).get("resumed", [])]
            equal &= same
            resumes, exact = resumes + len(claims), exact + sum(claims)
            false_claims += bool(claims) and all(claims) and not same
        except CheckpointError:
            lost += 1
    return Outcome(killed, in_saves, lost, equal, resumes, exact, false_claims)


def format_table(outcomes: Sequence[tuple[Scenario, Outcome]]) -> str:
    """Format the outcomes as a Markdown table."""
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
    """Run all scenarios, or only those that match all given words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only scenarios with all these words, such as sac or async")
    parser.add_argument("--kills", type=int, default=24, help="kills per scenario")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios to run at the same time")
    parser.add_argument("--output", type=Path, help="write the table to this Markdown file")
    args = parser.parse_args()
    chosen = [each for each in all_scenarios() if set(args.words) <= {each.algo, each.env_id, each.vectorization}]

    def attempt(scenario: Scenario) -> tuple[Scenario, Outcome]:
        with tempfile.TemporaryDirectory() as directory:
            generator = random.Random(f"{args.seed} {scenario}")
            outcome = run_scenario(scenario, args.kills, generator, Path(directory))
        print(format_table([(scenario, outcome)]).splitlines()[-1], flush=True)
        return scenario, outcome

    with ThreadPoolExecutor(args.jobs) as pool:
        outcomes = list(pool.map(attempt, chosen))
    summary = summarize(outcomes)
    print(summary)
    if args.output:
        parts = (
            "# Killed and resumed",
            __doc__.strip(),
            f"{summary}. {json.dumps(versions())}",
            format_table(outcomes),
        )
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text("\n\n".join(parts) + "\n")
    return 0 if all(outcome.passed(scenario) for scenario, outcome in outcomes) else 1


def summarize(outcomes: Sequence[tuple[Scenario, Outcome]]) -> str:
    """Return one sentence about all scenarios."""
    replaying = [outcome for scenario, outcome in outcomes if scenario.replays]
    kills, lost, false_claims = (
        sum(getattr(outcome, name) for _, outcome in outcomes) for name in ("kills", "lost", "false_claims")
    )
    return (
        f"{kills} kills in {len(outcomes)} scenarios: {lost} runs lost, {false_claims} false claims of exactness; "
        f"{sum(outcome.equal for outcome in replaying)} of {len(replaying)} scenarios whose env replays are bit-equal "
        "to the uninterrupted run"
    )


if __name__ == "__main__":
    sys.exit(main())
