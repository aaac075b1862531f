"""Episodes of a saved agent as pictures: played as an evaluation plays them, then drawn from their actions."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium

from rl_training.envs.factory import make_env
from rl_training.envs.rendering import Pixels, draw, make_rendered_env, prepare_headless, render_fps
from rl_training.envs.vector import AnyEnv
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.agents import Agent
from rl_training.runtime.evaluator import MAX_ENVS, check_num_episodes, evaluation_seeds, play_episodes
from rl_training.runtime.run_utils import limited_threads
from rl_training.runtime.video import check_video, write_video
from rl_training.runtime.workflows import load_agent

_MAX_FPS = 50.0  # what a GIF can show and an eye can see; faster envs are drawn at every n-th step


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that can be repeated."""

    seed: int
    actions: tuple[Any, ...]
    episode_return: float
    cut: bool
    """Whether it was stopped before its end."""

    @property
    def length(self) -> int:
        """In env steps."""
        return len(self.actions)


class _ActionLog(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes what was done in every episode, which it cuts after `max_steps`."""

    def __init__(self, env: AnyEnv, max_steps: int | None) -> None:
        super().__init__(env)
        self.played: list[PlayedEpisode] = []
        self._max_steps = math.inf if max_steps is None else max_steps
        self._seed = 0
        self._actions: list[Any] = []
        self._return = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode."""
        assert seed is not None
        self._seed, self._actions, self._return = seed, [], 0.0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the step and note it."""
        self._actions.append(copy(action))
        obs, reward, terminated, truncated, info = super().step(action)
        self._return += float(reward)
        cut = len(self._actions) >= self._max_steps and not (terminated or truncated)
        if cut:
            info = {**info, "episode": {"r": self._return, "l": len(self._actions)}}
        if cut or terminated or truncated:
            total = float(info["episode"]["r"])
            self.played.append(PlayedEpisode(self._seed, tuple(self._actions), total, cut))
        return obs, reward, terminated, truncated or cut, info


def play_for_recording(agent: Agent, seeds: Sequence[int], max_steps: int | None = None) -> list[PlayedEpisode]:
    """One episode per seed, with the likeliest actions, exactly as an evaluation of so many episodes plays them."""
    with limited_threads(agent.config.num_threads), ExitStack() as stack:
        envs = [
            stack.enter_context(closing(_ActionLog(make_env(agent.config, index), max_steps)))
            for index in range(min(len(seeds), MAX_ENVS))
        ]
        play_episodes(agent.learner.policy, envs, seeds, lambda: False)
    played = {episode.seed: episode for env in envs for episode in env.played}
    return [played[seed] for seed in seeds]


def draw_episode(config: TrainConfig, episode: PlayedEpisode, every: int = 1) -> Iterator[Pixels]:
    """The frames [height, width, 3] of an episode, its first moment included, one for `every` so many steps.

    It is played again with its seed and actions; an env that then takes another course is told of.
    """
    total, taken = 0.0, 0
    with closing(make_rendered_env(config)) as env:
        env.reset(seed=episode.seed)
        yield draw(env, config.env_id)
        for action in episode.actions:
            _, reward, terminated, truncated, _ = env.step(action)
            total, taken = total + float(reward), taken + 1
            if taken % every == 0 or terminated or truncated:
                yield draw(env, config.env_id)
            if terminated or truncated:
                break
    if taken != episode.length or not math.isclose(total, episode.episode_return, rel_tol=1e-5, abs_tol=1e-5):
        warnings.warn(
            f"{config.env_id} is no function of its seed and actions: the video shows an episode of return "
            f"{total:.2f}, evaluated was one of {episode.episode_return:.2f}",
            stacklevel=2,
        )


@dataclass(frozen=True)
class Recording:
    """A video, and what it shows."""

    path: Path
    episodes: tuple[PlayedEpisode, ...]
    num_frames: int
    fps: float


def record_video(
    source: Path | str,
    output: Path | str,
    *,
    num_episodes: int = 1,
    best: bool = False,
    seed: int | None = None,
    fps: float | None = None,
    max_steps: int | None = None,
) -> Recording:
    """Write episodes of a saved agent, one after the other, into an MP4 or GIF file.

    They have the seeds of an evaluation at the agent's step; with `seed`, they have seed, seed + 1 and so on.
    `fps` is how many env steps are shown per second, the env's own rate if none is given.
    """
    path = Path(output)
    check_num_episodes(num_episodes)
    for name, value, least in (("fps", fps, 1), ("max_steps", max_steps, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name}={value}: at least {least} is needed")
    check_video(path)
    prepare_headless()
    agent = load_agent(source, best=best)
    own_fps = render_fps(agent.config)
    every = math.ceil((fps or own_fps) / _MAX_FPS)
    shown_fps = (fps or own_fps) / every
    seeds = evaluation_seeds(agent.config, agent.step, num_episodes)
    if seed is not None:
        seeds = list(range(seed, seed + num_episodes))
    episodes = play_for_recording(agent, seeds, max_steps)
    frames = chain.from_iterable(draw_episode(agent.config, episode, every) for episode in episodes)
    return Recording(path, tuple(episodes), write_video(path, frames, shown_fps), shown_fps)
