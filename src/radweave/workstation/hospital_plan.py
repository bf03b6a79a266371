"""How a workstation is joined to a hospital's systems: what it receives and from whom, what it asks, where it sends.

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
    """Files in PEM: our certificate with its key, and the authority that the other side's must be signed by."""

    certificate: Path
    key: Path
    authority: Path


class Route(Record):
    """Images that are taken: each list holds what is let through, "" an image that does not say; no list lets all."""

    modality: tuple[str, ...] | None = None
    body_part: tuple[str, ...] | None = None
    view: tuple[View, ...] | None = None

    def fits(self, modality: str, body_part: str, view: str) -> bool:
        """Whether an image of these may pass."""
        return (
            (self.modality is None or modality in self.modality)
            and (self.body_part is None or body_part in self.body_part)
            and (self.view is None or view in self.view)
        )


class Deidentify(Record):
    """Patients are taken out of images before anything else is done with them: see ``radweave.data.deidentify``.

    ``key_file`` holds the secret; ``burned_in`` lets images pass that may bear text in their pixels.
    """

    key_file: Path
    burned_in: bool = False


def may_hold(routes: Iterable[Route], body_part: str) -> bool:
    """Whether a series of this part, "" for one that does not say, may hold an image that is let through."""
    return not body_part or any(route.body_part is None or body_part in route.body_part for route in routes)


class Receive(Record):
    """The C-STORE receiver. Only ``peers`` (AE title: address) may send; a study is whole after ``quiet_s``."""

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
    """An archive's DICOMweb service. The password stands in a file, so that the plan can be shown."""

    url: str = Field(pattern="^https?://")
    user: str | None = None
    password_file: Path | None = None
    authority: Path | None = None


class Dicom(Record):
    """An archive's C-STORE service, and what we call ourselves."""

    host: str
    port: Port
    ae_title: AeTitle
    calling: AeTitle = "RADWEAVE"
    tls: Tls | None = None


class Target(Record):
    """A place that reports are sent to: by ``web`` or by ``dicom``."""

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


def _with_routes(given: Any) -> Any:
    """What is asked for where no routes are given: the chest, of the modalities that are asked for."""
    if not isinstance(given, Mapping) or "routes" in given:
        return given
    return {**given, "routes": ({**_CHEST, "modality": given.get("modality", _RADIOGRAPHS)},)}


class Poll(Record):
    """Ask for new studies every ``every_s``: of these modalities, dated in the last ``last_h``.

    A study is fetched when its number of images did not change for ``quiet_s``; of it, what fits one of ``routes``.
    """

    modality: tuple[Modality, ...] = Field(default=_RADIOGRAPHS, min_length=1)
    last_h: float = Field(default=24.0, gt=0, le=24 * 366)
    every_s: float = Field(default=60.0, ge=0.1)
    quiet_s: float = Field(default=30.0, ge=0)
    routes: tuple[Route, ...]

    _routes = model_validator(mode="before")(_with_routes)


class Priors(Record):
    """Ask for the same patient's earlier studies, and take the newest that has an image for ``routes``.

    A study waits for it no longer than ``wait_s``.
    """

    modality: tuple[Modality, ...] = Field(default=_RADIOGRAPHS, min_length=1)
    most_years: float = Field(default=5.0, gt=0)
    wait_s: float = Field(default=60.0, gt=0)
    routes: tuple[Route, ...]

    _routes = model_validator(mode="before")(_with_routes)


class AskedDicom(Dicom):
    """An archive's C-FIND service. Images come by C-GET, or by C-MOVE to our own receiver."""

    retrieve: Literal["move", "get"] = "move"


class Query(Record):
    """An archive that is asked, by ``web`` (QIDO-RS, WADO-RS) or by ``dicom``: for new studies, for priors, or both.

    ``timeout_s`` is how long one answer may take, ``most`` how many studies one answer may have.
    """

    name: Name
    web: Web | None = None
    dicom: AskedDicom | None = None
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
    """See above."""

    receive: Receive | None = None
    send: tuple[Target, ...] = ()
    query: tuple[Query, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.receive is None and not self.send and not self.query

    @model_validator(mode="after")
    def _nothing_of_nobody(self) -> Plan:
        """A report under a pseudonym would be filed under a patient that there is not."""
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
        InputError: if the file is none, naming the first field that is wrong.
    """
    try:
        return Plan.model_validate(read_yaml(path))
    except ValidationError as error:
        raise InputError(first_problem(error), file=path) from None
