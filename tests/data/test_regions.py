"""Texts by region of CT reports, sorted by a stand-in of a chat model, and their way into CTRG-Chest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from radweave.core.chat import ENDPOINT_KEY, HttpChat
from radweave.core.errors import InputError, UnusableModelError
from radweave.core.json_files import read_json, write_json
from radweave.core.stopping import StoppedError
from radweave.data import regions
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.regions import REGIONS, read_answer, write_regions
from tests.chat_server import serving_chat
from tests.command_line import Done, radweave
from tests.metrics.judge_server import serving

LUNG, HEART, BOTH, NOWHERE = (
    "Lung markings are  clear",
    "Heart shadow is normal.",
    "Heart and mediastinum are normal.",
    "Comparison is advised.",
)
REPORTS = {
    "700001": f"{HEART} {BOTH}\n{NOWHERE} {LUNG}",
    "700002": "A nodule of 3 mm is in the left lung.",
    "700003": "Pleural thickening on both sides.",
}
SORTED = {
    "ctrg_700001": {
        "heart": "Heart shadow is normal. Heart and mediastinum are normal.",
        "lung": "Lung markings are clear",
        "mediastinum": "Heart and mediastinum are normal.",
    },
    "ctrg_700002": {"lung": REPORTS["700002"]},
    "ctrg_700003": {"pleura": REPORTS["700003"]},
}
Reply = Callable[[dict[str, Any]], str]


def imported(folder: Path, out: Path, **options: object) -> Dataset:
    """The reports as CTRG-Chest without volumes."""
    folder.mkdir(exist_ok=True)
    entries = [{"id": study, "finding": report} for study, report in REPORTS.items()]
    write_json(folder / "annotation.json", {"train": entries})
    values = {"keep": "text-only", **options}
    return import_dataset("ctrg-chest", folder, out, options=ImportOptions.model_validate(values))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return imported(tmp_path / "source", tmp_path / "dataset").path


def sentences_of(body: dict[str, Any]) -> list[str]:
    sentences: list[str] = json.loads(body["messages"][1]["content"])["sentences"]
    return sentences


def sorting(body: dict[str, Any]) -> str:
    """Sort by words, in another order, case and spacing than the report's."""
    words = {"heart": "heart", "lung": "lung", "mediastinum": "mediastinum", "pleura": "pleural"}
    texts = {
        region: [text.upper() for text in reversed(sentences_of(body)) if word in text.casefold()]
        for region, word in words.items()
    }
    # A text without its own full stop gets one from the model.
    return json.dumps({region: "\n ".join(f"{text.rstrip('.')}." for text in those) for region, those in texts.items()})


def unless(word: str, other: Callable[[], str]) -> Reply:
    """A reply that sorts, but says ``other`` about a report with a word."""
    return lambda body: other() if word in " ".join(sentences_of(body)) else sorting(body)


def run(dataset: Path, out: Path, url: str, *more: str) -> Done:
    return radweave("data", "regions", dataset, "--out", out, "--endpoint", url, "--model", "qwen", *more)


def test_sorted_sentences_become_the_target_of_ctrg(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT_KEY, "secret-key")
    out = tmp_path / "regions.json"
    with serving_chat(reply=sorting) as server:
        done = run(dataset, out, server.url)
    assert (done.returncode, read_json(out)) == (0, SORTED)
    assert "3 of 3 studies have texts by region" in done.stdout
    assert "in no region: 1 of 6 sentences" in done.stdout
    assert "sorting reports: 3 of 3" in done.stderr
    assert {body["temperature"] for body in server.bodies.values()} == {0}
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    aimed = imported(tmp_path / "source", tmp_path / "aimed", target="regions", annotation=out)
    assert [study.report for study in aimed.studies()] == [
        "The region 1 is heart: Heart shadow is normal. Heart and mediastinum are normal."
        " The region 2 is lung: Lung markings are clear The region 3 is mediastinum: Heart and mediastinum are normal.",
        "The region 1 is lung: A nodule of 3 mm is in the left lung.",
        "The region 1 is pleura: Pleural thickening on both sides.",
    ]


def test_a_request_holds_the_report_and_names_nobody(dataset: Path, tmp_path: Path) -> None:
    with serving_chat(reply=sorting) as server:
        run(dataset, tmp_path / "regions.json", server.url)
    texts = json.dumps([*server.bodies.values()])
    assert "Lung markings are clear" in texts
    assert all(name in texts for name in REGIONS)
    assert not any(study in texts for study in REPORTS)
    assert "ctrg" not in texts
    assert str(tmp_path) not in texts


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"lung": "The lungs are clear. No effusion."}', "a sentence that is not the report's"),
        ('{"lung": "effusion."}', "a sentence that is not the report's"),
        ('{"lung": "The lungs are clear?"}', "a sentence that is not the report's"),
        ('{"liver": "The lungs are clear."}', "a region that is none of the ten"),
        ('{"Lung": "The lungs are clear."}', "a region that is none of the ten"),
        ('{"lung": ["The lungs are clear."]}', "not a string"),
        ('{"lung": null}', "not a string"),
        ('["The lungs are clear."]', "not a JSON object"),
        ('```json\n{"lung": "The lungs are clear."}\n```', "not JSON"),
        ('{"lung": "The lungs are clear.", "lung": ""}', "names a region twice"),
        ("[" * 100_000, "not JSON"),
        ('{"lung": " . "}', "no sentence to a region"),
        ("{}", "no sentence to a region"),
    ],
)
def test_answers_that_are_refused(answer: str, reason: str) -> None:
    read = read_answer(answer, ["The lungs are clear.", "There is no effusion."])
    assert isinstance(read, str)
    assert reason in read


def test_broken_json_is_asked_for_anew_then_counted(dataset: Path, tmp_path: Path) -> None:
    """One report never gets a usable answer, one gets it at the second try: the others keep theirs."""
    tries: list[int] = []

    def reply(body: dict[str, Any]) -> str:
        if "nodule" in " ".join(sentences_of(body)):
            tries.append(len(body["messages"]))
            return '{"lung": "A nodule of 3 mm'
        return "Here you are!" if len(body["messages"]) == 2 and "Pleural" in str(body) else sorting(body)

    with serving_chat(reply=reply) as server:
        done = run(dataset, tmp_path / "regions.json", server.url, "--attempts", "4")
    assert tries == [2, 4, 4, 4]  # the correction has the last answer alone before it
    assert done.returncode == 0
    assert "failed: 1 x the answer is not JSON" in done.stderr
    assert "2 of 3 studies" in done.stdout
    assert read_json(tmp_path / "regions.json").keys() == {"ctrg_700001", "ctrg_700003"}


def test_messages_hold_no_report_no_answer_and_no_id(dataset: Path, tmp_path: Path) -> None:
    """Every way to fail, at the command line: exit code 2 if there is no text at all, and then no file."""
    out = tmp_path / "regions.json"
    invented = '{"lung": "An invented effusion of John."}'
    for answer in (invented, '{"John": "x"}', '{"lung": 3}', "John, no JSON", "{}"):
        with serving_chat(reply=lambda _, answer=answer: answer) as server:
            done = run(dataset, out, server.url, "--attempts", "1")
        assert done.returncode == 2
        assert "failed: 3 x the answer " in done.stderr
        shown = (done.stdout + done.stderr).replace(str(tmp_path), "").casefold()
        for secret in ("7000", "john", "effusion", "nodule", "heart", "pleural", "lung"):
            assert secret not in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "source"]


def test_a_second_call_asks_for_the_missing_alone(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions.json"
    with serving_chat(reply=unless("nodule", lambda: "{}")) as server:
        first = run(dataset, out, server.url)
    assert "2 of 3 studies" in first.stdout
    with serving_chat(reply=sorting) as server:
        second = run(dataset, out, server.url)
        third = run(dataset, out, server.url)
    assert [sentences_of(body) for body in server.bodies.values()] == [[REPORTS["700002"]]]
    assert sum(server.requests.values()) == 1
    assert list(read_json(out).items()) == list(SORTED.items())  # in the order of the data set
    for done in (second, third):
        assert done.returncode == 0
        assert "3 of 3 studies" in done.stdout
        assert "in no region: 1 of 6 sentences" in done.stdout


def test_a_stopped_job_keeps_what_was_answered(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions.json"

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise StoppedError

    with serving_chat(reply=sorting) as server, pytest.raises(StoppedError):
        write_regions(dataset, out, HttpChat(server.url, "qwen"), progress=stop)
    assert read_json(out).keys() == {"ctrg_700001", "ctrg_700002"}
    with serving_chat(reply=sorting) as server:
        run(dataset, out, server.url)
    assert (sum(server.requests.values()), read_json(out)) == (1, SORTED)


def test_a_killed_job_keeps_what_was_written_at_intervals(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "_SAVE_EVERY_S", 0.0)
    written: list[int] = []
    with serving_chat(reply=sorting) as server:
        write_regions(
            dataset, tmp_path / "regions.json", HttpChat(server.url, "qwen"),
            progress=lambda done, total: written.append(len(read_json(tmp_path / "regions.json"))),
        )  # fmt: skip
    assert written == [1, 2, 3]


def test_a_file_of_other_settings_is_replaced_only_when_asked(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions.json"
    with serving_chat(reply=sorting) as server:
        run(dataset, out, server.url)
        before = out.read_bytes()
        with pytest.raises(InputError, match="other settings") as caught:
            write_regions(dataset, out, HttpChat(server.url, "llama"))
        assert (caught.value.field, caught.value.got, caught.value.expected) == ("model", "qwen", "llama")
        other = imported(tmp_path / "source", tmp_path / "other", cleaning="lower").path
        with pytest.raises(InputError, match="other settings") as caught:
            write_regions(other, out, HttpChat(server.url, "qwen"))
        assert caught.value.field == "manifest_sha256"
        asked = sum(server.requests.values())
        assert (out.read_bytes(), asked) == (before, 3)
        write_regions(other, out, HttpChat(server.url, "llama"), overwrite=True)
    assert read_json(out)["ctrg_700002"] == {"lung": REPORTS["700002"].lower()}
    before = out.read_bytes()
    with serving_chat({"fail": 1.0}) as server:  # nothing came that could replace it
        done = write_regions(other, out, HttpChat(server.url, "qwen", retries=0), overwrite=True)
    assert (done.texts, done.failed.total(), out.read_bytes()) == ({}, 3, before)


def test_a_file_that_is_not_ours_stays(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions.json"
    out.write_text(json.dumps({"1": {"lung": "By hand."}}))
    for more, reason in (((), "give --overwrite"), (("--overwrite",), "not a file of texts by region")):
        done = run(dataset, out, "http://127.0.0.1:9/v1", *more)
        assert done.returncode == 2
        assert reason in done.stderr
    assert read_json(out) == {"1": {"lung": "By hand."}}


def test_an_endpoint_that_is_gone_or_refuses_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "_GIVE_UP_AFTER", 2)
    source = imported(tmp_path / "source", tmp_path / "dataset").path
    with serving_chat({"fail": 1.0}) as server:
        with pytest.raises(UnusableModelError, match="2 studies in a row: HTTP status 500") as caught:
            write_regions(source, tmp_path / "regions.json", HttpChat(server.url, "qwen", retries=0))
        assert caught.value.field == "--endpoint"
        assert sum(server.requests.values()) == 2
    with serving(lambda number, body: (404, {}, b"no such model: qwen")) as refusing:
        with pytest.raises(UnusableModelError, match="refuses: HTTP status 404") as caught:
            write_regions(source, tmp_path / "regions.json", HttpChat(refusing.url, "qwen"))
        assert str(caught.value.expected).startswith("the model qwen there")
        assert len(refusing.requests) == 1
    assert not (tmp_path / "regions.json").exists()


def ct_card(**fields: object) -> DatasetCard:
    return DatasetCard.model_validate({"name": "x", "modality": "ct", **fields})


@pytest.mark.parametrize(
    ("card", "field", "got"),
    [
        (ct_card(modality="xray"), "modality", "xray"),
        (ct_card(target="regions"), "target", "regions"),
        (ct_card(), None, None),
    ],
)
def test_data_sets_that_are_refused(card: DatasetCard, field: str | None, got: str | None, tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "dataset", card):
        pass
    with pytest.raises(InputError) as caught:
        write_regions(tmp_path / "dataset", tmp_path / "regions.json", HttpChat("http://127.0.0.1:9/v1", "qwen"))
    assert (caught.value.field, caught.value.got) == (field, got)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--endpoint", "http://10.0.0.7/v1"), "or --allow-remote"),
        (("--endpoint", "http://me:secret@127.0.0.1/v1"), "more than host and path"),
        (("--out", "regions.csv"), "ends with .json"),
    ],
)
def test_options_that_are_refused(
    words: Sequence[str], reason: str, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(dataset, Path("regions.json"), "http://127.0.0.1:9/v1", *words)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "secret" not in done.stderr
    assert not list(tmp_path.glob("regions*"))
