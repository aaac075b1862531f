from itertools import product

from rl_training.runtime.plan import count_events, count_regular_events


def test_regular_iterations_are_counted_without_walking_through_them() -> None:
    for interval, size, iterations in product((0, 1, 3, 7, 20, 64), (1, 2, 5, 7, 30), (1, 2, 9, 40)):
        ends = range(size, size * iterations + 1, size)
        assert count_regular_events(interval, size, iterations) == count_events(interval, ends)
    total = 2048 * 10**12
    assert count_regular_events(10_000, 2048, 10**12) == total // 10_000
