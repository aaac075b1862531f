"""The YAML loader and dumper of configs: plain values only, and `3e-4` is a number (YAML 1.1 requires a dot)."""

import re
from typing import Any

import yaml

YAML_LIMIT = 2**20  # bytes per file
_ALIAS_LIMIT = 10_000  # characters and values that all aliases of a file may repeat in total
_NUMBER = re.compile(r"^[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)[eE][-+]?[0-9]+$")


class ConfigLoader(yaml.SafeLoader):
    """A loader that reports the line of every value it cannot read, and of aliases that repeat too much."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        # By the id of each complete node: how many characters and values it holds with its aliases expanded.
        self._sizes: dict[int, int] = {}
        self._repeated = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node and count its size, because ten lines of aliases can expand to gigabytes."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._sizes[id(node)] = self._size(node)
        elif id(node) not in self._sizes:
            raise yaml.MarkedYAMLError(problem="an alias refers to a value that contains it", problem_mark=mark)
        else:
            self._repeated += self._sizes[id(node)]
        if self._repeated > _ALIAS_LIMIT:
            problem = f"aliases repeat more than {_ALIAS_LIMIT:,} characters: write the values out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def _size(self, node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value)
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        return 1 + sum(self._sizes[id(part)] for part in parts)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the node's value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # such as the date 2024-13-45, or !!bool perhaps
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{node.value!r} cannot be read as {kind}", problem_mark=node.start_mark
            ) from None


class ConfigDumper(yaml.SafeDumper):
    """A dumper that quotes strings which the loader would read as numbers."""


for _dialect in (ConfigLoader, ConfigDumper):
    _dialect.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
