"""Import objects of other packages, which a config names as `package.module:Name`."""

import re
from importlib import import_module
from typing import Annotated, Any

from pydantic import AfterValidator

from rl_training.errors import ConfigError, describe_error
from rl_training.trust import admit_env_module


def is_object_path(path: str) -> bool:
    """Return whether a string has the form `package.module:Name`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", path) is not None


def _check_form(path: str) -> str:
    if not is_object_path(path):
        raise ValueError("give package.module:Name")
    return path


ObjectPath = Annotated[str, AfterValidator(_check_form)]
"""The path of an object in another package: `package.module:Name`."""


def import_object(path: str, field: str) -> Any:
    """Import the object at `package.module:Name`; `field` is the config field that contains this path."""
    module, _, name = path.partition(":")
    admit_env_module(path, what=field.rpartition(".")[2])
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        raise ConfigError(f"{field}={path!r}: {module} has no {name}") from None
    except Exception as error:  # a module may raise any error while it is imported
        raise ConfigError(f"{field}={path!r}: {module} cannot be imported ({describe_error(error)})") from None
