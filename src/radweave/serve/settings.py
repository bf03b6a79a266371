"""What a workstation is started with, and the limits of what it takes in. Nothing here imports more than the base."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from radweave.base.study import Record, Split

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Limits(Record):
    """The most of everything that comes from outside; a refusal names the one that was passed."""

    body_bytes: int = Field(default=1 << 30, ge=1)
    json_bytes: int = Field(default=1 << 20, ge=1)
    files: int = Field(default=2_000, ge=1)
    archive_bytes: int = Field(default=2 << 30, ge=1)
    archive_ratio: int = Field(default=200, ge=1)
    waiting: int = Field(default=256, ge=1)
    sentences: int = Field(default=200, ge=1)
    sentence_characters: int = Field(default=2_000, ge=1)
    draft_characters: int = Field(default=20_000, ge=1)
    page: int = Field(default=200, ge=1)
    images: int = Field(default=16, ge=1)
    views: int = Field(default=32, ge=1)
    kept_bytes: int = Field(default=4 << 30, ge=1)


class Settings(Record):
    """A workstation: its run, its places, its address, and the times it waits.

    ``state`` is the folder that holds the database (unless ``database`` gives a URL) and the uploaded files. Times are
    in seconds: ``study_s`` is the most a draft may take, ``drain_s`` what a stop waits for drafts that are being
    written, ``session_s`` how long a login lasts, ``head_s`` how long a request's head may take, ``body_s`` a body
    that does not come.
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
    batch: int = Field(default=8, ge=1)
    tries: int = Field(default=3, ge=1)
    study_s: float = Field(default=120.0, gt=0)
    start_s: float = Field(default=300.0, gt=0)
    drain_s: float = Field(default=30.0, gt=0)
    session_s: float = Field(default=12 * 3600.0, gt=0)
    head_s: float = Field(default=10.0, gt=0)
    body_s: float = Field(default=30.0, gt=0)
    logins: int = Field(default=5, ge=1)
    limits: Limits = Limits()

    @property
    def files(self) -> Path:
        """Where uploaded files lie, a folder for each upload."""
        return self.state / "files"

    @property
    def incoming(self) -> Path:
        """Where images that an archive sends lie until their study is whole."""
        return self.state / "incoming"

    @property
    def asked(self) -> Path:
        """Where what an archive was asked for lies until all of it came."""
        return self.state / "asked"

    @property
    def pixels(self) -> Path:
        """Where decoded images are kept, a folder for each study."""
        return self.state / "pixels"

    @property
    def url(self) -> str:
        """Where the database is, as SQLAlchemy spells it."""
        return self.database or f"sqlite:///{(self.state / 'workstation.db').absolute()}"
