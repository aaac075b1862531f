"""Rendering of environments into arrays, even without a screen."""

import os
import sys
from contextlib import closing
from ctypes.util import find_library
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.error import DependencyNotInstalled

from rl_training.envs.layers import AnyEnv
from rl_training.envs.making import make_raw_env, make_single_env, missing_dependency
from rl_training.envs.objects import accepts, find_factory
from rl_training.errors import EnvironmentSetupError, describe_error
from rl_training.experiment.config import TrainConfig

Pixels = npt.NDArray[np.uint8]  # [height, width, 3]

_DEFAULT_FPS = 30.0
_SMALL_SIDE, _SHOWN_SIDE = 16, 160  # pixels; images smaller than the first are enlarged to about the second
# MuJoCo's backends for rendering without a screen, best first, and the library that each needs.
_BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}


def prepare_headless() -> None:
    """Set the environment variables that let MuJoCo and pygame render without a screen; keep existing values.

    Call it before they are imported.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if "MUJOCO_GL" in os.environ:
        return
    backend = next((name for name, library in _BACKENDS.items() if find_library(library)), None)
    if backend is not None:
        os.environ["MUJOCO_GL"] = backend
        os.environ.setdefault("PYOPENGL_PLATFORM", backend)


def render_fps(config: TrainConfig) -> float:
    """Return the env's frames per second; refuse an env that cannot render into an array."""
    with closing(make_raw_env(config.env_id, config.env_kwargs, config.wrappers)) as env:
        modes = env.metadata.get("render_modes") or []
        fps = env.metadata.get("render_fps") or _DEFAULT_FPS
    if "rgb_array" not in modes:
        offered = ", ".join(map(str, modes)) or "none"
        raise EnvironmentSetupError(
            f"{config.env_id} cannot be recorded: it needs the render mode rgb_array, but offers: {offered}"
        )
    return float(fps)


def make_rendered_env(config: TrainConfig) -> AnyEnv:
    """Make one environment that renders into arrays; the caller closes it."""
    prepare_headless()
    factory = find_factory(config.env_id)
    mode = {"render_mode": "rgb_array"} if factory is None or accepts(factory, "render_mode") else {}
    env_kwargs = {**config.env_kwargs, **mode}
    env = make_single_env(config.env_id, env_kwargs, config.action_mask, wrappers=config.wrappers)
    if not mode and env.render_mode != "rgb_array":
        env.close()
        raise EnvironmentSetupError(
            f"{config.env_id} cannot be recorded: its factory must take render_mode, and make an environment with it"
        )
    return env


def draw(env: AnyEnv, env_id: str) -> Pixels:
    """Render the env as it is now."""
    try:
        frame: Any = env.render()
    except DependencyNotInstalled as error:
        raise EnvironmentSetupError(f"drawing {env_id}: {missing_dependency(env_id, error)}") from None
    except Exception as error:  # simulators and drivers may raise anything
        raise EnvironmentSetupError(
            f"{env_id} cannot be drawn here ({describe_error(error)}){_mujoco_hint()}"
        ) from error
    pixels = _to_bytes(np.asarray(frame))
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise EnvironmentSetupError(
            f"{env_id} draws {pixels.dtype} of shape {pixels.shape}; expected uint8 (height, width, 3)"
        )
    return _enlarge(pixels)


def _to_bytes(pixels: Any) -> Any:
    """Convert floats from 0 to 1, in which some envs draw, to bytes; return anything else unchanged."""
    if pixels.dtype.kind != "f" or not np.all((pixels >= 0.0) & (pixels <= 1.0)):
        return pixels
    return np.round(255.0 * pixels).astype(np.uint8)


def _enlarge(pixels: Pixels) -> Pixels:
    """Enlarge an image whose pixels are the cells of a small board."""
    side = min(pixels.shape[:2])
    if side == 0 or side >= _SMALL_SIDE:
        return pixels
    factor = _SHOWN_SIDE // side
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _mujoco_hint() -> str:
    """Say what to install if MuJoCo lacks a rendering backend."""
    if "mujoco" not in sys.modules or any(find_library(library) for library in _BACKENDS.values()):
        return ""
    return "; MuJoCo draws through EGL or OSMesa: apt-get install libegl1, or libosmesa6"
