"""The database: SQLite beside the run, or what a URL names.

    with database.writing() as connection: ...

One writer writes at a time and takes its lock when it begins, so that it never finds out in the middle that another one
was faster; readers see the last commit meanwhile. SQLite does so by itself (WAL, ``BEGIN IMMEDIATE``); on PostgreSQL a
writer holds an advisory lock, and a reader has one snapshot (``REPEATABLE READ``).
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

# Names of users: what one may be, and which of them look alike and so are one.
#
# ``folded`` follows the skeletons of Unicode (UTS 39, 4), with a table of our own for the letters that are taken from one
# alphabet for those of another: two names of one skeleton are one name.


LONGEST: Final = 100
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_LOOKS: Final = (
    "aаαɑ bьƅв cсϲς dԁɗ eєеҽ gցɡ hһհн jјյϳ kкκĸ mмμ nпηոռ oоοσօ0 pрρ qԛզ rг sѕƽ tτт uυսц vνѵ wԝωɯшա xхχ yуγү zζ"
    " liıіιӏլ1|ǀ '’`´ -‐‑‒–—−"
)
"""The letter that others are taken for, and these: of Cyrillic, Greek, Armenian, phonetics; digits and marks too."""
_ALIKE: Final = str.maketrans({sign: word[0] for word in _LOOKS.split() for sign in word[1:]})
_USED: Final = (
    "LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA"
    " MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN ETHIOPIC KHMER HANGUL CJK HIRAGANA KATAKANA BOPOMOFO"
    " KATAKANA-HIRAGANA"
)
_ALPHABETS: Final = frozenset(_USED.split())
_TOGETHER: Final = frozenset({"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL", "KATAKANA-HIRAGANA"})
"""Those that one name may have side by side."""
_MARKS: Final = "-_.'@+()·’ "


def folded(name: str) -> str:
    """What two names share that look alike."""
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(sign for sign in unicodedata.normalize("NFKC", text) if not _is_invisible(sign))
    # Marks that no letter takes up: a dot above an i is not seen, others hide behind a letter.
    text = "".join(sign for sign in text if not unicodedata.name(sign, "").startswith("COMBINING "))
    text = " ".join(text.translate(_ALIKE).split())
    return text.replace("rn", "m").replace("vv", "w")[:LONGEST]


def refuse_unclear(name: str) -> None:
    """Refuse a name that is none, or that does not show all it has.

    Raises:
        InputError: for signs that are not seen, spaces at the ends, other spellings, and alphabets that are mixed.
    """
    if not name or len(name) > LONGEST or not name.isprintable():
        raise InputError("no name", field="name", expected="1 to 100 printable characters")
    if name != " ".join(name.split()) or name != unicodedata.normalize("NFC", name) or any(map(_is_invisible, name)):
        raise InputError("has signs that are not seen, or spaces at its ends", field="name")
    alphabets = {_alphabet(sign) for sign in name} - {""}
    if len(alphabets) > 1 and not alphabets <= _TOGETHER:
        raise InputError("mixes letters of several alphabets", field="name", expected="letters of one")


def _is_invisible(sign: str) -> bool:
    kind = unicodedata.category(sign)
    return kind in ("Cc", "Cf", "Cn", "Co") or sign in _INVISIBLE or "VARIATION SELECTOR" in unicodedata.name(sign, "")


def _alphabet(sign: str) -> str:
    """The alphabet of a letter; none of digits of ASCII, marks that stand on letters, and a few signs.

    Raises:
        InputError: for a sign that stands in no name.
    """
    if sign in _MARKS or (sign.isascii() and sign.isdigit()):
        return ""
    kind, words = unicodedata.category(sign), unicodedata.name(sign, "").split()
    found = words[0] if words else ""
    if kind in ("Mn", "Mc") and found == "COMBINING":
        return ""
    is_known = kind in ("Lu", "Ll", "Lo", "Lm", "Mn", "Mc") and found in _ALPHABETS
    if found == "LATIN":  # of the others some are signs of phonetics, which look like letters
        is_known = kind in ("Lu", "Ll") and (sign < "\u0250" or "\u1e00" <= sign <= "\u1eff")
    if not is_known:
        raise InputError("holds a sign that stands in no name", field="name", expected="letters, digits and -_.'@")
    return found


# The tables of the workstation, and the way from an older database to this one.
#
# A new database gets all tables and the newest version; an older one goes through ``MIGRATIONS`` step by step, each in
# one transaction. A newer one is refused: an older program would write what it does not understand.


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

# A digest of the patient's id (``workstation/store.py``): whom a study is compared with, not whose it is.
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

# Why a study whose images can be shown was refused, and who asked for its draft all the same (``workstation/drafts.py``).
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


# One server works on a database at a time: another one would take what this one is drafting for left behind.


_HOLD_LOCK: Final = 722_811_302
"""Of PostgreSQL's advisory lock; any, but always the same."""


class Hold:
    """The lock of one server on one database: a file beside SQLite's, a connection to PostgreSQL. One thread at a time.

    It goes with the process; PostgreSQL's goes with the connection too, so ``keep`` is called again and again.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._held: ExitStack | None = None
        self._connection: sa.Connection | None = None

    def keep(self) -> None:
        """Take the lock, or look whether it is still there and take it again where it is not.

        Raises:
            InputError: if another server has it.
            OperationalError: if the database does not answer.
        """
        if self._held is not None and self._is_there():
            return
        self.end()
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
        if not file or file == ":memory:":  # nobody else can open it
            return True
        try:
            taken.enter_context(exclusive(Path(f"{file}.server"), wait=False))
        except BlockingIOError:
            return False
        return True

    def _by_connection(self, taken: ExitStack) -> bool:
        opened = taken.enter_context(self._engine.connect())
        # Back in the pool it would keep its lock.
        taken.callback(opened.invalidate)
        self._connection = opened.execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._connection.execute(sa.select(sa.func.pg_try_advisory_lock(_HOLD_LOCK))).scalar_one())

    def end(self) -> None:
        """Let another server have it."""
        held, self._held, self._connection = self._held, None, None
        if held is not None:
            held.close()


BUSY_S = 30
"""How long a writer waits for another one."""
_NUMBER: Final = 722_811_301
"""Of PostgreSQL's advisory lock; any, but always the same."""
_LARGEST: Final = (1 << 31) - 1
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "sqlite": {"connect_args": {"timeout": BUSY_S}},
    # Connections that a server that was started again has closed are noticed before they are used.
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

    def __init__(self, url: str) -> None:
        """Open the database, made or brought to the newest version where it is not.

        Raises:
            InputError: if the URL names none that can be opened, one whose extra is not installed, or one of a newer
                program.
        """
        try:
            kind = sa.make_url(url).get_backend_name()
            if kind == "postgresql":
                refuse_without("postgres", "a PostgreSQL database", field="--database")
            self._engine = sa.create_engine(url, **_OPTIONS[kind])
        except (ArgumentError, ImportError, KeyError, sa.exc.NoSuchModuleError) as error:
            raise InputError(
                "no database that can be used: the URL is none, or its driver is not installed", field="--database",
                got=type(error).__name__, expected="sqlite:///FILE or postgresql+psycopg://...",
            ) from None  # fmt: skip
        self._reading = _READING[kind]
        sa.event.listen(self._engine, "before_cursor_execute", _refuse_unstorable)
        self.hold = Hold(self._engine)
        if kind == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            with self.writing() as connection:
                migrate(connection)
        except OperationalError:
            # What the driver says may hold the password of the URL.
            raise InputError("cannot be opened", field="--database", got=self._engine.url.render_as_string()) from None

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One view of the data, which nobody else's writing changes."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(**self._reading)
            with connection.begin():
                yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """All of the block is written, or nothing of it; nobody else writes meanwhile."""
        with self._engine.connect() as plain:
            connection = plain.execution_options(writes=True)
            with connection.begin():
                if self._engine.dialect.name == "postgresql":
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_NUMBER)))
                yield connection

    def close(self) -> None:
        self.hold.end()
        self._engine.dispose()


def _refuse_unstorable(
    connection: sa.Connection, cursor: object, statement: str, parameters: Any, context: object, many: bool
) -> None:
    """One rule for all that comes from outside, wherever it goes: text that is text, numbers of usual size.

    Raises:
        InputError: for what one database keeps, the other refuses, and neither finds again.
    """
    for row in parameters if many else [parameters]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not _is_text(value):
                raise InputError("holds what is no text: NUL, or half a character")
            if isinstance(value, int) and abs(value) > _LARGEST:
                raise InputError("holds a number that is too large")


def _is_text(value: str) -> bool:
    if value.isascii():
        return "\0" not in value
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; see ``_begin_sqlite``
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
