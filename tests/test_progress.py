import io
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import MakeConfig
from rich.console import Console

from rl_training.cli.console import show_result, show_runs
from rl_training.experiment.config import plain_config
from rl_training.experiment.runs import context_of, read_metadata
from rl_training.results.drawing import plot_learning_curve
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.progress import ProgressDisplay

PNG_MAGIC = b"\x89PNG"


def shown(make_config: MakeConfig, *, terminal: bool, width: int = 160) -> str:
    """What the display writes during a short run in which every look at the clock takes three seconds."""
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=width, color_system=None)
    ticks = iter(range(0, 10_000, 3))
    display = ProgressDisplay(console, clock=lambda: float(next(ticks)))
    train_ppo(make_config(total_timesteps=256), run_suffix="shown", callbacks=[display])
    return output.getvalue()


def test_a_terminal_gets_a_live_bar_with_steps_rate_return_and_losses(make_config: MakeConfig) -> None:
    text = shown(make_config, terminal=True)
    assert "256/256" in text
    for word in ("/s", "return", "eval", "loss", "value loss"):
        assert word in text
    assert "\x1b[" in text  # it redraws itself


def test_a_narrow_terminal_still_shows_steps_rate_and_time_left(make_config: MakeConfig) -> None:
    last = shown(make_config, terminal=True, width=80).split("\r")[-1]
    assert "256/256" in last
    assert "/s" in last
    assert "0:00" in last


def test_names_that_look_like_markup_are_shown_as_they_are(
    make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "a[bold]x[" / "b]"
    output = io.StringIO()
    console = Console(file=output, width=400)
    result = train_ppo(make_config(output_dir=odd, eval_episodes=0), callbacks=[ProgressDisplay(console)])
    show_result(result)
    show_runs(tmp_path)
    assert str(odd) in output.getvalue()
    assert "a[bold]x[/b]" in capsys.readouterr().out


def test_a_file_gets_plain_lines_now_and_then(make_config: MakeConfig) -> None:
    text = shown(make_config, terminal=False)
    assert "\x1b" not in text
    header, *lines = text.splitlines()
    assert header.startswith("Training ppo on CartPole-v1, seed 7, in ")
    assert header.endswith("ppo__CartPole-v1__seed7__shown")
    assert lines[-1].startswith("256/256 steps")
    assert all(word in lines[-1] for word in ("steps/s", "0:00 left", "return", "loss"))
    assert 2 <= len(lines) <= 5


def test_the_end_shows_the_result_and_draws_the_curve(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train_ppo(make_config(total_timesteps=256))
    show_result(result)
    text = capsys.readouterr().out
    assert "Run completed" in text
    assert "eval_return_mean" in text
    for place in (result.run_dir, result.checkpoint_path, result.run_dir / "learning_curve.png"):
        assert str(place) in text
    assert (result.run_dir / "learning_curve.png").read_bytes().startswith(PNG_MAGIC)


def test_a_run_without_metrics_still_gets_a_picture(tmp_path: Path) -> None:
    path = plot_learning_curve(context_of(tmp_path), "nothing yet")
    assert path is not None
    assert path.read_bytes().startswith(PNG_MAGIC)


@pytest.mark.slow
def test_a_run_goes_on_when_nobody_reads_its_progress(make_config: MakeConfig, tmp_path: Path) -> None:
    config_path = tmp_path / "config.yaml"
    config_path.write_text(yaml.safe_dump(plain_config(make_config())))
    command = [sys.executable, "-m", "rl_training", "train", "--config", str(config_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 0
    (run_dir,) = make_config().output_dir.iterdir()
    assert read_metadata(context_of(run_dir))["status"] == "completed"
