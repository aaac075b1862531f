"""Values that the shell offers for arguments and options. Nothing here imports torch or code of the working directory.

Where a function offers nothing, the shell completes the names of files.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import typer

ALGORITHMS = ("dqn", "ppo", "sac")
SUITES = ("atari", "box2d", "classic", "mujoco", "third_party", "toy_text")
FORMATS = ("numpy", "onnx", "torch")
METRICS = ("eval/mean_ep_length", "eval/mean_reward", "rollout/ep_len_mean", "rollout/ep_rew_mean")
SCORES = ("final", "best", "auc")

# Other names could be commands to the shell, which inserts a completed name without quotes.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_./+=@-]*")
_ENV_ID = re.compile(r"^env_id: *(\S+)", re.MULTILINE)


def complete_algorithm() -> list[str]:
    """Offer the built-in algorithms."""
    return list(ALGORITHMS)


def complete_env(ctx: typer.Context) -> list[str]:
    """Offer the environments that have a preset, for the algorithm if one was given."""
    from rl_training.experiment.sources import PRESETS_DIR

    texts = (path.read_text() for path in PRESETS_DIR.glob(f"{_given_algorithm(ctx)}/*.yaml"))
    return sorted({env_id for text in texts for env_id in _ENV_ID.findall(text)})


def _given_algorithm(ctx: typer.Context) -> str:
    algorithm = ctx.params.get("algo")
    return algorithm if algorithm in ALGORITHMS else "*"


def complete_config() -> list[str]:
    """Offer the YAML files below `configs/`."""
    folder = Path("configs")
    return _plain_names([*folder.glob("*.yaml"), *folder.glob("*/*.yaml")])


def complete_metric() -> list[str]:
    """Offer the metrics that every algorithm has."""
    return list(METRICS)


def complete_score() -> list[str]:
    """Offer the scores that every run has."""
    return list(SCORES)


def complete_format() -> list[str]:
    """Offer the formats of `export`."""
    return list(FORMATS)


def complete_suite() -> list[str]:
    """Offer the suites of `benchmark` and the shipped presets."""
    return [*SUITES, *complete_preset()]


def complete_preset() -> list[str]:
    """Offer the shipped presets, such as `ppo/cartpole`."""
    from rl_training.experiment.sources import PRESETS_DIR

    return sorted(f"{path.parent.name}/{path.stem}" for path in PRESETS_DIR.glob("*/*.yaml"))


def complete_run() -> list[str]:
    """Offer the run and group directories below `runs/`."""
    from rl_training.experiment.groups import GROUP_FILE
    from rl_training.experiment.runs import METADATA_FILE

    runs = Path("runs")
    patterns = (f"*/{METADATA_FILE}", f"*/{GROUP_FILE}", f"*/*/{METADATA_FILE}")
    return _plain_names(path.parent for pattern in patterns for path in runs.glob(pattern))


def _plain_names(paths: Iterable[Path]) -> list[str]:
    return sorted({str(path) for path in paths if _PLAIN_NAME.fullmatch(str(path))})
