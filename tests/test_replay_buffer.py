from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.replay_buffer import ReplayBuffer, transition_bytes
from rl_training.data.sampling import PrioritizedSampler, SumTree, UniformSampler

OBS, NEXT = 1000.0, 2000.0


class InOrder(UniformSampler):
    """Draws the rows it is told to."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(np.random.default_rng(0))
        self.rows = rows

    def draw(self, batch_size: int, size: int) -> Any:
        return super().draw(batch_size, size)._replace(rows=np.array(self.rows))


def fill(buffer: ReplayBuffer, numbers: range, ends: dict[int, str] | None = None) -> None:
    """Transition k has obs 1000 + k, next obs 2000 + k, action and reward k, and ends as `ends` says."""
    for number in numbers:
        ending = (ends or {}).get(number)
        buffer.add(
            obs=[OBS + number],
            actions=[number],
            rewards=float(number),
            next_obs=[NEXT + number],
            dones=ending == "terminated",
            truncated=ending == "truncated",
        )


def drawn(buffer: ReplayBuffer, rows: list[int]) -> dict[str, torch.Tensor]:
    buffer.sampler = InOrder(rows)
    return buffer.sample(len(rows))


def test_a_batch_keeps_the_parts_of_a_transition_together() -> None:
    buffer = ReplayBuffer(10, (1,), (1,), sampler=UniformSampler(np.random.default_rng(0)))
    fill(buffer, range(6))
    batch = buffer.sample(64)
    numbers = batch["rewards"]
    assert set(numbers.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    assert torch.equal(batch["obs"][:, 0], OBS + numbers)
    assert torch.equal(batch["next_obs"][:, 0], NEXT + numbers)
    assert torch.equal(batch["actions"][:, 0], numbers)
    assert len(buffer) == 6


def test_a_time_limit_is_not_stored_as_done() -> None:
    buffer = ReplayBuffer(4, (1,), (1,), gamma=0.5)
    fill(buffer, range(3), {0: "terminated", 1: "truncated"})
    batch = drawn(buffer, [0, 1, 2])
    assert batch["dones"].tolist() == [1.0, 0.0, 0.0]
    assert batch["truncated"].tolist() == [0.0, 1.0, 0.0]
    assert batch["discounts"].tolist() == [0.0, 0.5, 0.5]


def test_the_oldest_transitions_make_room() -> None:
    buffer = ReplayBuffer(4, (1,), (1,))
    fill(buffer, range(6))
    assert len(buffer) == 4
    assert drawn(buffer, [0, 1, 2, 3])["rewards"].tolist() == [4.0, 5.0, 2.0, 3.0]


def test_n_step_returns_by_hand() -> None:
    buffer = ReplayBuffer(10, (1,), (1,), n_step=3, gamma=0.5)
    fill(buffer, range(1, 9), {4: "terminated", 7: "truncated"})
    batch = drawn(buffer, [0, 2, 3, 5, 6, 7])  # transitions 1, 3, 4, 6, 7 and 8, the newest
    assert batch["rewards"].tolist() == [1 + 1 + 0.75, 3 + 2, 4, 6 + 3.5, 7, 8]
    # The power of gamma is the real number of steps: 3, then cut by endings and by the write head.
    assert batch["discounts"].tolist() == [0.125, 0.0, 0.0, 0.25, 0.5, 0.5]
    assert batch["next_obs"][:, 0].tolist() == [NEXT + last for last in (3, 4, 4, 7, 7, 8)]
    assert batch["obs"][:, 0].tolist() == [OBS + first for first in (1, 3, 4, 6, 7, 8)]


def test_an_n_step_return_never_crosses_the_write_head() -> None:
    buffer = ReplayBuffer(5, (1,), (1,), n_step=3, gamma=1.0)
    fill(buffer, range(1, 8))  # rows hold 6, 7, 3, 4, 5; the head is at row 2
    batch = drawn(buffer, [0, 1, 2, 3, 4])
    assert batch["rewards"].tolist() == [6 + 7, 7, 3 + 4 + 5, 4 + 5 + 6, 5 + 6 + 7]


def test_a_look_ahead_beyond_everything_stored_ends_with_what_is_stored() -> None:
    buffer = ReplayBuffer(5, (1,), (1,), n_step=2**53 - 1, gamma=1.0)  # walking through all steps would take for ever
    fill(buffer, range(1, 5))
    assert drawn(buffer, [0, 3])["rewards"].tolist() == [1 + 2 + 3 + 4, 4]


def test_interleaved_envs_look_ahead_within_their_own_env() -> None:
    buffer = ReplayBuffer(8, (1,), (), num_envs=2, n_step=2, gamma=1.0)
    for step in range(3):
        values = np.array([step, 100.0 + step])
        buffer.add(obs=values, actions=[0, 0], rewards=values, next_obs=values, dones=[False, False])
    assert drawn(buffer, [0, 1, 2, 3])["rewards"].tolist() == [0 + 1, 100 + 101, 1 + 2, 101 + 102]


def test_the_capacity_is_a_whole_number_of_vector_steps() -> None:
    assert ReplayBuffer(10, (1,), (), num_envs=4).capacity == 8
    with pytest.raises(ValueError, match="capacity=3"):
        ReplayBuffer(3, (1,), (), num_envs=4)


def image(number: int) -> np.ndarray[Any, Any]:
    return np.full((2, 2), number, np.uint8)


@pytest.mark.parametrize("capacity", [4, 5, 7, 50])
def test_images_are_stored_once_and_come_back_right(capacity: int) -> None:
    """Observation t of episode e is 10 * e + t; episodes of three steps end by turns in either way."""
    buffer = ReplayBuffer(capacity, (2, 2), (), obs_dtype=torch.uint8)
    for episode in range(6):
        for step in range(3):
            last = step == 2
            buffer.add(
                obs=image(10 * episode + step),
                actions=0,
                rewards=10.0 * episode + step,
                next_obs=image(10 * episode + step + 1),
                dones=last and episode % 2 == 0,
                truncated=last and episode % 2 == 1,
            )
            batch = drawn(buffer, list(range(len(buffer))))
            assert torch.equal(batch["obs"][:, 0, 0].float(), batch["rewards"])
            assert torch.equal(batch["next_obs"][:, 1, 1].float(), batch["rewards"] + 1)
    assert batch["obs"].dtype == torch.uint8
    assert buffer.num_bytes == capacity * transition_bytes((2, 2), (), torch.uint8) == capacity * (4 + 16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
@pytest.mark.parametrize("count", [3, 8, 13])
def test_a_buffer_goes_on_from_its_state_also_in_mid_wrap(dtype: torch.dtype, count: int) -> None:
    def make() -> ReplayBuffer:
        sampler = UniformSampler(np.random.default_rng(5))
        return ReplayBuffer(8, (1,), (1,), obs_dtype=dtype, n_step=2, gamma=0.9, sampler=sampler)

    def add(buffer: ReplayBuffer, numbers: range) -> None:
        for number in numbers:
            buffer.add(obs=[number], actions=[0], rewards=number, next_obs=[number + 1], dones=number % 5 == 4)

    straight, copy = make(), make()
    add(straight, range(count))
    straight.sample(4)
    copy.load_state_dict(straight.state_dict())
    for buffer in (straight, copy):
        add(buffer, range(count, count + 3))
    left, right = straight.sample(32), copy.sample(32)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_integer_observations_and_actions_keep_their_type() -> None:
    buffer = ReplayBuffer(4, (), (), obs_dtype=torch.int64, action_dtype=torch.int64)
    buffer.add(obs=[7], actions=[3], rewards=[0.0], next_obs=[8], dones=[False])
    batch = buffer.sample(1)
    assert (batch["obs"].tolist(), batch["next_obs"].tolist(), batch["actions"].tolist()) == ([7], [8], [3])


def test_memory_is_known_before_it_is_allocated() -> None:
    buffer = ReplayBuffer(100, (3,), (2,))
    assert buffer.num_bytes == 100 * transition_bytes((3,), (2,), torch.float32)


def test_a_sum_tree_finds_the_row_of_every_mass() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 2.0, 3.0, 4.0]))
    assert tree.total == 10.0
    assert tree.find(np.array([0.0, 0.99, 1.0, 2.99, 3.0, 5.99, 6.0, 9.99])).tolist() == [0, 0, 2, 2, 3, 3, 4, 4]
    tree.set(np.array([0, 4]), np.array([0.0, 1.0]))
    assert tree.total == 6.0
    assert tree.find(np.array([0.0, 5.5])).tolist() == [2, 4]


def test_priorities_decide_how_often_a_row_is_drawn_and_weights_correct_for_it() -> None:
    sampler = PrioritizedSampler(4, alpha=1.0, stream=np.random.default_rng(0))
    sampler.beta = 1.0
    sampler.added(np.arange(4))
    sampler.update(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    draw = sampler.draw(10_000, 4)
    counts = np.bincount(draw.rows, minlength=4) / 10_000
    assert counts == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    by_row = {int(row): float(weight) for row, weight in zip(draw.rows, draw.weights, strict=True)}
    assert by_row == pytest.approx({0: 1.0, 1: 1 / 2, 2: 1 / 3, 3: 1 / 4})


def test_new_transitions_get_the_highest_priority_seen() -> None:
    sampler = PrioritizedSampler(4, alpha=1.0, stream=np.random.default_rng(0))
    sampler.added(np.array([0, 1]))
    sampler.update(np.array([0]), np.array([9.0]))
    sampler.added(np.array([2]))
    counts = np.bincount(sampler.draw(1900, 3).rows, minlength=3)
    assert counts == pytest.approx([900, 100, 900], abs=2)


def test_prioritised_draws_go_on_from_their_state() -> None:
    first, second = (PrioritizedSampler(6, 0.5, np.random.default_rng(seed)) for seed in (1, 2))
    first.added(np.arange(6))
    first.update(np.arange(6), np.arange(1.0, 7.0))
    second.load_state_dict(first.state_dict())
    assert np.array_equal(first.draw(20, 6).rows, second.draw(20, 6).rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
def test_a_cut_ends_the_running_episodes_so_that_no_return_reaches_beyond(dtype: torch.dtype) -> None:
    buffer = ReplayBuffer(8, (1,), (), num_envs=2, obs_dtype=dtype, n_step=3, gamma=1.0)
    for step in (1, 2):
        numbers = np.array([[step], [10 + step]])
        dones = [False, step == 2]
        buffer.add(obs=numbers, actions=[0, 0], rewards=numbers[:, 0], next_obs=numbers + 100, dones=dones)
    buffer.cut([0, 1])
    numbers = np.array([[50], [60]])
    buffer.add(obs=numbers, actions=[0, 0], rewards=numbers[:, 0], next_obs=numbers + 100, dones=[False, False])
    batch = drawn(buffer, [0, 1, 2, 3])
    assert batch["rewards"].tolist() == [1 + 2, 11 + 12, 2, 12]
    assert batch["next_obs"][:, 0].tolist() == [102, 112, 102, 112]
    assert batch["discounts"].tolist() == [1.0, 0.0, 1.0, 0.0]  # the cut keeps its bootstrap, the termination does not


def test_cutting_an_empty_buffer_changes_nothing() -> None:
    buffer = ReplayBuffer(4, (1,), (1,))
    buffer.cut([0])
    assert len(buffer) == 0


def test_a_cut_concerns_only_the_envs_that_are_named() -> None:
    buffer = ReplayBuffer(4, (1,), (), num_envs=2)
    for _ in range(3):
        buffer.add(obs=[[0], [0]], actions=[0, 0], rewards=[0, 0], next_obs=[[0], [0]], dones=[False, False])
    buffer.cut([1])
    assert drawn(buffer, [0, 1, 2, 3])["truncated"].tolist() == [0.0, 1.0, 0.0, 0.0]  # the newest are rows 0 and 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
def test_what_is_stored_does_not_change_with_the_arrays_it_came_from(dtype: torch.dtype) -> None:
    buffer = ReplayBuffer(4, (1,), (1,), obs_dtype=dtype)
    given = {name: np.array([[3]], np.uint8) for name in ("obs", "next_obs", "actions")}
    buffer.add(rewards=[0.0], dones=[False], **given)
    for array in given.values():
        array[:] = 9
    batch = buffer.sample(1)
    assert [batch[name].item() for name in given] == [3, 3, 3]
    batch["obs"][:] = 7  # nor does a drawn batch reach back into the store
    assert buffer.sample(1)["obs"].item() == 3


def add_steps(buffer: ReplayBuffer, steps: range) -> None:
    """In step s env e shows 20 * e + s; env e ends with every step that 3 + e divides, by turns in either way."""
    envs = np.arange(buffer.num_envs)
    for step in steps:
        ended = step % (3 + envs) == 0
        obs = (20 * envs + step).reshape(-1, 1) % 256
        kinds = {"dones": ended & (step % 2 == 0), "truncated": ended & (step % 2 == 1)}
        buffer.add(obs=obs, actions=envs, rewards=envs + 10.0 * step, next_obs=(obs + 1) % 256, **kinds)


def assert_equal_content(left: ReplayBuffer, right: ReplayBuffer) -> None:
    assert (len(left), left.added) == (len(right), right.added)
    rows = list(range(len(left)))
    one, two = drawn(left, rows), drawn(right, rows)
    assert all(torch.equal(one[name], two[name]) for name in one)


class Increments:
    """What several saves of a buffer have gathered, put together as one state."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.saved_until = 0
        self.last: dict[str, Any] = {}

    def save(self, buffer: ReplayBuffer) -> list[dict[str, Any]]:
        self.last = buffer.state_dict(self.saved_until)
        self.blocks += self.last["blocks"]
        self.saved_until = buffer.added
        new: list[dict[str, Any]] = self.last["blocks"]
        return new

    def state(self) -> dict[str, Any]:
        return {**self.last, "blocks": self.blocks}


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("saves", [[2, 4], [1, 5, 6, 9], [3, 8, 9, 30, 33]], ids=str)
def test_increments_put_together_load_as_the_whole_does(dtype: torch.dtype, num_envs: int, saves: list[int]) -> None:
    def make() -> ReplayBuffer:
        return ReplayBuffer(8 * num_envs, (1,), (), num_envs=num_envs, obs_dtype=dtype, n_step=3, gamma=0.5)

    straight, increments, done = make(), Increments(), 0
    for number, until in enumerate(saves):
        add_steps(straight, range(done, until))
        if number % 2:
            straight.cut([num_envs - 1])
        done = until
        increments.save(straight)
        together, whole, used = make(), make(), make()
        add_steps(used, range(50, 61))
        for copy, state in ((together, increments.state()), (whole, straight.state_dict()), (used, increments.state())):
            copy.load_state_dict(state)
            assert_equal_content(copy, straight)
            assert_equal_content(copy, straight)
            follow, straight_on = make(), make()
            for buffer, source in ((follow, copy), (straight_on, straight)):
                buffer.load_state_dict(source.state_dict())
                add_steps(buffer, range(until, until + 5))
            assert_equal_content(follow, straight_on)


def test_an_increment_holds_what_is_new_and_what_a_cut_has_changed() -> None:
    buffer, increments = ReplayBuffer(20, (1,), (), num_envs=2), Increments()
    add_steps(buffer, range(1, 5))
    assert [(block["first"], len(block["content"]["rows"])) for block in increments.save(buffer)] == [(0, 8)]
    assert increments.save(buffer) == []
    add_steps(buffer, range(5, 6))
    assert [(block["first"], len(block["content"]["rows"])) for block in increments.save(buffer)] == [(8, 2)]
    buffer.cut([0])
    add_steps(buffer, range(6, 8))
    assert [(block["first"], len(block["content"]["rows"])) for block in increments.save(buffer)] == [(8, 6)]
    add_steps(buffer, range(8, 9))
    assert [(block["first"], len(block["content"]["rows"])) for block in increments.save(buffer)] == [(14, 2)]
    add_steps(buffer, range(9, 99))  # more than it holds
    assert [(block["first"], len(block["content"]["rows"])) for block in increments.save(buffer)] == [(176, 20)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=["rows", "images"])
def test_of_two_blocks_the_later_one_counts(dtype: torch.dtype) -> None:
    ended, running, copy = (ReplayBuffer(8, (1,), (1,), obs_dtype=dtype) for _ in range(3))
    for buffer, last in ((ended, True), (running, False)):
        for number in range(6):
            stored = {"obs": [number], "next_obs": [number + 1 + 9 * last], "dones": last and number in (2, 3)}
            buffer.add(actions=[0], rewards=number, **stored)
    first, then = ended.state_dict(), running.state_dict(since=3)
    copy.load_state_dict({**then, "blocks": first["blocks"] + then["blocks"]})
    assert drawn(copy, list(range(6)))["dones"].tolist() == [0, 0, 1, 0, 0, 0]
    assert drawn(copy, [2, 3, 4, 5])["next_obs"].flatten().tolist() == [12, 4, 5, 6]


def test_a_cut_concerns_only_the_envs_it_names() -> None:
    buffer = ReplayBuffer(9, (1,), (), num_envs=3)
    add_steps(buffer, range(1, 3))
    buffer.cut([])
    assert drawn(buffer, [3, 4, 5])["truncated"].tolist() == [0.0, 0.0, 0.0]
    buffer.cut([0, 2])
    assert drawn(buffer, list(range(6)))["truncated"].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"size": 4}, "the saved buffer has 4 of 6 transitions, which does not fit a capacity of 5"),
        ({"blocks": []}, "transitions 1 to 5 are missing"),
        ({"added": 7}, "transitions 6 to 6 are missing"),
        ({"blocks": [{"first": 2, "content": {"rows": torch.zeros(4, 6)}}]}, "rows 2 to 5 of shape"),
        ({"blocks": [{"first": 1, "content": {"rows": torch.zeros(6, 6)}}]}, "rows 1 to 6 of shape"),
        ({"blocks": [{"first": 1, "content": {"rows": torch.zeros(5, 1)}}]}, "rows 1 to 5 of shape"),
    ],
    ids=["size", "none", "too few", "a gap", "too many", "narrow"],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], reason: str) -> None:
    buffer, other = (ReplayBuffer(5, (1,), (1,)) for _ in range(2))
    fill(buffer, range(6))
    with pytest.raises(ValueError, match=reason):
        other.load_state_dict({**buffer.state_dict(), **change})
