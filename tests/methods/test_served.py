"""Reports by a served model: questions, answers that are kept, failures that are named, and data that stays here."""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import radweave
from radweave.core.chat import ENDPOINT_KEY, BudgetSpentError
from radweave.core.errors import InputError, UnusableModelError
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.bulk import BulkResult, ReportRecipe, answers_of, generate_split
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.methods.generator.served import Answers, request_options
from radweave.nn.decoding import DecodingConfig
from tests.chat_server import RATES, ChatServer, report_for, serving_chat
from tests.metrics.judge_server import serving
from tests.toys import write_toy_dataset

SMALL = ("data.image_size=32", "data.tokenizer.vocab_size=300", "data.max_tokens=40", "decoding.max_new_tokens=60")
QUICK = ("model.served.wait_s=0", "model.served.timeout_s=5")


def served_run(dataset: Dataset, out: Path, url: str, *more: str) -> Path:
    overrides = [f"model.endpoint={url}", "model.served.name=toy", *SMALL, *QUICK, *more]
    return train("generator", dataset.path, out, overrides=overrides)


def drafted(run: Path, dataset: Dataset, out: Path, *, at_test: tuple[str, ...] = (), **options: Any) -> BulkResult:
    restored = restore(run)
    predictor = Predictor.of(restored)
    return generate_split(restored, predictor, dataset.path, "test", out, at_test=at_test, **options)


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["study_id"] for row in rows}) == len(rows)
    return {row["study_id"]: row for row in rows}


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with serving_chat() as chat_server:
        yield chat_server


@pytest.fixture(scope="module")
def run(server: ChatServer, toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that asks the server; making it asks nothing. Do not change it; copy it first."""
    made = served_run(toy_dataset, tmp_path_factory.mktemp("served") / "run", server.url)
    assert not server.requests
    return made


def test_every_study_is_asked_once_and_its_answer_is_the_draft(
    run: Path, server: ChatServer, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT_KEY, "secret-key")
    server.requests.clear()
    result = drafted(run, toy_dataset, tmp_path / "out.jsonl", batch_size=4)
    rows = rows_of(tmp_path / "out.jsonl")
    assert (result.written, result.failed) == (6, 0)
    assert set(server.requests.values()) == {1}
    assert {row["hyp"] for row in rows.values()} == {report_for(key) for key in server.requests}
    assert all(row["evidence"]["served"]["tokens"] == 100 for row in rows.values())
    assert not answers_of(tmp_path / "out.jsonl").exists()
    assert server.headers[-1]["Authorization"] == "Bearer secret-key"
    written = b"".join(path.read_bytes() for path in [*run.rglob("*"), tmp_path / "out.jsonl"] if path.is_file())
    assert b"secret-key" not in written


def test_a_question_is_images_and_words_and_names_nobody(run: Path, server: ChatServer, toy_dataset: Dataset) -> None:
    """The images are those that the model's own preparation gives, as PNGs without any text in them."""
    server.bodies.clear()
    study = next(study for study in toy_dataset.studies("test") if len(study.images) == 2)
    report = radweave.load(run).report([toy_dataset.image_path(image.path) for image in study.images])
    (body,) = server.bodies.values()
    assert set(body) == {"model", "messages", "temperature", "max_tokens", "seed"}
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("toy", 0, 60)
    (turn,) = body["messages"]
    *images, text = turn["content"]
    *views, instruction = text["text"].splitlines()
    assert [line.split(" ", 2)[:2] for line in views] == [["Image", "1:"], ["Image", "2:"]]
    assert instruction == "Write the radiology report of this chest X-ray."
    assert len(images) == 2
    for part in images:
        data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
        chunks = [
            data[at + 4 : at + 8] for at in range(8, len(data)) if data[at + 4 : at + 8] in (b"tEXt", b"eXIf", b"iTXt")
        ]
        assert not chunks
        assert np.asarray(Image.open(io.BytesIO(data))).shape == (32, 32)
    everything = json.dumps({**body, "messages": [{**turn, "content": [text]}]})
    for name in (study.study_id, study.patient_id, Path(study.images[0].path).name):
        assert name not in everything
    (key,) = server.bodies
    assert report.text == report_for(key)


def test_context_and_prior_report_are_told(server: ChatServer, tmp_path: Path) -> None:
    from tests.toys import write_followed_dataset

    followed = write_followed_dataset(tmp_path / "followed")
    run = served_run(followed, tmp_path / "run", server.url, "data.priors=true")
    server.bodies.clear()
    drafted(run, followed, tmp_path / "out.jsonl")
    texts = [body["messages"][0]["content"][-1]["text"] for body in server.bodies.values()]
    with_prior = [text for text in texts if "Report of the previous study: " in text]
    assert len(with_prior) == 2
    assert all("of the previous study.\n" in text for text in with_prior)


def test_a_study_without_an_answer_is_named_and_asked_again_alone(toy_dataset: Dataset, tmp_path: Path) -> None:
    """One question in three fails in every try of the first job; the answers of the others are kept."""
    with serving_chat({"rubbish": 0.5}) as server:
        run = served_run(toy_dataset, tmp_path / "run", server.url, "model.served.retries=0")
        out = tmp_path / "out.jsonl"
        result = drafted(run, toy_dataset, out)
        rows = rows_of(out)
        failed = set(result.left_out)
        assert 0 < result.failed == len(failed) < 6
        assert failed.isdisjoint(rows)
        assert len(failed | set(rows)) == 6
        assert all("not that of a chat endpoint" in reason for reason in result.left_out.values())
        before = server.answered.copy()
        while result.failed:
            result = drafted(run, toy_dataset, out, overwrite=True)
        assert len(rows_of(out)) == 6
        assert all(server.answered[key] == count for key, count in before.items()), "no answer was asked for twice"
    image = toy_dataset.image_path(next(toy_dataset.studies("test")).images[0].path)
    with pytest.raises(InputError, match=r"no draft: no connection"):
        radweave.load(run).report(image)


def test_a_budget_ends_the_job_and_a_larger_one_goes_on(
    run: Path, server: ChatServer, toy_dataset: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    server.requests.clear()
    with pytest.raises(BudgetSpentError, match="budget is spent"):
        drafted(run, toy_dataset, out, at_test=("requests=4", "concurrency=2"))
    assert sum(server.requests.values()) == 4
    assert len(Answers(answers_of(out))) == 4
    with pytest.raises(BudgetSpentError):
        drafted(run, toy_dataset, out, at_test=("requests=4",))
    assert sum(server.requests.values()) == 4, "what was spent before the job went on counts"
    assert drafted(run, toy_dataset, out, at_test=("requests=6",)).written == 6
    assert set(server.requests.values()) == {1}


def test_a_worker_of_a_cluster_keeps_its_answers_and_has_its_part_of_the_budget(
    server: ChatServer, toy_dataset: Dataset, tmp_path: Path
) -> None:
    """Two workers share ten requests of which two are spent: four each."""
    made = served_run(toy_dataset, tmp_path / "run", server.url, "model.served.requests=10")
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "one.jsonl").write_text(json.dumps({"key": "a", "text": "b", "requests": 2, "tokens": 9}) + "\n")
    decoding = restore(made).experiment.decoding.model_dump(mode="json")
    recipe = ReportRecipe(made, toy_dataset.path, "test", 4, decoding, (), (), answers, 2)
    compute = pickle.loads(pickle.dumps(recipe)).open()
    compute(("s016", "s017", "s018"), tmp_path / "shard")
    assert set(rows_of(tmp_path / "shard")) == {"s016", "s017", "s018"}
    assert len(Answers(answers)) == 1 + 3
    with pytest.raises(BudgetSpentError, match="expected at most 4"):
        compute(("s019", "s020", "s021"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_an_endpoint_that_refuses_or_is_gone_ends_the_job(toy_dataset: Dataset, tmp_path: Path) -> None:
    with serving_chat({"drop": 1.0}) as server:
        short = ("model.served.retries=1", "model.served.give_up_after=3", "model.served.concurrency=1")
        run = served_run(toy_dataset, tmp_path / "run", server.url, *short)
        with pytest.raises(UnusableModelError, match="no answer for 3 studies in a row"):
            drafted(run, toy_dataset, tmp_path / "out.jsonl")
        # Its worker may have opened the next question before the third failure was read.
        assert 3 <= len(server.requests) <= 4
    assert not (tmp_path / "out.jsonl").exists()
    with serving(lambda *_: (404, {}, b"no model toy")) as strict:
        run = served_run(toy_dataset, tmp_path / "strict", strict.url)
        with pytest.raises(UnusableModelError, match=r"the endpoint refuses: HTTP status 404 .*model toy there"):
            drafted(run, toy_dataset, tmp_path / "out.jsonl")


def test_images_go_to_no_other_machine_unless_that_is_said(
    toy_dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = "http://gpu-7.cluster.invalid:8000/v1"
    with pytest.raises(InputError, match=r"leave this machine .*gpu-7.*allow_remote=true"):
        served_run(toy_dataset, tmp_path / "run", url)
    with pytest.raises(InputError, match="which model does it serve"):
        served_run(toy_dataset, tmp_path / "run", "http://127.0.0.1:1/v1", "model.served.name=''")
    run = served_run(toy_dataset, tmp_path / "run", url, "model.allow_remote=true", "model.served.retries=0")
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match="no draft: no connection"):
        radweave.load(run).report(toy_dataset.image_path("images/1_0.png"))
    assert "patients leave this machine for gpu-7.cluster.invalid, not encrypted (allow_remote=true)" in caplog.text


def test_a_run_of_others_sends_no_image_away_unless_its_user_says_so(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The configuration of an export, or of a run on the hub, may allow what its user never did."""
    url, image = "http://gpu-7.cluster.invalid:8000/v1", toy_dataset.image_path("images/1_0.png")
    run = served_run(toy_dataset, tmp_path / "run", url, "model.allow_remote=true", "model.served.retries=0")
    exported = export(run, tmp_path / "export", bank=False)
    monkeypatch.setattr("radweave.inference.hub.fetch_run", lambda name, revision: run)
    for foreign in (exported, "ward/run"):
        with pytest.raises(InputError, match=r"leave this machine .*gpu-7.*allow_remote=true"):
            radweave.load(foreign).report(image)
        with pytest.raises(InputError, match="no draft: no connection"):
            radweave.load(foreign, allow_remote=True).report(image)
    with pytest.raises(InputError, match="leave this machine"):
        drafted(exported, toy_dataset, tmp_path / "out.jsonl")
    result = drafted(exported, toy_dataset, tmp_path / "out.jsonl", at_test=("allow_remote=true",))
    assert result.failed == 6


def test_options_that_endpoints_do_not_have_are_refused() -> None:
    assert request_options(DecodingConfig(do_sample=True, temperature=0.7, top_p=0.9, seed=3, max_new_tokens=8)) == {
        "max_tokens": 8, "seed": 3, "temperature": 0.7, "top_p": 0.9}  # fmt: skip
    for name, value in (("num_beams", 3), ("repetition_penalty", 2.0), ("no_repeat_ngram_size", 2)):
        with pytest.raises(InputError, match=rf"decoding\.{name}"):
            request_options(DecodingConfig(**{name: value}))


def test_a_served_model_does_not_train(toy_dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stages\.report"):
        served_run(toy_dataset, tmp_path / "run", "http://127.0.0.1:1/v1", "stages.report.epochs=1",
                   "stages.report.losses={report: 1.0}")  # fmt: skip
    with pytest.raises(InputError, match="endpoint and path both"):
        served_run(toy_dataset, tmp_path / "run", "http://127.0.0.1:1/v1", "model.path=somewhere")


def test_half_a_line_of_a_killed_process_is_no_answer(tmp_path: Path) -> None:
    whole = {"key": "a", "text": "A report.", "finish": "stop", "requests": 2, "tokens": 30}
    failed = {"key": "b", "failed": "no connection", "requests": 6}
    lines = [json.dumps(whole), json.dumps(failed), "[]", '{"key": "c", "text": "half']
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    answers = Answers(tmp_path)
    assert (len(answers), answers.requests, answers.tokens) == (1, 8, 30)
    known = answers.get("a")
    assert known is not None
    assert known.text == "A report."
    assert answers.get("b") is None


KILLED = """
import sys
from radweave.cli import main
sys.argv = ["radweave", "generate", *sys.argv[1:]]
main()
"""


@pytest.mark.long
def test_every_study_is_drafted_once_or_named_through_kills_and_a_bad_endpoint(tmp_path: Path) -> None:
    """Rates as stated in ``chat_server``; the process is killed in the middle, twice, and the same command goes on."""
    dataset = write_toy_dataset(tmp_path / "set", tmp_path / "sources", counts=(12, 4, 80))
    with serving_chat(RATES, stall_s=2.0, delay_s=0.05, keep_bodies=False) as server:
        run = served_run(dataset, tmp_path / "run", server.url, "model.served.timeout_s=1", "model.served.retries=2",
                         "model.served.concurrency=4")  # fmt: skip
        out = tmp_path / "out.jsonl"
        options = ["--data", str(dataset.path), "--out", str(out), "--shard-size", "30", "--batch-size", "8"]
        command = [sys.executable, "-c", KILLED, str(run), *options]
        for least in (15, 45):
            job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
            while sum(server.answered.values()) < least:
                assert job.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            job.send_signal(signal.SIGKILL)
            job.wait()
            assert not out.exists()
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert out.is_file(), done.stderr
        rows = rows_of(out)
        named = {line.split()[2].rstrip(":") for line in done.stderr.splitlines() if line.startswith("left out s")}
        assert done.returncode == (2 if named else 0), done.stderr
        studies = {study.study_id for study in dataset.studies("test")}
        assert set(rows) | named == studies
        assert set(rows).isdisjoint(named)
        # An answer that was on its way when the process was killed is asked for again: at most one of each thread.
        assert sum(count - 1 for count in server.answered.values()) <= 2 * 4
        assert {row["hyp"] for row in rows.values()} <= {report_for(key) for key in server.answered}
        assert all(server.kinds[kind] for kind in RATES)
