"""Trains the shipped presets over several seeds and compares with what they promise.

`python benchmarks/learning.py` runs every claim, two seeds at a time, prints a table, and exits with 1 when a claim
does not hold. `--output` keeps each claim in a JSON file as soon as it is tried, with the versions beside it; claims of
other presets that the file holds stay there.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from rl_training.cli import load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.experiment.sources import PRESETS_DIR
from rl_training.runtime.callbacks import StopAtReturn
from rl_training.runtime.run_utils import versions
from rl_training.runtime.workflows import evaluate_checkpoint


@dataclass(frozen=True)
class Claim:
    """At least `needed` of the seeds reach `threshold` within `max_steps` env steps."""

    preset: str
    seeds: tuple[int, ...]
    threshold: float
    needed: int
    max_steps: int
    stop_at: float | None = None
    """End a run early once an evaluation reaches this; none: use the preset's budget."""
    eval_episodes: int = 20
    """Of the final agent; more where the start decides much of the return."""


CLAIMS = (
    Claim("ppo/cartpole.yaml", tuple(range(1, 11)), threshold=475.0, needed=9, max_steps=100_000),
    Claim("ppo/pendulum.yaml", (1, 2, 3), threshold=-250.0, needed=3, max_steps=150_000),
    Claim("dqn/cartpole.yaml", tuple(range(1, 11)), threshold=475.0, needed=8, max_steps=50_000),
    Claim("dqn/acrobot.yaml", (1, 2, 3), threshold=-100.0, needed=3, max_steps=100_000),
    Claim("sac/pendulum.yaml", (1, 2, 3, 4, 5), threshold=-200.0, needed=5, max_steps=20_000, eval_episodes=100),
    Claim("ppo/halfcheetah.yaml", (1,), threshold=2_000.0, needed=1, max_steps=1_000_000),
    Claim("sac/halfcheetah.yaml", (1,), threshold=4_000.0, needed=1, max_steps=300_000, stop_at=4_500.0),
)


@dataclass(frozen=True)
class Outcome:
    """One seed's final agent, evaluated over the claim's episodes."""

    preset: str
    seed: int
    eval_return_mean: float
    eval_return_std: float
    env_steps: int
    wall_seconds: float


def train_seed(claim: Claim, seed: int) -> Outcome:
    """Train one seed in a throw-away directory."""
    with tempfile.TemporaryDirectory() as directory:
        update = {"seed": seed, "output_dir": Path(directory), "device": "cpu"}
        config = load_config(PRESETS_DIR / claim.preset).model_copy(update=update)
        callbacks = [StopAtReturn(claim.stop_at)] if claim.stop_at is not None else []
        result = get_algorithm_spec(config.algo).train_fn(config, callbacks=callbacks)
        metrics = evaluate_checkpoint(result.checkpoint_path, claim.eval_episodes)
        return Outcome(
            preset=claim.preset,
            seed=seed,
            eval_return_mean=round(metrics["eval_return_mean"], 2),
            eval_return_std=round(metrics["eval_return_std"], 2),
            env_steps=int(result.metrics["global_step"]),
            wall_seconds=read_metadata(context_of(result.run_dir))["wall_seconds"],
        )


def holds(claim: Claim, outcomes: Sequence[Outcome]) -> bool:
    """Whether enough seeds got there in time."""
    reached = [
        outcome
        for outcome in outcomes
        if outcome.eval_return_mean >= claim.threshold and outcome.env_steps <= claim.max_steps
    ]
    return len(reached) >= claim.needed


def keep_receipt(path: Path, claim: Claim, outcomes: Sequence[Outcome]) -> None:
    """Put a claim's outcomes into the file, in place of older ones of the same preset."""
    receipts = json.loads(path.read_text()) if path.exists() else {}
    receipts[claim.preset] = {
        "claim": asdict(claim),
        "holds": holds(claim, outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "versions": versions(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dict(sorted(receipts.items())), indent=1) + "\n")


def main() -> int:
    """Run all claims, or those of the presets named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("presets", nargs="*", help="such as ppo/cartpole.yaml; all when none is named")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, help="write the outcomes to this JSON file")
    args = parser.parse_args()
    claims = [claim for claim in CLAIMS if not args.presets or claim.preset in args.presets]
    verdicts = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for claim in claims:
            jobs = [pool.submit(train_seed, claim, seed) for seed in claim.seeds]
            outcomes = [job.result() for job in jobs]
            for row in outcomes:
                print(
                    f"{row.preset}  seed {row.seed:2}  return {row.eval_return_mean:8.2f} +- {row.eval_return_std:6.2f}"
                    f"  {row.env_steps:,} steps  {row.wall_seconds:.0f} s",
                    flush=True,
                )
            verdicts.append(holds(claim, outcomes))
            print(f"{'holds' if verdicts[-1] else 'FAILS'}: {claim}", flush=True)
            if args.output:
                keep_receipt(args.output, claim, outcomes)
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
