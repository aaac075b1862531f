"""Where a config's values come from: YAML files, shipped presets and command-line flags, merged in that order."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rl_training.errors import ConfigError, Problem
from rl_training.experiment.config import TrainConfig

KeyPath = tuple[str, ...]

PRESETS_DIR = Path(__file__).parents[1] / "presets"

# Sections are merged key by key; any other value is replaced whole.
_SECTIONS = ("algo_kwargs", "env_kwargs")


@dataclass(frozen=True)
class Layer:
    """Values from one place. `lines` says where each key stands, when the place is a file."""

    source: str
    values: dict[str, Any]
    file: Path | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedConfig:
    """A valid config, and for every value that is not a default the layer it came from."""

    config: TrainConfig
    sources: dict[KeyPath, str]


class _ConfigLoader(yaml.SafeLoader):
    """The safe loader, which also reads `3e-4` as a number (YAML 1.1 wants a dot there)."""


_ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, source: str = "file") -> Layer:
    """One YAML file as a layer; every error names the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    loader = _ConfigLoader(text)
    try:
        node = loader.get_single_node()
        lines = dict(_key_lines(node)) if node is not None else {}
        values = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected a map of config keys, got {type(values).__name__}")
    return Layer(source, values, path, lines)


def _key_lines(node: yaml.Node, above: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            raise yaml.MarkedYAMLError(
                problem=f"'{'.'.join((*above, name))}' is given twice", problem_mark=key.start_mark
            )
        seen.add(name)
        yield (*above, name), key.start_mark.line + 1
        yield from _key_lines(value, (*above, name))


def read_assignments(assignments: Sequence[str]) -> Layer:
    """`key=value` texts as a layer; values are read as YAML, so `1e-3` is a number."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"--set {assignment}: give key=value, such as algo_kwargs.learning_rate=1e-3")
        try:
            value = yaml.load(text, Loader=_ConfigLoader)
        except yaml.YAMLError:
            raise ConfigError(f"--set {assignment}: the value is not valid YAML") from None
        target = values
        for key in keys[:-1]:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {assignment}: '{key}' already has a plain value")
        target[keys[-1]] = value
    return Layer("flag", values)


def find_preset(algo: str, env_id: str) -> Path | None:
    """The shipped preset for this algorithm and environment, if there is one."""
    for path in sorted((PRESETS_DIR / algo).glob("*.yaml")):
        if read_yaml(path).values.get("env_id") == env_id:
            return path
    return None


def resolve_config(layers: Iterable[Layer]) -> ResolvedConfig:
    """Merge the layers, later ones winning, and validate the result."""
    stack = list(layers)
    values: dict[str, Any] = {}
    sources: dict[KeyPath, str] = {}
    for layer in stack:
        for path, value in _settings(layer.values):
            _assign(values, path, value)
            sources[path] = layer.source
    try:
        return ResolvedConfig(TrainConfig(**values), sources)
    except ConfigError as error:
        raise located(error, stack) from None


def _settings(values: dict[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        if key in _SECTIONS and isinstance(value, dict):
            yield from (((key, str(name)), inner) for name, inner in value.items())
        else:
            yield (str(key),), value


def _assign(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    if len(path) == 1:
        values[path[0]] = value
        return
    section = values.setdefault(path[0], {})
    if not isinstance(section, dict):
        raise ConfigError(f"{path[0]}={section!r}: give a map of names to values")
    section[path[1]] = value


def located(error: ConfigError, layers: Sequence[Layer]) -> ConfigError:
    """The same error, with file and line before every problem whose value stands in a file."""
    problems = [Problem(problem.path, _place(problem.path, layers) + problem.text) for problem in error.problems]
    if not problems:
        return error
    return ConfigError("; ".join(problem.text for problem in problems), problems)


def _place(path: KeyPath, layers: Sequence[Layer]) -> str:
    for layer in reversed(layers):
        given = {where for where, _ in _settings(layer.values)}
        if path[:1] in given or path[:2] in given:
            line = layer.lines.get(path) or layer.lines.get(path[:2]) or layer.lines.get(path[:1])
            return f"{layer.file}:{line}: " if line else ""
    return ""
