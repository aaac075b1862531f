"""YAML as configs use it: plain values only, and `3e-4` is a number (YAML 1.1 wants a dot there), both ways."""

import re
from typing import Any

import yaml

_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$")


class ConfigLoader(yaml.SafeLoader):
    """Reads a config; what its tag does not allow is an error with a line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The node's value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # such as the date 2024-13-45, or !!bool perhaps
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{node.value!r} cannot be read as {kind}", problem_mark=node.start_mark
            ) from None


class ConfigDumper(yaml.SafeDumper):
    """Writes a config; texts that look like numbers to the loader are quoted."""


for _dialect in (ConfigLoader, ConfigDumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
