"""An env inside its wrappers: the layers of a wrapped env, from the outermost wrapper to the env itself."""

from collections.abc import Iterator
from typing import Any

from gymnasium import Env

AnyEnv = Env[Any, Any]


def layers_of(env: AnyEnv) -> Iterator[Any]:
    """Yield the wrappers of an env, the outermost first, and then the env itself."""
    layer: Any = env
    while layer is not env.unwrapped:
        yield layer
        layer = layer.env
    yield layer
