"""Frames as an animated PNG, which any browser plays. One palette for all frames keeps the file small."""

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

MOST_BYTES = 700_000
"""Of a film; a page holds it as text, which is a third longer."""

_WIDTHS = (320, 240, 160, 120)  # tried in turn until a film is small enough


def check_film() -> None:
    """Refuse, before an agent is played, a film that could not be written."""
    if find_spec("PIL") is None:
        raise ConfigError("a film needs an extra: pip install 'rl-training[video]'")


def encode_film(frames: Sequence[Pixels], fps: float, most_bytes: int = MOST_BYTES) -> tuple[bytes, bytes]:
    """The film and its first frame as PNG files; made smaller, then with fewer frames, until the film fits."""
    for width in _WIDTHS:
        images = _with_palette(frames, width)
        film = _encode(images, fps)
        if len(film) <= most_bytes:
            return film, _encode(images[:1], fps)
    if len(frames) == 1:
        return film, film
    return encode_film(frames[::2], fps / 2.0, most_bytes)


def image_size(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG file."""
    from PIL import Image

    with Image.open(BytesIO(png)) as image:
        size: tuple[int, int] = image.size
    return size


def _with_palette(frames: Sequence[Pixels], most_width: int) -> list["Image.Image"]:
    """The frames in at most 256 colours, at a whole fraction of their size and at most `most_width` wide."""
    from PIL import Image

    factor = -(-frames[0].shape[1] // most_width)
    shrunk = [np.asarray(Image.fromarray(frame).reduce(factor)) for frame in frames]
    height, width, _ = shrunk[0].shape
    column = Image.fromarray(np.concatenate(shrunk)).quantize()
    return [column.crop((0, top, width, top + height)) for top in range(0, column.height, height)]


def _encode(images: Sequence["Image.Image"], fps: float) -> bytes:
    file = BytesIO()
    images[0].save(file, "PNG", save_all=True, append_images=images[1:], duration=1_000.0 / fps, loop=0)
    return file.getvalue()
