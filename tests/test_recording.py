"""Videos of trained agents: what they show, how they are written, and what is refused before anything is played."""

import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import MakeConfig
from gymnasium import spaces
from numpy.testing import assert_array_equal

from rl_training.cli import main
from rl_training.envs.rendering import Pixels, prepare_headless
from rl_training.errors import ConfigError, EnvironmentSetupError
from rl_training.recording.episodes import draw_episode, play_for_recording, record_video
from rl_training.recording.video import find_ffmpeg, write_video
from rl_training.runtime.agents import evaluate_agent
from rl_training.runtime.evaluator import evaluation_seeds
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.registry import get_algorithm_spec
from rl_training.runtime.workflows import load_agent

Image = pytest.importorskip("PIL.Image", reason="the extra `video` is not installed")

NEEDS_FFMPEG = pytest.mark.skipif(
    find_spec("imageio_ffmpeg") is None and which("ffmpeg") is None, reason="no ffmpeg: install the extra `video`"
)
SUFFIXES = [".gif", pytest.param(".mp4", marks=NEEDS_FFMPEG)]


class Painted(gymnasium.Env[Any, Any]):
    """Lasts four steps, each painted in its own grey; what it can paint, and how, is an option."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 125}  # noqa: RUF012  (as Gymnasium has it)
    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, paint: str = "grey", render_mode: str | None = None) -> None:
        type(self).made += 1
        self.paint, self.render_mode, self.number = paint, render_mode, type(self).made

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(self.number) if self.paint == "moody" else {0: 1.0, 1: 1.0}[action]
        return np.zeros(1, dtype=np.float32), reward, self.steps == 4, False, {}

    def render(self) -> Any:
        if self.paint == "broken" and self.steps == 2:
            raise RuntimeError("no colours\nleft")
        if self.paint == "cells":
            return np.full((10, 12, 3), 0.25 * self.steps)
        size = 35 if self.paint == "growing" and self.steps == 2 else 33
        return np.full((21, size, 3), 40 * self.steps, dtype=np.float32 if self.paint == "floats" else np.uint8)


class Unpainted(Painted):
    metadata: dict[str, Any] = {"render_modes": ["ansi"]}  # noqa: RUF012


gymnasium.register("tests/Painted-v0", f"{__name__}:Painted")
gymnasium.register("tests/Unpainted-v0", f"{__name__}:Unpainted")


@pytest.fixture
def cartpole(make_config: MakeConfig) -> Path:
    pytest.importorskip("pygame", reason="the extra `classic` is not installed")
    return train_ppo(make_config(eval_interval=0)).run_dir


@pytest.fixture
def painted(make_config: MakeConfig) -> Callable[..., Path]:
    """A run on an env that paints as it is told."""

    def train(paint: str = "grey", name: str = "Painted") -> Path:
        return train_ppo(make_config(env_id=f"tests/{name}-v0", env_kwargs={"paint": paint}, num_envs=2)).run_dir

    return train


def decoded(path: Path) -> Any:
    """The frames [frame, height, width, 3] of an MP4 file."""
    pixels = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    command = [find_ffmpeg(), "-i", str(path), *pixels]
    answer = subprocess.run(command, capture_output=True, check=True)
    size = re.search(rb", (\d+)x(\d+)", answer.stderr)
    assert size is not None
    width, height = map(int, size.groups())
    return np.frombuffer(answer.stdout, dtype=np.uint8).reshape(-1, height, width, 3)


def gif_frames(path: Path) -> tuple[Any, int]:
    """The frames [frame, height, width, 3] of a GIF file, and how long they are shown in milliseconds."""
    with Image.open(path) as image:
        frames, milliseconds = [], 0
        for number in range(image.n_frames):
            image.seek(number)
            milliseconds += image.info["duration"]
            frames.append(np.asarray(image.convert("RGB")))
    return np.stack(frames), milliseconds


@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_recorded_episodes_are_those_of_an_evaluation(make_config: MakeConfig, algo: str) -> None:
    agent = load_agent(get_algorithm_spec(algo).train_fn(make_config(algo=algo, eval_episodes=0)).run_dir)
    for num_episodes in (1, 5, 20):  # 20 are more than are played side by side
        played = play_for_recording(agent, evaluation_seeds(agent.config, agent.step, num_episodes))
        returns = [episode.episode_return for episode in played]
        evaluated = evaluate_agent(agent, num_episodes)
        assert (min(returns), max(returns)) == (evaluated["eval_return_min"], evaluated["eval_return_max"])
        assert np.mean(returns) == pytest.approx(evaluated["eval_return_mean"], rel=1e-12)
        assert np.mean([episode.length for episode in played]) == evaluated["eval_length_mean"]


def test_a_gif_shows_every_step_at_the_envs_own_rate(cartpole: Path, tmp_path: Path) -> None:
    recording = record_video(cartpole, tmp_path / "agent.gif", num_episodes=2)
    frames, milliseconds = gif_frames(tmp_path / "agent.gif")
    assert frames.shape == (recording.num_frames, 400, 600, 3)
    assert recording.num_frames == sum(episode.length + 1 for episode in recording.episodes)
    assert recording.fps == 50.0
    assert milliseconds == 20 * recording.num_frames
    assert len({frame.tobytes() for frame in frames}) > recording.num_frames / 2  # the cart moves, if slowly


def test_a_gif_shows_what_the_env_drew(cartpole: Path, tmp_path: Path) -> None:
    recording = record_video(cartpole, tmp_path / "agent.gif", max_steps=5)
    drawn = np.stack(list(draw_episode(load_agent(cartpole).config, recording.episodes[0])))
    frames, _ = gif_frames(tmp_path / "agent.gif")
    assert np.abs(frames.astype(int) - drawn).mean() < 1.0  # 256 colours


@NEEDS_FFMPEG
def test_an_mp4_shows_every_step(cartpole: Path, tmp_path: Path) -> None:
    recording = record_video(cartpole, tmp_path / "agent.mp4", max_steps=5)
    drawn = np.stack(list(draw_episode(load_agent(cartpole).config, recording.episodes[0])))
    frames = decoded(tmp_path / "agent.mp4")
    assert frames.shape == drawn.shape
    assert np.abs(frames.astype(int) - drawn).mean() < 5.0  # compressed with losses


def test_the_command_names_the_episodes_and_the_video(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "agent.gif"
    options = ["--episodes", "2", "--seed", "5", "--max-steps", "7", "--fps", "10"]
    assert main(["record", str(cartpole), "--output", str(output), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[2:4]] == [["1", "5", "7.00", "7", "cut"], ["2", "6", "7.00", "7", "cut"]]
    assert lines[4].startswith(f"video: {output} (16 frames, 1.6 s at 10 per second, ")
    assert gif_frames(output)[1] == 1600


def test_the_best_checkpoint_can_be_recorded(painted: Callable[..., Path]) -> None:
    run_dir = painted()
    best = load_agent(run_dir, best=True)
    assert best.step < load_agent(run_dir).step
    recording = record_video(run_dir, run_dir / "best.gif", best=True)
    assert [episode.seed for episode in recording.episodes] == evaluation_seeds(best.config, best.step, 1)


def test_an_env_that_is_too_fast_to_see_is_drawn_now_and_then(painted: Callable[..., Path], tmp_path: Path) -> None:
    recording = record_video(painted(), tmp_path / "agent.gif")
    assert recording.fps == pytest.approx(125 / 3)
    frames, milliseconds = gif_frames(tmp_path / "agent.gif")
    assert frames[:, 0, 0, 0].tolist() == [0, 120, 160]  # the first, the third, and the last of four steps
    assert milliseconds == 70


def test_a_board_drawn_in_floats_and_cells_is_shown_in_colours_and_large(
    painted: Callable[..., Path], tmp_path: Path
) -> None:
    record_video(painted("cells"), tmp_path / "agent.gif", fps=5)
    frames, _ = gif_frames(tmp_path / "agent.gif")
    assert frames.shape[:3] == (5, 160, 192)
    assert frames[:, -1, -1, 0].tolist() == [0, 64, 128, 191, 255]


@NEEDS_FFMPEG
def test_odd_sides_are_padded_for_mp4(painted: Callable[..., Path], tmp_path: Path) -> None:
    record_video(painted(), tmp_path / "agent.mp4", fps=5)
    frames = decoded(tmp_path / "agent.mp4")
    assert frames.shape == (5, 22, 34, 3)
    assert np.abs(frames[:, 10, 15, 0].astype(int) - [0, 40, 80, 120, 160]).max() <= 8


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_frames_are_not_gathered_in_memory(tmp_path: Path, suffix: str) -> None:
    made: list[weakref.ref[Any]] = []
    most = 0

    def frames() -> Iterator[Pixels]:
        nonlocal most
        for number in range(50):
            frame = np.full((16, 16, 3), number, dtype=np.uint8)
            made.append(weakref.ref(frame))
            most = max(most, sum(reference() is not None for reference in made))
            yield frame

    assert write_video(tmp_path / f"agent{suffix}", frames(), fps=50) == 50
    assert most <= 3


def test_an_env_that_takes_another_course_is_reported(painted: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="tests/Painted-v0 is not determined by its seed and actions: the episode"):
        record_video(painted("moody"), tmp_path / "agent.gif")


@pytest.mark.parametrize(
    ("paint", "message"),
    [
        ("broken", r"tests/Painted-v0 cannot be drawn here \(RuntimeError: no colours left\)"),
        ("floats", r"draws float32 of shape \(21, 33, 3\); expected uint8"),
        ("growing", r"a frame has shape \(21, 35, 3\), earlier ones have \(21, 33, 3\)"),
    ],
)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failure_leaves_what_was_there(
    painted: Callable[..., Path], tmp_path: Path, paint: str, message: str, suffix: str
) -> None:
    output = tmp_path / "videos" / f"agent{suffix}"
    output.parent.mkdir()
    output.write_text("an older one")
    with pytest.raises((EnvironmentSetupError, ConfigError), match=message):
        record_video(painted(paint), output, fps=5)
    assert [path.read_text() for path in output.parent.iterdir()] == ["an older one"]


def test_an_env_that_cannot_draw_is_one_line(
    painted: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", str(painted(name="Unpainted")), "--output", str(tmp_path / "agent.gif")]) == 2
    message = "tests/Unpainted-v0 cannot be recorded: it needs the render mode rgb_array, but offers: ansi\n"
    assert capsys.readouterr().err.endswith(message)


def test_drawing_without_pygame_names_the_extra(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(
        EnvironmentSetupError, match=r"CartPole-v1: needs an extra: pip install 'rl-training\[classic\]'"
    ):
        record_video(cartpole, tmp_path / "agent.gif")


@pytest.mark.parametrize(
    ("output", "missing", "message"),
    [
        ("agent.avi", "", "unknown video format; give a name that ends in .mp4 or .gif"),
        ("agent", "", "unknown video format"),
        ("agent.gif", "PIL", r"writing GIF needs an extra: pip install 'rl-training\[video\]'"),
        ("agent.mp4", "imageio_ffmpeg", r"writing MP4 needs an extra: pip install 'rl-training\[video\]'; or install"),
        ("folder.gif", "", "is a directory"),
    ],
)
def test_a_video_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, missing: str, message: str
) -> None:
    (tmp_path / "folder.gif").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=message):
        record_video(tmp_path / "no run at all", tmp_path / output)


@pytest.mark.parametrize("options", [{"fps": 0.0}, {"max_steps": 0}, {"num_episodes": 0}, {"seed": -1}])
def test_numbers_have_ranges(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"=(0|0\.0|-1): (give at least [01]|give a number from 1 to)"):
        record_video(tmp_path / "no run at all", tmp_path / "agent.gif", **options)


@NEEDS_FFMPEG
def test_ffmpegs_own_words_are_passed_on(tmp_path: Path) -> None:
    frames = [np.zeros((16, 16, 3), dtype=np.uint8)] * 3
    with pytest.raises(ConfigError, match=r"agent.mp4 cannot be written: ffmpeg failed: .*\w"):
        write_video(tmp_path / "agent.mp4", frames, fps=-1.0)
    assert not list(tmp_path.glob("*agent*"))


@pytest.fixture
def screenless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No screen, and nothing set; all of it as before afterwards."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("screenless")
def test_without_a_screen_drawing_is_prepared_unasked() -> None:
    prepare_headless()
    expected = "egl" if find_library("EGL") else "osmesa" if find_library("OSMesa") else None
    assert os.environ.get("MUJOCO_GL") == os.environ.get("PYOPENGL_PLATFORM") == expected
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


@pytest.mark.usefixtures("screenless")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    prepare_headless()
    assert (os.environ["MUJOCO_GL"], os.environ.get("PYOPENGL_PLATFORM")) == ("glfw", None)


@pytest.mark.usefixtures("screenless")
def test_with_a_screen_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    prepare_headless()
    assert "MUJOCO_GL" not in os.environ
    assert "SDL_VIDEODRIVER" not in os.environ


@pytest.mark.skipif(find_library("EGL") is None, reason="no libEGL: apt-get install libegl1")
@pytest.mark.usefixtures("screenless")
def test_mujoco_is_drawn_without_a_screen(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco", reason="the extra `mujoco` is not installed")
    monkeypatch.chdir(tmp_path)  # where MuJoCo keeps its log
    run_dir = train_ppo(make_config(env_id="HalfCheetah-v5", eval_episodes=0)).run_dir
    recording = record_video(run_dir, tmp_path / "agent.gif", max_steps=3)
    frames, _ = gif_frames(tmp_path / "agent.gif")
    assert (recording.num_frames, recording.fps) == (4, 20.0)
    assert frames.shape == (4, 480, 480, 3)
    assert frames.std() > 10.0
    again = play_for_recording(load_agent(run_dir), [recording.episodes[0].seed], max_steps=3)
    assert_array_equal(again[0].actions, recording.episodes[0].actions)
