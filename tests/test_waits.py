"""What takes long is announced on a terminal, and in Python only if the program asks for it."""

import threading

import pytest
from conftest import MakeConfig

from rl_training import PPO, waits
from rl_training.cli import main
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.waits import announced, shown_waits


class ImpatientTimer(threading.Timer):
    """A timer whose time is up when it starts; it needs no thread, so that tests are repeatable."""

    def start(self) -> None:
        self.function(*self.args)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "Timer", ImpatientTimer)


def test_a_block_is_announced_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(waits, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(waits, "show_line", lambda text, *, error: said.set())
    with shown_waits(), announced("compiling"):
        assert said.wait(60.0)


def test_a_short_block_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_waits(), announced("compiling"):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_a_resumed_run_announces_each_activity_once(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = train_ppo(make_config()).run_dir
    assert capsys.readouterr().err == ""  # Python shows nothing
    assert main(["resume", str(run_dir), "--total-timesteps", "256"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.endswith(" ...")]
    assert said == [
        "reading step_128.pt ...",
        "trying out CartPole-v1 ...",
        "loading the stored experience ...",
        "comparing fresh envs with recorded steps, to tell whether this resume is exact ...",
        "replaying the running episodes ...",
        "playing 2 evaluation episodes ...",
        "writing a checkpoint ...",
    ]


@pytest.mark.usefixtures("impatient")
def test_progress_in_python_announces_too(make_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    PPO(make_config()).learn(progress=True)
    printed = capsys.readouterr()
    assert "playing 2 evaluation episodes ...\n" in printed.err
    assert printed.out == ""
