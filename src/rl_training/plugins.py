"""Import objects of other packages, which a config names as `package.module:Name`."""

import inspect
import re
import sys
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import Any

from rl_training.errors import ConfigError, describe_error
from rl_training.trust import admit_env_module


def is_object_path(path: str) -> bool:
    """Return whether a string has the form `package.module:Name`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", path) is not None


Entry = str | dict[str, dict[str, Any]]
"""An entry of a list in a config: the name of an object, or a map from the name to keyword arguments."""


def read_entry(entry: Any) -> tuple[Any, dict[str, Any]]:
    """Return the object and the keyword arguments of an entry, which may also be given as `(object, kwargs)`."""
    if isinstance(entry, tuple) and len(entry) == 2:
        made, kwargs = entry
    elif isinstance(entry, dict) and len(entry) == 1:
        made, kwargs = next(iter(entry.items()))
    elif isinstance(entry, (str, type, FunctionType)):
        made, kwargs = entry, {}
    else:
        raise ValueError("give a name, or a map with one key: the name, and its keyword arguments")
    kwargs = {} if kwargs is None else kwargs  # YAML reads nothing after the colon as null
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise ValueError(f"give the keyword arguments of {made} as a map of names to values")
    return made, kwargs


def check_arguments(name: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    """Refuse keyword arguments that a class or function does not take, and missing ones."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # not known for some classes written in C
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "none"
        raise ConfigError(f"{name}: {error}; its arguments: {taken}") from None


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
