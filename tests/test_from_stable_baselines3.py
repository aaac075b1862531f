"""The page for those who come from Stable-Baselines3 names what there is on both sides, and leaves nothing out."""

import inspect
import re
from pathlib import Path

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec

PAGE = (Path(__file__).parents[1] / "docs" / "from_stable_baselines3.md").read_text()
ALGORITHMS = ("ppo", "dqn", "sac")


def parameter_rows() -> list[tuple[set[str], set[str]]]:
    """The names in the first two columns of the first table."""
    table = PAGE[PAGE.index("| Stable-Baselines3 | here |") : PAGE.index("No counterpart")]
    cells = [line.split("|")[1:3] for line in table.splitlines() if "`" in line]
    return [(set(re.findall(r"`(\w+)`", theirs)), set(re.findall(r"`(\w+)`", ours))) for theirs, ours in cells]


def test_every_name_of_ours_is_a_field_or_a_parameter() -> None:
    known = set(TrainConfig.model_fields)
    for algo in ALGORITHMS:
        known |= set(get_algorithm_spec(algo).params_model.model_fields)
    named = [ours for _, ours in parameter_rows()]
    assert len(named) > 20
    assert all(ours and ours <= known for ours in named)


def test_every_parameter_of_theirs_is_named() -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    theirs: set[str] = set()
    for algo in ALGORITHMS:
        theirs |= set(inspect.signature(getattr(stable_baselines3, algo.upper())).parameters)
    without = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("No counterpart") :].partition("\n")[0]))
    named = set().union(*(names for names, _ in parameter_rows()))
    assert named | without == theirs - {"policy", "env", "_init_setup_model"}
