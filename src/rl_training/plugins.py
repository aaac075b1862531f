"""Import objects of other packages, which a config names as `package.module:Name`."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import count
from types import CodeType, FunctionType
from typing import Any, TypeVar

from rl_training.errors import ConfigError, describe_error
from rl_training.trust import admit_env_module

T = TypeVar("T")

_LAMBDA = "lambda_"


def is_object_path(path: str) -> bool:
    """Return whether a string has the form `package.module:Name`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", path) is not None


Entry = str | dict[str, dict[str, Any]]
"""An entry of a list in a config: the name of an object, or a map from the name to keyword arguments."""


def split_entry(entry: Any) -> tuple[Any, dict[str, Any]]:
    """Return the object and the keyword arguments of an entry, which may also be given as `(object, kwargs)`."""
    if isinstance(entry, tuple) and len(entry) == 2:
        named, kwargs = entry
    elif isinstance(entry, dict) and len(entry) == 1:
        named, kwargs = next(iter(entry.items()))
    elif isinstance(entry, (str, type, FunctionType)):
        named, kwargs = entry, {}
    else:
        raise ValueError("give a name, or a map with one key: the name, and its keyword arguments")
    kwargs = {} if kwargs is None else kwargs  # YAML reads a missing value after the colon as null
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise ValueError(f"give the keyword arguments of {named} as a map of names to values")
    return named, kwargs


def find_argument_problem(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return why a class or function cannot be called with these arguments; none if it can."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # some classes that are written in C have no signature
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = ", ".join(list(signature.parameters)[len(args) :]) or "none"
        return f"{error}; its arguments: {taken}"
    return None


_local_objects: dict[str, Any] = {}  # objects that were defined in a script or notebook, by their path


def object_path(value: Any) -> Any:
    """Return the path `package.module:Name` of a class or function, and any other value as it is."""
    return callable_path(value) if isinstance(value, (type, FunctionType)) else value


def callable_path(value: Callable[..., Any]) -> str:
    """Return the path `package.module:Name` of a callable.

    An object that cannot be imported again, such as a lambda or a class in a notebook, gets the path `local:Name` in
    this process. Another object of the same name gets the path `local2:Name`, and so on. The name of a lambda contains
    a digest of its code, so that a checkpoint that names one lambda is never used with another.
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module != "__main__" and name and getattr(sys.modules.get(str(module)), name, None) is value:
        return f"{module}:{name}"
    name = _local_name(innermost_function(value))
    for number in count(1):
        path = f"local{number if number > 1 else ''}:{name}"
        if _local_objects.setdefault(path, value) == value:
            return path
    raise AssertionError("a free number is found")


def _local_name(value: Any) -> str:
    name = str(getattr(value, "__name__", type(value).__name__))
    if name != "<lambda>":
        return name
    code = value.__code__
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]  # the repr of code has an address
    text = repr((code.co_code, code.co_names, constants, value.__defaults__))
    return f"{_LAMBDA}{sha256(text.encode()).hexdigest()[:6]}"


def innermost_function(value: Any) -> Any:
    """Return the function that a `functools.partial` calls, and any other value as it is."""
    while isinstance(value, partial):
        value = value.func
    return value


def is_local(path: str) -> bool:
    """Return whether a path names an object that is known only to the process that defined it."""
    return re.fullmatch(r"local\d*:\w+", path) is not None


def local_objects(paths: Iterable[str]) -> dict[str, Any]:
    """Return the objects of this process that these paths name, by path; paths of other objects are left out."""
    return {path: _local_objects[path] for path in paths if path in _local_objects}


def call_with_objects(objects: dict[str, Any], function: Callable[[], T]) -> T:
    """Call a function that needs these local objects of another process; this runs in the new process."""
    _local_objects.update(objects)
    return function()


def import_object(path: str, field: str) -> Any:
    """Import the object at `package.module:Name`; `field` is the config field that contains this path."""
    module, _, name = path.partition(":")
    if path in _local_objects:
        return _local_objects[path]
    if is_local(path):
        argument = "env" if field == "env_id" else field.rpartition(".")[2]
        value = "lambda: ..." if name.startswith(_LAMBDA) else name
        raise ConfigError(
            f"{field}={path!r}: {name} was defined in a script or notebook; define it again and give it to load(), as "
            f"in PPO.load(path, {argument}={f'[{value}]' if field == 'wrappers' else value})"
        )
    admit_env_module(path, what=field.rpartition(".")[2])
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ConfigError(f"{field}={path!r}: {module} has no {name}") from None
    except Exception as error:  # a module may raise any error while it is imported
        raise ConfigError(f"{field}={path!r}: {module} cannot be imported ({describe_error(error)})") from None
