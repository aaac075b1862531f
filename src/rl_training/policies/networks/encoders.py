"""Encoders: modules in front of the hidden layers, which turn rows of features into fewer, more useful ones.

The built-in ones put a CNN behind every image. A config may name an encoder of another package.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.errors import ConfigError, describe_error
from rl_training.packing import PackedObservations
from rl_training.plugins import import_object
from rl_training.policies.features import Encoder, FeaturePart
from rl_training.policies.networks.cnn import ImageSize, ImpalaCNN, NatureCNN, SmallCNN

BuiltInEncoder = Literal["auto", "mlp", "nature_cnn", "impala_cnn", "small_cnn"]
BUILT_IN_ENCODERS: tuple[str, ...] = get_args(BuiltInEncoder)

_FIELD = "algo_kwargs.encoder"
_CNNS: dict[str, type[NatureCNN | ImpalaCNN | SmallCNN]] = {
    "nature_cnn": NatureCNN,
    "impala_cnn": ImpalaCNN,
    "small_cnn": SmallCNN,
}
PROBE_ROWS = 2
"""How many rows an encoder is tried with; BatchNorm refuses a single row."""


def image_parts(encoder: Encoder) -> list[FeaturePart]:
    """Return the parts of the features that are images."""
    return [part for part in encoder.parts if part.kind == "image"]


class FlatEncoder(nn.Module):
    """Passes all features on as they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.features_dim = size

    def forward(self, features: Tensor) -> Tensor:
        """Return the features."""
        return features


class ImageEncoder(nn.Module):
    """One CNN for each image; all other features are passed on as they are."""

    def __init__(self, name: str, encoder: Encoder) -> None:
        super().__init__()
        self._images = image_parts(encoder)
        self._num_others = min(part.start for part in self._images)  # images are the last of the features
        sizes = [_image_size(part) for part in self._images]
        classes = [_CNNS[_cnn_name(name, size)] for size in sizes]
        self.cnns = nn.ModuleList([make_cnn(size) for make_cnn, size in zip(classes, sizes, strict=True)])
        self.features_dim = self._num_others + sum(make_cnn.features_dim for make_cnn in classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return the other features, followed by those of every image."""
        found = [cnn(_read_images(features, part)) for cnn, part in zip(self.cnns, self._images, strict=True)]
        return torch.cat([features[:, : self._num_others], *found], dim=1)

    def extra_repr(self) -> str:
        """Describe what the parameters do not show."""
        return f"images={self._images}"


def _cnn_name(name: str, size: ImageSize) -> str:
    if name != "auto":
        return name
    return "nature_cnn" if size.shorter_side >= NatureCNN.smallest_side else "small_cnn"


def _image_size(part: FeaturePart) -> ImageSize:
    if len(part.shape) == 2:
        return ImageSize(1, *part.shape)
    first, middle, last = part.shape
    return ImageSize(last, first, middle) if part.channels_last else ImageSize(first, middle, last)


def _read_images(features: Tensor, part: FeaturePart) -> Tensor:
    """Return one part of the features as images [batch, channel, height, width]."""
    images = features[:, part.start : part.stop].reshape(-1, *part.shape)
    if images.dim() == 3:
        return images.unsqueeze(1)
    return images.permute(0, 3, 1, 2) if part.channels_last else images


def _env_space(encoder: Encoder) -> spaces.Space[Any]:
    """Return the observation space of the env, before its observations are packed."""
    return encoder.space.original if isinstance(encoder.space, PackedObservations) else encoder.space


class NestedEncoder(nn.Module):
    """An encoder of another package, which gets the features in the structure of the observations."""

    def __init__(self, module: nn.Module, features_dim: int, encoder: Encoder) -> None:
        super().__init__()
        self.module, self.features_dim = module, features_dim
        self.encoder = encoder

    def forward(self, features: Tensor) -> Tensor:
        """Return the features that the module computes."""
        found: Tensor = self.module(self.encoder.nest(features))
        return found


AnyEncoder = FlatEncoder | ImageEncoder | NestedEncoder


def uses_images(name: str, encoder: Encoder) -> bool:
    """Return whether this choice of encoder does more with the images in observations than flatten them."""
    return name != "mlp" and bool(image_parts(encoder))


def is_built_in(name: str) -> bool:
    """Return whether this is the name of an encoder of this package."""
    return name in BUILT_IN_ENCODERS


def make_built_in_encoder(name: str, encoder: Encoder) -> FlatEncoder | ImageEncoder:
    """Return the encoder that a built-in name means for these features."""
    if name in _CNNS:
        _check_images(name, encoder)
    return ImageEncoder(name, encoder) if uses_images(name, encoder) else FlatEncoder(encoder.size)


def _check_images(name: str, encoder: Encoder) -> None:
    images = image_parts(encoder)
    if not images:
        raise ConfigError(f"{_FIELD}={name!r}: the observations have no images; use auto or mlp")
    smallest = _CNNS[name].smallest_side
    for part in images:
        size = _image_size(part)
        if size.shorter_side < smallest:
            which = f"those of '{part.name}' have" if part.path else "the observations have"
            raise ConfigError(
                f"{_FIELD}={name!r}: needs images of at least {smallest}x{smallest} pixels, {which} "
                f"{size.height}x{size.width}; use auto or small_cnn"
            )


def make_own_encoder(path: str, kwargs: Mapping[str, Any], encoder: Encoder) -> NestedEncoder:
    """Build the encoder that `package.module:Name` makes for the env's observation space, and check it."""
    make = import_object(path, _FIELD)
    who = f"{_FIELD}={path!r}"
    space = _env_space(encoder)
    try:
        module = make(space, **kwargs)
    except Exception as error:
        raise ConfigError(f"{who}: cannot be built for {_describe(space)}: {describe_error(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{who}: must be a torch.nn.Module, not {type(module).__name__}")
    size = getattr(module, "features_dim", None)
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"{who}: must have an attribute features_dim, the number of its outputs (int)")
    if any(param.dtype != torch.float32 for param in module.parameters()):
        raise ConfigError(f"{who}: all of its parameters must be float32")
    own = NestedEncoder(module, int(size), encoder)
    _run(own, who, torch.zeros(PROBE_ROWS, encoder.size))  # lazy layers get their parameters now
    _check(own, who)
    return own


def _describe(space: spaces.Space[Any]) -> str:
    """Describe a space in one line that is not too long."""
    text = " ".join(str(space).split())
    return text if len(text) <= 100 else text[:97] + "..."


def _run(own: NestedEncoder, who: str, rows: Tensor) -> Any:
    """Run an encoder on rows of features."""
    try:
        with torch.no_grad():
            return own(rows)
    except Exception as error:
        text = f"{who}: fails for observations of {_describe(_env_space(own.encoder))}: {describe_error(error)}"
        raise ConfigError(text) from error


def _check(own: NestedEncoder, who: str) -> None:
    """Refuse an encoder whose outputs do not fit, or depend on more than its parameters and inputs."""
    buffers = {name: buffer.clone() for name, buffer in own.module.named_buffers()}
    before = torch.default_generator.get_state()
    rows = torch.linspace(0.0, 1.0, PROBE_ROWS * own.encoder.size).reshape(PROBE_ROWS, -1)
    outputs = _run(own, who, rows)
    if not isinstance(outputs, Tensor) or outputs.shape != (PROBE_ROWS, own.features_dim):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(
            f"{who}: must give outputs [batch, {own.features_dim}], as its features_dim says; "
            f"it gives {got} for {PROBE_ROWS} observations"
        )
    if outputs.dtype != torch.float32:
        raise ConfigError(f"{who}: must give outputs of type float32, not {str(outputs.dtype).removeprefix('torch.')}")
    changed = [name for name, buffer in own.module.named_buffers() if not torch.equal(buffer, buffers[name])]
    if changed:
        raise ConfigError(
            f"{who}: changes its buffer {changed[0]} while training, as BatchNorm does, which is not supported; "
            "use LayerNorm or GroupNorm"
        )
    if not torch.equal(before, torch.default_generator.get_state()):
        raise ConfigError(f"{who}: draws random numbers in its forward pass, as Dropout does: leave that out")
    _check_alone(own, who, rows, outputs)


def _check_alone(own: NestedEncoder, who: str, rows: Tensor, outputs: Tensor) -> None:
    """Refuse an encoder whose outputs for a row depend on the other rows."""
    alone = torch.cat([_run(own, who, row[None]) for row in rows])
    if not torch.allclose(outputs, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise ConfigError(
            f"{who}: its output for one observation depends on the others in the batch, as with BatchNorm; use "
            "LayerNorm or GroupNorm"
        )
