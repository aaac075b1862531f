"""Films as animated PNG: what they show, how fast, and as small as asked for."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rl_training.results.report.film import encode_film, image_size

Pixels = NDArray[np.uint8]


def moving_square(num_frames: int, size: tuple[int, int] = (40, 60)) -> list[Pixels]:
    frames = [np.full((*size, 3), 255, dtype=np.uint8) for _ in range(num_frames)]
    for index, frame in enumerate(frames):
        frame[10:20, index : index + 10] = (248, 0, 0)
    return frames


def decoded(film: bytes) -> list[Pixels]:
    with Image.open(io.BytesIO(film)) as image:
        frames = []
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            frames.append(np.asarray(image.convert("RGB")))
        return frames


def shown_for(film: bytes) -> list[float]:
    """How long each frame is shown, in milliseconds."""
    durations = []
    with Image.open(io.BytesIO(film)) as image:
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            durations.append(image.info["duration"])
    return durations


def test_a_film_shows_its_frames_and_their_speed() -> None:
    frames = moving_square(12)
    frames[5] = frames[4].copy()  # a frame in which nothing moves
    film, still = encode_film(frames, fps=25.0)
    assert np.array_equal(decoded(film), frames[:5] + frames[6:])
    assert shown_for(film) == [40.0] * 4 + [80.0] + [40.0] * 6
    with Image.open(io.BytesIO(film)) as image:
        assert (image.format, image.info["loop"]) == ("PNG", 0)
    (first,) = decoded(still)
    assert np.array_equal(first, frames[0])
    assert image_size(film) == image_size(still) == (60, 40)


def test_a_large_picture_is_shrunk_by_the_mean_of_its_pixels() -> None:
    frame = np.zeros((300, 640, 3), dtype=np.uint8)
    frame[:, ::2] = 255
    (shrunk,) = decoded(encode_film([frame], fps=10.0)[0])
    assert shrunk.shape == (150, 320, 3)
    assert np.abs(shrunk.astype(int) - 127.5).max() <= 5.0


def test_many_colours_become_near_ones() -> None:
    ramp = np.arange(256, dtype=np.uint8)
    frame = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], np.uint8(99)), axis=2)
    (shown,) = decoded(encode_film([frame], fps=10.0)[0])
    assert np.abs(shown.astype(int) - frame).mean() < 8.0


@pytest.mark.parametrize("max_bytes", [24_000, 4_000, 1])
def test_a_film_that_is_too_large_gets_smaller_and_then_shorter(max_bytes: int) -> None:
    noise = list(np.random.default_rng(1).integers(0, 256, size=(6, 50, 300, 3), dtype=np.uint8))
    film, _ = encode_film(noise, fps=20.0, max_bytes=max_bytes)
    frames = decoded(film)
    assert len(film) <= max_bytes or len(frames) == 1
    assert frames[0].shape[1] < 300
