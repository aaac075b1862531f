"""Encoding frames as an animated PNG, which any browser plays. All frames share a palette to keep the file small."""

from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]  # [height, width, 3]

MAX_BYTES = 700_000
"""Largest size of a film. In the page it is base64 text, which is a third longer."""

_WIDTHS = (320, 240, 160, 120)  # pixels; tried in this order until the film is small enough


def check_film() -> None:
    """Raise an error if the package that writes films is not installed."""
    if find_spec("PIL") is None:
        raise ConfigError("a film needs an extra: pip install 'rl-training[video]'")


def encode_film(frames: Sequence[Pixels], fps: float, max_bytes: int = MAX_BYTES) -> tuple[bytes, bytes]:
    """Return the film and its first frame as PNG files.

    Until the film fits into `max_bytes`, its frames are made smaller, then every second one is dropped.
    """
    for width in _WIDTHS:
        images = _shrink(frames, width)
        film = _encode(images, fps)
        if len(film) <= max_bytes:
            return film, _encode(images[:1], fps)
    if len(frames) == 1:
        return film, film
    return encode_film(frames[::2], fps / 2.0, max_bytes)


def image_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file in pixels."""
    from PIL import Image

    with Image.open(BytesIO(png)) as image:
        size: tuple[int, int] = image.size
    return size


def _shrink(frames: Sequence[Pixels], max_width: int) -> list["Image.Image"]:
    """Reduce the frames to 256 colours, and their size by a whole factor to a width of at most `max_width`."""
    from PIL import Image

    factor = -(-frames[0].shape[1] // max_width)
    shrunk = [np.asarray(Image.fromarray(frame).reduce(factor)) for frame in frames]
    height, width, _ = shrunk[0].shape
    column = Image.fromarray(np.concatenate(shrunk)).quantize()
    return [column.crop((0, top, width, top + height)) for top in range(0, column.height, height)]


def _encode(images: Sequence["Image.Image"], fps: float) -> bytes:
    file = BytesIO()
    images[0].save(file, "PNG", save_all=True, append_images=images[1:], duration=1_000.0 / fps, loop=0)
    return file.getvalue()
