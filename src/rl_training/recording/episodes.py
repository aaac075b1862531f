"""Recording videos of a saved agent. Episodes are played as in an evaluation, then rendered from their actions."""

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

from rl_training.envs.factory import env_factory
from rl_training.envs.guard import EnvCalls
from rl_training.envs.layers import AnyEnv
from rl_training.envs.rendering import Pixels, draw, make_rendered_env, prepare_headless, render_fps
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, evaluation_config
from rl_training.recording.video import check_video, write_video
from rl_training.runtime.agents import Agent, check_env_fits, with_evaluation
from rl_training.runtime.evaluator import MAX_ENVS, EpisodePlayer, check_num_episodes, evaluation_seeds
from rl_training.runtime.run_utils import limited_threads
from rl_training.runtime.watchdog import Watchdog
from rl_training.runtime.workflows import load_agent

_MAX_FPS = 50.0  # frames per second that a GIF supports; of faster envs, only every n-th step is shown


@dataclass(frozen=True)
class RecordedEpisode:
    """The seed and actions of an episode, from which it can be repeated, and its return."""

    seed: int
    actions: tuple[Any, ...]
    episode_return: float
    cut: bool
    """Whether the episode was cut off before its end."""

    @property
    def length(self) -> int:
        """Length in env steps."""
        return len(self.actions)


class _ActionLog(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that stores the actions of every episode by its seed."""

    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        self.actions: dict[int, list[Any]] = {}
        self._newest: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        assert seed is not None
        self._newest = self.actions[seed] = []
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the step and store its action."""
        self._newest.append(copy(action))
        return super().step(action)


def play_for_recording(agent: Agent, seeds: Sequence[int], max_steps: int | None = None) -> list[RecordedEpisode]:
    """Play one episode per seed, exactly as an evaluation of as many episodes does.

    Episodes are cut off after `max_steps`, by default after the config's `eval_max_steps`.
    """
    check_env_fits(agent)
    config, calls = agent.config, EnvCalls()
    name = f"evaluation at step {agent.step}"
    step_limit = config.eval_max_steps if max_steps is None else max_steps
    with limited_threads(config.num_threads), ExitStack() as stack, Watchdog(config, [calls]):
        envs = [
            stack.enter_context(closing(_ActionLog(env_factory(evaluation_config(config))())))
            for _ in range(min(len(seeds), MAX_ENVS))
        ]
        player = EpisodePlayer(envs, calls, name, max_steps=step_limit, deterministic=config.eval_deterministic)
        played = player.play(agent.learner.policy, seeds, lambda: False)
    actions = {seed: tuple(taken) for env in envs for seed, taken in env.actions.items()}
    recorded = {
        episode.seed: RecordedEpisode(episode.seed, actions[episode.seed], episode.episode_return, episode.cut)
        for episode in played
    }
    return [recorded[seed] for seed in seeds]


def draw_episode(config: TrainConfig, episode: RecordedEpisode, every: int = 1) -> Iterator[Pixels]:
    """Yield the frames [height, width, 3] of an episode: its start, every `every`-th step, and its end.

    The episode is played again with its seed and actions. If the return or the length differs, there is a warning.
    """
    total, taken = 0.0, 0
    calls = EnvCalls()

    def place(_: int) -> str:
        return f"drawing the episode of seed {episode.seed}, step {taken}"

    with closing(make_rendered_env(evaluation_config(config))) as env, Watchdog(config, [calls]):
        with calls.slow(place):
            env.reset(seed=episode.seed)
            pixels = draw(env, config.env_id)
        yield pixels
        for taken, action in enumerate(episode.actions, start=1):
            with calls.slow(place):
                _, reward, terminated, truncated, _ = env.step(action)
                total += float(reward)
                ended = terminated or truncated
                if taken % every == 0 or ended:
                    pixels = draw(env, config.env_id)
            if taken % every == 0 or ended:
                yield pixels
            if ended:
                break
    if taken != episode.length or not math.isclose(total, episode.episode_return, rel_tol=1e-5, abs_tol=1e-5):
        warnings.warn(
            f"{config.env_id} is not determined by its seed and actions: the episode in the video has return "
            f"{total:.2f}, the evaluated one had {episode.episode_return:.2f}",
            stacklevel=2,
        )


@dataclass(frozen=True)
class RecordedVideo:
    """The path of a video and the episodes that it shows."""

    path: Path
    episodes: tuple[RecordedEpisode, ...]
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
) -> RecordedVideo:
    """Write episodes of a saved agent, one after the other, into an MP4 or GIF file.

    The seeds are those of an evaluation at the agent's step, or `seed`, `seed` + 1 and so on if `seed` is given. `fps`
    is the number of env steps per second; by default, the env's own rate.
    """
    path = Path(output)
    check_num_episodes(num_episodes)
    for name, value, least in (("fps", fps, 1), ("max_steps", max_steps, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name}={value}: give at least {least}")
    check_video(path)
    prepare_headless()
    agent = with_evaluation(load_agent(source, best=best), eval_seed=seed)
    own_fps = render_fps(agent.config)
    every = math.ceil((fps or own_fps) / _MAX_FPS)
    shown_fps = (fps or own_fps) / every
    seeds = evaluation_seeds(agent.config, agent.step, num_episodes)
    episodes = play_for_recording(agent, seeds, max_steps)
    frames = chain.from_iterable(draw_episode(agent.config, episode, every) for episode in episodes)
    return RecordedVideo(path, tuple(episodes), write_video(path, frames, shown_fps), shown_fps)
