"""The page for those who come from Stable-Baselines3 names what there is on both sides, and leaves nothing out."""

import inspect
import re
from pathlib import Path

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.registry import get_algorithm_spec

PAGE = (Path(__file__).parents[1] / "docs" / "from_stable_baselines3.md").read_text()
COMMON = "learning_rate gamma policy_kwargs seed device verbose stats_window_size tensorboard_log batch_size"
REPLAY = (
    "buffer_size learning_starts tau train_freq gradient_steps replay_buffer_class replay_buffer_kwargs "
    "optimize_memory_usage n_steps target_update_interval"
)
THEIRS = {
    "ppo": f"{COMMON} n_steps n_epochs gae_lambda clip_range clip_range_vf normalize_advantage ent_coef vf_coef "
    "max_grad_norm use_sde sde_sample_freq rollout_buffer_class rollout_buffer_kwargs target_kl",
    "dqn": f"{COMMON} {REPLAY} exploration_fraction exploration_initial_eps exploration_final_eps max_grad_norm",
    "sac": f"{COMMON} {REPLAY} action_noise ent_coef target_entropy use_sde sde_sample_freq use_sde_at_warmup",
}
"""Every parameter that their constructors take, beside policy and env."""


def rows_for(algo: str) -> list[tuple[set[str], set[str]]]:
    """The names on both sides in the rows of the first table that concern an algorithm."""
    table = PAGE[PAGE.index("| Stable-Baselines3 | here |") : PAGE.index("No counterpart")]
    common, _, own = table.partition("| **PPO** | | |")
    ppo, _, replay = own.partition("| **DQN and SAC** | | |")
    other = {"dqn": "SAC", "sac": "DQN", "ppo": "none"}[algo]
    lines = (common + (ppo if algo == "ppo" else replay)).splitlines()
    cells = [line.split("|")[1:4] for line in lines if "`" in line]
    mine = [(theirs, ours) for theirs, ours, remark in cells if not remark.strip().startswith(other)]
    return [(set(re.findall(r"`(\w+)`", theirs)), set(re.findall(r"`(\w+)`", ours))) for theirs, ours in mine]


@pytest.mark.parametrize("algo", THEIRS)
def test_every_parameter_of_theirs_has_its_counterpart(algo: str) -> None:
    paragraph = PAGE[PAGE.index("No counterpart") :].partition("\n\n")[0]
    without = set(re.findall(r"`(\w+)`", paragraph if algo == "sac" else paragraph.partition("; for SAC")[0]))
    named = set().union(*(theirs for theirs, _ in rows_for(algo)))
    assert set(THEIRS[algo].split()) <= named | without


@pytest.mark.parametrize("algo", THEIRS)
def test_every_name_of_ours_is_a_field_or_a_parameter(algo: str) -> None:
    known = {*TrainConfig.model_fields, *get_algorithm_spec(algo).params_model.model_fields}
    named = [ours for _, ours in rows_for(algo)]
    assert len(named) > 10
    assert all(ours and ours <= known for ours in named)


@pytest.mark.parametrize("algo", THEIRS)
def test_their_parameters_are_those_of_the_package(algo: str) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    accepted = inspect.signature(getattr(stable_baselines3, algo.upper())).parameters
    assert set(THEIRS[algo].split()) == set(accepted) - {"policy", "env", "_init_setup_model"}
