"""Configuration records: the base class, bounds of sizes, YAML in both directions, and one-line overrides.

experiment = from_yaml(Experiment, path)
changed = override(experiment, ["model.language_model.hidden_size=256", "model.vision_encoder=resnet"])
path.write_text(explained_yaml(changed))
"""

from __future__ import annotations

import difflib
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from radweave.core.errors import InputError
from radweave.core.json_files import refuse_large

M = TypeVar("M", bound=BaseModel)
C = TypeVar("C", bound="Config")
T = TypeVar("T")

# Bounds of sizes: above any trained model and below the memory of a machine, so that a typing error or a foreign
# configuration is refused in one line before memory is allocated.
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
"""Prompt text around the inputs of a language model."""
Slots = Annotated[int, Field(ge=1, le=4096)]
"""Parallel items: prompts, latents, cases."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
"""Rows; the size of the data is the tighter bound."""
Views = Annotated[int, Field(ge=1, le=16)]
Channels = Annotated[int, Field(ge=1, le=64)]
Pixels = Annotated[int, Field(ge=1, le=2048)]
"""Side of a patch, a window or a cell."""
Grid = Annotated[int, Field(ge=1, le=256)]
Voxels = Annotated[int, Field(ge=1, le=1024)]
Hounsfield = Annotated[int, Field(ge=-32_768, le=32_767)]
AIR_HU: Final = -1024
"""Lowest Hounsfield units that are kept: those of air outside the patient."""
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
"""The range that numpy, scikit-learn and torch share."""

_MAX_DEPTH, _MAX_VALUES = 100, 200_000
MAX_YAML_BYTES = 1 << 20
"""Largest configuration file: a resolved experiment has some 10 kB, and a megabyte takes seconds to parse."""
_LINE_WIDTH = 116


class Config(BaseModel):
    """A frozen record of plain values and other records. Unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, ser_json_inf_nan="strings")


class Open:
    """Mark of a mapping to which overrides may add names, which its reader checks (``Annotated[dict, Open()]``)."""


def first_problem(error: ValidationError) -> str:
    """One line for pydantic's first problem: field, message, and the offending value if it is short."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    text = f"'{field}': {problem['msg']}" if field else str(problem["msg"])
    value = problem.get("input")
    if isinstance(value, (str, int, float, bool)) and len(str(value)) < 40:
        text += f", got {value!r}"
    return text


class _PlainLoader(yaml.SafeLoader):
    """The safe loader, which also refuses repeated keys and turns Python's errors (``2001-99-99``) into YAML's."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(None, None, "a key comes twice", key.start_mark)
                keys.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, OverflowError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"no value of type {kind}", node.start_mark) from None


def parse_yaml(text: str) -> Any:
    """Parse YAML of plain values.

    Raises:
        ValueError: one line for any text that cannot be parsed.
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
    """Refuse values that references make endless: nested in themselves, or repeated a million times."""
    waiting, count = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        count += 1
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        if count > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES} values")
        if isinstance(item, (dict, list, tuple, set)):
            inner = [*item.keys(), *item.values()] if isinstance(item, dict) else item
            waiting.extend((child, depth + 1) for child in inner)


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping of plain values.

    Raises:
        InputError: if the file is missing, too large, not YAML, or not a mapping.
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


def checked(
    kind: type[M], values: object, *, file: Path | None = None, line: int | None = None, field: str | None = None
) -> M:
    """A record of values that come from a file.

    Raises:
        InputError: naming the place and the first problem.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(first_problem(error), file=file, line=line, field=field) from None


def from_yaml(kind: type[C], path: Path) -> C:
    """Load a record written by ``to_yaml``.

    Raises:
        InputError: if the file is missing, not YAML, or does not fit the record.
    """
    return checked(kind, read_yaml(path), file=path)


def from_package_toml(kind: type[T], package: str, name: str) -> T:
    """Load a TOML file that lies among a package's modules.

    Args:
        kind: type of the whole file, such as ``dict[str, Table]``. Lists become its tuples; nothing else is converted.
        package: dotted name of the package.
        name: of the file.

    Raises:
        InputError: if the file is missing, not TOML, or does not fit the type; names the file and the field.
    """
    file = files(package) / name
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        # Strict validation takes lists for tuples from JSON alone.
        return TypeAdapter(kind).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise InputError(first_problem(error), file=str(file)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"not readable as TOML: {error}", file=str(file)) from None


# Overrides. Values are YAML. A bare word assigned to a component swaps it for the kind of that name with its defaults.
# All assignments precede validation, and a swap precedes assignments inside the component:
# ``model.encoder.path=F model.encoder=vit`` equals ``model.encoder=vit model.encoder.path=F``.


@dataclass(frozen=True, slots=True)
class _Assignment:
    """``path.to.field=value``; ``late`` if its component is swapped by a later assignment."""

    text: str
    keys: tuple[str, ...]
    value: Any
    late: bool = False

    @property
    def path(self) -> str:
        return ".".join(self.keys)


def override(config: C, assignments: Sequence[str], changes: Mapping[str, Any] | None = None) -> C:
    """Return a copy of ``config`` with ``changes`` and then ``path.to.field=value`` assignments applied.

    The later of two assignments to a field wins. A field assigned before the swap of its component applies to the new
    component if that has the field. ``*`` matches all names: ``stages.*.epochs=3``. ``changes`` is a nested mapping of
    fields, as in a YAML file.

    Raises:
        InputError: for an unknown field (with the known ones) or an invalid value.
    """
    data = config.model_dump(mode="json")
    typed = [*_flatten(changes or {}, data), *map(_parse_assignment, assignments)]
    ordered = _swaps_first([each for assignment in typed for each in _expand_wildcards(assignment, data)])
    removed: set[str] = set()
    for assignment in ordered:
        _assign(data, type(config), assignment, removed)
    try:
        return type(config).model_validate(data)
    except ValidationError as error:
        raise InputError(f"override '{_failing_assignment(error, ordered)}': {first_problem(error)}") from None


def fields_set(assignments: Sequence[str], changes: Mapping[str, Any]) -> frozenset[str]:
    """Dotted names of all assigned fields and of the components around them."""
    typed = [*_flatten(changes, {}), *map(_parse_assignment, assignments)]
    return frozenset(".".join(each.keys[: end + 1]) for each in typed for end in range(len(each.keys)))


def _parse_assignment(text: str) -> _Assignment:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise InputError(f"override '{text}' is not of the form key=value")
    try:
        return _Assignment(text, tuple(path.split(".")), parse_yaml(value))
    except ValueError:
        raise InputError(f"override '{text}': the value is not valid YAML") from None


def _flatten(changes: Mapping[str, Any], data: Any, parents: tuple[str, ...] = ()) -> Iterator[_Assignment]:
    """Assignments of the leaves of a nested mapping, preceded by a swap where a component's kind changes."""
    for key, value in changes.items():
        keys = (*parents, str(key))
        old = data.get(str(key)) if isinstance(data, dict) else None
        if not isinstance(value, Mapping):
            yield _Assignment(".".join(keys), keys, value)
            continue
        kind = value.get("kind")
        if isinstance(old, dict) and kind is not None and kind != old.get("kind"):
            yield _Assignment(".".join(keys), keys, kind)
            old = None
        yield from _flatten({name: field for name, field in value.items() if name != "kind"}, old, keys)


def _expand_wildcards(assignment: _Assignment, data: Any) -> Iterator[_Assignment]:
    if "*" not in assignment.keys:
        yield assignment
        return
    star = assignment.keys.index("*")
    node = data
    for key in assignment.keys[:star]:
        node = node.get(key) if isinstance(node, dict) else None
    for name in node if isinstance(node, dict) else ():
        keys = (*assignment.keys[:star], name, *assignment.keys[star + 1 :])
        yield from _expand_wildcards(replace(assignment, keys=keys), data)


def _swaps_first(typed: Sequence[_Assignment]) -> list[_Assignment]:
    """Assignments in their order, except that those inside a component follow its last swap by a bare word."""
    waiting: dict[int, list[_Assignment]] = {}
    ordered: list[_Assignment] = []
    for index, assignment in enumerate(typed):
        swaps = [
            later
            for later in range(index + 1, len(typed))
            if isinstance(typed[later].value, str)
            and typed[later].keys == assignment.keys[: len(typed[later].keys)]
            and len(typed[later].keys) < len(assignment.keys)
        ]
        if swaps:
            waiting.setdefault(swaps[-1], []).append(replace(assignment, late=True))
        else:
            ordered += [assignment, *waiting.pop(index, [])]
    return ordered


def _assign(data: dict[str, Any], kind: type[BaseModel], assignment: _Assignment, removed: set[str]) -> None:
    """Set a field of ``data``, a dump of a record of type ``kind``.

    ``removed`` holds fields of components that were swapped away; late assignments to them are skipped.
    """
    node: Any = data
    records: tuple[type[BaseModel], ...] = (kind,)
    keys, path = assignment.keys, assignment.path
    for depth, key in enumerate(keys):
        if not isinstance(node, dict):
            raise InputError(f"override '{path}': '{'.'.join(keys[:depth])}' is a plain value, it has no fields")
        record = _record_of(node, records)
        fields = record.model_fields if record else {}
        last = depth == len(keys) - 1
        if key not in node and key not in fields and not (last and _is_open(data, kind, keys[:depth])):
            if assignment.late and path in removed:
                return
            _refuse_field(path, keys[:depth], key, sorted({*node, *fields}))
        records = record_types(fields.get(key))
        if last:
            node[key] = _dumped_value(node.get(key), records, assignment, removed)
        else:
            node = node.setdefault(key, _dumped_default(fields.get(key)))


def _dumped_default(field: FieldInfo | None) -> dict[str, Any]:
    """Dump of a record that a dump leaves out because it is its default."""
    default = None if field is None else field.default
    return default.model_dump(mode="json") if isinstance(default, BaseModel) else {}


def _dumped_value(old: Any, records: tuple[type[BaseModel], ...], assignment: _Assignment, removed: set[str]) -> Any:
    """The assigned value as a dump: the defaults of a kind if the value is its name."""
    kinds = _kinds(records)
    if not kinds or not isinstance(assignment.value, str):
        return assignment.value
    if isinstance(old, dict):
        removed |= {f"{assignment.path}.{name}" for name in old}
    elif assignment.value not in kinds:
        return assignment.value
    if assignment.value not in kinds:
        raise InputError(
            f"override '{assignment.text}': no such kind", field=assignment.path, expected=f"one of {', '.join(kinds)}"
        )
    chosen = kinds[assignment.value]
    optional = {name for name, field in chosen.model_fields.items() if not field.is_required()}
    return {**chosen.model_construct().model_dump(mode="json", include=optional), "kind": assignment.value}


def _refuse_field(path: str, parents: Sequence[str], key: str, known: Sequence[str]) -> None:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    parent = f"'{'.'.join(parents)}'" if parents else "the experiment"
    raise InputError(f"override '{path}': {parent} has no field '{key}'{hint}", expected=f"one of {', '.join(known)}")


def _record_of(node: dict[str, Any], records: tuple[type[BaseModel], ...]) -> type[BaseModel] | None:
    """The record type of a node of a dump."""
    if "kind" in node:
        return _kinds(records).get(str(node["kind"]))
    return records[0] if len(records) == 1 else None


def _kinds(records: tuple[type[BaseModel], ...]) -> dict[str, type[BaseModel]]:
    return {
        str(name): record
        for record in records
        if "kind" in record.model_fields
        for name in get_args(record.model_fields["kind"].annotation)
    }


def record_types(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Record types in a field's annotation: members of a union, values of a mapping."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (annotation,) if issubclass(annotation, BaseModel) else ()
    return tuple(dict.fromkeys(record for part in get_args(annotation) for record in record_types(part)))


def _is_open(data: Any, kind: type[BaseModel], keys: Sequence[str]) -> bool:
    """True if the mapping at ``keys`` accepts new names."""
    node: Any = data
    records: tuple[type[BaseModel], ...] = (kind,)
    is_open = False
    for key in keys:
        record = _record_of(node, records) if isinstance(node, dict) else None
        field = record.model_fields.get(key) if record else None
        is_open = field is not None and any(isinstance(mark, Open) for mark in field.metadata)
        records, node = record_types(field), node[key]
    return is_open


def _failing_assignment(error: ValidationError, assignments: Sequence[_Assignment]) -> str:
    """The assignment with the longest common path with the first problem; the last of several."""
    location = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
    longest, text = -1, assignments[-1].text if assignments else ""
    for assignment in assignments:
        # Pydantic puts the kind of a component into the location, behind the component's name.
        rest, common = iter(location), 0
        for key in assignment.keys:
            if key not in rest:
                break
            common += 1
        if common >= longest:
            longest, text = common, assignment.text
    return text


def explained_yaml(record: BaseModel) -> str:
    """YAML of a record with comments: the docstring above each component, the default behind each changed value."""
    return "\n".join(_explained_lines(record, "")) + "\n"


def _explained_lines(record: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            yield from _comment(type(value), indent)
            yield f"{indent}{name}:" + ("" if type(value).model_fields else " {}")
            yield from _explained_lines(value, indent + "  ")
            continue
        text = _one_line(record, name)
        default = None
        if not field.is_required():
            value = field.get_default(call_default_factory=True, validated_data={})
            default = _one_line(type(record).model_construct(**{name: value}), name)
        yield f"{indent}{name}: {text}" + (f"  # default {default}" if default not in (None, text) else "")


def _one_line(record: BaseModel, field: str) -> str:
    value = record.model_dump(mode="json", include={field})[field]
    return yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True).removesuffix("...\n").strip()


def _comment(kind: type[BaseModel], indent: str) -> Iterator[str]:
    """The docstring of a record, without its markup."""
    text = textwrap.dedent((kind.__doc__ or "").strip()).replace("``", "'")
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(
            " ".join(paragraph.split()), _LINE_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
