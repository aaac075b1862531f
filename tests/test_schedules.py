import pytest

from rl_training.experiment.schedules import crosses


@pytest.mark.parametrize(
    ("interval", "before", "after", "due"),
    [
        (100, 0, 99, False),
        (100, 0, 100, True),
        (100, 99, 100, True),
        (100, 100, 199, False),  # 100 itself was the last step's
        (100, 100, 200, True),
        (100, 96, 144, True),  # a multiple passed over counts, though no step falls on it
        (100, 144, 192, False),
        (100, 0, 512, True),
        (1, 7, 8, True),
        (0, 0, 512, False),
    ],
)
def test_an_interval_is_due_once_a_multiple_of_it_is_reached(interval: int, before: int, after: int, due: bool) -> None:
    assert crosses(interval, before, after) == due
