import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer


def filled(
    rewards: list[list[float]],
    *,
    values: list[list[float]] | None = None,
    dones: list[list[bool]] | None = None,
    truncated: list[list[bool]] | None = None,
    num_steps: int | None = None,
) -> RolloutBuffer:
    """A rollout given as [step][env]; the observation at (step, env) is 10 * step + env."""
    steps, envs = len(rewards), len(rewards[0])
    rollout = RolloutBuffer(num_steps or steps, envs, (1,), ())
    for step in range(steps):
        rollout.add(
            obs=np.array([[10.0 * step + env] for env in range(envs)]),
            actions=np.zeros(envs),
            rewards=rewards[step],
            dones=dones[step] if dones else [False] * envs,
            values=values[step] if values else [0.0] * envs,
            logprobs=[0.0] * envs,
            truncated=np.array(truncated[step]) if truncated else None,
            last_obs=np.array([[100.0 * (step + 1) + env] for env in range(envs)]),
        )
    return rollout


def advantages(rollout: RolloutBuffer, last_values: list[float], gamma: float, gae_lambda: float) -> list[float]:
    rollout.compute_returns_and_advantages(last_values=torch.tensor(last_values), gamma=gamma, gae_lambda=gae_lambda)
    return [float(value) for value in rollout.advantages.flatten()]


def test_gae_by_hand() -> None:
    # r = 1, 1; V = 0; gamma = lambda = 0.5; the second step terminates
    rollout = filled([[1.0], [1.0]], dones=[[False], [True]])
    assert advantages(rollout, [9.0], 0.5, 0.5) == [1.25, 1.0]  # 1 + 0.25 * 1


def test_gae_bootstraps_from_the_last_values_of_a_running_episode() -> None:
    # delta1 = 1 + 0.5 * 4 - 2 = 1; delta0 = 1 + 0.5 * 2 - 1 = 1
    rollout = filled([[1.0], [1.0]], values=[[1.0], [2.0]])
    assert advantages(rollout, [4.0], 0.5, 0.5) == [1.25, 1.0]
    assert rollout.returns.flatten().tolist() == [2.25, 3.0]  # advantage + value


def test_an_ending_in_mid_rollout_cuts_bootstrap_and_trace() -> None:
    rollout = filled([[1.0], [1.0], [1.0]], values=[[0.0], [0.0], [8.0]], dones=[[False], [True], [False]])
    # delta2 = 1 + 0.5 * 2 - 8 = -6 must not reach the steps before the ending
    assert advantages(rollout, [2.0], 0.5, 1.0) == [1.5, 1.0, -6.0]


def test_truncation_bootstraps_but_cuts_the_trace() -> None:
    rollout = filled(
        [[1.0], [1.0], [1.0]],
        values=[[0.0], [0.0], [8.0]],
        dones=[[False], [True], [False]],
        truncated=[[False], [True], [False]],
    )
    assert rollout.truncated_last_obs().tolist() == [[200.0]]
    rollout.bootstrap_values[rollout.truncated] = torch.tensor([4.0])
    # delta1 = 1 + 0.5 * 4 = 3, from the value of the true last observation and not from V(s_2) = 8
    assert advantages(rollout, [2.0], 0.5, 1.0) == [2.5, 3.0, -6.0]


def test_gae_equals_a_slow_reference_per_episode() -> None:
    rng = np.random.default_rng(0)
    steps, envs, gamma, gae_lambda = 40, 5, 0.97, 0.9
    rewards, values = rng.normal(size=(steps, envs)), rng.normal(size=(steps, envs))
    dones = rng.random((steps, envs)) < 0.15
    truncated = dones & (rng.random((steps, envs)) < 0.5)
    bootstraps, last_values = rng.normal(size=(steps, envs)), rng.normal(size=envs)
    rollout = filled(rewards.tolist(), values=values.tolist(), dones=dones.tolist(), truncated=truncated.tolist())
    rollout.bootstrap_values[rollout.truncated] = torch.tensor(bootstraps[truncated], dtype=torch.float32)
    computed = advantages(rollout, last_values.tolist(), gamma, gae_lambda)

    def reference(step: int, env: int) -> float:
        """The definition: a sum of discounted errors up to the episode's end."""
        total, weight = 0.0, 1.0
        for later in range(step, steps):
            if dones[later, env]:
                following = bootstraps[later, env] if truncated[later, env] else 0.0
            else:
                following = values[later + 1, env] if later + 1 < steps else last_values[env]
            total += weight * (rewards[later, env] + gamma * following - values[later, env])
            if dones[later, env]:
                break
            weight *= gamma * gae_lambda
        return float(total)

    expected = [reference(step, env) for step in range(steps) for env in range(envs)]
    assert computed == pytest.approx(expected, abs=1e-4)


def collected(rollout: RolloutBuffer, **options: object) -> list[dict[str, Tensor]]:
    return list(rollout.iter_minibatches(**options))  # type: ignore[arg-type]  # the options under test


def test_minibatches_cover_every_transition_once_and_keep_rows_together() -> None:
    rollout = filled([[float(10 * step + env) for env in range(3)] for step in range(4)])
    rollout.values.copy_(rollout.rewards)
    rollout.advantages.copy_(rollout.rewards)
    batches = collected(rollout, minibatch_size=5, shuffle=True, generator=np.random.default_rng(1))
    assert [len(batch["obs"]) for batch in batches] == [5, 5, 2]
    seen = torch.cat([batch["obs"].flatten() for batch in batches])
    assert sorted(seen.tolist()) == [10.0 * step + env for step in range(4) for env in range(3)]
    assert seen.tolist() != sorted(seen.tolist())
    for name in ("values", "advantages"):
        assert torch.equal(torch.cat([batch[name] for batch in batches]), seen)


def test_minibatches_without_shuffling_keep_the_order_of_time() -> None:
    rollout = filled([[1.0], [2.0], [3.0]])
    (batch,) = collected(rollout, minibatch_size=3, shuffle=False)
    assert batch["obs"].flatten().tolist() == [0.0, 10.0, 20.0]


def test_minibatch_order_is_a_function_of_the_generator_alone() -> None:
    rollout = filled([[float(step)] for step in range(32)])
    orders = [
        collected(rollout, minibatch_size=32, shuffle=True, generator=np.random.default_rng(seed))[0]["obs"]
        for seed in (3, 3, 4)
    ]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def test_what_is_stored_does_not_change_with_the_array_it_came_from() -> None:
    rollout = RolloutBuffer(1, 1, (2,), ())
    obs, last_obs = np.ones((1, 2), np.float32), np.full((1, 2), 5.0, np.float32)  # the dtype that needs no conversion
    rollout.add(obs=obs, actions=[0.0], rewards=[0.0], dones=[True], truncated=np.array([True]), last_obs=last_obs)
    obs[:], last_obs[:] = 7.0, 7.0
    assert rollout.obs.flatten().tolist() == [1.0, 1.0]
    assert rollout.truncated_last_obs().tolist() == [[5.0, 5.0]]


def test_a_full_rollout_refuses_more_until_it_is_reset() -> None:
    rollout = filled([[1.0]], dones=[[True]], truncated=[[True]])
    with pytest.raises(IndexError, match="reset"):
        rollout.add(obs=[[0.0]], actions=[0.0], rewards=[0.0], dones=[False])
    rollout.reset()
    assert len(rollout) == 0
    assert len(rollout.truncated_last_obs()) == 0
    rollout.add(obs=[[0.0]], actions=[0.0], rewards=[0.0], dones=[False])
    assert rollout.full


def test_a_reset_rollout_forgets_the_time_limits_of_the_last_one() -> None:
    rollout = filled([[1.0]], dones=[[True]], truncated=[[True]])
    rollout.bootstrap_values[rollout.truncated] = torch.tensor([4.0])
    rollout.reset()
    rollout.add(obs=[[0.0]], actions=[0.0], rewards=[1.0], dones=[True], values=[0.0])  # final, at the same place
    assert not rollout.truncated.any()
    assert advantages(rollout, [9.0], 0.5, 1.0) == [1.0]  # not 1 + 0.5 * 4


def test_a_half_filled_rollout_ends_with_its_newest_step() -> None:
    rollout = filled([[1.0]], num_steps=2)
    assert advantages(rollout, [4.0], 0.5, 0.5) == [3.0, 0.0]  # 1 + 0.5 * 4
    (batch,) = collected(rollout, minibatch_size=2, shuffle=True)
    assert batch["returns"].tolist() == [3.0]


def test_tensors_that_are_filled_directly_count_as_a_whole_rollout() -> None:
    rollout = RolloutBuffer(2, 2, (1,), ())
    rollout.obs[:] = torch.tensor([[[0.0], [1.0]], [[10.0], [11.0]]])
    rollout.rewards[:] = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    rollout.dones[1] = True
    assert advantages(rollout, [9.0, 9.0], 0.5, 0.5) == [1.25, 2.5, 1.0, 2.0]  # 1 + 0.25 * 1 and 2 + 0.25 * 2
    for shuffle in (False, True):
        batches = collected(rollout, minibatch_size=3, shuffle=shuffle)
        assert [len(batch["obs"]) for batch in batches] == [3, 1]
        assert sorted(torch.cat([batch["obs"] for batch in batches]).flatten().tolist()) == [0.0, 1.0, 10.0, 11.0]
    assert (len(rollout), rollout.full, rollout.state_dict()) == (0, False, {"position": 0})


def test_a_half_filled_rollout_survives_a_round_trip() -> None:
    half = filled([[1.0, 2.0]], dones=[[True, False]], truncated=[[True, False]], num_steps=2)
    state = half.state_dict()
    half.rewards.zero_()  # what comes later is not in the state
    copy = RolloutBuffer(2, 2, (1,), ())
    copy.load_state_dict(state)
    assert copy.position == 1
    assert not copy.full
    assert copy.rewards[0].tolist() == [1.0, 2.0]
    assert copy.dones[0].tolist() == [True, False]
    assert copy.truncated[0].tolist() == [True, False]
    assert copy.truncated_last_obs().tolist() == [[100.0]]


def test_cutting_ends_the_running_episodes_of_some_envs_as_truncated() -> None:
    rollout = filled([[1.0, 1.0, 1.0]], dones=[[True, False, False]], truncated=[[False, False, False]])
    rollout.cut([0, 1], np.array([[8.0], [9.0], [10.0]]))
    assert rollout.dones.tolist() == [[True, True, False]]
    assert rollout.truncated.tolist() == [[False, True, False]]
    assert rollout.truncated_last_obs().tolist() == [[9.0]]


def test_cutting_an_empty_rollout_changes_nothing() -> None:
    rollout = RolloutBuffer(2, 1, (1,), ())
    rollout.cut([0], np.array([[1.0]]))
    assert not rollout.truncated.any()
    assert len(rollout) == 0


def test_a_rollout_is_always_saved_whole() -> None:
    rollout = filled([[1.0], [2.0]], dones=[[False], [False]], truncated=[[False], [False]])
    assert rollout.state_dict(since=1)["rewards"].tolist() == [[1.0], [2.0]]


def test_memory_is_counted_without_being_allocated() -> None:
    real = RolloutBuffer(8, 2, (3,), (), action_dtype=torch.int64)
    counted = RolloutBuffer(8, 2, (3,), (), "meta", action_dtype=torch.int64)
    assert counted.num_bytes == real.num_bytes == 16 * (3 * 4 + 8 + 6 * 4 + 2)


def test_several_steps_at_once_are_stored_like_one_by_one() -> None:
    steps = [
        {
            "obs": np.full((2, 3), step, np.float32),
            "actions": np.full((2, 1), step),
            "rewards": np.array([step, -step]),
            "dones": np.array([step == 1, step == 2]),
            "truncated": np.array([step == 1, False]),
            "last_obs": np.full((2, 3), 10.0 * step),
        }
        for step in range(4)
    ]
    at_once, one_by_one = (RolloutBuffer(5, 2, (3,), (1,)) for _ in range(2))
    for rollout, first in ((at_once, steps[:1]), (one_by_one, steps)):
        for step in first:
            rollout.add(**step)
    at_once.add(**{name: np.stack([step[name] for step in steps[1:]]) for name in steps[0]})
    assert at_once.truncated_last_obs().tolist() == [[10.0] * 3]
    expected = one_by_one.state_dict()
    for name, value in at_once.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(expected[name])), name
    with pytest.raises(IndexError, match="reset"):
        at_once.add(**{name: np.stack([step[name] for step in steps[:2]]) for name in steps[0]})
