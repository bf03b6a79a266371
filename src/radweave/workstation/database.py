"""The database: SQLite beside the run, or what a URL names.

    with database.writing() as connection: ...

One writer at a time takes its lock at the beginning of a transaction, so that no write fails half-way; readers see the
last commit. SQLite offers this (WAL, ``BEGIN IMMEDIATE``); on PostgreSQL a writer holds an advisory lock, and a reader
has one snapshot (``REPEATABLE READ``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, OperationalError

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.storage import exclusive

# Names of users. ``folded`` follows the skeletons of Unicode (UTS 39, 4), with a table of confusable letters: two names
# with one skeleton are one name.

LONGEST: Final = 100
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_LOOKALIKES: Final = (
    "aаαɑ bьƅв cсϲς dԁɗ eєеҽ gցɡ hһհн jјյϳ kкκĸ mмμ nпηոռ oоοσօ0 pрρ qԛզ rг sѕƽ tτт uυսц vνѵ wԝωɯшա xхχ yуγү zζ"
    " liıіιӏլ1|ǀ '’`´ -‐‑‒–—−"
)
"""Groups of confusable characters, each by its first one: Cyrillic, Greek, Armenian, phonetic, digits, marks."""
_SKELETON: Final = str.maketrans({sign: word[0] for word in _LOOKALIKES.split() for sign in word[1:]})
_USED: Final = (
    "LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA"
    " MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN ETHIOPIC KHMER HANGUL CJK HIRAGANA KATAKANA BOPOMOFO"
    " KATAKANA-HIRAGANA"
)
_ALPHABETS: Final = frozenset(_USED.split())
_TOGETHER: Final = frozenset({"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL", "KATAKANA-HIRAGANA"})
"""Alphabets that may be mixed in one name."""
_MARKS: Final = "-_.'@+()·’ "


def folded(name: str) -> str:
    """Skeleton of a name, shared by look-alike names."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(sign for sign in unicodedata.normalize("NFKC", text) if not _is_invisible(sign))
    # Combining marks that are hard to see, such as a dot above an i.
    text = "".join(sign for sign in text if not unicodedata.name(sign, "").startswith("COMBINING "))
    text = " ".join(text.translate(_SKELETON).split())
    return text.replace("rn", "m").replace("vv", "w")[:LONGEST]


def refuse_unclear(name: str) -> None:
    """Refuse an invalid or ambiguous name.

    Raises:
        InputError: for invisible characters, surplus spaces, a form other than NFC, and mixed alphabets.
    """
    if not name or len(name) > LONGEST or not name.isprintable():
        raise InputError("no name", field="name", expected="1 to 100 printable characters")
    if name != " ".join(name.split()) or name != unicodedata.normalize("NFC", name) or any(map(_is_invisible, name)):
        raise InputError("has invisible characters or surplus spaces", field="name")
    alphabets = {_alphabet(sign) for sign in name} - {""}
    if len(alphabets) > 1 and not alphabets <= _TOGETHER:
        raise InputError("mixes letters of several alphabets", field="name", expected="letters of one")


def _is_invisible(sign: str) -> bool:
    kind = unicodedata.category(sign)
    return kind in ("Cc", "Cf", "Cn", "Co") or sign in _INVISIBLE or "VARIATION SELECTOR" in unicodedata.name(sign, "")


def _alphabet(sign: str) -> str:
    """The alphabet of a letter; "" for ASCII digits, combining marks and ``_MARKS``.

    Raises:
        InputError: for a character not allowed in names.
    """
    if sign in _MARKS or (sign.isascii() and sign.isdigit()):
        return ""
    kind, words = unicodedata.category(sign), unicodedata.name(sign, "").split()
    script = words[0] if words else ""
    if kind in ("Mn", "Mc") and script == "COMBINING":
        return ""
    is_known = kind in ("Lu", "Ll", "Lo", "Lm", "Mn", "Mc") and script in _ALPHABETS
    if script == "LATIN":  # phonetic characters look like letters
        is_known = kind in ("Lu", "Ll") and (sign < "\u0250" or "\u1e00" <= sign <= "\u1eff")
    if not is_known:
        raise InputError(
            "holds a character that is not allowed in names", field="name", expected="letters, digits and -_.'@"
        )
    return script


# Tables and migrations. A new database gets all tables and the newest version; an older one runs the ``MIGRATIONS``. A
# newer one is refused.

STATES: Final = ("waiting", "drafting", "drafted", "edited", "signed", "refused", "rejected")
WITH, WITHOUT = "with draft", "without draft"
ROLES: Final = ("reader", "admin")
ROUTINE: Final = "routine"
PRIORITIES: Final = ("low", ROUTINE, "high", "stat")
"""Priorities of a study, the least urgent first: those of Requested Procedure Priority (PS3.3, 0040,1003)."""


class Utc(sa.types.TypeDecorator[datetime]):
    """A time in UTC, in databases that store no zone."""

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

# ``folded`` is the skeleton of the name, NULL for look-alikes from before they were refused. ``subject`` is a digest of
# the issuer and subject of an OpenID provider.
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

# ``secret`` is the SHA-256 of a token or a session cookie: reading the database does not allow a login.
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

# ``version`` counts the drafts: an edit names its base version. ``source`` is a unique key of studies to be taken in
# once: a watched file, a study of a data set. ``owner_id`` is NULL for studies visible to all.
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
    sa.Column("priority", sa.String(10), nullable=False, server_default=ROUTINE),
    sa.CheckConstraint(f"state IN {STATES}", name="known_state"),
)  # fmt: skip

files = sa.Table(
    "files", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("path", sa.String(500), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
)  # fmt: skip

# ``restores`` is the older version that a version restores.
drafts = sa.Table(
    "drafts", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("author_id", sa.ForeignKey("users.id")),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("created", Utc, nullable=False),
    sa.Column("restores", sa.Integer),
)  # fmt: skip

# Evidence of the model for its draft.
evidence = sa.Table(
    "evidence", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("evidence", sa.JSON, nullable=False),
    sa.Column("findings", sa.JSON, nullable=False),
    sa.Column("warnings", sa.JSON, nullable=False),
    sa.Column("model", sa.JSON, nullable=False),
)  # fmt: skip

# ``key`` identifies a sentence through all versions. ``details`` explain the verdict of a sentence.
# ``looked_at_by`` is of older databases; ``reviews`` replaces it.
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

# Sentences that each reader looked at.
reviews = sa.Table(
    "looks", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("key", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), primary_key=True),
)  # fmt: skip

# The reader who has a study in hand (``locks.py``). ``renewed`` is the time of their last request for it.
locks = sa.Table(
    "locks", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False, index=True),
    sa.Column("since", Utc, nullable=False),
    sa.Column("renewed", Utc, nullable=False),
)  # fmt: skip

# Arms of a reader study (``reader_study.py``).
arms = sa.Table(
    "arms", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("arm", sa.String(20), nullable=False),
    sa.CheckConstraint(f"arm IN {(WITH, WITHOUT)}", name="known_arm"),
)  # fmt: skip

# Addenda to signed reports.
addenda = sa.Table(
    "addenda", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("time", Utc, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)  # fmt: skip

# A keyed digest of the patient id (``store.py``), to find studies of the same patient.
patients = sa.Table(
    "patients", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("patient", sa.String(64), nullable=False, index=True),
)  # fmt: skip

# Earlier studies of the same patient by their headers, with the days and seconds of the day in between.
earlier = sa.Table(
    "earlier", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("prior_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("days", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Integer, nullable=False),
)  # fmt: skip

# Refusals of studies whose images can be shown, and the user who overrode them (``drafts.py``). ``holds`` becomes false
# when new images arrive.
refusals = sa.Table(
    "refusals", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("asked_by", sa.ForeignKey("users.id")),
    sa.Column("asked", Utc, key="asked_at"),
    sa.Column("holds", sa.Boolean, nullable=False, default=True),
)  # fmt: skip

# The prior among the local studies. ``prior_id`` is NULL if a reader chose none.
links = sa.Table(
    "links", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("prior_id", sa.ForeignKey("studies.id")),
    sa.Column("found_by", sa.String(20), nullable=False),
    sa.CheckConstraint("found_by IN ('headers', 'hand')", name="known_finder"),
)  # fmt: skip

# The report template that an admin loaded: one row, or none.
templates = sa.Table(
    "templates", meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("title", sa.String(200), nullable=False),
    sa.Column("sections", sa.JSON, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("loaded", Utc, nullable=False),
)  # fmt: skip

# Macros: abbreviations and their texts, of a user, or of the site (``owner`` 0).
macros = sa.Table(
    "macros", meta,
    sa.Column("owner", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("texts", sa.JSON, nullable=False),
)  # fmt: skip

# Studies received from an archive or a scanner: their reports are sent.
arrivals = sa.Table(
    "arrivals", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
)  # fmt: skip

# The prior retrieved from an archive: its files and its signed report, if any. ``outcome`` is the result of the search,
# ``reason`` explains why a study was not used as the prior.
priors = sa.Table(
    "priors", meta,
    sa.Column("study_id", sa.ForeignKey("studies.id"), primary_key=True),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("reason", sa.String(40)),
    sa.Column("files", sa.JSON, nullable=False),
    sa.Column("report", sa.Text),
    sa.Column("days", sa.Integer),
)  # fmt: skip

# Studies listed by a queried archive, by a digest of their UID: none is fetched twice. ``instances`` and ``since`` tell
# since when a study is unchanged; ``due`` is the time of the next attempt; ``images`` is a digest of the fetched
# series.
listed_studies = sa.Table(
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

# Reports to be sent, one row per study, target, format and event. ``receipt`` is the archive's answer or the error.
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

# One row: the last entry. Writers of the log lock it, and it reveals a truncated log.
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


def _create(*tables: sa.Table) -> Migration:
    """A migration that creates tables."""
    return lambda connection: meta.create_all(connection, tables=tables)


def _add_sections(connection: sa.Connection) -> None:
    """Sections and details of sentences, and restored versions."""
    for statement in (
        "ALTER TABLE sentences ADD COLUMN section VARCHAR(20) NOT NULL DEFAULT 'findings'",
        "ALTER TABLE sentences ADD COLUMN details JSON",
        "ALTER TABLE drafts ADD COLUMN restores INTEGER",
    ):
        connection.exec_driver_sql(statement)


def _add_images_digest(connection: sa.Connection) -> None:
    """Digest of the fetched series, to notice later images."""
    columns = {column["name"] for column in sa.inspect(connection).get_columns(listed_studies.name)}
    if "images" not in columns:  # present if an earlier migration created the current table
        connection.exec_driver_sql("ALTER TABLE asked ADD COLUMN images VARCHAR(64)")


def _add_addenda(connection: sa.Connection) -> None:
    """Addenda, reviews of each reader, and the state ``rejected``."""
    meta.create_all(connection, tables=[reviews, addenda])
    connection.exec_driver_sql(
        "INSERT INTO looks (study_id, key, user_id) SELECT DISTINCT study_id, key, looked_at_by FROM sentences "
        "WHERE flagged AND looked_at_by IS NOT NULL AND NOT EXISTS (SELECT 1 FROM looks AS had WHERE "
        "had.study_id = sentences.study_id AND had.key = sentences.key AND had.user_id = sentences.looked_at_by)"
    )
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("ALTER TABLE studies DROP CONSTRAINT known_state")
        connection.exec_driver_sql(f"ALTER TABLE studies ADD CONSTRAINT known_state CHECK (state IN {STATES})")
        return
    # SQLite cannot alter a CHECK, and a copy of the table would break the references to it. So the schema text is
    # edited (sqlite.org/lang_altertable.html, section 7); all rows satisfy the wider CHECK.
    number = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.exec_driver_sql(
        "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'studies'",
        (f"{STATES[:-1]}", f"{STATES}"),
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(number) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def _add_folded_names(connection: sa.Connection) -> None:
    """Look-alike names, disabled users, and users of a provider."""
    columns = {column["name"] for column in sa.inspect(connection).get_columns(users.name)}
    for column, kind in {"folded": "VARCHAR(100)", "disabled": "TIMESTAMP", "subject": "VARCHAR(64)"}.items():
        if column not in columns:
            connection.exec_driver_sql(f"ALTER TABLE users ADD COLUMN {column} {kind}")
    taken: set[str] = set()
    for row in connection.execute(sa.select(users.c.id, users.c.name).order_by(users.c.id)).all():
        name = folded(row.name)
        if name not in taken:
            taken.add(name)
            connection.execute(users.update().where(users.c.id == row.id).values(folded=name))
    for column in ("folded", "subject"):
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX IF NOT EXISTS users_{column} ON users ({column})")


def _add_locks(connection: sa.Connection) -> None:
    """Priorities of studies, and who has one in hand."""
    meta.create_all(connection, tables=[locks])
    if "priority" not in {column["name"] for column in sa.inspect(connection).get_columns(studies.name)}:
        connection.exec_driver_sql(f"ALTER TABLE studies ADD COLUMN priority VARCHAR(10) NOT NULL DEFAULT '{ROUTINE}'")


MIGRATIONS: Final[Mapping[int, Migration]] = {
    2: _add_sections, 3: _create(arrivals, outbox), 4: _create(priors, listed_studies),
    5: _create(patients, earlier, links, templates), 6: _add_images_digest, 7: _add_addenda, 8: _add_folded_names,
    9: _create(refusals), 10: _add_locks, 11: _create(arms), 12: _create(macros),
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
    current = connection.execute(sa.select(version.c.version)).scalar_one()
    if current > newest:
        raise InputError("is of a newer radweave", field="--database", got=f"version {current}", expected=newest)
    for step in sorted(number for number in steps if current < number <= newest):
        steps[step](connection)
        connection.execute(version.update().values(version=step))


def refuse_other_version(connection: sa.Connection) -> None:
    """Refuse a database that ``migrate`` would change.

    Raises:
        InputError: naming its version.
    """
    is_one = sa.inspect(connection).has_table(version.name)
    current = connection.execute(sa.select(version.c.version)).scalar() if is_one else None
    if current != NEWEST:
        got = "no workstation's" if current is None else f"version {current}"
        reason = "is of another version; start the workstation once to bring it up"
        raise InputError(reason, field="--database", got=got, expected=NEWEST)


# One server per database: a second one would take over studies that the first is drafting.

_SERVER_LOCK: Final = 722_811_302
"""Number of PostgreSQL's advisory lock of a server."""


class DatabaseLock:
    """Lock of one server on one database: a file beside SQLite's, a connection to PostgreSQL. Used by one thread.

    It ends with the process; PostgreSQL's also with the connection, so ``acquire`` is called repeatedly.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._held: ExitStack | None = None
        self._connection: sa.Connection | None = None

    def acquire(self) -> None:
        """Take the lock unless it is still held.

        Raises:
            InputError: if another server has it.
            OperationalError: if the database does not answer.
        """
        if self._held is not None and self._is_there():
            return
        self.release()
        with ExitStack() as taken:
            if not (self._by_connection if self._engine.dialect.name == "postgresql" else self._by_file)(taken):
                raise InputError("another server works on it", field="--database")
            self._held = taken.pop_all()

    def _is_there(self) -> bool:
        if self._connection is None:
            return True
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except OperationalError:
            return False
        return True

    def _by_file(self, taken: ExitStack) -> bool:
        file = self._engine.url.database
        if not file or file == ":memory:":  # no other process can open it
            return True
        try:
            taken.enter_context(exclusive(Path(f"{file}.server"), wait=False))
        except BlockingIOError:
            return False
        return True

    def _by_connection(self, taken: ExitStack) -> bool:
        opened = taken.enter_context(self._engine.connect())
        # In the pool the connection would keep its lock.
        taken.callback(opened.invalidate)
        self._connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(_SERVER_LOCK))).scalar_one())

    def release(self) -> None:
        """Release the lock."""
        held, self._held, self._connection = self._held, None, None
        if held is not None:
            held.close()


BUSY_S = 30
"""Time for which a writer waits for another one."""
_WRITER_LOCK: Final = 722_811_301
"""Number of PostgreSQL's advisory lock of writers."""
_LARGEST: Final = (1 << 31) - 1
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {"connect_args": {"timeout": BUSY_S}},
    # pool_pre_ping notices connections closed by a restarted server.
    "postgresql": {
        "connect_args": {"connect_timeout": 10, "options": f"-c lock_timeout={BUSY_S}s"}, "pool_pre_ping": True,
    },
}  # fmt: skip
_READING: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


class Database:
    """Transactions of one database; safe to use from threads."""

    def __init__(self, url: str, *, migrates: bool = True) -> None:
        """Open the database; create or migrate it if needed.

        Args:
            migrates: False opens a database of this version only, and changes nothing in it.

        Raises:
            InputError: if it cannot be opened, its extra is not installed, or it is of a newer program; without
                ``migrates``, if it is of another version.
        """
        try:
            kind = sa.make_url(url).get_backend_name()
            if kind == "postgresql":
                refuse_without("postgres", "a PostgreSQL database", field="--database")
            self._engine = sa.create_engine(url, **_OPTIONS[kind])
        except (ArgumentError, ImportError, KeyError, sa.exc.NoSuchModuleError) as error:
            raise InputError(
                "cannot be used: the URL is invalid, or its driver is not installed", field="--database",
                got=type(error).__name__, expected="sqlite:///FILE or postgresql+psycopg://...",
            ) from None  # fmt: skip
        self._reading = _READING[kind]
        sa.event.listen(self._engine, "before_cursor_execute", _refuse_unstorable)
        self.server_lock = DatabaseLock(self._engine)
        if kind == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            if migrates:
                with self.writing() as connection:
                    migrate(connection)
            else:
                with self.reading() as connection:
                    refuse_other_version(connection)
        except OperationalError:
            # The driver's message may hold the password of the URL.
            raise InputError("cannot be opened", field="--database", got=self._engine.url.render_as_string()) from None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction with one snapshot of the data."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(**self._reading)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """An exclusive write transaction."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                if self._engine.dialect.name == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITER_LOCK)))
                yield connection

    def close(self) -> None:
        self.server_lock.release()
        self._engine.dispose()


@contextmanager
def reading_of(url: str, *, migrates: bool = True) -> Iterator[sa.Connection]:
    """A transaction that reads a database without a server; ``Database`` has the arguments and errors."""
    database = Database(url, migrates=migrates)
    try:
        with database.reading() as connection:
            yield connection
    finally:
        database.close()


def _refuse_unstorable(
    connection: sa.Connection, cursor: object, statement: str, parameters: Any, context: object, many: bool
) -> None:
    """Refuse values that SQLite and PostgreSQL store differently: invalid text and large numbers.

    Raises:
        InputError: for NUL, half a surrogate pair, or an integer beyond 31 bits.
    """
    for row in parameters if many else [parameters]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not _is_text(value):
                raise InputError("holds invalid text: NUL, or half a character")
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise InputError("holds a number that is too large")


def _is_text(value: str) -> bool:
    has_half = not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)
    return "\0" not in value and not has_half


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver issues BEGIN too late; see ``_begin_sqlite``
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
