"""Runs on the hub, against a stand-in server: what is uploaded, and that a commit opens as the run did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import radweave
from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.data.dataset import Dataset
from radweave.inference.hub import fetch_run, is_hub_name, push
from tests.hub_server import Hub, serving_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving_hub(monkeypatch) as stand_in:
        yield stand_in


def newest(hub: Hub, name: str) -> dict[str, bytes]:
    repository = hub.repositories[name]
    return repository.commits[repository.newest]


def test_a_run_is_pushed_without_its_bank_and_opens_at_its_commit(
    toy_run: Path, toy_dataset: Dataset, hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    pushed = push(toy_run, "ward/run")
    assert hub.repositories["ward/run"].private
    files = newest(hub, "ward/run")
    assert set(json.loads(files["run.json"])["files"]) | {"run.json"} == set(files)
    assert not any(name.startswith(("memories/", "drafting/", "checkpoints/")) for name in files)
    assert not {"metrics.jsonl", "started.json"} & set(files)
    text = b"".join(content for name, content in files.items() if not name.endswith(".safetensors"))
    studies = list(toy_dataset.studies())
    assert not any(study.study_id.encode() in text for study in studies)
    assert str(toy_run).encode() not in text
    assert pushed.content.studies == 0
    image = toy_dataset.image_path(next(toy_dataset.studies("test")).images[0].path)
    predictor = radweave.load("ward/run", decoding=["kind=likelihood"])
    assert f"at commit {pushed.commit}" in caplog.text
    own = radweave.load(toy_run, decoding=["kind=likelihood"])
    assert predictor.report(image).text == own.report(image).text
    asked = len(hub.requests)
    folder = fetch_run(f"ward/run@{pushed.commit}")
    assert (folder / "run.json").is_file()
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    assert len(hub.requests) == asked, "a commit that is here needs no network"


def test_a_later_push_leaves_nothing_of_an_earlier_one(toy_run: Path, hub: Hub) -> None:
    first = push(toy_run, "ward/run", bank=True)
    assert first.content.studies > 0
    assert any(name.startswith("drafting/") for name in newest(hub, "ward/run"))
    second = push(toy_run, "ward/run")
    assert not any(name.startswith("drafting/") for name in newest(hub, "ward/run"))
    assert any(fetch_run("ward/run", revision=first.commit).glob("drafting/*"))
    assert not any(fetch_run("ward/run", revision=second.commit).glob("drafting/*"))
    rows = [row for _, row in read_jsonl(fetch_run("ward/run", revision=first.commit) / "drafting/bank/rows.jsonl")]
    assert all(row["study_id"].startswith("case-") for row in rows)


def test_a_public_repository_needs_a_word(toy_run: Path, hub: Hub) -> None:
    push(toy_run, "ward/open", public=True)
    assert not hub.repositories["ward/open"].private
    before = len(hub.repositories["ward/open"].commits)
    with pytest.raises(InputError, match="is public"):
        push(toy_run, "ward/open")
    assert len(hub.repositories["ward/open"].commits) == before


def test_changed_files_and_code_do_not_open(toy_run: Path, hub: Hub) -> None:
    push(toy_run, "ward/run")
    files = newest(hub, "ward/run")
    files["modeling.py"] = b"raise SystemExit"
    folder = fetch_run("ward/run")
    assert not list(folder.rglob("*.py")), "what the card does not name is not downloaded"
    shutil.rmtree(folder)
    files["config.yaml"] += b"# changed\n"
    with pytest.raises(InputError, match="changed after training"):
        radweave.load("ward/run")
    files["run.json"] = b'{"format": "other"}'
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="not the card of a run"):
        radweave.load("ward/run")
    assert not folder.exists(), "nothing half-downloaded stays"


@pytest.mark.parametrize("status", [401, 500])
def test_refusals_are_one_line_without_address_or_key(toy_run: Path, hub: Hub, status: int) -> None:
    hub.status = status
    for call in (lambda: fetch_run("ward/run"), lambda: push(toy_run, "ward/run")):
        with pytest.raises(InputError, match="hub") as refused:
            call()
        assert hub.url not in str(refused.value)
        assert "hf_secret" not in str(refused.value)


def test_names_that_are_none(toy_run: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not the name of a repository"):
        push(toy_run, "run")
    with pytest.raises(InputError, match="two revisions"):
        fetch_run("ward/run@a", revision="b")
    with pytest.raises(InputError, match="not a revision"):
        fetch_run("ward/run@../x")
    with pytest.raises(InputError, match="no such run folder"):
        radweave.load(str(tmp_path / "ward" / "run"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert not is_hub_name("runs/none"), "a typing error in a path of this machine asks no hub"
    assert is_hub_name("ward/run@main")
    with pytest.raises(InputError, match="no such repository"):
        radweave.load("ward/none")
