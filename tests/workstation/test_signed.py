"""What may be signed and by whom, addenda, rejected drafts, and the proof that what goes out is what was signed."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pydicom import dcmread
from pydicom.dataset import Dataset

from radweave.core.errors import InputError
from radweave.workstation import drafts, hospital, log, outbox, related, reports, store
from radweave.workstation import drafts as signed
from radweave.workstation.database import Database, migrate, now, studies
from radweave.workstation.database import outbox as outbox_table
from radweave.workstation.drafts import AlteredError, ConflictError
from radweave.workstation.events import Metrics
from radweave.workstation.formats import FORMATS
from radweave.workstation.hospital import Sender
from radweave.workstation.hospital_plan import Dicom, Target
from radweave.workstation.reports import signed_studies
from radweave.workstation.settings import Limits
from radweave.workstation.store import NewStudy
from radweave.workstation.users import User, add_user
from tests.command_line import radweave
from tests.workstation.fake_workers import drafted, drafted_with_places
from tests.workstation.reports import STUDY, dicom_image
from tests.workstation.stations import one_draft

TARGET = Target(
    name="archive", formats=("sr-basic",), events=("drafted", "signed"), dicom=Dicom(host="h", port=1, ae_title="A")
)
LIMITS = Limits()
UNSEEN = {
    "zero width": "\u200b", "soft hyphen": "\u00ad", "joiner": "\u200d", "control": "\x07", "hangul filler": "\u3164",
    "jamo filler": "\u115f", "braille blank": "\u2800", "variation selector": "\ufe0f", "tag": "\U000e0041",
    "supplementary selector": "\U000e0101", "combining joiner": "\u034f", "byte order mark": "\ufeff",
    "half width filler": "\uffa0", "private": "\ue000", "lost": "\ufffd", "khmer": "\u17b4", "mongolian": "\u180e",
}  # fmt: skip
TURNS = ("\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\u200e", "\u200f",
         "\u061c")  # fmt: skip
STAYS = ("Größe", "e\u0301tude", "Καρδιά μεγάλη", "心影增大", "Сердце", "\u05dc\u05d1", "5\u00a0cm", "a\nb", "2 × 3 ²")


Readers = tuple[User, User, User]


@pytest.fixture
def readers(database: Database) -> Readers:
    """Two readers and an admin."""
    with database.writing() as connection:
        return tuple(
            User(add_user(connection, name, role=role, password=None), name, role)
            for name, role in (("Dr. Ahn", "reader"), ("Dr. Weber", "reader"), ("Chief", "admin"))
        )  # type: ignore[return-value]


@pytest.fixture
def study(database: Database, readers: Readers) -> str:
    """A drafted study that came from an archive; its second sentence is flagged."""
    with database.writing() as connection:
        made = store.add(connection, NewStudy("a"), owner=None)
        store.claim(connection, 1)
        store.finish(connection, made, drafted(made))
        outbox.arrived(connection, made)
    return made


def row_of(connection: sa.Connection, study: str) -> sa.Row[Any]:
    return connection.execute(sa.select(studies).where(studies.c.id == study)).one()


def keys(connection: sa.Connection, study: str, version: int) -> list[int]:
    return [row["key"] for row in drafts.read(connection, study, version)["sentences"] if row["flagged"]]


def sign(database: Database, study: str, user: User, version: int = 1) -> None:
    with database.writing() as connection:
        drafts.mark_reviewed(connection, study, version, keys(connection, study, version), user)
        drafts.sign(connection, study, version, 1.0, user)


def add(database: Database, study: str, user: User, text: str, after: int) -> None:
    with database.writing() as connection:
        signed.add_addendum(connection, study, after, text, user, most=1_000)


def change(database: Database, study: str, user: User, version: int, *edits: dict[str, Any]) -> int:
    kinds = {"insert": drafts.Insert, "replace": drafts.Replace, "remove": drafts.Remove, "restore": drafts.Restore}
    made = [kinds[one["op"]].model_validate(one) for one in edits]
    with database.writing() as connection:
        return drafts.edit(connection, study, version, made, user, LIMITS)


# What may be signed.


@pytest.mark.parametrize("sign_", [*UNSEEN.values(), *TURNS], ids=lambda text: f"U+{ord(text):04X}")
def test_an_invisible_character_is_refused_in_an_edit(
    sign_: str, database: Database, study: str, readers: Readers
) -> None:
    for text in (sign_, f"No {sign_}effusion.", f"No effusion.{sign_}"):
        for edit in ({"op": "insert", "text": text}, {"op": "replace", "key": 0, "text": text}):
            with pytest.raises(InputError, match=rf"U\+{ord(sign_):04X}"):
                change(database, study, readers[0], 1, edit)
    with pytest.raises(InputError, match="not seen"), database.writing() as connection:
        drafts.reject(connection, study, 1, f"no{sign_}", readers[0])


@pytest.mark.parametrize("text", STAYS)
def test_words_of_every_script_are_kept_as_they_are(
    text: str, database: Database, study: str, readers: Readers
) -> None:
    version = change(database, study, readers[0], 1, {"op": "insert", "text": text})
    with database.reading() as connection:
        assert text in drafts.read(connection, study, version)["text"]
    sign(database, study, readers[0], version)


@pytest.mark.parametrize("text", ["...", "—", "\u0301"])
def test_a_sentence_without_a_word_is_refused(text: str, database: Database, study: str, readers: Readers) -> None:
    with pytest.raises(InputError, match="no letter"):
        change(database, study, readers[0], 1, {"op": "insert", "text": text})


def test_an_empty_report_cannot_be_signed_and_stays_to_be_edited(
    database: Database, study: str, readers: Readers
) -> None:
    version = change(database, study, readers[0], 1, {"op": "remove", "key": 0}, {"op": "remove", "key": 1})
    with pytest.raises(InputError, match="empty"):
        sign(database, study, readers[0], version)
    with database.reading() as connection:
        assert (row_of(connection, study).state, signed.check_signed(connection, study)) == ("edited", "")
    sign(database, study, readers[0], change(database, study, readers[0], version, {"op": "insert", "text": "Clear."}))


@pytest.mark.parametrize("table", ["sentences", "drafts"])
def test_invisible_characters_of_an_older_program_are_refused_at_signing(
    table: str, database: Database, study: str, readers: Readers
) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET text = text || '\u202e'")
    with pytest.raises(InputError, match=r"U\+202E RIGHT-TO-LEFT OVERRIDE"):
        sign(database, study, readers[0])


# Who looked.


def test_a_review_counts_for_its_reader_only(database: Database, study: str, readers: Readers) -> None:
    ahn, weber, chief = readers
    with database.writing() as connection:
        (flagged,) = keys(connection, study, 1)
        drafts.mark_reviewed(connection, study, 1, [flagged, flagged], ahn)
        observed = [drafts.read(connection, study, 1, one)["sentences"][1] for one in readers]
        assert [row["looked_at"] for row in observed] == [True, False, False]
        assert [row["lookers"] for row in observed] == [["Dr. Ahn"]] * 3
    for other in (weber, chief):
        with pytest.raises(ConflictError, match=rf"keys \[{flagged}\]"), database.writing() as connection:
            drafts.sign(connection, study, 1, 1.0, other)
    sign(database, study, weber)


def test_an_edited_sentence_is_reviewed_by_its_editor_only(database: Database, study: str, readers: Readers) -> None:
    ahn, weber, chief = readers
    version = change(database, study, weber, 1, {"op": "replace", "key": 0, "text": "The heart is large."})
    version = change(database, study, ahn, version, {"op": "insert", "text": "No effusion."})
    with database.writing() as connection:
        drafts.mark_reviewed(connection, study, version, [1], chief)
        observed = {
            name: [row["looked_at"] for row in drafts.read(connection, study, version, user)["sentences"]]
            for name, user in (("ahn", ahn), ("weber", weber), ("chief", chief), ("nobody", None))
        }
        texts = [row["text"] for row in drafts.read(connection, study, version)["sentences"]]
    assert texts[:2] == ["No effusion.", "The heart is large."]
    assert observed == {
        "ahn": [True, False, False], "weber": [False, True, False], "chief": [False, False, True],
        "nobody": [False, False, False],
    }  # fmt: skip


def test_a_review_survives_edits_and_covers_one_sentence(database: Database, study: str, readers: Readers) -> None:
    ahn, weber, _ = readers
    with database.writing() as connection:
        (flagged,) = keys(connection, study, 1)
        drafts.mark_reviewed(connection, study, 1, [0], ahn)  # another sentence
    change(database, study, weber, 1, {"op": "replace", "key": flagged, "text": "Left effusion."})
    change(database, study, weber, 2, {"op": "restore", "version": 1})
    for user in (ahn, weber):  # who wrote other words has not looked at those that are back
        with pytest.raises(ConflictError, match="not looked at"), database.writing() as connection:
            drafts.sign(connection, study, 3, 1.0, user)
    with database.writing() as connection:
        drafts.mark_reviewed(connection, study, 3, [flagged], ahn)
    version = change(database, study, weber, 3, {"op": "replace", "key": 0, "text": "The heart is large."})
    with database.writing() as connection:
        drafts.sign(connection, study, version, 1.0, ahn)


FLAGGED = "There is an opacity on the left."
REPEATED: dict[str, tuple[dict[str, Any], ...]] = {
    "the same words": ({"op": "replace", "key": 1, "text": FLAGGED},),
    "other capitals, spaces and stops": ({"op": "replace", "key": 1, "text": "There  is an\u00a0Opacity on the left"},),
    "taken out and put in": ({"op": "remove", "key": 1}, {"op": "insert", "text": FLAGGED}),
    "put in first": ({"op": "insert", "after": 1, "text": FLAGGED}, {"op": "remove", "key": 1}),
    "in place of another": ({"op": "replace", "key": 0, "text": FLAGGED}, {"op": "remove", "key": 1}),
    "by way of other words": ({"op": "replace", "key": 1, "text": "x"}, {"op": "replace", "key": 1, "text": FLAGGED}),
}


@pytest.mark.parametrize("how", REPEATED)
def test_retyping_a_flagged_sentence_keeps_its_warning(
    how: str, database: Database, study: str, readers: Readers
) -> None:
    version = change(database, study, readers[0], 1, *REPEATED[how])
    with database.reading() as connection:
        (key,) = keys(connection, study, version)
        for user in readers:
            assert not drafts.read(connection, study, version, user)["sentences"][-1]["looked_at"]
    for user in readers:
        with pytest.raises(ConflictError, match=rf"keys \[{key}\]"), database.writing() as connection:
            drafts.sign(connection, study, version, 1.0, user)
    sign(database, study, readers[1], version)


def test_a_new_draft_needs_new_reviews(database: Database, study: str, readers: Readers) -> None:
    with database.writing() as connection:
        drafts.mark_reviewed(connection, study, 1, keys(connection, study, 1), readers[0])
        connection.exec_driver_sql("UPDATE studies SET state = 'drafting'")
        store.finish(connection, study, drafted(study))
        with pytest.raises(ConflictError, match="not looked at"):
            drafts.sign(connection, study, 2, 1.0, readers[0])


# What was signed.

ALTERED = {
    "a sentence": "UPDATE sentences SET text = text || ' Not.'",
    "its section": "UPDATE sentences SET section = 'impression' WHERE position = 0",
    "the order": "UPDATE sentences SET position = 1 - position + 10",
    "a sentence less": "DELETE FROM sentences WHERE position = 0",
    "a warning of a sentence": "UPDATE sentences SET flagged = NOT flagged",
    "the draft": "UPDATE drafts SET text = text || ' Not.'",
    "when it was written": "UPDATE drafts SET created = '2001-01-01 00:00:00'",
    "who signed": "UPDATE signoffs SET user_id = user_id + 1",
    "the name of who signed": "UPDATE users SET name = 'Dr. No' WHERE name = 'Dr. Ahn'",
    "when it was signed": "UPDATE signoffs SET time = '2001-01-01 00:00:00'",
    "the version": "UPDATE signoffs SET version = 1",
    "which version is read": "UPDATE studies SET version = 1",
    "no signature": "DELETE FROM signoffs",
    "no state": "UPDATE studies SET state = 'edited'",
    "whose it is": "UPDATE studies SET name = 'other'",
    "findings": "UPDATE evidence SET findings = '[1]'",
    "warnings": "UPDATE evidence SET warnings = '[\"other\"]'",
    "the model": "UPDATE evidence SET model = '{}'",
    "an addendum": "UPDATE addenda SET text = 'Other.' WHERE number = 1",
    "who added": "UPDATE addenda SET user_id = user_id - 1 WHERE number = 2",
    "when it was added": "UPDATE addenda SET time = '2001-01-01 00:00:00' WHERE number = 2",
    "an addendum less": "DELETE FROM addenda WHERE number = 2",
    "all addenda less": "DELETE FROM addenda",
    "an addendum more": "INSERT INTO addenda SELECT study_id, 3, user_id, time, text FROM addenda WHERE number = 1",
}

ENTRIES = {
    "an addendum": 1, "who added": 2, "when it was added": 2, "an addendum less": 2, "all addenda less": 1,
    "an addendum more": 2,
}  # fmt: skip
"""Which of the signature and two addenda the verifier names; for all others the signature."""


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_report_is_not_exported_and_the_verifier_names_its_entry(
    what: str, database: Database, study: str, readers: Readers, url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    version = change(database, study, readers[0], 1, {"op": "insert", "text": "Mine.", "section": "impression"})
    sign(database, study, readers[0], version)
    for number in range(2):
        add(database, study, readers[1], f"More {number}.", number)
    with database.reading() as connection:
        assert signed.verify(connection).altered == ()
        assert len(reports.stored_report(connection, row_of(connection, study), version).report.addenda) == 2
        entries = [row for row in log.entries(connection, study=study, offset=0, limit=99)
                   if row["action"] in ("signed", "addendum")]  # fmt: skip
        ordered, last = [row["number"] for row in entries], entries[-1]["details"]["sealed"]
        assert signed.check_signed(connection, study) == last
    with database.writing() as connection:
        outbox.enqueue(connection, [TARGET])
        connection.execute(outbox_table.delete().where(outbox_table.c.event == "drafted"))
        connection.exec_driver_sql(ALTERED[what])
    with database.reading() as connection:
        for event in (None, "signed", "addendum 1"):
            with pytest.raises(AlteredError):
                reports.stored_report(connection, row_of(connection, study), version, event=event)
        (broken,) = signed.verify(connection).altered
        assert broken == ordered[ENTRIES.get(what, 0)]
    done = radweave("serve", tmp_path / "run", "--database", url, "--verify-log")
    assert (done.returncode, f"got {broken}" in done.stderr) == (2, True), done.stderr
    monkeypatch.setattr(hospital, "send", lambda *_: pytest.fail("nothing of it is sent"))
    Sender(database, (TARGET,), Metrics()).run_once()
    with database.reading() as connection:
        states = {row["event"]: row["state"] for row in outbox.of_study(connection, study)}
        assert states["signed"] == "refused"
        assert [row["details"] for row in log.entries(connection, study=study, offset=0, limit=99)
                if row["action"] == "altered"] == [{"entry": broken}]  # fmt: skip


def test_a_signature_without_a_log_entry_is_invalid(database: Database, study: str, readers: Readers) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE studies SET state = 'signed'")
        with pytest.raises(AlteredError):
            reports.stored_report(connection, row_of(connection, study), 1)
        connection.exec_driver_sql(
            "INSERT INTO signoffs SELECT id, 1, 1, created, 1.0, 0, 2, 2 FROM studies"
        )  # fmt: skip
        with pytest.raises(AlteredError):
            reports.stored_report(connection, row_of(connection, study), 1)
        assert signed.verify(connection).altered == (0,)
        assert related.text_of(connection, row_of(connection, study)) == (None, False)


def test_signatures_without_a_seal_are_checked_by_text(
    database: Database, study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        real = log.append

        def older(connection: sa.Connection, action: str, *, details: Any = None, **more: Any) -> None:
            details = {name: value for name, value in (details or {}).items() if name != "sealed"}
            real(connection, action, details=details, **more)

        patched.setattr(log, "append", older)
        version = change(database, study, readers[0], 1, {"op": "insert", "text": "Mine."})
        sign(database, study, readers[0], version)
    add(database, study, readers[1], "More.", 0)
    with database.reading() as connection:
        assert signed.verify(connection).altered == ()
    for statement in (ALTERED["a sentence"], ALTERED["the draft"], ALTERED["an addendum"]):
        with pytest.raises(AlteredError), database.writing() as connection:
            connection.exec_driver_sql(statement)
            signed.check_signed(connection, study)


# Addenda.


def test_an_addendum_does_not_change_the_report(database: Database, study: str, readers: Readers) -> None:
    with pytest.raises(ConflictError, match="takes no addendum"):
        add(database, study, readers[0], "More.", 0)
    sign(database, study, readers[0])
    with database.reading() as connection:
        before = signed.seal(connection, study)
    add(database, study, readers[1], "Small nodule on the left.", 0)
    for after, text, error in ((0, "Late.", "another addendum"), (1, "\u200b", "not seen"), (1, "x" * 1_001, "long")):
        with pytest.raises(InputError, match=error):
            add(database, study, readers[0], text, after)
    add(database, study, readers[0], "Seen on CT.", 1)
    add(database, study, readers[0], "Seen on CT.", 1)  # sent again, since the answer was lost
    for user, text in ((readers[1], "Seen on CT."), (readers[0], "Seen on MR.")):
        with pytest.raises(ConflictError, match="another addendum"):
            add(database, study, user, text, 1)
    with database.reading() as connection:
        assert signed.seal(connection, study) == before
        report = reports.stored_report(connection, row_of(connection, study), 1).report
        assert [(one.text, one.signature.name) for one in report.addenda] == [
            ("Small nodule on the left.", "Dr. Weber"), ("Seen on CT.", "Dr. Ahn"),
        ]  # fmt: skip
        text, is_signed = related.text_of(connection, row_of(connection, study))
        assert is_signed
        assert str(text).endswith("Small nodule on the left.\n\nSeen on CT."), "a model reads it with the prior"
        assert [row["user"] for row in signed.addenda_json(connection, study)] == ["Dr. Weber", "Dr. Ahn"]
    with pytest.raises(ConflictError), database.writing() as connection:
        drafts.reject(connection, study, 1, "Too late.", readers[0])


def events(database: Database, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> list[str]:
    """What one look of a sender sends, each with the version before it."""
    sent: list[str] = []

    def made(self: Sender, row: sa.Row[Any]) -> bytes:
        with database.reading() as connection:
            before = outbox.predecessor(connection, row)
            reports.to_send(connection, row_of(connection, row.study_id), row)
        return f"{row.event} after {None if before is None else before.event}".encode()

    def send(target: Target, data: bytes, is_over: Any) -> str:
        if fails:
            raise hospital.NotStoredError("away")
        sent.append(data.decode())
        return "kept"

    monkeypatch.setattr(hospital, "send", send)
    monkeypatch.setattr(Sender, "_object", made)
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE outbox SET due = '2001-01-01 00:00:00'")
    Sender(database, (TARGET,), Metrics()).run_once()
    return sent


def test_addenda_are_sent_once_each_after_their_report(
    database: Database, study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert events(database, monkeypatch) == ["drafted after None"]
    sign(database, study, readers[0])
    for number in range(2):
        add(database, study, readers[1], f"More {number}.", number)
    assert events(database, monkeypatch, fails=True) == []
    assert events(database, monkeypatch) == ["signed after drafted"]
    assert events(database, monkeypatch) == ["addendum 1 after signed"]
    assert events(database, monkeypatch) == ["addendum 2 after addendum 1"]
    assert events(database, monkeypatch) == []
    add(database, study, readers[1], "Last.", 2)
    assert events(database, monkeypatch) == ["addendum 3 after addendum 2"]
    assert events(database, monkeypatch) == []


@pytest.mark.parametrize(("state", "names"), [("sent", "drafted"), ("waiting", None), ("refused", None)])
def test_only_versions_in_the_archive_are_named_as_predecessor(
    database: Database, study: str, readers: Readers, state: str, names: str | None
) -> None:
    sign(database, study, readers[0])
    keep = {"study_id": study, "target": "archive", "format": "sr-basic", "tries": 1, "due": now(), "changed": now()}
    with database.writing() as connection:
        rows = [
            {**keep, "event": "drafted", "version": 1, "state": state},
            {**keep, "event": "signed", "version": 1, "state": "waiting"},
            # Another archive's, and this one's in another format, are no versions of it.
            {**keep, "target": "other", "event": "drafted", "version": 1, "state": "sent"},
            {**keep, "format": "pdf-dicom", "event": "drafted", "version": 1, "state": "sent"},
        ]
        connection.execute(outbox_table.delete())
        connection.execute(outbox_table.insert(), rows)
        signed_rows = sa.select(outbox_table).where(outbox_table.c.event == "signed")
        result = outbox.predecessor(connection, connection.execute(signed_rows).one())
    assert (None if result is None else result.event) == names
    if result is not None:
        assert (result.target, result.format) == ("archive", "sr-basic")


# Rejected drafts.


def test_a_rejected_draft_is_no_report_and_its_archive_gets_a_notice(
    database: Database, study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahn, weber, chief = readers
    assert events(database, monkeypatch) == ["drafted after None"]
    with database.writing() as connection:
        drafts.reject(connection, study, 1, "No chest at all.", ahn)
        with pytest.raises(ConflictError, match="no report"):
            reports.stored_report(connection, row_of(connection, study), 1)
        notice = reports.stored_report(connection, row_of(connection, study), 1, event="rejected").report
        assert not notice.is_final
        assert notice.findings == notice.flagged == ()
        assert "No chest at all." in notice.text
        assert drafted(study)["text"] not in FORMATS["text"].bytes_of(notice).decode()
        assert "No chest" not in str(log.entries(connection, study=study, offset=0, limit=99))
        assert related.text_of(connection, row_of(connection, study)) == (None, False)
    for refused in (
        lambda: sign(database, study, ahn),
        lambda: change(database, study, ahn, 1, {"op": "remove", "key": 0}),
    ):
        with pytest.raises(ConflictError):
            refused()
    assert events(database, monkeypatch) == ["rejected after drafted"]
    assert events(database, monkeypatch) == []
    with pytest.raises(PermissionError), database.writing() as connection:
        drafts.reopen(connection, study, 1, weber)
    for user in (ahn, chief):
        with database.writing() as connection:
            drafts.reopen(connection, study, 1, user)
            assert (row_of(connection, study).state, row_of(connection, study).reason) == ("drafted", None)
            with pytest.raises(ConflictError):
                drafts.reopen(connection, study, 1, user)
            drafts.reject(connection, study, 1, "Still none.", ahn)
    with database.writing() as connection:
        drafts.reopen(connection, study, 1, ahn)
    sign(database, study, ahn)
    assert events(database, monkeypatch) == ["signed after drafted"]


def test_a_rejected_draft_has_a_notice_in_every_format_but_maps(
    database: Database, study: str, readers: Readers
) -> None:
    formats = ("map-dicom", "box-dicom", "sr-tid1500")
    target = TARGET.model_copy(update={"formats": formats, "events": ("drafted",)})
    with database.writing() as connection:
        assert outbox.enqueue(connection, [target]) == len(formats)
        drafts.reject(connection, study, 1, "No chest.", readers[0])
        assert outbox.enqueue(connection, [target]) == 2
        rows = [row["format"] for row in outbox.of_study(connection, study) if row["event"] == "rejected"]
    assert rows == ["box-dicom", "sr-tid1500"]


@pytest.fixture
def boxed_study(database: Database, tmp_path: Path) -> str:
    """A drafted study of two radiographs that came from an archive; two of its sentences have boxes."""
    same = {"StudyInstanceUID": STUDY, "SeriesInstanceUID": f"{STUDY}.1"}
    files = [(dicom_image(tmp_path / name, **same), name) for name in ("a.dcm", "b.dcm")]
    with database.writing() as connection:
        made = store.add(connection, NewStudy("a", files=tuple(files)), owner=None)
        store.claim(connection, 1)
        store.finish(connection, made, drafted_with_places({"id": made, "files": files}, "xray"))
        outbox.arrived(connection, made)
    return made


def states(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[Dataset]:
    """Presentation states that one look of a sender sends."""
    sent: list[Dataset] = []

    def send(target: Target, data: bytes, is_over: Any) -> str:
        sent.append(dcmread(io.BytesIO(data)))
        return "kept"

    monkeypatch.setattr(hospital, "send", send)
    Sender(database, (TARGET.model_copy(update={"formats": ("box-dicom",)}),), Metrics()).run_once()
    return sent


def test_boxes_of_a_draft_in_an_archive_are_withdrawn_by_a_report_without_any(
    database: Database, boxed_study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (draft,) = states(database, monkeypatch)
    with database.reading() as connection:
        rows = drafts.read(connection, boxed_study, 1)["sentences"]
    boxed = [row["key"] for row in rows if any(place["boxes"] for place in row["details"]["places"])]
    version = change(database, boxed_study, readers[0], 1, *({"op": "remove", "key": key} for key in boxed))
    sign(database, boxed_study, readers[0], version)
    (final,) = states(database, monkeypatch)
    assert (draft.ContentLabel, final.ContentLabel) == ("DRAFT_BOXES", "SIGNED_NO_BOX")
    assert final.SeriesInstanceUID == draft.SeriesInstanceUID
    assert final.InstanceNumber > draft.InstanceNumber, "viewers show the last one of a series"
    assert final.ReferencedSeriesSequence == draft.ReferencedSeriesSequence
    assert "GraphicAnnotationSequence" in draft
    assert "GraphicAnnotationSequence" not in final
    add(database, boxed_study, readers[1], "More.", 0)
    assert states(database, monkeypatch) == [], "none is left to withdraw"


def test_boxes_of_a_rejected_draft_are_withdrawn_from_its_archive(
    database: Database, boxed_study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(states(database, monkeypatch)) == 1
    with database.writing() as connection:
        drafts.reject(connection, boxed_study, 1, "No chest.", readers[0])
    (notice,) = states(database, monkeypatch)
    assert (notice.ContentLabel, "GraphicAnnotationSequence" in notice) == ("REJECTED_NO_BOX", False)
    with database.writing() as connection:
        drafts.reopen(connection, boxed_study, 1, readers[0])
    sign(database, boxed_study, readers[0])
    (final,) = states(database, monkeypatch)
    assert (final.ContentLabel, "GraphicAnnotationSequence" in final) == ("SIGNED_BOXES", True)


def test_a_draft_that_was_rejected_before_it_was_sent_is_not_sent(
    database: Database, study: str, readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.writing() as connection:
        drafts.reject(connection, study, 1, "No chest.", readers[0])
    assert events(database, monkeypatch) == []
    with database.writing() as connection:
        drafts.reopen(connection, study, 1, readers[0])
    assert events(database, monkeypatch, fails=True) == []
    with database.writing() as connection:
        drafts.reject(connection, study, 1, "No chest.", readers[0])
    # The archive may have it: a server that ends between sending and the receipt notes none.
    assert events(database, monkeypatch) == ["rejected after None"]


def test_of_two_concurrent_decisions_one_counts(database: Database, study: str, readers: Readers) -> None:
    with database.writing() as connection:
        for user in readers:
            drafts.mark_reviewed(connection, study, 1, keys(connection, study, 1), user)
    done: list[str] = []

    def decide(user: User, how: str) -> None:
        try:
            with database.writing() as connection:
                if how == "sign":
                    drafts.sign(connection, study, 1, 1.0, user)
                else:
                    drafts.reject(connection, study, 1, "No chest.", user)
            done.append(how)
        except ConflictError:
            pass

    threads = [threading.Thread(target=decide, args=(user, how)) for user in readers for how in ("sign", "reject")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert [f"{how}ed" for how in done] in (["signed"], ["rejected"])
        assert row_of(connection, study).state == f"{done[0]}ed"
        assert signed.verify(connection).altered == ()


def test_of_two_concurrent_addenda_one_is_stored(database: Database, study: str, readers: Readers) -> None:
    sign(database, study, readers[0])
    done: list[int] = []

    def write(user: User) -> None:
        try:
            add(database, study, user, f"By {user.name}.", 0)
            done.append(user.id)
        except ConflictError:
            pass

    threads = [threading.Thread(target=write, args=(user,)) for user in (*readers, *readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        # The other thread of the same user says the same, which counts once.
        assert (
            [row["user_id"] for row in signed.addenda_json(connection, study)] == done[:1] == list(dict.fromkeys(done))
        )
        assert signed.verify(connection).altered == ()


# Over the interface, and from an older database.


def test_addenda_and_rejections_over_the_interface(client: TestClient, started: Any) -> None:
    place = f"/api/v1/studies/{one_draft(client)['id']}"
    hidden = client.patch(f"{place}/sentences", json={"version": 1, "edits": [{"op": "insert", "text": "a\u200bb"}]})
    assert (hidden.status_code, hidden.json()["error"]["got"]) == (400, "U+200B ZERO WIDTH SPACE, character 2")
    rejected = client.post(f"{place}/reject", json={"version": 1, "reason": "A leg."}).json()
    assert (rejected["state"], rejected["reason"]) == ("rejected", "A leg.")
    assert client.get(place).json()["rejection"]["may_reopen"] is True
    assert client.get(f"{place}/report?format=text").status_code == 409
    assert client.get("/api/v1/studies", params={"state": "rejected"}).json()["total"] == 1
    assert client.post(f"{place}/reopen", json={"version": 1}).json()["state"] == "drafted"
    assert client.post(f"{place}/addenda", json={"after": 0, "text": "More."}).status_code == 409
    client.post(f"{place}/looked", json={"version": 1, "sentences": [1]})
    assert client.post(f"{place}/sign", json={"version": 1, "seconds": 3}).status_code == 200
    assert client.post(f"{place}/reject", json={"version": 1, "reason": "A leg."}).status_code == 409
    assert client.post(f"{place}/addenda", json={"after": 0, "text": "More."}).status_code == 201
    assert client.post(f"{place}/addenda", json={"after": 0, "text": "Other."}).status_code == 409
    repeated = client.post(f"{place}/addenda", json={"after": 0, "text": "More."})
    assert (repeated.status_code, len(repeated.json()["addenda"])) == (201, 1), (
        "the answer to the first may have been lost"
    )
    observed = client.get(place).json()
    assert ([row["text"] for row in observed["addenda"]], observed["altered_at"]) == (["More."], None)
    assert "More." in client.get(f"{place}/report?format=text").text
    with started[1].database.writing() as connection:
        connection.exec_driver_sql("UPDATE addenda SET text = 'Other.'")
    for answer in (
        client.get(f"{place}/report?format=text"),
        client.post(f"{place}/addenda", json={"after": 1, "text": "x"}),
    ):
        assert (answer.status_code, "altered" in answer.text) == (409, True)
    entries = client.get(f"{place}/log").json()["entries"]
    assert [row["action"] for row in entries][-2:] == ["altered"] * 2
    with started[1].database.reading() as connection, pytest.raises(AlteredError):
        signed_studies(connection)
    (number,) = [row["number"] for row in entries if row["action"] == "addendum"]
    assert client.get("/api/v1/log/check").json()["altered_at"] == [number]
    assert client.get(place).json()["altered_at"] == number, "who reads it is told"


def test_a_database_of_the_sixth_version_gets_reviews_and_rejections(
    database: Database, study: str, readers: Readers
) -> None:
    with database.writing() as connection:
        connection.exec_driver_sql("DROP TABLE looks")
        connection.exec_driver_sql("DROP TABLE addenda")
        if connection.dialect.name == "sqlite":
            number = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
            connection.exec_driver_sql("PRAGMA writable_schema = ON")
            connection.exec_driver_sql("UPDATE sqlite_master SET sql = replace(sql, ', ''rejected''', '')")
            connection.exec_driver_sql(f"PRAGMA schema_version = {number + 1}")
            connection.exec_driver_sql("PRAGMA writable_schema = OFF")
        else:
            connection.exec_driver_sql("ALTER TABLE studies DROP CONSTRAINT known_state")
            connection.exec_driver_sql("ALTER TABLE studies ADD CONSTRAINT known_state CHECK (state <> 'rejected')")
        connection.exec_driver_sql(f"UPDATE sentences SET looked_at_by = {readers[0].id} WHERE flagged")
        connection.exec_driver_sql("UPDATE schema_version SET version = 6")
    with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
        connection.exec_driver_sql("UPDATE studies SET state = 'rejected'")
    with database.writing() as connection:
        migrate(connection)
        assert drafts.read(connection, study, 1)["sentences"][1]["lookers"] == ["Dr. Ahn"]
    with database.writing() as connection:
        drafts.reject(connection, study, 1, "No chest.", readers[0])
    with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
        connection.exec_driver_sql("UPDATE studies SET state = 'unknown'")


def test_a_draft_is_reopened_by_its_rejecter_or_an_admin(client: TestClient, started: Any) -> None:
    study = one_draft(client)["id"]
    with started[1].database.writing() as connection:
        connection.exec_driver_sql("UPDATE studies SET owner_id = NULL")
    tokens = {}
    for name in ("Dr. Ahn", "Dr. Weber"):
        number = client.post("/api/v1/users", json={"name": name}).json()["id"]
        tokens[name] = {"Authorization": f"Bearer {client.post(f'/api/v1/users/{number}/token').json()['token']}"}
    place, this = f"/api/v1/studies/{study}", {"version": 1}
    for opener, status in (("Dr. Weber", 403), ("Dr. Ahn", 200), ("admin", 200)):
        rejected = client.post(f"{place}/reject", json={**this, "reason": "A leg."}, headers=tokens["Dr. Ahn"])
        assert rejected.status_code in (200, 409)
        may = client.get(place, headers=tokens.get(opener)).json()["rejection"]["may_reopen"]
        answer = client.post(f"{place}/reopen", json=this, headers=tokens.get(opener))
        assert (answer.status_code, may) == (status, status == 200)
