"""The plan that connects a workstation to hospital systems: receiver, targets of reports, queries.

receive:
  ae_title: RADWEAVE
  port: 11112
  peers: {SCANNER: 10.0.0.5}
  routes: [{modality: [CR, DX], body_part: [CHEST, THORAX, ""]}]
send:
  - name: archive
    formats: [sr-basic, pdf-dicom]
    events: [drafted, signed]
    web: {url: "https://archive.example/dicom-web", user: radweave, password_file: /run/secrets/archive}
query:
  - name: archive
    web: {url: "https://archive.example/dicom-web", user: radweave, password_file: /run/secrets/archive}
    poll: {modality: [CR, DX], last_h: 24}
    priors: {most_years: 5}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from radweave.core.config import first_problem, read_yaml
from radweave.core.errors import InputError
from radweave.core.study import Record, View
from radweave.workstation.formats import FORMATS

Event = Literal["drafted", "signed"]


def _ae_title(text: str) -> str:
    """PS3.5 Table 6.2-1, AE."""
    if not (0 < len(text.strip()) <= 16 and text.isascii() and text.isprintable() and "\\" not in text):
        raise ValueError("not an AE title: 1 to 16 printable ASCII characters, no backslash")
    return text.strip()


def _format(name: str) -> str:
    if name not in FORMATS or FORMATS[name].suffix != ".dcm":
        raise ValueError(f"not one of {', '.join(one for one, kind in FORMATS.items() if kind.suffix == '.dcm')}")
    return name


AeTitle = Annotated[str, AfterValidator(_ae_title)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


class Tls(Record):
    """PEM files: the own certificate with its key, and the authority of the other side's certificate."""

    certificate: Path
    key: Path
    authority: Path


class Route(Record):
    """Accepted images: each list holds accepted values, "" for an unstated one; no list accepts all."""

    modality: tuple[str, ...] | None = None
    body_part: tuple[str, ...] | None = None
    view: tuple[View, ...] | None = None

    def fits(self, modality: str, body_part: str, view: str) -> bool:
        """True if an image with these values is accepted."""
        return (
            (self.modality is None or modality in self.modality)
            and (self.body_part is None or body_part in self.body_part)
            and (self.view is None or view in self.view)
        )


class Deidentify(Record):
    """De-identification of received images, see ``radweave.data.deidentify``.

    ``key_file`` holds the secret; ``burned_in`` accepts images that may have text in their pixels.
    """

    key_file: Path
    burned_in: bool = False


def may_hold(routes: Iterable[Route], body_part: str) -> bool:
    """True if a series of this body part ("" if unstated) may hold an accepted image."""
    return not body_part or any(route.body_part is None or body_part in route.body_part for route in routes)


class Receive(Record):
    """The C-STORE receiver for ``peers`` (AE title: address); a study is complete after ``quiet_s`` without objects."""

    ae_title: AeTitle
    port: Port
    host: str = "127.0.0.1"
    peers: dict[AeTitle, str] = Field(min_length=1)
    routes: tuple[Route, ...] = (Route(),)
    quiet_s: float = Field(default=10.0, ge=0.1)
    associations: int = Field(default=16, ge=1)
    deidentify: Deidentify | None = None
    tls: Tls | None = None


class Web(Record):
    """An archive's DICOMweb service; its password stands in a file, so that the plan holds no secret."""

    url: str = Field(pattern="^https?://")
    user: str | None = None
    password_file: Path | None = None
    authority: Path | None = None


class Dicom(Record):
    """An archive's C-STORE service, and the ``calling`` AE title of the workstation."""

    host: str
    port: Port
    ae_title: AeTitle
    calling: AeTitle = "RADWEAVE"
    tls: Tls | None = None


class Target(Record):
    """A receiver of reports, by ``web`` or by ``dicom``."""

    name: Name
    formats: tuple[Annotated[str, AfterValidator(_format)], ...] = Field(min_length=1)
    events: tuple[Event, ...] = Field(default=("signed",), min_length=1)
    web: Web | None = None
    dicom: Dicom | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Target:
        if (self.web is None) == (self.dicom is None):
            raise ValueError("give web or dicom")
        return self


Modality = Annotated[str, Field(pattern="^[A-Z0-9_]{2,16}$")]
_RADIOGRAPHS: Final = ("CR", "DX")
_CHEST: Final = {"body_part": ("CHEST", "THORAX", ""), "view": tuple(View)}


def _with_routes(values: Any) -> Any:
    """Default routes: chest images of the queried modalities."""
    if not isinstance(values, Mapping) or "routes" in values:
        return values
    return {**values, "routes": ({**_CHEST, "modality": values.get("modality", _RADIOGRAPHS)},)}


class Poll(Record):
    """A query for new studies every ``every_s``: of these modalities, dated in the last ``last_h``.

    A study is fetched once its number of images is stable for ``quiet_s``; only images that fit ``routes``.
    """

    modality: tuple[Modality, ...] = Field(default=_RADIOGRAPHS, min_length=1)
    last_h: float = Field(default=24.0, gt=0, le=24 * 366)
    every_s: float = Field(default=60.0, ge=0.1)
    quiet_s: float = Field(default=30.0, ge=0)
    routes: tuple[Route, ...]

    _routes = model_validator(mode="before")(_with_routes)


class Priors(Record):
    """A query for the newest earlier study of the same patient with an image for ``routes``.

    A study waits for its prior at most ``wait_s``.
    """

    modality: tuple[Modality, ...] = Field(default=_RADIOGRAPHS, min_length=1)
    most_years: float = Field(default=5.0, gt=0)
    wait_s: float = Field(default=60.0, gt=0)
    routes: tuple[Route, ...]

    _routes = model_validator(mode="before")(_with_routes)


class QueriedDicom(Dicom):
    """An archive's C-FIND service; images come by C-GET, or by C-MOVE to the receiver of the plan."""

    retrieve: Literal["move", "get"] = "move"


class Query(Record):
    """An archive to query by ``web`` (QIDO-RS, WADO-RS) or by ``dicom``: for new studies, priors, or both.

    ``timeout_s`` limits the time, ``most`` the studies of one answer.
    """

    name: Name
    web: Web | None = None
    dicom: QueriedDicom | None = None
    poll: Poll | None = None
    priors: Priors | None = None
    timeout_s: float = Field(default=60.0, gt=0)
    most: int = Field(default=500, ge=1)

    @model_validator(mode="after")
    def _one_way(self) -> Query:
        if (self.web is None) == (self.dicom is None):
            raise ValueError("give web or dicom")
        if self.poll is None and self.priors is None:
            raise ValueError("give poll or priors")
        return self


class Plan(Record):
    """The whole plan; every part is optional."""

    receive: Receive | None = None
    send: tuple[Target, ...] = ()
    query: tuple[Query, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.receive is None and not self.send and not self.query

    @model_validator(mode="after")
    def _nothing_of_nobody(self) -> Plan:
        """Refuse sending and queries with de-identification: no archive knows a pseudonym."""
        if self.receive is not None and self.receive.deidentify is not None and self.send:
            raise ValueError("receive.deidentify: no report of a de-identified study is sent; leave out send")
        if self.receive is not None and self.receive.deidentify is not None and self.query:
            raise ValueError("receive.deidentify: no archive knows a pseudonym; leave out query")
        return self

    @model_validator(mode="after")
    def _names(self) -> Plan:
        for field, named in (("send", self.send), ("query", self.query)):
            if len({one.name for one in named}) < len(named):
                raise ValueError(f"{field}: two of them have one name")
        if self.receive is None and any(one.dicom and one.dicom.retrieve == "move" for one in self.query):
            raise ValueError("query: C-MOVE needs the receiver (receive), or give retrieve: get")
        return self


def read_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        InputError: for an invalid plan, naming the first wrong field.
    """
    try:
        return Plan.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(first_problem(error), file=path) from None
