"""The base of every configuration record, the bounds of sizes, and records as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from radweave.base.errors import InputError
from radweave.base.json_files import refuse_large

C = TypeVar("C", bound="Config")

# Bounds of sizes, far above what anybody trains and below what no machine can hold: a slip of the finger, or a
# configuration from elsewhere, is answered in one line and takes no memory.
MAX_TOKENS = 131_072
MAX_STEPS = 1_000_000_000
Width = Annotated[int, Field(ge=1, le=65_536)]
Layers = Annotated[int, Field(ge=1, le=256)]
Heads = Annotated[int, Field(ge=1, le=256)]
Widths = Annotated[tuple[Width, ...], Field(min_length=1, max_length=16)]
Depths = Annotated[tuple[Layers, ...], Field(min_length=1, max_length=16)]
Ratio = Annotated[float, Field(gt=0, le=64)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Prompt = Annotated[str, Field(max_length=10_000)]
"""Text around what a language model is shown."""
Slots = Annotated[int, Field(ge=1, le=4096)]
"""What stands beside each other: prompts, latents, cases."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
"""Of rows; what the data hold is the tighter bound."""
Views = Annotated[int, Field(ge=1, le=16)]
Channels = Annotated[int, Field(ge=1, le=64)]
Pixels = Annotated[int, Field(ge=1, le=2048)]
"""Of a patch, a window, a cell."""
Grid = Annotated[int, Field(ge=1, le=256)]
Voxels = Annotated[int, Field(ge=1, le=1024)]
Hounsfield = Annotated[int, Field(ge=-32_768, le=32_767)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
"""What numpy, scikit-learn and torch all take."""


_MAX_DEPTH, _MAX_VALUES = 100, 200_000
MAX_YAML_BYTES = 1 << 20
"""Of a configuration: a resolved experiment has some 10 kB, and a megabyte takes seconds to parse."""


class Config(BaseModel):
    """A frozen record of plain values and other records. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, ser_json_inf_nan="strings")


class Open:
    """Marks a mapping whose names its reader checks: overrides may give it new ones (``Annotated[dict, Open()]``)."""


def first_problem(error: ValidationError) -> str:
    """One line for the first problem pydantic found: place, message, and the offending value if it is short."""
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    text = f"'{place}': {problem['msg']}" if place else str(problem["msg"])
    given = problem.get("input")
    if isinstance(given, (str, int, float, bool)) and len(str(given)) < 40:
        text += f", got {given!r}"
    return text


class _PlainLoader(yaml.SafeLoader):
    """The safe loader, whose constructors let errors of Python through: ``2001-99-99``, ``!!int xyz``.

    A key that comes twice is refused: which of the two holds would be a matter of the reader.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, "a key comes twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"no value of type {kind}", node.start_mark) from None


def parse_yaml(text: str) -> Any:
    """Read plain values written as YAML.

    Raises:
        ValueError: for whatever cannot be read, in one line.
    """
    try:
        value = yaml.load(text, _PlainLoader)
        _refuse_endless(value)
        return value
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_endless(value: Any) -> None:
    """Refuse what references make endless: a value inside itself, or one that is there a million times.

    Raises:
        ValueError: saying which.
    """
    waiting, seen = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if seen > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values")
        if isinstance(item, (dict, list, tuple, set)):
            inner = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            waiting.extend((one, depth + 1) for one in inner)


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file of plain values by name.

    Raises:
        InputError: if the file is missing, too large, not YAML, or holds another value.
    """
    try:
        refuse_large(path, MAX_YAML_BYTES)
        data = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not valid YAML: {error}", file=path) from None
    if not isinstance(data, dict):
        raise InputError("not a mapping", file=path)
    return data


def from_yaml(kind: type[C], path: Path) -> C:
    """Load a record written by ``to_yaml``.

    Raises:
        InputError: if the file is missing, not YAML, or does not fit the record.
    """
    data = read_yaml(path)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(first_problem(error), file=path) from None
