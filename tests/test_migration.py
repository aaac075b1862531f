"""Checkpoints of every older format load, evaluate and resume; the fixtures were written by the code of their time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import stored_rows
from test_replay_buffer import drawn

from rl_training import DQN
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint, save_checkpoint
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

FIXTURES = Path(__file__).parent / "fixtures"
ALGORITHMS = ["dqn", "ppo"]
ENDINGS = slice(6, 8)  # of CartPole's replay rows: 4 observed, action, reward, terminated, truncated


def fixture(name: str) -> Path:
    return FIXTURES / f"format1_{name}.pt"


def given_up() -> pytest.WarningsRecorder:
    return pytest.warns(UserWarning, match="not exact: .*env 1 began a new episode, because the seed of its episode is")


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixtures' configs name the output directory `runs`."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_format_1_evaluates_and_resumes(algo: str) -> None:
    assert evaluate_checkpoint(fixture(algo), num_episodes=2)["eval_episodes"] == 2
    with given_up():
        assert resume_training(fixture(algo), total_timesteps=96).metrics["global_step"] == 96


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_episodes_of_format_1_are_not_known(algo: str) -> None:
    envs = load_checkpoint(fixture(algo)).trainer_state["envs"]
    assert envs.pop("episode_numbers") == {"dqn": [2, 1], "ppo": [0, 0]}[algo]
    assert envs == {
        "seeds": [None, None],
        "lengths": [0, 0],
        "returns": [0.0, 0.0],
        "ended": [False, False],
        "actions": [None, None],
        "states": [None, None],
    }


@pytest.mark.filterwarnings("ignore:.*has no manifest")
def test_format_1_needs_no_manifest_to_be_known(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    copy.write_bytes(fixture("dqn").read_bytes())
    assert load_checkpoint(copy).buffer_state["added"] == 50


def test_the_wrapped_ring_of_format_1_becomes_numbered_rows() -> None:
    """40 of 50 transitions of two envs; a row's successor two rows later begins with its next observation."""
    old, saved = torch.load(fixture("dqn"))["buffer_state"], load_checkpoint(fixture("dqn"))
    assert (saved.buffer_state["added"], saved.buffer_state["size"]) == (50, 40)
    rows = stored_rows(saved)
    assert rows.equal(torch.cat([old["rows"][10:], old["rows"][:10]]))
    running = rows[:-2, ENDINGS].sum(dim=1) == 0
    assert rows[2:, :4][running].equal(rows[:-2, -4:][running])


def test_the_episodes_that_format_1_gave_up_end_in_the_replay_buffer(tmp_path: Path) -> None:
    before = load_checkpoint(fixture("dqn"))
    with given_up():
        result = resume_training(fixture("dqn"), total_timesteps=60)
    after = stored_rows(load_checkpoint(result.checkpoint_path))  # numbers 20 to 59
    assert stored_rows(before)[-2:, ENDINGS].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert after[28:30, ENDINGS].tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert after[:28].equal(stored_rows(before)[10:38])


def test_images_of_format_1_come_back_right() -> None:
    """In step s the two envs show s and 100 + s; rewards are the same numbers. Endings: 4 and 103."""
    buffer = ReplayBuffer(8, (2, 2), (), num_envs=2, obs_dtype=torch.uint8)
    buffer.load_state_dict(load_checkpoint(fixture("images")).buffer_state)
    buffer.cut([0, 1])
    rewards = [4, 104, 5, 105, 6, 106, 3, 103]
    for added in range(3):
        batch = drawn(buffer, list(range(8)))
        assert batch["rewards"].tolist() == rewards
        assert batch["obs"][:, 0, 0].tolist() == rewards
        assert batch["next_obs"][:, 1, 1].tolist() == [number + 1 for number in rewards]
        ended = {4: "dones", 103: "truncated", 6: "truncated", 106: "truncated"}
        for number, kind in ended.items():
            if number in rewards:
                assert batch[kind][rewards.index(number)] == 1.0
        new = np.array([20 + 2 * added, 120 + 2 * added])
        images = np.broadcast_to(new[:, None, None], (2, 2, 2)).astype(np.uint8)
        buffer.add(obs=images, actions=[0, 0], rewards=new, next_obs=images + 1, dones=[True, True])
        place = (14 + 2 * added) % 8
        rewards[place : place + 2] = new.tolist()


def test_a_loaded_model_of_format_1_is_saved_in_todays_format(tmp_path: Path) -> None:
    path = DQN.load(fixture("dqn")).save(tmp_path / "model.pt")
    assert stored_rows(load_checkpoint(path)).equal(stored_rows(load_checkpoint(fixture("dqn"))))
    with given_up():
        assert resume_training(path, total_timesteps=60).metrics["global_step"] == 60


def test_what_looks_old_but_cannot_be_migrated_is_refused(tmp_path: Path) -> None:
    odd = CheckpointState({}, {"head": 3, "size": "three"}, {}, {}, {})
    with pytest.raises(
        CheckpointError, match=r"odd\.pt is not an rl_training checkpoint: its parts do not fit together"
    ):
        load_checkpoint(save_checkpoint(tmp_path / "odd.pt", odd))


def test_networks_from_before_encoders_stay_flat(tmp_path: Path) -> None:
    state = load_checkpoint(fixture("dqn"))
    old = {**state.config, "algo_kwargs": {**state.config["algo_kwargs"], "network": None}}
    path = save_checkpoint(tmp_path / "old.pt", replace(state, config=old))
    assert load_checkpoint(path).config["algo_kwargs"] == {**state.config["algo_kwargs"], "encoder": "mlp"}
    assert DQN.load(path).config.algo_kwargs["encoder"] == "mlp"
    old["algo_kwargs"]["network"] = "my_networks:Net"
    with pytest.raises(ConfigError, match=r"algo_kwargs\.network: unknown key"):
        DQN.load(save_checkpoint(path, replace(state, config=old)))
