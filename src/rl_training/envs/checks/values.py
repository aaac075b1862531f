"""Checks on a recording of random play: endings, observations, rewards, arrays and speed."""

from collections import Counter

import numpy as np

from rl_training.envs.checks.findings import Finding
from rl_training.envs.checks.recording import Recording

_LARGE = 1e3  # larger magnitudes slow learning down unless they are normalized
_LARGE_RATIO = 1e4  # ratio of the largest component to the smallest
_SMALL_BYTES = 0.1  # share of the upper bound; after the division by that bound, smaller bytes hardly differ
_SLOW_STEP = 5e-4  # seconds; a worker process adds about a tenth of a millisecond per step
_SUSPICIOUS_SHARE = 0.2  # share of episodes of one length that suggests a time limit
_MIN_EPISODES = 5  # this many equal returns are no coincidence
_SHORT_EPISODE = 2  # steps; bandits really end after one or two
_MIN_TIME_LIMIT = 10  # steps; shorter episodes may have equal lengths by chance


def check_run(recording: Recording) -> Finding:
    """Check that the env accepted all random actions."""
    if recording.failure is not None:
        return Finding(
            "random play",
            "problem",
            recording.failure,
            "make sure that step and reset do not raise for any declared action",
        )
    text = f"{recording.steps:,} random steps, {len(recording.episodes):,} complete episodes"
    return Finding("random play", "ok", text)


def _recorded_fault(recording: Recording, check: str) -> Finding | None:
    return recording.notes.get((check, "problem")) or recording.notes.get((check, "warning"))


def check_endings(recording: Recording, time_limit: int | None) -> Finding:
    """Check that episodes end, and that a time limit is reported as truncation."""
    episodes = recording.episodes
    if fault := _recorded_fault(recording, "endings"):
        return fault
    if not episodes:
        return _no_ending(recording.steps, time_limit)
    if len(episodes) > 1 and all(each.terminated and each.truncated for each in episodes):
        text = f"all {len(episodes)} episodes ended both terminated and truncated"
        return Finding(
            "endings", "warning", text, "set only truncated at a time limit, and terminated at the end of the task"
        )
    if length := _likely_time_limit(recording):
        count = sum(each.length == length for each in episodes)
        text = f"{count} of {len(episodes)} episodes terminated after exactly {length} steps"
        remedy = "if this is a time limit, set truncated instead; otherwise learning suffers"
        return Finding("endings", "warning", text, remedy)
    terminated = sum(each.terminated for each in episodes)
    lengths = [each.length for each in episodes]
    text = (
        f"{terminated} terminated, {len(episodes) - terminated} truncated, {min(lengths)} to {max(lengths)} steps long"
    )
    return Finding("endings", "ok", text)


def _no_ending(steps: int, time_limit: int | None) -> Finding:
    if time_limit is not None:
        return Finding("endings", "ok", f"no episode ended in {steps:,} steps; the time limit is {time_limit:,}")
    text = f"no episode ended in {steps:,} steps, and there is no time limit"
    return Finding("endings", "warning", text, "register the env with max_episode_steps, or check with more --steps")


def _likely_time_limit(recording: Recording) -> int | None:
    """Return the length after which suspiciously many episodes terminate; none if there is no such length."""
    episodes = recording.episodes
    if len(episodes) < 2 or any(each.truncated for each in episodes):
        return None
    counts = Counter(each.length for each in episodes)
    longest = max(counts)
    if len(counts) == 1 and longest > _SHORT_EPISODE:
        return longest
    piled_up = counts[longest] >= max(3.0, _SUSPICIOUS_SHARE * len(episodes))
    return longest if longest >= _MIN_TIME_LIMIT and piled_up else None


def check_observations(recording: Recording) -> Finding:
    """Check that observations are finite and match their space."""
    return _recorded_fault(recording, "observations") or Finding(
        "observations", "ok", "finite, and in the declared space"
    )


def check_scale(recording: Recording) -> Finding:
    """Check that the magnitudes of the observation's components suit a network."""
    for name, (seen, high) in recording.bytes_seen.items():
        if seen < _SMALL_BYTES * high:
            part = f" of part {name!r}" if name else ""
            text = f"the bytes{part} are at most {seen} of {high}, so a network sees numbers up to {seen / high:.2g}"
            remedy = "if they are codes, declare their own upper bound, or make them floats: wrapper DtypeObservation"
            return Finding("observation scale", "warning", text, remedy)
    if recording.largest is None or not recording.largest.any():
        return Finding("observation scale", "ok", "nothing to scale")
    sizes = recording.largest[recording.largest > 0]
    largest, smallest = float(sizes.max()), float(sizes.min())
    text = f"largest magnitudes of the components: {smallest:.2g} to {largest:.2g}"
    if largest > _LARGE or largest / smallest > _LARGE_RATIO:
        return Finding("observation scale", "warning", text, "set normalize_obs: true, or scale in the env")
    return Finding("observation scale", "ok", text)


def check_rewards(recording: Recording) -> Finding:
    """Check that rewards are finite, not too large, and not always the same."""
    if fault := _recorded_fault(recording, "rewards"):
        return fault
    rewards = np.array(recording.rewards or [0.0])
    low, high = float(rewards.min()), float(rewards.max())
    if max(-low, high) > _LARGE:
        text = f"rewards from {low:.4g} to {high:.4g}"
        return Finding("rewards", "warning", text, "set normalize_rewards: true, or scale in the env")
    if low != high:
        return Finding("rewards", "ok", f"{low:.4g} to {high:.4g}")
    if low == 0:
        text = "all rewards were 0 under random actions"
        return Finding("rewards", "warning", text, "exploration will be hard: reward progress, or start near the goal")
    returns = {each.episode_return for each in recording.episodes}
    if len(returns) == 1 and len(recording.episodes) >= _MIN_EPISODES:
        text = f"always {low:.4g}, and every episode returned {returns.pop():.6g}"
        return Finding("rewards", "warning", text, "random actions make no difference: make sure that good ones do")
    return Finding("rewards", "ok", f"always {low:.4g}: the return depends only on the length of the episode")


def check_arrays(recording: Recording) -> Finding:
    """Check that the env does not change the arrays it returned or received."""
    return _recorded_fault(recording, "arrays") or Finding("arrays", "ok", "observations and actions are not modified")


def check_speed(recording: Recording) -> Finding:
    """Report how long steps and resets take."""
    if not recording.steps:
        return Finding("speed", "ok", "not measured: no step was taken")
    step, reset = recording.step_seconds / recording.steps, recording.reset_seconds / recording.resets
    text = f"a step takes {1e3 * step:.3g} ms, a reset {1e3 * reset:.3g} ms"
    if step >= _SLOW_STEP:
        return Finding("speed", "ok", text, "vectorization: async may be faster, with several envs and cores")
    return Finding("speed", "ok", text, "keep vectorization: sync")
