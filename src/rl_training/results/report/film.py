"""Frames as an animated PNG, in NumPy and zlib: any browser plays it, and no imaging package is needed to write it.

All frames share a palette of 255 colours; pixels that stay as they were are transparent, which costs next to nothing.
"""

import heapq
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # [height, width, 3]
Codes = NDArray[np.int64]

MOST_BYTES = 700_000
"""Of a film; a page holds it as text, which is a third longer."""

_WIDTHS = (320, 240, 160, 120)  # tried in turn until a film is small enough
_NUM_COLOURS = 255  # beside the transparent one
_NUM_CODES = 2**15  # five bits for each colour channel, of which the palette is chosen
_UNCHANGED = 0  # the index of the transparent colour
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode_film(frames: Sequence[Pixels], fps: float, most_bytes: int = MOST_BYTES) -> tuple[bytes, bytes]:
    """The film and its first frame as PNG files; made smaller, then with fewer frames, until the film fits."""
    for width in _WIDTHS:
        film = _encode([_shrunk(frame, width) for frame in frames], fps)
        if len(film) <= most_bytes:
            return film, _encode([_shrunk(frames[0], width)], fps)
    if len(frames) == 1:
        return film, film
    return encode_film(frames[::2], fps / 2.0, most_bytes)


def image_size(png: bytes) -> tuple[int, int]:
    """Width and height that a PNG file says it has."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _shrunk(frame: Pixels, width: int) -> Pixels:
    """The frame at a whole fraction of its size, at most so wide; each pixel is the mean of those it stands for."""
    factor = -(-frame.shape[1] // width)
    rows, columns = frame.shape[0] // factor * factor, frame.shape[1] // factor * factor
    total = np.zeros((rows // factor, columns // factor, 3), dtype=np.uint32)
    for down in range(factor):
        for right in range(factor):
            total += frame[down:rows:factor, right:columns:factor]
    shrunk: Pixels = ((total + factor**2 // 2) // factor**2).astype(np.uint8)
    return shrunk


def _encode(frames: Sequence[Pixels], fps: float) -> bytes:
    height, width, _ = frames[0].shape
    palette, indexed = _with_palette(frames)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # eight bits per pixel, by palette
    parts = [_SIGNATURE, _chunk(b"IHDR", header)]
    if len(frames) > 1:
        parts.append(_chunk(b"acTL", struct.pack(">II", len(frames), 0)))  # so many frames, for ever
    parts += [_chunk(b"PLTE", palette), _chunk(b"tRNS", b"\0")]
    if len(frames) > 1:
        parts += _animated(indexed, fps)
    else:
        parts.append(_chunk(b"IDAT", _compressed(indexed[0])))
    return b"".join([*parts, _chunk(b"IEND", b"")])


def _with_palette(frames: Sequence[Pixels]) -> tuple[bytes, list[Pixels]]:
    """The colours of all frames in at most 255, after the transparent one, and every frame as their numbers."""
    codes = [_codes(frame) for frame in frames]
    counts = np.sum([np.bincount(code.ravel(), minlength=_NUM_CODES) for code in codes], axis=0)
    numbers = np.zeros(_NUM_CODES, dtype=np.uint8)
    palette = [bytes(3)]
    for box in _cut_by_median(np.flatnonzero(counts), counts):
        numbers[box] = len(palette)
        colour = np.average(_colours(box), axis=0, weights=counts[box])
        palette.append(colour.round().astype(np.uint8).tobytes())
    return b"".join(palette), [numbers[code] for code in codes]


def _codes(frame: Pixels) -> NDArray[np.signedinteger[Any]]:
    """Each colour as one number, from its five highest bits per channel."""
    red, green, blue = (frame[..., channel].astype(np.int16) >> 3 for channel in range(3))
    return (red << 10) | (green << 5) | blue


def _colours(codes: Codes) -> Codes:
    """The channels of each colour, [colour, 3]."""
    return np.stack([codes >> 10, codes >> 5 & 31, codes & 31], axis=1) * 255 // 31


def _cut_by_median(used: Codes, counts: Codes) -> list[Codes]:
    """At most 255 boxes of near colours: the one that errs most is halved again and again (Heckbert 1982)."""
    boxes = [(_error(used, counts), 0, used)]
    for number in range(1, _NUM_COLOURS):
        error, _, box = heapq.heappop(boxes)
        if error == 0.0:  # single colours are left
            return [box, *(rest for *_, rest in boxes)]
        channels = _colours(box)
        box = box[np.argsort(channels[:, np.ptp(channels, axis=0).argmax()], kind="stable")]
        reached = np.cumsum(counts[box])
        middle = min(max(int(np.searchsorted(reached, reached[-1] / 2)), 1), len(box) - 1)
        for tie, half in ((2 * number, box[:middle]), (2 * number + 1, box[middle:])):
            heapq.heappush(boxes, (_error(half, counts), tie, half))
    return [box for *_, box in boxes]


def _error(box: Codes, counts: Codes) -> float:
    """How badly one colour stands for the box, negative since heaps give the smallest; rare colours count too."""
    extent = np.ptp(_colours(box), axis=0).max()
    return -float(extent * np.sqrt(counts[box].sum()))


def _animated(frames: Sequence[Pixels], fps: float) -> Iterator[bytes]:
    """The first frame whole, and of each further one the box in which it differs from the one before."""
    yield _frame_control(0, frames[0], (0, 0), fps)
    yield _chunk(b"IDAT", _compressed(frames[0]))
    for index, (before, frame) in enumerate(pairwise(frames)):
        changed = np.where(frame != before, frame, _UNCHANGED)
        rows, columns = (np.flatnonzero(changed.any(axis=axis)) for axis in (1, 0))
        top, bottom, left, right = (rows[0], rows[-1], columns[0], columns[-1]) if len(rows) else (0, 0, 0, 0)
        box = changed[top : bottom + 1, left : right + 1]
        yield _frame_control(2 * index + 1, box, (int(left), int(top)), fps)
        yield _chunk(b"fdAT", struct.pack(">I", 2 * index + 2) + _compressed(box))


def _frame_control(number: int, box: Pixels, place: tuple[int, int], fps: float) -> bytes:
    """Where the next frame lies, how long it is shown (in milliseconds), and that it is laid over what is there."""
    size = box.shape[1], box.shape[0]
    return _chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, *size, *place, round(1_000.0 / fps), 1_000, 0, 1))


def _compressed(indexed: Pixels) -> bytes:
    """The rows, each after the number of its filter: none."""
    return zlib.compress(np.pad(indexed, ((0, 0), (1, 0))).tobytes())


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
