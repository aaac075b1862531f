"""The check that an exported policy acts like the agent: the observations to compare on, and what counts as equal."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.deploy.program import PolicyProgram
from rl_training.errors import ExportError, RLTrainingError
from rl_training.packing import Array, Leaf, PackedActions
from rl_training.policies.base import Policy, Streams
from rl_training.policies.decoding import ActionPart
from rl_training.policies.features import FeaturePart
from rl_training.runtime.agents import Agent, play_episodes
from rl_training.streams import make_stream

NUM_OBSERVATIONS = 1_000
_TOLERANCE = 1e-5  # of numbers, relative to the range of the action; of scores, relative to the largest one
_WIDEST = 1e4  # a Box of a larger range is not sampled uniformly

RunExport = Callable[[dict[str, Array]], dict[str, Array]]
"""Runs an exported policy on named arrays [batch, ...] and returns the parts of its actions by name."""


@dataclass(frozen=True)
class ExportCheck:
    """The result of a comparison between an exported policy and its agent."""

    num_played: int
    """Observations that come from episodes of the agent."""
    num_sampled: int
    """Observations that were drawn from the observation space."""
    largest_difference: float
    """The largest difference between continuous actions."""
    num_ties: int
    """Discrete actions that differ because the two best scores are equal up to rounding."""
    not_played: str | None
    """Why no episode was played; none if one was."""


def find_observations(agent: Agent, program: PolicyProgram) -> tuple[Array, Array, str | None]:
    """Return observations as the policy sees them: played ones, drawn ones, and the reason if none could be played.

    Half of them come from episodes of the agent, the others are drawn from the observation space. If the agent cannot
    play, for example because the env is not installed, all of them are drawn.
    """
    recorder, reason = _Recorder(agent.learner.policy, NUM_OBSERVATIONS // 2), None
    try:
        play_episodes(agent, recorder, num_episodes=NUM_OBSERVATIONS // 2, interrupted=recorder.full)
    except RLTrainingError as error:
        reason = str(error)
    played = recorder.rows()
    return played, sample_observations(agent, program, NUM_OBSERVATIONS - len(played)), reason


class _Recorder:
    """A policy that keeps the observations for which it chooses actions."""

    def __init__(self, policy: Policy, limit: int) -> None:
        self._policy, self._limit = policy, limit
        self.to_env = policy.to_env
        self._rows: list[Array] = []

    def predict(self, obs: Array, *, deterministic: bool = True, streams: Streams | None = None) -> Array:
        """Choose actions, and keep the observations."""
        self._rows += list(obs[: self._limit - len(self._rows)])
        return self._policy.predict(obs, deterministic=deterministic, streams=streams)

    def full(self) -> bool:
        """Return whether `limit` observations are kept."""
        return len(self._rows) >= self._limit

    def rows(self) -> Array:
        """Return the observations [number, ...]."""
        return np.stack(self._rows) if self._rows else np.empty(0)


def sample_observations(agent: Agent, program: PolicyProgram, count: int) -> Array:
    """Draw observations from the observation space, with masks that allow at least one action."""
    stream, encoder, packed = make_stream(agent.config.seed, "export"), program.policy.encoder, program.space
    spread = None
    if encoder.normalizer.enabled:
        spread = encoder.normalizer.mean, 2.0 / encoder.normalizer.scale
    values = [
        _sample(each.leaf, part, count, stream, spread)
        for each, part in zip(encoder.encoders, encoder.parts, strict=True)
    ]
    if packed is None:
        return values[0]
    rows = np.zeros((count, *packed.shape), np.uint8)
    for each, own in zip(encoder.encoders, values, strict=True):
        packed.read(rows, each.leaf)[...] = own
    if packed.mask is not None:
        packed.read(rows, packed.mask)[...] = _sample_masks(
            program.policy.action_parts, packed.mask.size, count, stream
        )
    return rows


def _sample(
    leaf: Leaf, part: FeaturePart, count: int, stream: np.random.Generator, spread: tuple[Array, Array] | None
) -> Array:
    """Draw values [count, *shape] of one part; `spread` are means and deviations of the features that are vectors."""
    size = (count, leaf.size)
    if leaf.choices is not None:
        values = leaf.first_choice + np.floor(stream.random(size) * leaf.choices)
        return values.astype(leaf.dtype).reshape(count, *leaf.shape)
    space: Any = leaf.space
    low, high = space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    values = stream.standard_normal(size)
    if spread is not None and part.kind == "vector":
        mean, deviation = (each[part.start : part.stop] for each in spread)
        values = mean + deviation * values
    else:
        narrow = high / 2 - low / 2 <= _WIDEST / 2
        with np.errstate(invalid="ignore"):  # where a bound is infinite
            values = np.where(narrow, low + stream.random(size) * (high - low), values)
    if leaf.dtype.kind != "f":
        values = np.round(values)
    clipped: Array = np.clip(values, low, high).astype(leaf.dtype)
    return clipped.reshape(count, *leaf.shape)


def _sample_masks(parts: tuple[ActionPart, ...], size: int, count: int, stream: np.random.Generator) -> Array:
    masks = (stream.random((count, size)) < 0.5).astype(np.int8)
    for part in parts:
        start = part.masks.start if part.masks else 0
        for choices in part.choices:
            masks[np.arange(count), start + stream.integers(choices, size=count)] = 1
            start += choices
    return masks


def check_export(agent: Agent, program: PolicyProgram, run: RunExport) -> ExportCheck:
    """Compare an exported policy with the agent; raise `ExportError` if they act differently."""
    played, sampled, reason = find_observations(agent, program)
    rows = np.concatenate([played, sampled]) if len(played) else sampled
    expected, largest, ties = _expected_actions(agent, program, rows), 0.0, 0
    found = run(program.split(rows))
    single = run(program.split(rows[:1]))
    for part in program.policy.action_parts:
        given, wanted = found[part.name], expected[part.name]
        if (given.shape, given.dtype) != (wanted.shape, wanted.dtype) or single[part.name].shape != wanted[:1].shape:
            raise ExportError(
                f"the export gives {part.name} as {given.dtype} {given.shape}, not as {wanted.dtype} {wanted.shape}"
            )
        if part.kind == "numbers":
            largest = max(largest, _check_numbers(part, given, wanted))
        else:
            ties += _check_scores(part, given, wanted, _margins(part, program, rows))
    return ExportCheck(len(played), len(sampled), largest, ties, reason)


def _expected_actions(agent: Agent, program: PolicyProgram, rows: Array) -> dict[str, Array]:
    """Return the deterministic actions of the agent by the name of their part."""
    actions, parts = agent.learner.policy.predict(rows, deterministic=True), program.policy.action_parts
    if not isinstance(agent.action_space, PackedActions):
        return {parts[0].name: actions}
    columns = [slice(leaf.start, leaf.start + leaf.size) for leaf in agent.action_space.leaves]
    return {
        part.name: actions[:, own].reshape(len(actions), *part.shape).astype(part.dtype)
        for part, own in zip(parts, columns, strict=True)
    }


def _check_numbers(part: ActionPart, given: Array, wanted: Array) -> float:
    """Return the largest difference between numbers; refuse one that is more than rounding."""
    assert part.half_range is not None
    differences = np.abs(given.astype(np.float64) - wanted)
    limits = _TOLERANCE * np.maximum(part.half_range.reshape(part.shape), np.abs(wanted))
    if not (differences <= limits).all():
        worst = np.unravel_index(np.nanargmax(differences - limits), differences.shape)
        raise ExportError(
            f"the export acts differently: {part.name} is {given[worst]:g} where the agent chooses {wanted[worst]:g}"
        )
    return float(differences.max(initial=0.0))


def _check_scores(part: ActionPart, given: Array, wanted: Array, margins: Array) -> int:
    """Return how many choices differ because of ties; refuse any other difference."""
    differ = (given != wanted).reshape(len(given), -1)
    clear = differ & (margins > _TOLERANCE)
    if clear.any():
        row, number = np.argwhere(clear)[0]
        values = (each.reshape(len(each), -1)[row, number] for each in (given, wanted))
        text = "the export acts differently: {} is {} where the agent chooses {}".format(part.name, *values)
        raise ExportError(f"{text} ({int(clear.any(axis=1).sum()):,} of {len(given):,} observations)")
    return int(differ.sum())


def _margins(part: ActionPart, program: PolicyProgram, rows: Array) -> Array:
    """Return by how much the best score of each number exceeds the second best, relative to the largest score."""
    policy = program.policy
    outputs = policy.acting_network.forward_array(policy.params.arrays, policy.encoder.encode_array(rows))
    own: Array = outputs[:, part.outputs]
    scale = max(1.0, float(np.abs(own).max(initial=0.0)))
    if part.kind == "bits":
        return np.abs(own) / scale
    masks = policy.encoder.masks_array(rows)
    if masks is not None and part.masks is not None:
        own = np.where(masks[:, part.masks], own, -np.inf)
    scores = [np.sort(each, axis=1) for each in np.split(own, np.cumsum(part.choices)[:-1], axis=1)]
    gaps = [each[:, -1] - each[:, -2] if each.shape[1] > 1 else np.full(len(each), np.inf) for each in scores]
    return np.stack(gaps, axis=1) / scale
