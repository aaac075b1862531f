"""All parameters of a network in one flat vector; layers are views of it.

One vector makes clipping, Adam and averaging one call each, and lets NumPy act on the memory that torch trains.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float32]
Shape = tuple[int, ...]

_ALIGNMENT = 16  # float32 values in 64 bytes: kernels choose by alignment, and with it the last bit


class FlatLayout:
    """Where each named array lies in the flat vector, every one padded to 64 bytes."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = dict(shapes)
        self._chunks: list[int] = []  # sizes of the arrays, each followed by its padding
        for shape in self.shapes.values():
            size = math.prod(shape)
            self._chunks += [size, -size % _ALIGNMENT]
        self.size = sum(self._chunks)

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """The named views of `flat`."""
        chunks = torch.split(flat, self._chunks)[::2]
        return {name: chunk.view(shape) for chunk, (name, shape) in zip(chunks, self.shapes.items(), strict=True)}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """A flat vector of named arrays, with zeros between them."""
        chunks: list[Tensor] = []
        for name, padding in zip(self.shapes, self._chunks[1::2], strict=True):
            chunks.append(parts[name].reshape(-1))
            if padding:
                chunks.append(parts[name].new_zeros(padding))
        return torch.cat(chunks)

    def arrays(self, flat: FloatArray) -> dict[str, FloatArray]:
        """The named views of a NumPy vector."""
        chunks = np.split(flat, np.cumsum(self._chunks)[:-1])[::2]
        return {name: chunk.reshape(shape) for chunk, (name, shape) in zip(chunks, self.shapes.items(), strict=True)}
