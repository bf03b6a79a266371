"""The base of every configuration record, the bounds of sizes, and records as YAML."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from radweave.core.errors import InputError
from radweave.core.json_files import refuse_large

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


# One-line overrides of a configuration record.
#
# override(experiment, ["model.language_model.hidden_size=256", "model.vision_encoder=resnet"])
#
# A value is read as YAML. Assigning a bare word to a component swaps it for the kind of that name, with that kind's
# defaults. All assignments are made before the record is validated, and a swap comes before the fields that are set
# inside it: ``model.encoder.path=F model.encoder=vit`` is ``model.encoder=vit model.encoder.path=F``. A name that does
# not exist is answered with the names that do.


@dataclass(frozen=True, slots=True)
class _Assignment:
    """``path.to.field=value``; ``late`` if a swap of the component around it was typed after it."""

    text: str
    keys: tuple[str, ...]
    value: Any
    late: bool = False

    @property
    def path(self) -> str:
        return ".".join(self.keys)


def override(config: C, assignments: Sequence[str], changes: Mapping[str, Any] | None = None) -> C:
    """Return a copy of ``config`` with ``changes`` and then ``path.to.field=value`` assignments applied.

    Of two that say the same field the later holds. A field that was set before its component was swapped is set in the
    new component where that has it. ``*`` for a name stands for all names there: ``stages.*.epochs=3``. ``changes`` is
    a nested mapping of the same fields, as a YAML file holds it.

    Raises:
        InputError: for a field that does not exist (with those that do) or a value that does not fit.
    """
    data = config.model_dump(mode="json")
    typed = [*_written_out(changes or {}, data), *(_parsed(text) for text in assignments)]
    made = _in_order([one for assignment in typed for one in _spread(assignment, data)])
    lost: set[str] = set()
    for assignment in made:
        _assign(data, type(config), assignment, lost)
    try:
        return type(config).model_validate(data)
    except ValidationError as error:
        raise InputError(f"override '{_culprit(error, made)}': {first_problem(error)}") from None


def fields_set(assignments: Sequence[str], changes: Mapping[str, Any]) -> frozenset[str]:
    """The dotted names of all fields that assignments and changes set, and of the components around them."""
    typed = [*_written_out(changes, {}), *(_parsed(text) for text in assignments)]
    return frozenset(".".join(one.keys[:length]) for one in typed for length in range(1, len(one.keys) + 1))


def _parsed(text: str) -> _Assignment:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise InputError(f"override '{text}' is not of the form key=value")
    try:
        return _Assignment(text, tuple(path.split(".")), parse_yaml(value))
    except ValueError:
        raise InputError(f"override '{text}': the value is not valid YAML") from None


def _written_out(changes: Mapping[str, Any], data: Any, above: tuple[str, ...] = ()) -> Iterator[_Assignment]:
    """A nested mapping as assignments of its leaves; a component of another kind is swapped for it."""
    for key, value in changes.items():
        keys = (*above, str(key))
        old = data.get(str(key)) if isinstance(data, dict) else None
        if not isinstance(value, Mapping):
            yield _Assignment(".".join(keys), keys, value)
            continue
        kind = value.get("kind")
        if isinstance(old, dict) and kind is not None and kind != old.get("kind"):
            yield _Assignment(".".join(keys), keys, kind)
            old = None
        inner = {name: inside for name, inside in value.items() if name != "kind"}
        yield from _written_out(inner, old, keys)


def _spread(assignment: _Assignment, data: Any) -> Iterator[_Assignment]:
    """The assignments that one with ``*`` in its path stands for."""
    if "*" not in assignment.keys:
        yield assignment
        return
    place = assignment.keys.index("*")
    node = data
    for key in assignment.keys[:place]:
        node = node.get(key) if isinstance(node, dict) else None
    for name in node if isinstance(node, dict) else ():
        keys = (*assignment.keys[:place], name, *assignment.keys[place + 1 :])
        yield from _spread(_Assignment(assignment.text, keys, assignment.value), data)


def _in_order(typed: Sequence[_Assignment]) -> list[_Assignment]:
    """As they were typed, but fields of a component after the last swap of it by a bare word."""
    waiting: dict[int, list[_Assignment]] = {}
    ordered: list[_Assignment] = []
    for place, assignment in enumerate(typed):
        swaps = [
            later
            for later in range(place + 1, len(typed))
            if isinstance(typed[later].value, str)
            and typed[later].keys == assignment.keys[: len(typed[later].keys)]
            and len(typed[later].keys) < len(assignment.keys)
        ]
        if swaps:
            late = _Assignment(assignment.text, assignment.keys, assignment.value, late=True)
            waiting.setdefault(swaps[-1], []).append(late)
        else:
            ordered += [assignment, *waiting.pop(place, [])]
    return ordered


def _assign(data: dict[str, Any], kind: type[BaseModel], assignment: _Assignment, lost: set[str]) -> None:
    """Set a field of ``data``, a dump of a record of type ``kind``.

    ``lost`` are the fields of components that were swapped away: what was set there before the swap is passed over.
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
            if assignment.late and path in lost:
                return
            _refuse_name(path, keys[:depth], key, sorted({*node, *fields}))
        records = record_types(fields.get(key))
        if last:
            node[key] = _settled(node.get(key), records, assignment, lost)
        else:
            node = node.setdefault(key, {})


def _settled(old: Any, records: tuple[type[BaseModel], ...], assignment: _Assignment, lost: set[str]) -> Any:
    """The value as it is put into the dump: the defaults of a kind where a bare word names one."""
    kinds = _kinds(records)
    if not kinds or not isinstance(assignment.value, str):
        return assignment.value
    if isinstance(old, dict):
        lost |= {f"{assignment.path}.{name}" for name in old}
    elif assignment.value not in kinds:
        return assignment.value
    if assignment.value not in kinds:
        raise InputError(
            f"override '{assignment.text}': no such kind", field=assignment.path, expected=f"one of {', '.join(kinds)}"
        )
    chosen = kinds[assignment.value]
    given = {name for name, field in chosen.model_fields.items() if not field.is_required()}
    return {**chosen.model_construct().model_dump(mode="json", include=given), "kind": assignment.value}


def _refuse_name(path: str, place: Sequence[str], key: str, known: Sequence[str]) -> None:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else ""
    where = f"'{'.'.join(place)}'" if place else "the experiment"
    raise InputError(f"override '{path}': {where} has no field '{key}'{hint}", expected=f"one of {', '.join(known)}")


def _record_of(node: dict[str, Any], records: tuple[type[BaseModel], ...]) -> type[BaseModel] | None:
    """The record that a node of the dump is of."""
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
    """The record types in a field's annotation: alternatives of a union, values of a mapping."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (annotation,) if issubclass(annotation, BaseModel) else ()
    found: dict[type[BaseModel], None] = {}
    for part in get_args(annotation):
        found.update(dict.fromkeys(record_types(part)))
    return tuple(found)


def _is_open(data: Any, kind: type[BaseModel], keys: Sequence[str]) -> bool:
    """Whether the mapping at ``keys`` takes new names."""
    node: Any = data
    records: tuple[type[BaseModel], ...] = (kind,)
    opened = False
    for key in keys:
        record = _record_of(node, records) if isinstance(node, dict) else None
        field = record.model_fields.get(key) if record else None
        opened = field is not None and any(isinstance(mark, Open) for mark in field.metadata)
        records, node = record_types(field), node[key]
    return opened


def _culprit(error: ValidationError, made: Sequence[_Assignment]) -> str:
    """The assignment that a problem lies nearest to: the longest common way from the top, the latest of several."""
    place = [str(part) for part in error.errors(include_url=False)[0]["loc"]]
    best, found = -1, made[-1].text if made else ""
    for assignment in made:
        # Pydantic puts the kind of a component into the place of a problem, behind the component's name.
        way, common = iter(place), 0
        for key in assignment.keys:
            if key not in way:
                break
            common += 1
        if common >= best:
            best, found = common, assignment.text
    return found


# A configuration as YAML that explains itself: what each component is, and the default of what differs from it.


WIDTH = 116


def explained_yaml(record: BaseModel) -> str:
    """YAML that reads back as the record. A comment above a component says what it is, one behind a value its default
    where the value is another one."""
    return "\n".join(_lines(record, "")) + "\n"


def _lines(record: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if isinstance(value, BaseModel):
            yield from _comment(type(value), indent)
            yield f"{indent}{name}:" + ("" if type(value).model_fields else " {}")
            yield from _lines(value, indent + "  ")
            continue
        text = _plain(record.model_dump(mode="json", include={name})[name])
        default = None if field.is_required() else _plain(_dumped(record, name, _default(field)))
        yield f"{indent}{name}: {text}" + (f"  # default {default}" if default not in (None, text) else "")


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True, validated_data={})


def _dumped(record: BaseModel, name: str, default: Any) -> Any:
    return type(record).model_construct(**{name: default}).model_dump(mode="json", include={name})[name]


def _plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True).removesuffix("...\n").strip()


def _comment(kind: type[BaseModel], indent: str) -> Iterator[str]:
    """The docstring of a record, without its markup."""
    text = textwrap.dedent((kind.__doc__ or "").strip()).replace("``", "'")
    for paragraph in text.split("\n\n"):
        yield from textwrap.wrap(
            " ".join(paragraph.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
