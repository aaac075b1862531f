"""A run that could only fail again goes on with the next episode of the env that failed."""

import re
from pathlib import Path

import pytest
from conftest import MakeConfig

from rl_training.cli import main
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.streams import derive_seed

BAD_SEED = derive_seed(7, "episodes", 1, 2)  # of the third episode of the second env


def fail(config: TrainConfig) -> Path:
    """Train until the env fails, and return the run directory."""
    with pytest.raises(RuntimeError, match="a bad seed"):
        get_algorithm_spec(config.algo).train_fn(config)
    (run_dir,) = config.output_dir.iterdir()
    return run_dir


@pytest.mark.parametrize(
    ("algo", "vectorization", "fails_at"), [("ppo", "sync", 0), ("ppo", "sync", 3), ("dqn", "async", 3)]
)
def test_the_failed_episode_is_skipped_on_request(
    algo: str, vectorization: str, fails_at: int, make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(
        algo=algo,
        env_id="sample_envs:tests/BadSeed-v0",
        env_kwargs={"bad_seed": BAD_SEED, "fails_at": fails_at},
        vectorization=vectorization,
        env_restarts=0,
        eval_episodes=0,
    )
    run_dir = fail(config)
    assert main(["resume", str(run_dir)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"^error: env 1, episode 2 .*it failed at the same step before: .* --skip-episode`", error)
    with pytest.warns(UserWarning, match="not exact: env 1 skipped the episode in which it had failed"):
        assert main(["resume", str(run_dir), "--skip-episode"]) == 0
    metadata = read_metadata(context_of(run_dir))
    assert (metadata["status"], metadata["global_step"]) == ("completed", 128)
    assert not metadata["resumed"][-1]["exact"]


def test_only_a_run_that_failed_in_an_episode_can_skip_one(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train_ppo(make_config(eval_episodes=0))
    for source, expected in (
        ([str(result.run_dir)], "did not fail in an episode; resume it without this option"),
        (["--checkpoint", str(result.checkpoint_path)], "give the run directory"),
    ):
        assert main(["resume", *source, "--skip-episode"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert expected in line
