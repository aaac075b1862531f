"""The strict base class of config models. Its errors name the field, the value and what is allowed."""

from collections.abc import Iterable
from inspect import Parameter, Signature, cleandoc
from textwrap import indent
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_training.errors import ConfigError, Problem

# YAML has types, so nothing is converted: 256.9 is not an integer, "3" is not a number, true is not 1.
Int = Annotated[int, Field(strict=True)]
# Every count has an upper limit, so that sums and products of counts cannot overflow where they are used.
MAX_COUNT = 2**53 - 1
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
MAX_FLOAT = 1e30  # values are used in float32 computations, which must not overflow
Float = Annotated[float, Field(strict=True, ge=-MAX_FLOAT, le=MAX_FLOAT, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0.0, le=MAX_FLOAT, allow_inf_nan=False)]
UnitFloat = Annotated[float, Field(strict=True, ge=0.0, le=1.0, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]

ModelT = TypeVar("ModelT", bound="StrictModel")

_LETTERS_PER_EDIT = 4  # of a misspelt name for which a guess is offered
# Names of parameters in Stable-Baselines3, RL Zoo and CleanRL, and our names for them.
_NAMES_ELSEWHERE = {
    "activation_fn": "activation",
    "autotune": "alpha",
    "batch_size": "minibatch_size",
    "buffer_size": "buffer_capacity",
    "clip_range": "clip_coef",
    "clip_range_vf": "clip_vf_coef",
    "end_e": "epsilon_end",
    "ent_coef": "alpha",
    "exploration_final_eps": "epsilon_end",
    "exploration_initial_eps": "epsilon_start",
    "features_extractor_class": "encoder",
    "features_extractor_kwargs": "encoder_kwargs",
    "n_envs": "num_envs",
    "n_epochs": "update_epochs",
    "n_steps": "num_steps",
    "n_timesteps": "total_timesteps",
    "net_arch": "hidden_sizes",
    "normalize": "normalize_obs",
    "optimizer_class": "optimizer",
    "policy_kwargs": "hidden_sizes",
    "start_e": "epsilon_start",
    "target_network_frequency": "target_update_interval",
    "tensorboard_log": "output_dir",
    "train_freq": "train_frequency",
}
# Pydantic's messages name Python types; these name the YAML types that a user writes.
_MAP = "give a map of names to values"
_REASONS = {"tuple_type": "give a list", "dict_type": _MAP, "model_type": _MAP}


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that the user most likely meant, or `None`.

    That is the name of a parameter that another package calls `name`. Otherwise it is a name that is one edit away, or
    one edit for every four letters. Upper and lower case do not count. Of several that are equally close, the last in
    the alphabet is returned, which has the highest version.
    """
    known = list(known)
    if (translated := _NAMES_ELSEWHERE.get(name)) in known:
        return translated
    allowed = max(1, len(name) // _LETTERS_PER_EDIT)
    similar = [each for each in known if abs(len(each) - len(name)) <= allowed]  # others need more edits than that
    edits = {each: _edit_distance(name.lower(), each.lower()) for each in similar}
    nearest = max(edits, key=lambda each: (-edits[each], each), default=None)
    return nearest if nearest is not None and edits[nearest] <= min(allowed, len(name) - 1) else None


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Ask whether the user meant the nearest known name; return `otherwise` if no name is near."""
    nearest = nearest_name(name, known)
    return otherwise if nearest is None else f"did you mean '{nearest}'?"


def _edit_distance(left: str, right: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour to turn one text into the other."""
    rows = [list(range(len(right) + 1))]
    for i, letter in enumerate(left, start=1):
        row = [i]
        for j, other in enumerate(right, start=1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other)))
            if i > 1 and j > 1 and letter == right[j - 2] and left[i - 2] == other:
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def to_plain(value: Any) -> Any:
    """Return the value with tuples as lists and NumPy's numbers as Python's; refuse what YAML cannot give back."""
    if type(value).__module__ == "numpy":  # which is imported only if such a value can exist
        value = _from_numpy(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"keys must be strings, got {list(value)}")
        return {key: to_plain(item) for key, item in value.items()}
    raise ValueError(f"contains a {type(value).__name__}; use plain values only (numbers, strings, lists, maps)")


def _from_numpy(value: Any) -> Any:
    import numpy as np

    if isinstance(value, np.ndarray):  # a config file gives back a list, which calculates differently
        raise ValueError("contains a NumPy array; give array.tolist(), and make an array of it where it is used")
    return value.item() if isinstance(value, np.generic) else value


def config_error(problems: Iterable[Problem]) -> ConfigError:
    """Return one error that lists all problems."""
    found = list(problems)
    return ConfigError("; ".join(problem.text for problem in found), found)


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys and raises `ConfigError` instead of pydantic's own error.

    The docstrings of its fields are a part of its own, so that `help()` shows them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls.__doc__ = f"{cleandoc(cls.__doc__ or '')}\n\n{describe_fields(cls)}"
        keywords = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=Parameter.empty if field.is_required() else ...)
            for name, field in cls.model_fields.items()
        ]
        cls.__signature__ = Signature(keywords)  # with types and defaults, it would fill a page

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            known = list(type(self).model_fields)
            raise config_error(_problem(details, known) for details in error.errors(include_url=False)) from None


def describe_fields(model: type[BaseModel]) -> str:
    """Describe every field of a model, with its default, for a docstring."""
    texts = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else f"default {field.get_default(call_default_factory=True)}"
        inherited = (each.model_fields.get(name) for each in model.__mro__ if issubclass(each, BaseModel))
        description = next((each.description for each in inherited if each and each.description), "")
        texts.append(f"{name} ({default})\n{indent(description, '    ')}")
    return "\n".join(texts)


def validate_section(model: type[ModelT], values: dict[str, Any], section: str) -> ModelT:
    """Build `model` from one section of a config. Problems start with the section's name."""
    try:
        return model(**values)
    except ConfigError as error:
        raise config_error(
            Problem((section, *problem.path), f"{section}.{problem.text}") for problem in error.problems
        ) from None


def _problem(details: Any, known: list[str]) -> Problem:
    path = tuple(str(part) for part in details["loc"])
    dotted = _shortened(".".join(path), 200)
    if details["type"] == "extra_forbidden":
        remedy = suggest(path[-1], known if len(path) == 1 else (), f"known here: {', '.join(sorted(known))}")
        return Problem(path, f"{dotted}: unknown key; {remedy}")
    if details["type"] == "missing":
        return Problem(path, f"{dotted}: required")
    reason = _REASONS.get(details["type"]) or details["msg"].removeprefix("Value error, ")
    return Problem(path, f"{dotted}={_shortened(repr(details['input']), 60)}: {reason[:1].lower()}{reason[1:]}")


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
