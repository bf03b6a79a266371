"""One-line overrides of a configuration record.

    override(experiment, ["model.language_model.hidden_size=256", "model.vision_encoder=resnet"])

A value is read as YAML. Assigning a bare word to a component swaps it for the kind of that name, with that kind's
defaults. All assignments are made before the record is validated, and a swap comes before the fields that are set
inside it: ``model.encoder.path=F model.encoder=vit`` is ``model.encoder=vit model.encoder.path=F``. A name that does
not exist is answered with the names that do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from radweave.base.config import Config, Open, first_problem, parse_yaml
from radweave.base.errors import InputError

C = TypeVar("C", bound=Config)


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
        records = records_in(fields.get(key))
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


def records_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The record types in a field's annotation: alternatives of a union, values of a mapping."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return (annotation,) if issubclass(annotation, BaseModel) else ()
    found: dict[type[BaseModel], None] = {}
    for part in get_args(annotation):
        found.update(dict.fromkeys(records_in(part)))
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
        records, node = records_in(field), node[key]
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
