"""Benchmarks: train shipped presets over several seeds and measure the values of their receipts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from rl_training.cores import available_cores, cpu_name
from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.groups import GroupRecord
from rl_training.experiment.sources import read_yaml, resolve_config
from rl_training.groups.jobs import Jobs
from rl_training.groups.many_seeds import GroupResult, prepare_group, run_group
from rl_training.groups.observer import GroupObserver
from rl_training.groups.places import open_place
from rl_training.results.receipts import Receipt, SeedScore, preset_digest, preset_names, preset_path, summarize
from rl_training.runtime.callbacks import StopRules
from rl_training.runtime.run_utils import now
from rl_training.runtime.workflows import evaluate_checkpoint

OTHERS = "third_party"
"""The suite of environments that neither Gymnasium nor ale-py contains."""
_HOMES = {"classic_control": "classic", "toy_text": "toy_text", "box2d": "box2d", "mujoco": "mujoco", "ale_py": "atari"}
SUITES = (*_HOMES.values(), OTHERS)


@dataclass(frozen=True)
class BenchmarkOptions:
    """Settings of a benchmark."""

    seeds: tuple[int, ...]
    jobs: Jobs
    episodes: int
    output_dir: Path
    """The directory in which the run directories are created."""
    compile: Literal["on", "off"] | None = None
    """Replaces the value of the preset, unless it is None."""
    on: str = "here"
    """Where to train: `here`, `ray` or `ray=ADDRESS`."""


def presets_of(name: str) -> list[str]:
    """Return the presets of a suite, or the single preset with this name."""
    if name not in SUITES:
        if "/" not in name:
            raise ConfigError(f"there is no suite '{name}': give {', '.join(SUITES)}, or a preset such as ppo/cartpole")
        preset_path(name)
        return [name]
    return [preset for preset in preset_names() if _suite_of(read_preset(preset).env_id) == name]


def _suite_of(env_id: str) -> str:
    """Return the suite of an environment, whose package need not be installed."""
    module, _, name = env_id.rpartition(":")
    if not module and name in gymnasium.registry:
        module = str(gymnasium.registry[name].entry_point)
    return _HOMES.get(module.removeprefix("gymnasium.envs.").partition(".")[0].partition(":")[0], OTHERS)


def read_preset(name: str) -> TrainConfig:
    """Read the config of a shipped preset."""
    return resolve_config([read_yaml(preset_path(name), "preset")]).config


def measure_preset(name: str, options: BenchmarkOptions, observer: GroupObserver | None = None) -> Receipt:
    """Train a preset with every seed, and evaluate each final agent."""
    digest = preset_digest(name)
    config = _preset_config(name, options)
    with open_place(options.on, config) as place:
        group = prepare_group(config, options.seeds, options.jobs, StopRules(), place)
        result = run_group(group, observer, place)
    _check_all_done(name, result)
    scores = tuple(_score(result, seed, options.episodes) for seed in options.seeds)
    iqm, interval = summarize(scores)
    record: GroupRecord = result.record
    return Receipt(
        preset=name,
        preset_sha256=digest,
        env_id=group.config.env_id,
        eval_episodes=options.episodes,
        scores=scores,
        iqm=iqm,
        interval=interval,
        compile="on" if group.config.compile == "on" else "off",
        versions=record.versions,
        git_commit=record.git_commit,
        hardware={"cpu": cpu_name(), "cores": available_cores()},
        jobs=record.jobs,
        created_at=now(),
    )


def _preset_config(name: str, options: BenchmarkOptions) -> TrainConfig:
    changes: dict[str, Any] = {"output_dir": options.output_dir, "device": "cpu"}
    if options.compile is not None:
        changes["compile"] = options.compile
    return read_preset(name).model_copy(update=changes)


def _check_all_done(name: str, result: GroupResult) -> None:
    failed = [record for record in result.record.seeds if not record.done]
    if failed:
        raise RunDirectoryError(
            f"{name}: seed {failed[0].seed} {failed[0].status} ({failed[0].reason}); "
            f"continue with `rl-training resume {result.group_dir}`"
        )


def _score(result: GroupResult, seed: int, episodes: int) -> SeedScore:
    record = next(each for each in result.record.seeds if each.seed == seed)
    metrics = evaluate_checkpoint(result.group_dir / record.run_dir, episodes)
    return SeedScore(
        seed=seed,
        return_mean=round(metrics["eval_return_mean"], 2),
        return_std=round(metrics["eval_return_std"], 2),
        env_steps=record.global_step,
        wall_seconds=round(record.wall_seconds, 1),
    )
