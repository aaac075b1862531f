import math

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.base import GradientStep, LossGradients
from rl_training.algorithms.optimizer import Adam, Optimizer
from rl_training.algorithms.ppo import (
    PPOParams,
    clipped_policy_loss,
    explained_variance,
    normalize,
    ppo_loss,
    value_loss,
)
from rl_training.policies.base import PolicyOutput
from rl_training.policies.params import HostedParams


def test_surrogate_takes_the_pessimistic_side_of_the_clip() -> None:
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    losses, _ = clipped_policy_loss(ratios, advantages, 0.2)
    assert losses.tolist() == pytest.approx([-1.2, 1.5, -0.5, 0.8])


def test_surrogate_has_no_gradient_beyond_the_clip() -> None:
    ratios, advantages = torch.tensor([1.5, 1.5, 1.1, 0.5, 0.5]), torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0])
    _, gradients = clipped_policy_loss(ratios, advantages, 0.2)
    assert gradients.tolist() == pytest.approx([0.0, 3.0, -2.2, -1.0, 0.0])


def test_value_loss_is_half_the_squared_error() -> None:
    losses, gradients = value_loss(torch.tensor([1.0, 3.0]), torch.zeros(2), torch.tensor([2.0, 0.0]), None)
    assert losses.tolist() == [0.5, 4.5]
    assert gradients.tolist() == [-1.0, 3.0]


def test_value_clipping_is_around_the_old_values() -> None:
    values, returns = torch.tensor([2.0]), torch.tensor([2.0])
    # Limited to one step of 0.5 from the old value, the prediction would be 0.5: the worse of both counts.
    assert value_loss(values, torch.tensor([0.0]), returns, 0.5)[0].item() == 0.5 * 1.5**2
    assert value_loss(values, torch.tensor([2.0]), returns, 0.5)[0].item() == 0.0
    assert value_loss(values, torch.tensor([0.0]), returns, None)[0].item() == 0.0


@pytest.mark.parametrize("advantages", [[3.0], [2.0, 2.0, 2.0], [1e-30, -1e-30]])
def test_normalised_advantages_are_finite_whatever_the_minibatch(advantages: list[float]) -> None:
    assert torch.isfinite(normalize(torch.tensor(advantages))).all()


def test_a_single_advantage_stays_as_it_is() -> None:
    assert normalize(torch.tensor([3.0])).tolist() == [3.0]


def test_normalised_advantages_have_mean_0_and_deviation_1() -> None:
    normalised = normalize(torch.tensor([1.0, 2.0, 3.0, 10.0]))
    assert normalised.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert normalised.std().item() == pytest.approx(1.0, abs=1e-6)


def output_and_batch() -> tuple[PolicyOutput, dict[str, Tensor]]:
    """Two samples: ratios 1.25 and 0.5, advantages +1 and -1, values off by 1 and 3, entropies 0.5 and 0.7."""
    old = torch.tensor([0.4, 0.6]).log()
    output = PolicyOutput(
        actions=torch.tensor([0, 1]),
        logprobs=torch.tensor([0.5, 0.3]).log(),
        values=torch.tensor([1.0, 3.0]),
        entropy=torch.tensor([0.5, 0.7]),
    )
    batch = {
        "logprobs": old,
        "advantages": torch.tensor([1.0, -1.0]),
        "values": torch.zeros(2),
        "returns": torch.tensor([2.0, 0.0]),
    }
    return output, batch


def test_the_whole_loss_by_hand() -> None:
    output, batch = output_and_batch()
    params = PPOParams(ent_coef=0.1, vf_coef=0.5, normalize_advantages=False)
    metrics, gradients = ppo_loss(output, batch, params, clip_coef=0.2)
    policy_term = -(1.2 * 1.0 + 0.8 * -1.0) / 2
    value_term, entropy_term = 0.5 * (1.0 + 9.0) / 2, -0.6
    approx_kl = ((1.25 - 1 - math.log(1.25)) + (0.5 - 1 - math.log(0.5))) / 2
    expected = [
        policy_term + 0.1 * entropy_term + 0.5 * value_term,
        policy_term,
        value_term,
        entropy_term,
        approx_kl,
        1.0,
    ]
    assert metrics.tolist() == pytest.approx(expected, abs=1e-6)
    assert gradients.logprobs.tolist() == [0.0, 0.0]  # both are clipped
    assert gradients.values.tolist() == pytest.approx([0.5 * -1.0 / 2, 0.5 * 3.0 / 2])
    assert gradients.entropy == pytest.approx(-0.1 / 2)


def test_the_loss_clips_values_around_those_of_the_rollout() -> None:
    output, batch = output_and_batch()
    metrics, _ = ppo_loss(output, batch, PPOParams(clip_vf_coef=0.5), clip_coef=0.2)
    # Old values 0, new 1 and 3: limited to 0.5 both. Returns 2 and 0: the worse errors are 1.5 (limited) and 3 (free).
    assert metrics[2].item() == pytest.approx(0.5 * (1.5**2 + 3.0**2) / 2)


def test_advantages_are_normalised_within_the_minibatch() -> None:
    output, batch = output_and_batch()
    batch["advantages"] = torch.tensor([30.0, 10.0])  # mean 20, deviation sqrt 200: +-1/sqrt 2
    metrics, _ = ppo_loss(output, batch, PPOParams(), clip_coef=0.2)
    assert metrics[1].item() == pytest.approx(-(1.2 - 0.8) / math.sqrt(2) / 2)


def test_the_gradient_is_clipped_by_its_global_norm() -> None:
    """Adam's first moment is a tenth of what it saw."""
    for gradients, seen in (([3.0, 0.0, 4.0], [0.3, 0.0, 0.4]), ([0.1, 0.2, 0.0], [0.1, 0.2, 0.0])):
        params = HostedParams({"weights": (3,)}, torch.device("cpu"))
        optimizer = Optimizer(
            {"net": params}, lambda _, batch, __: LossGradients(batch, torch.zeros(1)), Adam(), max_norm=0.5
        )
        step = GradientStep("step", {"weights": torch.tensor(gradients)}, {"learning_rate": 0.0})
        assert optimizer.apply(step).metrics[-1] == pytest.approx(sum(part**2 for part in gradients) ** 0.5)
        assert (10 * optimizer.state_dict()["mean"][:3]).tolist() == pytest.approx(seen, abs=1e-6)


def test_explained_variance_of_perfect_constant_and_opposite_predictions() -> None:
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.zeros(2, 2), returns) == 0.0
    assert explained_variance(-returns, returns) == -3.0
    assert explained_variance(returns, torch.ones(2, 2)) == 0.0
