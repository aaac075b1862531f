"""Composite actions and masks: drawn, scored, differentiated and learnt as their parts are."""

import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from conftest import MakeConfig
from gymnasium import spaces
from sample_learners import build_ppo_learner
from sample_spaces_envs import DialsEnv, SwitchesEnv
from torch import Tensor

from rl_training import PPO
from rl_training.algorithms.base import Batch, GradientStep
from rl_training.algorithms.ppo import PPOLearner
from rl_training.errors import EnvironmentSetupError
from rl_training.packing import PackedActions, PackedObservations
from rl_training.policies.acting import draw_rows
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.distributions import (
    LOG_STD,
    SUPPORTED_ACTIONS,
    ActionDistribution,
    build_distribution,
)
from rl_training.policies.networks.spec import NetworkSpec
from rl_training.runtime.on_policy import build_rollout

AnySpace = spaces.Space[Any]
Bools = Any

DIALS = spaces.MultiDiscrete([2, 4, 3], start=[0, -1, 5])
GRID = spaces.MultiDiscrete(np.full((2, 2), 3))
SWITCHES = spaces.MultiBinary((2, 2))
ASYMMETRIC = spaces.Box(np.array([0.0, -3.0]), np.array([0.1, 10.0]), dtype=np.float64)
NESTED = spaces.Dict(
    {
        "arm": ASYMMETRIC,
        "hand": spaces.Tuple((spaces.Discrete(3, start=5), DIALS)),
        "lamps": SWITCHES,
        "legs": spaces.Box(-2.0, 2.0, (1,), np.float32),
    }
)
PACKED = PackedActions(NESTED)
SPACES: dict[str, AnySpace] = {
    "Discrete": spaces.Discrete(4),
    "MultiDiscrete": DIALS,
    "equal MultiDiscrete": GRID,
    "MultiBinary": SWITCHES,
    "Box": ASYMMETRIC,
    "Dict": PACKED,
}
ALL = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
MASKABLE = pytest.mark.parametrize("name", ["Discrete", "MultiDiscrete", "equal MultiDiscrete", "Dict"])
SIZE = 40


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def groups(space: AnySpace) -> list[int]:
    """The counts of choices that a mask covers, one per number."""
    if isinstance(space, PackedActions):
        return [count for leaf in space.leaves for count in groups(leaf.space)]
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return [int(count) for count in space.nvec.ravel()] if isinstance(space, spaces.MultiDiscrete) else []


def make_masks(space: AnySpace, rows: int = SIZE, seed: int = 9) -> Bools:
    """Random masks with a legal choice for every number."""
    rng = np.random.default_rng(seed)
    parts = []
    for count in groups(space):
        part = rng.random((rows, count)) < 0.5
        part[np.arange(rows), rng.integers(count, size=rows)] = True
        parts.append(part)
    return np.hstack(parts)


def make_params(distribution: ActionDistribution) -> dict[str, Tensor]:
    return {name: 0.3 * normal(*shape, seed=1) for name, shape in distribution.shapes.items()}


def sample(distribution: ActionDistribution, outputs: Tensor, masks: Bools = None, seed: int = 0) -> Any:
    noise = draw_rows(distribution.noise, len(outputs), np.random.default_rng(seed))
    params = {name: param.numpy() for name, param in make_params(distribution).items()}
    return distribution.sample(params, outputs.numpy(), noise, masks)


def reference(
    space: AnySpace, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies by `torch.distributions`, number by number."""
    if isinstance(space, PackedActions):
        return _packed_reference(space, params, outputs, actions, masks)
    if isinstance(space, spaces.Box):
        gaussian: Any = torch.distributions.Normal(outputs, params[LOG_STD].exp())
        return gaussian.log_prob(actions).sum(1), gaussian.entropy().sum(1)
    if isinstance(space, spaces.MultiBinary):
        coins: Any = torch.distributions.Bernoulli(logits=outputs)
        return coins.log_prob(actions.to(outputs.dtype)).sum(1), coins.entropy().sum(1)
    logprobs = entropies = torch.zeros(len(outputs), dtype=outputs.dtype)
    start = 0
    for number, count in enumerate(groups(space)):
        chosen = actions.reshape(len(actions), -1)[:, number].long()
        rows = [_legal_row(outputs[row, start : start + count], masks, row, start) for row in range(len(outputs))]
        for row, (logits, legal) in enumerate(rows):
            categorical: Any = torch.distributions.Categorical(logits=logits)
            position = (legal == chosen[row]).nonzero().squeeze()
            unit = torch.eye(len(outputs), dtype=outputs.dtype)[row]
            logprobs = logprobs + unit * categorical.log_prob(position)
            entropies = entropies + unit * categorical.entropy()
        start += count
    return logprobs, entropies


def _legal_row(logits: Tensor, masks: Tensor | None, row: int, start: int) -> tuple[Tensor, Tensor]:
    """The legal choices of one number in one row alone: the illegal ones do not exist for the reference."""
    legal = torch.ones(len(logits), dtype=torch.bool) if masks is None else masks[row, start : start + len(logits)]
    return logits[legal], legal.nonzero().squeeze(1)


def _packed_reference(
    space: PackedActions, params: Mapping[str, Tensor], outputs: Tensor, actions: Tensor, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = []
    used = deviations = choices = 0
    for leaf in space.leaves:
        counts, own = groups(leaf.space), {}
        size = sum(counts) or leaf.size
        if isinstance(leaf.space, spaces.Box):
            own[LOG_STD] = params[LOG_STD][deviations : deviations + size]
            deviations += size
        own_masks = None if masks is None or not counts else masks[:, choices : choices + size]
        columns = slice(leaf.start, leaf.start + leaf.size)
        scores.append(reference(leaf.space, own, outputs[:, used : used + size], actions[:, columns], own_masks))
        used, choices = used + size, choices + sum(counts)
    return sum(part[0] for part in scores), sum(part[1] for part in scores)  # type: ignore[return-value]  # not empty


CASES = [(name, False) for name in SPACES] + [(name, True) for name in SPACES if groups(SPACES[name])]
MASKED_OR_NOT = pytest.mark.parametrize(("name", "masked"), CASES)


def make_case(name: str, *, masked: bool) -> tuple[ActionDistribution, Tensor, Tensor, Tensor | None]:
    """A distribution, outputs, actions drawn from them, and masks."""
    distribution = build_distribution(SPACES[name])
    outputs = 2.0 * normal(SIZE, distribution.num_outputs, seed=0)
    masks = make_masks(SPACES[name]) if masked else None
    actions = torch.as_tensor(sample(distribution, outputs, masks))
    assert (actions.dtype, actions.shape[1:]) == (distribution.action_dtype, distribution.action_shape)
    return distribution, outputs, actions, None if masks is None else torch.as_tensor(masks)


@MASKED_OR_NOT
def test_scores_are_those_of_torch_distributions(name: str, *, masked: bool) -> None:
    distribution, outputs, actions, masks = make_case(name, masked=masked)
    params = make_params(distribution)
    scores = distribution.score(params, outputs, actions, masks)
    doubles = {key: param.double() for key, param in params.items()}
    logprobs, entropies = reference(SPACES[name], doubles, outputs.double(), actions, masks)
    torch.testing.assert_close(scores.logprobs.double(), logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.entropies.double(), entropies, rtol=1e-5, atol=1e-5)


@MASKED_OR_NOT
@pytest.mark.parametrize("entropy_gradient", [0.0, -0.05])
def test_gradients_are_those_of_automatic_differentiation(name: str, entropy_gradient: float, *, masked: bool) -> None:
    distribution, outputs, actions, masks = make_case(name, masked=masked)
    params, outer = make_params(distribution), normal(SIZE, seed=3)
    found, own = distribution.score(params, outputs, actions, masks).backward(outer, entropy_gradient)
    doubles = {key: param.double().requires_grad_() for key, param in params.items()}
    leaf = outputs.double().requires_grad_()
    logprobs, entropies = reference(SPACES[name], doubles, leaf, actions, masks)
    loss = (outer.double() * logprobs).sum() + entropy_gradient * entropies.sum()
    expected = torch.autograd.grad(loss, [leaf, *doubles.values()])
    torch.testing.assert_close(found.double(), expected[0], rtol=1e-5, atol=1e-5)
    assert list(own) == list(params)
    for key, gradient in zip(own, expected[1:], strict=True):
        torch.testing.assert_close(own[key].double(), gradient, rtol=1e-5, atol=1e-5)


@MASKABLE
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e20])
def test_illegal_choices_have_probability_and_gradient_0_however_large_the_logits(name: str, scale: float) -> None:
    distribution = build_distribution(SPACES[name])
    masks = torch.as_tensor(make_masks(SPACES[name]))
    outputs = scale * normal(SIZE, distribution.num_outputs, seed=0)
    actions = torch.as_tensor(sample(distribution, outputs, masks.numpy()))
    scores = distribution.score(make_params(distribution), outputs, actions, masks)
    assert scores.entropies.isfinite().all()
    gradients, _ = scores.backward(normal(SIZE, seed=3), -0.05)
    assert gradients.isfinite().all()
    other = torch.where(_covered(SPACES[name], masks), outputs, 1e6 * normal(*outputs.shape, seed=8))
    again = distribution.score(make_params(distribution), other, actions, masks)
    assert torch.equal(again.logprobs, scores.logprobs)
    assert torch.equal(again.entropies, scores.entropies)
    assert not gradients[~_covered(SPACES[name], masks)].any()


def _covered(space: AnySpace, masks: Tensor) -> Tensor:
    """Masks [batch, output]: outputs that are no choice are legal."""
    if not isinstance(space, PackedActions):
        return masks
    parts, start = [], 0
    for leaf in space.leaves:
        size = sum(groups(leaf.space))
        parts.append(masks[:, start : start + size] if size else torch.ones(len(masks), leaf.size, dtype=torch.bool))
        start += size
    return torch.cat(parts, dim=1)


def test_a_row_without_any_legal_choice_stays_finite_and_teaches_nothing() -> None:
    distribution = build_distribution(spaces.Discrete(3))
    masks = torch.zeros(1, 3, dtype=torch.bool)
    scores = distribution.score({}, torch.tensor([[5.0, 0.0, -5.0]]), torch.tensor([0]), masks)
    assert scores.entropies.item() == pytest.approx(np.log(3))
    assert scores.backward(torch.ones(1), -0.1)[0].tolist() == [[0.0, 0.0, 0.0]]


@MASKABLE
def test_illegal_choices_are_neither_drawn_nor_the_likeliest(name: str) -> None:
    space, rows = SPACES[name], 100_000
    distribution = build_distribution(space)
    masks = make_masks(space, rows)
    # The illegal choices have the highest logits.
    covered = _covered(space, torch.as_tensor(masks))
    outputs = torch.where(covered, normal(rows, distribution.num_outputs, seed=0), torch.tensor(50.0))
    for actions in (sample(distribution, outputs, masks), distribution.mode(outputs.numpy(), masks)):
        numbers = _chosen(space, actions)
        firsts = np.cumsum(groups(space)) - groups(space)
        assert np.take_along_axis(masks, numbers + firsts, axis=1).all()


def _chosen(space: AnySpace, actions: Any) -> Any:
    """The numbers [batch, number] that a mask is about."""
    if not isinstance(space, PackedActions):
        return actions.reshape(len(actions), -1)
    leaves = [leaf for leaf in space.leaves if groups(leaf.space)]
    return np.hstack([actions[:, leaf.start : leaf.start + leaf.size].astype(np.int64) for leaf in leaves])


@pytest.mark.parametrize("masked", [False, True])
def test_dials_are_drawn_with_the_probabilities_of_their_logits(*, masked: bool) -> None:
    rows = 40_000
    probs = [np.array([0.3, 0.7]), np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.25, 0.25])]
    mask = np.array([True, True, True, False, True, True, False, True, True])
    outputs = torch.as_tensor(np.tile(np.log(np.concatenate(probs)), (rows, 1)), dtype=torch.float32)
    masks = np.tile(mask, (rows, 1)) if masked else None
    drawn = sample(build_distribution(DIALS), outputs, masks)
    for number, (own, legal) in enumerate(zip(probs, np.split(mask, [2, 6]), strict=True)):
        expected = own * legal / (own * legal).sum() if masked else own
        frequencies = np.bincount(drawn[:, number], minlength=len(own)) / rows
        assert frequencies == pytest.approx(expected, abs=0.012)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.02


def test_switches_are_drawn_with_their_probabilities_by_both_sources_of_noise(make_config: MakeConfig) -> None:
    probs, rows = np.array([0.9, 0.5, 0.2, 0.01]), 40_000
    distribution = build_distribution(SWITCHES)
    outputs = torch.as_tensor(np.tile(np.log(probs / (1 - probs)), (rows, 1)), dtype=torch.float32)
    learner = build_ppo_learner(make_config(num_envs=100), VECTOR, SWITCHES)
    noise = learner._setup.noise(distribution.noise, range(100))
    acting = np.concatenate([noise.at(100 * step) for step in range(rows // 100)])
    for drawn in (sample(distribution, outputs), distribution.sample({}, outputs.numpy(), acting)):
        assert drawn.mean(axis=0) == pytest.approx(probs, abs=0.012)
        assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.03


def test_the_likeliest_composite_actions() -> None:
    outputs = np.array([[1.0, 0.0, 0.0, 0.1, 0.3, 0.2, 5.0, 6.0, -1.0]], np.float32)
    assert build_distribution(DIALS).mode(outputs).tolist() == [[0, 2, 1]]
    assert build_distribution(SWITCHES).mode(outputs[:, [0, 8, 7, 8]]).tolist() == [[1, 0, 1, 0]]


def test_dials_count_from_their_own_starts_in_the_shape_of_the_space() -> None:
    env_actions = build_distribution(DIALS).to_env(np.array([[0, 0, 0], [1, 3, 2]]))
    assert env_actions.tolist() == [[0, -1, 5], [1, 2, 7]]
    grid = build_distribution(GRID).to_env(np.array([[0, 1, 2, 0]]))
    assert grid.tolist() == [[[0, 1], [2, 0]]]
    assert GRID.contains(grid[0])
    switches = build_distribution(SWITCHES).to_env(np.array([[0, 1, 1, 0]]))
    assert SWITCHES.contains(switches[0])


def test_nested_actions_reach_the_env_with_starts_and_asymmetric_bounds() -> None:
    distribution = build_distribution(PACKED)
    #        arm: bounds, middle   hand: 3 from 5, dials   lamps       legs
    rows = np.array(
        [
            [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.5],
            [9.0, 0.0, 2.0, 1.0, 3.0, 2.0, 1.0, 1.0, 1.0, 0.0, -9.0],
        ],
        np.float32,
    )
    sent = distribution.to_env(rows)
    assert sent.dtype == np.float32
    low, high = (PACKED.unpack(row) for row in sent)
    for action in (low, high):
        assert NESTED.contains({**action, "hand": (np.int64(action["hand"][0]), action["hand"][1])})
    assert low["arm"].tolist() == [0.0, -3.0]
    assert high["arm"].tolist() == pytest.approx([0.1, 3.5])
    assert (low["hand"][0], low["hand"][1].tolist()) == (5, [0, -1, 5])
    assert (high["hand"][0], high["hand"][1].tolist()) == (7, [1, 2, 7])
    assert (low["lamps"].tolist(), high["lamps"].tolist()) == ([[0, 0], [0, 1]], [[1, 1], [1, 0]])
    assert (low["legs"].tolist(), high["legs"].tolist()) == ([1.0], [-2.0])


@ALL
def test_drawn_actions_belong_to_the_space(space: AnySpace) -> None:
    distribution = build_distribution(space)
    for action in distribution.to_env(sample(distribution, 3.0 * normal(200, distribution.num_outputs, seed=0))):
        if isinstance(space, PackedActions):
            unpacked = space.unpack(action)
            assert NESTED.contains({**unpacked, "hand": (np.int64(unpacked["hand"][0]), unpacked["hand"][1])})
        else:
            assert space.contains(action)


def test_every_part_of_a_nested_action_is_drawn_as_on_its_own(make_config: MakeConfig) -> None:
    learner = build_ppo_learner(make_config(num_envs=5), VECTOR, PACKED)
    distribution = learner.policy.distribution
    kinds = [kind for kind, _ in distribution.noise]
    assert kinds == ["normal", "gumbel", "gumbel", "logistic", "normal"]
    together = learner._setup.noise(distribution.noise, range(5))
    widths = np.cumsum([size for _, size in distribution.noise])[:-1]
    for step in (0, 35, 5_000, 0):
        whole = together.at(step)
        assert learner._setup.noise(distribution.noise, [3]).at(step).tobytes() == whole[3:4].tobytes()
        for index, (part, own) in enumerate(zip(distribution.noise, np.split(whole, widths, axis=1), strict=True)):
            alone = learner._setup.draws(*part, f"acting.{index}", range(5)).at(step)
            assert np.array_equal(alone, own)


def test_the_noise_of_the_parts_is_independent(make_config: MakeConfig) -> None:
    learner = build_ppo_learner(make_config(num_envs=20), VECTOR, PACKED)
    noise = learner._setup.noise(learner.policy.distribution.noise, range(20))
    numbers = np.concatenate([noise.at(20 * step) for step in range(1_000)])
    correlations = np.corrcoef(numbers.T) - np.eye(numbers.shape[1])
    assert np.abs(correlations).max() < 0.04


def test_nested_actions_have_no_correlated_noise(make_config: MakeConfig) -> None:
    config = make_config(algo_kwargs={"noise_correlation": 0.5})
    for space in (PACKED, DIALS, SWITCHES):
        with pytest.raises(EnvironmentSetupError, match=r"noise_correlation=0\.5 needs continuous actions"):
            build_ppo_learner(config, VECTOR, space)


VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
MASKED_SPACES = {"Discrete": spaces.Discrete(4), "MultiDiscrete": DIALS, "Dict": PACKED}
STEPS, ENVS = 8, 4
NEVER_LEGAL = 2 + 3 + 8  # the output of the last position of the last dial


def make_masked_learner(
    make_config: MakeConfig, action_space: AnySpace, mask_size: int | None = None, **changes: Any
) -> tuple[PPOLearner, Any]:
    size = sum(groups(action_space)) if mask_size is None else mask_size
    observations = PackedObservations(spaces.Dict({"vector": VECTOR}), size)
    kwargs = {"num_steps": STEPS, "minibatch_size": STEPS * ENVS, "update_epochs": 1, "hidden_sizes": [16]}
    config = make_config(num_envs=ENVS, algo_kwargs={**kwargs, **changes})
    learner = build_ppo_learner(config, observations, action_space)
    with torch.no_grad():
        learner.policy.params.flat.add_(0.3 * normal(learner.policy.params.layout.size, seed=0))
    return learner, build_rollout(config, learner)


def observe(learner: PPOLearner, rng: np.random.Generator, masks: Bools) -> Any:
    space: Any = learner.policy.encoder.space
    rows = rng.normal(size=(len(masks), 3)).astype(np.float32)
    return np.stack([space.pack({"vector": row}, mask) for row, mask in zip(rows, masks, strict=True)])


def fill(learner: PPOLearner, rollout: Any, action_space: AnySpace) -> Any:
    """A rollout of random observations; returns the masks [step, env, choice]."""
    rng = np.random.default_rng(0)
    actor = learner.make_actor(range(ENVS))
    masks = make_masks(action_space, STEPS * ENVS).reshape(STEPS, ENVS, -1)
    never = np.zeros(ENVS, bool)
    for step in range(STEPS):
        obs = observe(learner, rng, masks[step])
        actions = actor.act(obs, step * ENVS)
        rollout.add(obs=obs, actions=actions, rewards=rng.normal(size=ENVS), dones=never)
    learner.compute_advantages(rollout, obs)
    return masks


@pytest.mark.parametrize("name", MASKED_SPACES)
def test_the_first_minibatch_has_ratio_1_with_masks(name: str, make_config: MakeConfig) -> None:
    space = MASKED_SPACES[name]
    learner, rollout = make_masked_learner(make_config, space)
    masks = fill(learner, rollout, space)
    (batch,) = learner._minibatches(rollout)
    assert batch["masks"].dtype is torch.bool
    assert sorted(batch["masks"].tolist()) == sorted(masks.reshape(STEPS * ENVS, -1).tolist())
    metrics = learner.update(rollout, step=0).metrics
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-7)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["policy_gradient_loss"] == pytest.approx(0.0, abs=1e-6)


def test_masks_change_the_log_probs_of_a_rollout(make_config: MakeConfig) -> None:
    learner, rollout = make_masked_learner(make_config, DIALS)
    fill(learner, rollout, DIALS)
    policy, obs = learner.policy, rollout.obs.flatten(0, 1)
    features, actions = policy.encoder.encode_tensor(obs), rollout.actions.flatten(0, 1)
    unmasked = policy.evaluate(policy.params.tensors, features, actions).output
    masked = policy.evaluate(policy.params.tensors, features, actions, policy.masks(obs)).output
    torch.testing.assert_close(rollout.logprobs.flatten(), masked.logprobs)
    assert (masked.logprobs > unmasked.logprobs + 1e-3).float().mean() > 0.9
    assert (masked.entropy < unmasked.entropy).float().mean() > 0.9


def test_predictions_keep_to_the_masks(make_config: MakeConfig) -> None:
    learner, _ = make_masked_learner(make_config, DIALS)
    masks = make_masks(DIALS, 500)
    obs = observe(learner, np.random.default_rng(1), masks)
    for deterministic in (True, False):
        actions = learner.policy.predict(obs, deterministic=deterministic) - DIALS.start
        assert np.take_along_axis(masks, actions + np.array([0, 2, 6]), axis=1).all()


def test_actions_that_cannot_be_masked_ignore_masks(make_config: MakeConfig) -> None:
    learner, rollout = make_masked_learner(make_config, SWITCHES, mask_size=4)
    actor = learner.make_actor(range(ENVS))
    obs = observe(learner, np.random.default_rng(0), np.zeros((ENVS, 4), bool))
    for step in range(STEPS):
        actions = actor.act(obs, step * ENVS)
        rollout.add(obs=obs, actions=actions, rewards=np.ones(ENVS), dones=np.zeros(ENVS, bool))
    learner.compute_advantages(rollout, obs)
    assert "masks" not in next(iter(learner._minibatches(rollout)))
    assert rollout.actions.any()


@pytest.mark.parametrize(("name", "expected"), [("Discrete", 4), ("MultiDiscrete", 9), ("Dict", 12)])
def test_a_mask_of_another_size_is_refused(name: str, expected: int, make_config: MakeConfig) -> None:
    with pytest.raises(EnvironmentSetupError, match=f"action mask has 7 entries, .* has {expected} choices"):
        make_masked_learner(make_config, MASKED_SPACES[name], mask_size=7)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(3), r"Text"),
        (spaces.Box(0, 5, (2,), np.int32), r"Box"),
        (PackedActions(spaces.Dict({"a": VECTOR, "b": spaces.Box(0, 5, (2,), np.int32)})), r"Box \(b\)"),
    ],
)
def test_other_action_spaces_are_refused_with_what_is_supported(space: AnySpace, name: str) -> None:
    message = f"action space {name} is not supported here; supported: {SUPPORTED_ACTIONS}"
    with pytest.raises(EnvironmentSetupError, match=message):
        build_distribution(space)


def test_nested_actions_that_float32_cannot_hold_are_refused() -> None:
    far = PackedActions(spaces.Dict({"door": spaces.Discrete(3, start=2**25)}))
    with pytest.raises(EnvironmentSetupError, match=r"\(door\) has values beyond 16777216"):
        build_distribution(far)
    with pytest.raises(EnvironmentSetupError, match="has no part"):
        build_distribution(PackedActions(spaces.Dict({})))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_updates_agree_with_eager_ones_with_masks_and_all_kinds_of_parts(make_config: MakeConfig) -> None:
    applied = []
    for compiled in ("off", "on"):
        kwargs = {"num_steps": STEPS, "minibatch_size": STEPS * ENVS, "update_epochs": 1, "ent_coef": 0.01}
        config = make_config(num_envs=ENVS, compile=compiled, algo_kwargs=kwargs)
        learner = build_ppo_learner(config, PackedObservations(spaces.Dict({"vector": VECTOR}), 12), PACKED)
        rollout = build_rollout(config, learner)
        fill(learner, rollout, PACKED)
        (batch,) = learner._minibatches(rollout)
        fixed: Batch = {**batch, "logprobs": batch["logprobs"] + 0.1 * normal(STEPS * ENVS, seed=2)}
        fixed["actions"][:, 5] %= 2.0
        fixed["masks"][:, -3:] = torch.tensor([True, True, False])  # the last position of the last dial is never legal
        bias = learner.policy.params.tensors["actor.1.bias"]
        bias.fill_(0.25)
        metrics = learner.apply(GradientStep("minibatch", fixed, {"learning_rate": 0.01, "clip_coef": 0.2}))
        assert bool(learner.packages) == (compiled == "on")
        assert (bias == 0.25).nonzero().tolist() == [[NEVER_LEGAL]]
        applied.append((metrics, learner.policy.params.flat.clone()))
    (eager, eager_flat), (compiled_metrics, compiled_flat) = applied
    assert compiled_metrics == pytest.approx(eager, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(compiled_flat, eager_flat, rtol=1e-4, atol=1e-4)


PROBE = {
    "num_steps": 32,
    "minibatch_size": 64,
    "update_epochs": 8,
    "hidden_sizes": [32],
    "learning_rate": 5e-3,
    "gamma": 0.9,
}


@pytest.mark.parametrize("env_class", [DialsEnv, SwitchesEnv])
def test_ppo_finds_the_best_composite_actions(
    env_class: type[DialsEnv] | type[SwitchesEnv], make_config: MakeConfig
) -> None:
    env_id = f"tests/{env_class.__name__.removesuffix('Env')}-v0"
    config = make_config(
        env_id=env_id, num_envs=8, total_timesteps=8_000, eval_episodes=0, checkpoint_interval=0, algo_kwargs=PROBE
    )
    model = PPO(config)
    model.learn()
    for shown, right in env_class.right.items():
        action = np.asarray(model.predict(np.array([shown], np.float32)))
        assert action.ravel().tolist() == right
        assert env_class.action_space.contains(action)


@pytest.mark.slow
def test_ppo_finds_the_best_nested_action_among_the_legal_ones(make_config: MakeConfig) -> None:
    """One-step episodes that pay for an arm at (0.075, 5), hand 6 or the best legal one, and lamps that match."""
    num_envs, num_steps = 16, 32
    config = make_config(num_envs=num_envs, total_timesteps=100_000, algo_kwargs=PROBE)
    learner = build_ppo_learner(config, PackedObservations(spaces.Dict({"vector": VECTOR}), 12), PACKED)
    rollout, rng, lamps = build_rollout(config, learner), np.random.default_rng(0), np.array([[1, 0], [0, 1]])
    masks = np.ones((2, 12), bool)
    masks[1, 1] = False  # hand 6, the best one, is illegal in the second state
    space: Any = learner.policy.encoder.space
    signs = np.array([[-1.0] * 3, [1.0] * 3], np.float32)
    shown = [space.pack({"vector": sign}, mask) for sign, mask in zip(signs, masks, strict=True)]

    def reward(row: Any) -> float:
        action = PACKED.unpack(row)
        distance = np.abs((action["arm"] - [0.075, 5.0]) / [0.1, 13.0]).sum()
        return float({5: 0.0, 6: 2.0, 7: 1.0}[action["hand"][0]] - distance + (action["lamps"] == lamps).mean())

    actor = learner.make_actor(range(num_envs))
    for update in range(30):
        rollout.reset()
        for step in range(num_steps):
            obs = np.stack([shown[state] for state in rng.integers(2, size=num_envs)])
            actions = actor.act(obs, (update * num_steps + step) * num_envs)
            rewards = [reward(row) for row in actor.to_env(actions)]
            rollout.add(obs=obs, actions=actions, rewards=rewards, dones=np.ones(num_envs, bool))
        learner.compute_advantages(rollout, obs)
        learner.update(rollout, step=update * num_steps * num_envs)
    found = [PACKED.unpack(row) for row in learner.policy.predict(np.stack(shown))]
    assert [action["hand"][0] for action in found] == [6, 7]
    for action in found:
        assert action["lamps"].tolist() == lamps.tolist()
        assert action["arm"].tolist() == pytest.approx([0.075, 5.0], abs=0.6)
        assert action["arm"][0] == pytest.approx(0.075, abs=0.01)


def test_a_policy_without_masks_has_none() -> None:
    policy = ActorCritic(VECTOR, DIALS, NetworkSpec((8,), "tanh", torch.device("cpu")), seed=1)
    assert policy.masks(torch.zeros(2, 3)) is None
