import subprocess
import sys

from rl_training.streams import derive_seed, make_stream


def first_draws(seed: int, name: str) -> tuple[float, ...]:
    return tuple(make_stream(seed, name).random(4))


def test_every_purpose_and_every_run_has_a_stream_of_its_own() -> None:
    names = ("acting", "minibatches", "evaluation")
    streams = {first_draws(seed, name) for seed in (1, 2, 2**63 - 1) for name in names}
    assert len(streams) == 9
    assert first_draws(1, "acting") == first_draws(1, "acting")


def test_every_item_of_a_purpose_has_a_seed_of_its_own() -> None:
    seeds = [
        derive_seed(run_seed, name, index, number)
        for run_seed in (1, 2)
        for name in ("episodes", "evaluation")
        for index in range(10)
        for number in range(10)
    ]
    assert len(set(seeds)) == 400
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(1, "episodes", 1, 2) != derive_seed(1, "episodes", 2, 1)


def test_a_seed_is_the_same_in_every_process() -> None:
    """Python's own hash of a text is not."""
    code = "from rl_training.streams import derive_seed; print(derive_seed(7, 'episodes', 0, 0))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(answer.stdout) == derive_seed(7, "episodes", 0, 0)
