"""The tables of the workstation, and the way from an older database to this one.

A new database gets all tables and the newest version; an older one goes through ``MIGRATIONS`` step by step, each in
one transaction. A newer one is refused: an older program would write what it does not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from radweave.base.errors import InputError
from radweave.serve.names import folded

STATES: Final = ("waiting", "drafting", "drafted", "edited", "signed", "refused", "rejected")
ROLES: Final = ("reader", "admin")


class Utc(sa.types.TypeDecorator[datetime]):
    """A time with its zone, UTC, in databases that keep no zone."""

    impl = sa.DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        assert value is None or value.tzinfo is not None, "a time without a zone"
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC)


meta = sa.MetaData()

version = sa.Table("schema_version", meta, sa.Column("version", sa.Integer, primary_key=True))

# ``folded`` is what look-alike names share; it is empty of one that looked like another before that was refused.
# ``subject`` is a digest of whom a provider of log-ins means.
users = sa.Table(
    "users", meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(100), nullable=False, unique=True),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("password", sa.String(200)),
    sa.Column("created", Utc, nullable=False),
    sa.Column("folded", sa.String(100), unique=True),
    sa.Column("disabled", Utc),
    sa.Column("subject", sa.String(64), unique=True),
    sa.CheckConstraint(f"role IN {ROLES}", name="known_role"),
)  # fmt: skip

# ``secret`` is the SHA-256 of a token or of a session's cookie: who reads the database cannot log in with it.
tokens = sa.Table(
    "tokens", meta,
    sa.Column("secret", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("created", Utc, nullable=False),
)  # fmt: skip

sessions = sa.Table(
    "sessions", meta,
    sa.Column("secret", sa.String(64), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("csrf", sa.String(64), nullable=False),
    sa.Column("created", Utc, nullable=False),
    sa.Column("ends", Utc, nullable=False),
)  # fmt: skip

# ``version`` counts the drafts: an edit names the one it was made on. ``source`` is unique where a study must come in
# once: a watched file, a study of a data set. ``owner_id`` is empty where a study is everybody's.
studies = sa.Table(
    "studies", meta,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("state", sa.String(20), nullable=False, index=True),
    sa.Column("reason", sa.Text),
    sa.Column("owner_id", sa.ForeignKey("users.id")),
    sa.Column("source", sa.String(64), unique=True),
    sa.Column("dataset_study", sa.String(200)),
    sa.Column("version", sa.Integer, nullable=False, default=0),
    sa.Column("tries", sa.Integer, nullable=False, default=0),
    sa.Column("created", Utc, nullable=False, index=True),
    sa.Column("changed", Utc, nullable=False),
    sa.CheckConstraint(f"state IN {STATES}", name="known_state"),
)  # fmt: skip

files = sa.Table(
    "files", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("path", sa.String(500), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
)  # fmt: skip

# ``restores`` is set where a version is an older one again.
drafts = sa.Table(
    "drafts", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("author_id", sa.ForeignKey("users.id")),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("created", Utc, nullable=False),
    sa.Column("restores", sa.Integer),
)  # fmt: skip

# What the model gave with its draft: it belongs to version 1 and never changes.
evidence = sa.Table(
    "evidence", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("evidence", sa.JSON, nullable=False),
    sa.Column("findings", sa.JSON, nullable=False),
    sa.Column("warnings", sa.JSON, nullable=False),
    sa.Column("model", sa.JSON, nullable=False),
)  # fmt: skip

# ``key`` stays with a sentence through all versions. ``details`` say why the model's sentence has its verdict.
# ``looked_at_by`` is of older databases: ``looks`` says who looked.
sentences = sa.Table(
    "sentences", meta,
    sa.Column("study_id", sa.String(32), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("key", sa.Integer, nullable=False),
    sa.Column("section", sa.String(20), nullable=False, server_default="findings"),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("origin", sa.JSON, nullable=False),
    sa.Column("confidence", sa.Float),
    sa.Column("probability", sa.Float),
    sa.Column("verdict", sa.String(40), nullable=False),
    sa.Column("flagged", sa.Boolean, nullable=False),
    sa.Column("details", sa.JSON),
    sa.Column("looked_at_by", sa.ForeignKey("users.id")),
    sa.Column("edited_by", sa.ForeignKey("users.id")),
    sa.ForeignKeyConstraint(["study_id", "version"], ["drafts.study_id", "drafts.version"]),
    sa.UniqueConstraint("study_id", "version", "key"),
)  # fmt: skip

signoffs = sa.Table(
    "signoffs", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("time", Utc, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("edit_distance_words", sa.Integer, nullable=False),
    sa.Column("accepted_sentences", sa.Integer, nullable=False),
    sa.Column("draft_sentences", sa.Integer, nullable=False),
)  # fmt: skip

# Who looked at which sentence: each signs for what was seen with the own eyes. A key is one sentence in all versions.
looks = sa.Table(
    "looks", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("key", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), primary_key=True),
)  # fmt: skip

# What was added to a signed report, which itself stays as it is.
addenda = sa.Table(
    "addenda", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("time", Utc, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)  # fmt: skip

# A digest of the patient's id (``serve/patients.py``): whom a study is compared with, not whose it is.
patients = sa.Table(
    "patients", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("patient", sa.String(64), nullable=False, index=True),
)  # fmt: skip

# Earlier studies of the same patient, by their headers: days and seconds of the day that lie between.
earlier = sa.Table(
    "earlier", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("prior_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("days", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Integer, nullable=False),
)  # fmt: skip

# Why a study whose images can be shown was refused, and who asked for its draft all the same (``serve/anyway.py``).
# ``holds`` until other images come.
refusals = sa.Table(
    "refusals", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("asked_by", sa.ForeignKey("users.id")),
    sa.Column("asked", Utc),
    sa.Column("holds", sa.Boolean, nullable=False, default=True),
)  # fmt: skip

# The patient's study before one, of those that are here. ``prior_id`` is empty where a reader said that there is none.
links = sa.Table(
    "links", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("prior_id", sa.ForeignKey("studies.id")),
    sa.Column("found_by", sa.String(20), nullable=False),
    sa.CheckConstraint("found_by IN ('headers', 'hand')", name="known_finder"),
)  # fmt: skip

# A template of a report that an admin loaded: one row, or none.
templates = sa.Table(
    "templates", meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("title", sa.String(200), nullable=False),
    sa.Column("sections", sa.JSON, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("loaded", Utc, nullable=False),
)  # fmt: skip

# Studies that came from an archive or a scanner: reports of these are sent.
arrivals = sa.Table(
    "arrivals", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
)  # fmt: skip

# The earlier study of the same patient that a study is drafted with: its files, and its signed report where there is
# one. ``outcome`` says what came of looking for it, ``reason`` why a study was not taken for it.
priors = sa.Table(
    "priors", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("reason", sa.String(40)),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("report", sa.Text),
    sa.Column("days", sa.Integer),
)  # fmt: skip

# Studies that an archive named when it was asked for new ones, by a digest of their UID: none is fetched twice.
# ``instances`` and ``since`` tell when nothing more came to it; ``due`` when it is tried again; ``images`` is a digest
# of the series that were fetched.
asked = sa.Table(
    "asked", meta,
    sa.Column("query", sa.String(40), primary_key=True),
    sa.Column("study", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("instances", sa.Integer),
    sa.Column("since", Utc, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, default=0),
    sa.Column("due", Utc, nullable=False),
    sa.Column("images", sa.String(64)),
    sa.CheckConstraint("state IN ('seen', 'came', 'nothing')", name="known_asking"),
)  # fmt: skip

# What is to be sent, once for each study, target, format and event. ``version`` is the draft's; ``receipt`` what the
# archive said, or why it is not there yet.
outbox = sa.Table(
    "outbox", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("target", sa.String(40), primary_key=True),
    sa.Column("format", sa.String(20), primary_key=True),
    sa.Column("event", sa.String(20), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("state", sa.String(20), nullable=False, index=True),
    sa.Column("tries", sa.Integer, nullable=False, default=0),
    sa.Column("due", Utc, nullable=False),
    sa.Column("receipt", sa.Text),
    sa.Column("changed", Utc, nullable=False),
    sa.CheckConstraint("state IN ('waiting', 'sent', 'refused')", name="known_sending"),
)  # fmt: skip

log = sa.Table(
    "log", meta,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", Utc, nullable=False),
    sa.Column("user_id", sa.Integer),
    sa.Column("action", sa.String(40), nullable=False),
    sa.Column("study_id", sa.String(32), index=True),
    sa.Column("details", sa.JSON, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)  # fmt: skip

# One row: the last entry. It is what writers of the log wait for, and what tells that the log's end was cut off.
log_head = sa.Table(
    "log_head", meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)  # fmt: skip

FIRST_HASH: Final = "0" * 64
_APPEND_ONLY: Final = {
    "sqlite": tuple(
        f"CREATE TRIGGER log_no_{verb} BEFORE {verb} ON log BEGIN SELECT RAISE(ABORT, 'the log is append only'); END"
        for verb in ("update", "delete")
    ),
    "postgresql": (
        "CREATE FUNCTION log_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the log is append only'; END $$",
        "CREATE TRIGGER log_append_only BEFORE UPDATE OR DELETE ON log FOR EACH ROW EXECUTE FUNCTION log_append_only()",
    ),
}

Migration = Callable[[sa.Connection], None]


def _sections(connection: sa.Connection) -> None:
    """Sections and reasons of sentences, and what an undone version is."""
    for statement in (
        "ALTER TABLE sentences ADD COLUMN section VARCHAR(20) NOT NULL DEFAULT 'findings'",
        "ALTER TABLE sentences ADD COLUMN details JSON",
        "ALTER TABLE drafts ADD COLUMN restores INTEGER",
    ):
        connection.exec_driver_sql(statement)


def _sending(connection: sa.Connection) -> None:
    """What came from an archive, and what goes back."""
    meta.create_all(connection, tables=[arrivals, outbox])


def _asking(connection: sa.Connection) -> None:
    """Priors of studies, and what archives were asked for."""
    meta.create_all(connection, tables=[priors, asked])


def _earlier(connection: sa.Connection) -> None:
    """Which studies here come before which, and a template."""
    meta.create_all(connection, tables=[patients, earlier, links, templates])


def _growing(connection: sa.Connection) -> None:
    """What was fetched of a study, so that what comes later is noticed."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(asked.name)}
    if "images" not in there:  # the step that made the table makes it as it is now
        connection.exec_driver_sql("ALTER TABLE asked ADD COLUMN images VARCHAR(64)")


def _addenda(connection: sa.Connection) -> None:
    """Addenda, looks of each reader, and the state of a draft that was rejected."""
    meta.create_all(connection, tables=[looks, addenda])
    connection.exec_driver_sql(
        "INSERT INTO looks (study_id, key, user_id) SELECT DISTINCT study_id, key, looked_at_by FROM sentences "
        "WHERE flagged AND looked_at_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM looks AS had WHERE "
        "had.study_id = sentences.study_id AND had.key = sentences.key AND had.user_id = sentences.looked_at_by)"
    )
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ALTER TABLE studies DROP CONSTRAINT known_state")
        connection.exec_driver_sql(f"ALTER TABLE studies ADD CONSTRAINT known_state CHECK (state IN {STATES})")
        return
    # A table of SQLite cannot get another CHECK, and others refer to it: its definition is changed, which the rows of
    # no state contradict (sqlite.org/lang_altertable.html, section 7).
    number = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'studies'",
        (f"{STATES[:-1]}", f"{STATES}"),
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(number) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def _one_name(connection: sa.Connection) -> None:
    """Look-alike names, users that are disabled, and users of a provider."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(users.name)}
    for column, kind in {"folded": "VARCHAR(100)", "disabled": "TIMESTAMP", "subject": "VARCHAR(64)"}.items():
        if column not in there:
            connection.exec_driver_sql(f"ALTER TABLE users ADD COLUMN {column} {kind}")
    taken: set[str] = set()
    for row in connection.execute(sa.select(users.c.id, users.c.name).order_by(users.c.id)).all():
        name = folded(row.name)
        if name not in taken:
            taken.add(name)
            connection.execute(users.update().where(users.c.id == row.id).values(folded=name))
    for column in ("folded", "subject"):
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX IF NOT EXISTS users_{column} ON users ({column})")


def _refusals(connection: sa.Connection) -> None:
    """Refused studies that keep their images."""
    meta.create_all(connection, tables=[refusals])


MIGRATIONS: Final[Mapping[int, Migration]] = {
    2: _sections, 3: _sending, 4: _asking, 5: _earlier, 6: _growing, 7: _addenda, 8: _one_name, 9: _refusals,
}  # fmt: skip
"""Version -> the step from the one before. Version 1 is the first."""
NEWEST: Final = max(MIGRATIONS, default=1)


def migrate(connection: sa.Connection, *, steps: Mapping[int, Migration] = MIGRATIONS, newest: int = NEWEST) -> None:
    """Bring a database to the newest version, in the transaction of ``connection``.

    Raises:
        InputError: if it is of a newer program.
    """
    if not sa.inspect(connection).has_table(version.name):
        meta.create_all(connection)
        for statement in _APPEND_ONLY.get(connection.dialect.name, ()):
            connection.exec_driver_sql(statement)
        connection.execute(log_head.insert().values(id=1, number=0, hash=FIRST_HASH))
        connection.execute(version.insert().values(version=newest))
        return
    found = connection.execute(sa.select(version.c.version)).scalar_one()
    if found > newest:
        raise InputError("is of a newer radweave", field="--database", got=f"version {found}", expected=newest)
    for step in sorted(number for number in steps if found < number <= newest):
        steps[step](connection)
        connection.execute(version.update().values(version=step))
