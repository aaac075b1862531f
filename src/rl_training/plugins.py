"""Import objects of other packages, which a config names as `package.module:Name`."""

import re
import sys
from importlib import import_module
from types import FunctionType
from typing import Any

from rl_training.errors import ConfigError, describe_error
from rl_training.trust import admit_env_module


def is_object_path(path: str) -> bool:
    """Return whether a string has the form `package.module:Name`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", path) is not None


LOCAL = "local"
"""In place of a module: the object was defined in a script or notebook, and only this process knows it."""

_local_objects: dict[str, Any] = {}


def object_path(value: Any) -> Any:
    """Return the path `package.module:Name` of a class or function, and any other value as it is.

    What cannot be imported again, such as a class in a notebook, gets the path `local:Name` in this process.
    """
    if not isinstance(value, (type, FunctionType)):
        return value
    module, name = value.__module__, value.__qualname__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is value:
        return f"{module}:{name}"
    path = f"{LOCAL}:{value.__name__}"
    _local_objects[path] = value
    return path


def import_object(path: str, field: str) -> Any:
    """Import the object at `package.module:Name`; `field` is the config field that contains this path."""
    module, _, name = path.partition(":")
    if path in _local_objects:
        return _local_objects[path]
    if module == LOCAL:
        raise ConfigError(
            f"{field}={path!r}: {name} was defined in a script or notebook; define it again and give it to load(), as "
            f"in PPO.load(path, {field.rpartition('.')[2]}={name})"
        )
    admit_env_module(path, what=field.rpartition(".")[2])
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ConfigError(f"{field}={path!r}: {module} has no {name}") from None
    except Exception as error:  # a module may raise any error while it is imported
        raise ConfigError(f"{field}={path!r}: {module} cannot be imported ({describe_error(error)})") from None
