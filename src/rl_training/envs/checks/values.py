"""What a recording of random play says about endings, observations, rewards, arrays and speed."""

from collections import Counter

import numpy as np

from rl_training.envs.checks.findings import Finding
from rl_training.envs.checks.recording import Recording

_LARGE = 1e3  # a magnitude beyond this slows learning down, unless it is normalized
_SPREAD = 1e4  # the largest component against the smallest
_SLOW_STEP = 5e-4  # seconds; a process per env costs about a tenth of a millisecond per step
_COMMON = 0.2  # the share of episodes that makes one length look like a limit
_ENOUGH_EPISODES = 5  # so many equal returns are no accident
_SHORT_GAME = 2  # steps; bandits and their like really end there
_LIMIT_AT_LEAST = 10  # steps; shorter games may well end together


def check_run(recording: Recording) -> Finding:
    """Whether the env took all the random actions."""
    if recording.failure is not None:
        return Finding("random play", "problem", recording.failure, "let step and reset take every declared action")
    text = f"{recording.steps:,} random steps, {len(recording.episodes):,} whole episodes"
    return Finding("random play", "ok", text)


def _noted(recording: Recording, check: str) -> Finding | None:
    return recording.notes.get((check, "problem")) or recording.notes.get((check, "warning"))


def check_endings(recording: Recording, time_limit: int | None) -> Finding:
    """Whether episodes end, and tell a task's end from a time limit."""
    episodes = recording.episodes
    if noted := _noted(recording, "endings"):
        return noted
    if not episodes:
        return _no_ending(recording.steps, time_limit)
    if len(episodes) > 1 and all(each.terminated and each.truncated for each in episodes):
        text = f"all {len(episodes)} episodes ended terminated and truncated at once"
        return Finding("endings", "warning", text, "set truncated alone for a time limit, terminated for a task's end")
    if length := _limit_in_disguise(recording):
        count = sum(each.length == length for each in episodes)
        text = f"{count} of {len(episodes)} episodes ended terminated with step {length} exactly"
        remedy = "if this is a time limit, set truncated instead: learning goes wrong otherwise"
        return Finding("endings", "warning", text, remedy)
    terminated = sum(each.terminated for each in episodes)
    lengths = [each.length for each in episodes]
    text = f"{terminated} terminated, {len(episodes) - terminated} truncated, of {min(lengths)} to {max(lengths)} steps"
    return Finding("endings", "ok", text)


def _no_ending(steps: int, time_limit: int | None) -> Finding:
    if time_limit is not None:
        return Finding("endings", "ok", f"no episode ended in {steps:,} steps; the time limit is {time_limit:,}")
    text = f"no episode ended in {steps:,} steps, and there is no time limit"
    return Finding("endings", "warning", text, "register the env with max_episode_steps, or check with more --steps")


def _limit_in_disguise(recording: Recording) -> int | None:
    """The length at which terminated episodes pile up, though actions differed; none when there is no such length."""
    episodes = recording.episodes
    if len(episodes) < 2 or any(each.truncated for each in episodes):
        return None
    counts = Counter(each.length for each in episodes)
    longest = max(counts)
    if len(counts) == 1 and longest > _SHORT_GAME:
        return longest
    piled_up = counts[longest] >= max(3.0, _COMMON * len(episodes))
    return longest if longest >= _LIMIT_AT_LEAST and piled_up else None


def check_observations(recording: Recording) -> Finding:
    """Whether observations are finite, and what their space declares."""
    return _noted(recording, "observations") or Finding("observations", "ok", "finite, and as declared")


def check_scale(recording: Recording) -> Finding:
    """Whether the observation's components are of a size that networks learn from."""
    if recording.largest is None or not recording.largest.any():
        return Finding("observation scale", "ok", "nothing to scale")
    sizes = recording.largest[recording.largest > 0]
    largest, smallest = float(sizes.max()), float(sizes.min())
    text = f"largest magnitudes of the components: {smallest:.2g} to {largest:.2g}"
    if largest > _LARGE or largest / smallest > _SPREAD:
        return Finding("observation scale", "warning", text, "set normalize_obs: true, or scale in the env")
    return Finding("observation scale", "ok", text)


def check_rewards(recording: Recording) -> Finding:
    """Whether rewards are finite, of a sensible size, and tell good from bad."""
    if noted := _noted(recording, "rewards"):
        return noted
    rewards = np.array(recording.rewards or [0.0])
    low, high = float(rewards.min()), float(rewards.max())
    if max(-low, high) > _LARGE:
        text = f"rewards from {low:.4g} to {high:.4g}"
        return Finding("rewards", "warning", text, "set normalize_rewards: true, or scale in the env")
    if low != high:
        return Finding("rewards", "ok", f"{low:.4g} to {high:.4g}")
    if low == 0:
        text = "no reward but 0 was seen under random actions"
        return Finding("rewards", "warning", text, "exploring will be hard: reward progress, or start near the goal")
    returns = {each.episode_return for each in recording.episodes}
    if len(returns) == 1 and len(recording.episodes) >= _ENOUGH_EPISODES:
        text = f"always {low:.4g}, and every episode returned {returns.pop():.6g}"
        return Finding("rewards", "warning", text, "random actions make no difference: make sure that good ones do")
    return Finding("rewards", "ok", f"always {low:.4g}: the return is a matter of the episode's length")


def check_arrays(recording: Recording) -> Finding:
    """Whether the env leaves alone what it returned and what it was given."""
    return _noted(recording, "arrays") or Finding("arrays", "ok", "observations and actions are left alone")


def check_speed(recording: Recording) -> Finding:
    """How long steps and resets take."""
    if not recording.steps:
        return Finding("speed", "ok", "not measured: no step was taken")
    step, reset = recording.step_seconds / recording.steps, recording.reset_seconds / recording.resets
    text = f"a step takes {1e3 * step:.3g} ms, a reset {1e3 * reset:.3g} ms"
    if step >= _SLOW_STEP:
        return Finding("speed", "ok", text, "vectorization: async may pay, with several envs and cores")
    return Finding("speed", "ok", text, "keep vectorization: sync")
