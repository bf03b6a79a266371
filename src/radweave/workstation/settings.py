"""Settings and limits of a workstation; imports the core only."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from radweave.core.errors import InputError
from radweave.core.study import MOST_VIEWS, Record, Split

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def network(text: str) -> str:
    """An address or a network in its usual spelling.

    Raises:
        InputError: for anything else.
    """
    expected = "addresses or networks: 10.0.0.5,fd00::/8"
    try:
        parsed = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InputError("is no address", field="--behind-proxy", got=text, expected=expected) from None
    if not parsed.prefixlen:
        raise InputError("trusts everybody", field="--behind-proxy", got=text, expected=expected)
    return str(parsed)


def origin(text: str) -> str:
    """A URL of a scheme, a host and perhaps a port.

    Raises:
        InputError: for anything else.
    """
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        is_one = is_one and parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    except ValueError:
        is_one = False
    if not is_one:
        raise InputError("is no address of a server", field="--public-url", got=text, expected="https://HOST[:PORT]")
    return f"{parts.scheme}://{parts.netloc.lower()}"


Network = Annotated[str, AfterValidator(network)]


class Limits(Record):
    """Limits of all input; a refusal names the exceeded one."""

    body_bytes: int = Field(default=1 << 30, ge=1)
    json_bytes: int = Field(default=1 << 20, ge=1)
    files: int = Field(default=2_000, ge=1)
    archive_bytes: int = Field(default=2 << 30, ge=1)
    archive_ratio: int = Field(default=200, ge=1)
    waiting: int = Field(default=256, ge=1)
    sentences: int = Field(default=200, ge=1)
    sentence_characters: int = Field(default=2_000, ge=1)
    draft_characters: int = Field(default=20_000, ge=1)
    images: int = Field(default=16, ge=1)
    views: int = Field(default=MOST_VIEWS, ge=1)
    kept_bytes: int = Field(default=4 << 30, ge=1)
    state_bytes: int | None = Field(default=None, ge=1)
    free_bytes: int = Field(default=256 << 20, ge=0)
    connections: int = Field(default=512, ge=1)
    connections_of_one: int = Field(default=128, ge=1)

    @property
    def most_kept(self) -> int:
        """Most bytes of decoded images, which leave space for the files themselves."""
        return self.kept_bytes if self.state_bytes is None else min(self.kept_bytes, self.state_bytes // 4)


class OpenId(Record):
    """The provider whose users may log in.

    ``claim`` holds the groups of a user; members of ``readers`` or ``admins`` may log in. ``secret_file`` holds the
    client secret, by default the environment's RADWEAVE_OIDC_SECRET; a client without one is public.
    """

    issuer: str
    client_id: str = Field(min_length=1)
    secret_file: Path | None = None
    claim: str = Field(default="groups", min_length=1)
    readers: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    scopes: str = "openid profile"


class Settings(Record):
    """Settings of a workstation: run, folders, address and timeouts.

    ``state`` is the folder that holds the database (unless ``database`` gives a URL) and the uploaded files. Times are
    in seconds: ``study_s`` limits a draft, ``drain_s`` the wait of a stop for drafts in progress, ``session_s`` a
    login, ``head_s`` the head of a request, ``body_s`` the wait for a body, ``idle_s`` how long a study stays
    locked without a request of its reader.

    ``behind_proxy`` are the addresses whose forwarded headers are trusted, ``public_url`` is the address of the
    server for browsers, ``tls_cert`` and ``tls_key`` are PEM files. ``try_out`` logs every browser of this machine in,
    ``hide_patients`` shows pseudonyms and no identifying header,
    ``reader_study`` has half of the studies read without their draft. ``decoding`` are options that drafts are made
    with, key=value.
    """

    run: Path
    state: Path
    data: Path | None = None
    split: Split = "test"
    watch: Path | None = None
    hospital: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65_535)
    database: str | None = None
    untrained: bool = False
    decoding: tuple[str, ...] = ()
    batch: int = Field(default=8, ge=1)
    tries: int = Field(default=3, ge=1)
    study_s: float = Field(default=120.0, gt=0)
    start_s: float = Field(default=300.0, gt=0)
    drain_s: float = Field(default=30.0, gt=0)
    session_s: float = Field(default=12 * 3600.0, gt=0)
    idle_s: float = Field(default=15 * 60.0, gt=0)
    head_s: float = Field(default=10.0, gt=0)
    body_s: float = Field(default=30.0, gt=0)
    logins: int = Field(default=5, ge=1)
    behind_proxy: tuple[Network, ...] = ()
    public_url: Annotated[str, AfterValidator(origin)] | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    openid: OpenId | None = None
    try_out: bool = False
    hide_patients: bool = False
    reader_study: bool = False
    limits: Limits = Limits()

    @property
    def files(self) -> Path:
        """Folder of uploaded files, with a folder per upload."""
        return self.state / "files"

    @property
    def incoming(self) -> Path:
        """Folder of received images until their study is complete."""
        return self.state / "incoming"

    @property
    def retrieved(self) -> Path:
        """Folder of images being retrieved from archives."""
        return self.state / "asked"

    @property
    def pixels(self) -> Path:
        """Folder of cached decoded images, with a folder per study."""
        return self.state / "pixels"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database."""
        return self.database or f"sqlite:///{(self.state / 'workstation.db').absolute()}"


def refuse_contradictions(settings: Settings) -> None:
    """Refuse settings that do not go together.

    Raises:
        InputError: if every browser is let in from another machine, by an address, a proxy or a public address, or if
            archives would get the drafts that a reader study hides.
    """
    if settings.try_out and (settings.host not in LOOPBACK or settings.behind_proxy or settings.public_url):
        raise InputError("serves this machine alone", field="--try", got=settings.host, expected=" or ".join(LOOPBACK))
    if settings.reader_study and settings.hospital is not None:
        raise InputError(
            "goes without --hospital, whose archives would get the drafts that readers do not see",
            field="--reader-study",
        )
