"""Every field that an experiment can have, as one page: what it is called, what it takes, and its default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from radweave.core.config import record_types
from radweave.core.escaping import escaped
from radweave.methods.experiment import Experiment
from radweave.methods.registry import usable_methods

INTRO: Final = """\
# Every field

Written by `radweave config --reference`. An override names a field by its path from the top, as
`model.vision_encoder.lora.rank=8`. A component field takes the name of a kind, which brings that kind's defaults:
`model.vision_encoder=swin`. A preset sets many fields to other values than the defaults here: `radweave config METHOD
--preset P` prints them all.
"""
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Data": ("data", "methods.experiment"),
    "Vision encoders": ("nn.vision",),
    "Text encoders": ("nn.text_encoder",),
    "Language models": ("nn.language_model", "nn.encoder_decoder", "nn.lora"),
    "Parts that methods share": ("nn", "methods"),
    "Stages": ("methods.stage",),
    "Decoding": ("nn.decoding", "drafting"),
}
"""Heading of the page -> packages and modules of its records; the longest prefix decides."""
_PLAIN: Final = {"NoneType": "null", "bool": "true or false", "str": "text", "int": "integer", "float": "number"}
_LONGEST: Final = 60
"""Of a default that is shown as it is, in letters."""


def reference(experiments: Mapping[str, Iterable[type[Experiment]]]) -> str:
    """The page, in Markdown.

    Args:
        experiments: method -> types of its experiments.
    """
    records: dict[type[BaseModel], None] = {}
    for kinds in experiments.values():
        for kind in kinds:
            _collect(kind, records)
    groups: dict[str, list[type[BaseModel]]] = {
        heading: [] for heading in (*_GROUPS, *(f"Method {name}" for name in sorted(experiments)))
    }
    for record in records:
        groups[_group(record)].append(record)
    lines = [INTRO]
    for heading, listed in groups.items():
        if listed:
            lines += [f"## {heading}", ""]
        for record in listed:
            lines += [*_section(record), ""]
    return "\n".join(lines)


def _collect(record: type[BaseModel], records: dict[type[BaseModel], None]) -> None:
    """A record and all that its fields can hold, in the order of the fields."""
    if record in records:
        return
    records[record] = None
    for field in record.model_fields.values():
        for inner in record_types(field):
            _collect(inner, records)


def _group(record: type[BaseModel]) -> str:
    module = record.__module__.removeprefix("radweave.")
    package, *inner = module.split(".")
    if package == "methods" and len(inner) > 1:
        return f"Method {inner[0]}"
    near = [
        (len(place), heading)
        for heading, places in _GROUPS.items()
        for place in places
        if f"{module}.".startswith(f"{place}.")
    ]
    return max(near)[1] if near else next(iter(_GROUPS))


def _section(record: type[BaseModel]) -> Iterator[str]:
    kind = record.model_fields.get("kind")
    names = get_args(kind.annotation) if kind else ()
    title = f"{', '.join(f'`{name}`' for name in names)} ({record.__name__})" if names else f"{record.__name__}"
    yield from (f"### {title}", "", _summary(record), "")
    fields = [(name, field) for name, field in record.model_fields.items() if name != "kind" or len(names) > 1]
    if not fields:
        yield "No fields."
        return
    yield from ("| field | takes | default |", "|---|---|---|")
    for name, field in fields:
        yield f"| `{name}` | {_takes(field.annotation, field.metadata)} | {_default(record, name, field)} |"


def _summary(record: type[BaseModel]) -> str:
    """The docstring, each paragraph on one line."""
    paragraphs = []
    for text in (record.__doc__ or "").strip().split("\n\n"):
        # Inside of backticks nothing is markup; outside of them the text is prose.
        pieces = re.sub(r"\s+", " ", text.strip()).split("``")
        paragraphs.append("".join(f"`{one}`" if place % 2 else _prose(one) for place, one in enumerate(pieces)))
    return "\n\n".join(paragraphs)


def _prose(text: str) -> str:
    """Escaped, with the blanks at its ends."""
    inner = text.strip()
    if not inner:
        return text
    start = text.index(inner)
    return f"{text[:start]}{escaped(inner)}{text[start + len(inner) :]}"


def _takes(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Values that an annotation accepts, in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _takes(inner[0], [*annotation.__metadata__, *metadata])
    bounds = _bounds(metadata)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        return _either(inner, metadata)
    if origin in (tuple, list):
        items = [item for item in inner if item is not Ellipsis]
        if len(items) > 1:
            return f"list of {len(items)}: {_takes(items[0])}"
        return f"list {bounds} items: {_takes(items[0])}" if bounds else f"list of {_takes(items[0])}"
    if origin is dict:
        return f"mapping of {_takes(inner[0])} to {_takes(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _component((annotation,))
    name = getattr(annotation, "__name__", str(annotation))
    return _PLAIN.get(name, name) + (f", {bounds}" if bounds else "")


def _either(options: tuple[Any, ...], metadata: Iterable[Any]) -> str:
    plain = [option for option in options if not _is_record(option)]
    components = tuple(_bare(option) for option in options if _is_record(option))
    words = [_takes(option, () if option is NoneType else metadata) for option in plain]
    return " or ".join(([_component(components)] if components else []) + words)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_record(annotation: Any) -> bool:
    bare = _bare(annotation)
    return isinstance(bare, type) and issubclass(bare, BaseModel)


def _component(records: tuple[type[BaseModel], ...]) -> str:
    """Links to the records, by the word that chooses them."""
    links = []
    for record in records:
        kind = record.model_fields.get("kind")
        for name in get_args(kind.annotation) if kind else (record.__name__,):
            links.append(f"[{name}](#{_anchor(record)})")
    return " or ".join(links)


def _anchor(record: type[BaseModel]) -> str:
    """Anchor of a page's heading: lower case, without punctuation, hyphens for blanks."""
    title = next(_section(record)).removeprefix("### ")
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _bounds(metadata: Iterable[Any]) -> str:
    low = high = above = below = None
    # A bound inside of another annotation is still wrapped into the field that said it.
    marks = [inner for mark in metadata for inner in (mark.metadata if isinstance(mark, FieldInfo) else (mark,))]
    for mark in marks:
        match mark:
            case Ge(ge=value):
                low = value
            case Gt(gt=value):
                above = value
            case Le(le=value):
                high = value
            case Lt(lt=value):
                below = value
            case MinLen(min_length=value):
                low = value
            case MaxLen(max_length=value):
                high = value
    ends = [f"from {_number(low)}" if low is not None else f"above {_number(above)}" if above is not None else ""]
    ends.append(f"to {_number(high)}" if high is not None else f"below {_number(below)}" if below is not None else "")
    return " ".join(filter(None, ends))


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(record: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "none: must be given"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        kind = getattr(value, "kind", None)
        changed = value != type(value).model_construct()
        return (f"`{kind}`" if kind else f"[{type(value).__name__}](#{_anchor(type(value))})") + (
            ", changed" if changed else ""
        )
    # A dump writes tuples and infinities as they stand in a file.
    dumped = record.model_construct(**{name: value}).model_dump(mode="json", include={name})[name]
    text = (
        yaml.safe_dump(dumped, default_flow_style=True, width=10**9, allow_unicode=True).removesuffix("...\n").strip()
    )
    if len(text) > _LONGEST:
        return "see `radweave config`"
    return f"`{text}`"


def all_fields() -> str:
    """The page that names every field of every method's experiment."""
    return reference(
        {name: [type(make()) for make in module.PRESETS.values()] for name, module in usable_methods().items()}
    )
