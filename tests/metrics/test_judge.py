"""The judge against a fake OpenAI-compatible server on this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radweave.core.chat import ChatFailedError, HttpChat, Messages
from radweave.core.errors import InputError
from radweave.metrics.judge import (
    DIMENSIONS,
    Answer,
    JudgeItem,
    Judgement,
    judge,
    judge_items,
    read_answer,
    summarise,
    wilson_interval,
)
from tests.metrics.judge_server import Reply, answer, completion, prefers_b, serving


def chat(url: str, **settings: Any) -> HttpChat:
    return HttpChat(url, "judge-model", **{"wait_s": 0.0, "timeout_s": 5.0, **settings})


STUDIES = [(f"s{i}", "a left effusion", f"report of a {i}", f"report of b {i}") for i in range(8)]


def test_order_is_balanced_recorded_and_undone() -> None:
    items = judge_items(STUDIES, seed=0)
    assert sum(item.a_first for item in items) == 4
    assert items == judge_items(STUDIES, seed=0)
    assert items != judge_items(STUDIES, seed=1)
    with serving(prefers_b) as server:
        result = summarise(judge(items, chat(server.url)), judge_name="fake", seed=0, both_orders=False)
    assert result["valid"] == 8
    assert result["a_first"] == 4
    assert result["first_slot_share"] == 0.5
    for row in result["dimensions"].values():
        assert (row["b_wins"], row["a_wins"], row["b_win_rate"]) == (8, 0, 1.0)
        # Two-sided sign test of 8 out of 8, times five by Holm.
        assert row["p"] == pytest.approx(2 / 256)
        assert row["p_holm"] == pytest.approx(10 / 256)


def test_request_is_that_of_a_chat_endpoint_and_holds_no_ids() -> None:
    with serving(prefers_b) as server:
        judge(judge_items(STUDIES[:2], seed=0), chat(server.url, key="secret-key"))
    request = server.requests[0]
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"]) == ("judge-model", 0)
    assert server.headers[0]["Authorization"] == "Bearer secret-key"
    instruction, texts = (message["content"] for message in request["messages"])
    assert all(name in instruction for name in DIMENSIONS)
    assert set(json.loads(texts)) == {"reference_report", "first_report", "second_report"}
    assert "s0" not in texts
    assert "s1" not in texts


def test_a_judge_that_always_takes_the_first_wins_nothing() -> None:
    """In one order its choices average out; in both orders every choice flips and none counts."""

    def first(_: int, __: dict[str, Any]) -> Reply:
        return 200, {}, completion(answer("first"))

    with serving(first) as server:
        single = judge(judge_items(STUDIES, seed=0), chat(server.url))
        double = judge(judge_items(STUDIES, seed=0, both_orders=True), chat(server.url))
    once = summarise(single, judge_name="fake", seed=0, both_orders=False)
    assert once["first_slot_share"] == 1.0
    assert {row["b_win_rate"] for row in once["dimensions"].values()} == {0.5}
    twice = summarise(double, judge_name="fake", seed=0, both_orders=True)
    assert twice["asked"] == 16
    for row in twice["dimensions"].values():
        assert (row["flipped_with_order"], row["b_wins"] + row["a_wins"], row["b_win_rate"]) == (8, 0, None)


def test_study_with_one_of_two_answers_does_not_count() -> None:
    """One order says as much of the slot as of the report."""

    def judged(study: str, *choices: str | None) -> list[Judgement]:
        made = [None if one is None else dict.fromkeys(DIMENSIONS, one) for one in choices]
        return [Judgement(study, number == 0, one, ("said",)) for number, one in enumerate(made)]

    answers = [
        *judged("agreed", "b", "b"), *judged("too", "a", "a"), *judged("flipped", "a", "b"), *judged("once", "b", None),
        *judged("later", None, "b"), *judged("never", None, None),
    ]  # fmt: skip
    result = summarise(answers, judge_name="fake", seed=0, both_orders=True)
    assert (result["asked"], result["valid"], result["invalid"]) == (12, 8, 4)
    for row in result["dimensions"].values():
        assert (row["b_wins"], row["a_wins"], row["flipped_with_order"]) == (1, 1, 1)
    single = [one for study in ("x", "y") for one in judged(study, "b")]
    once = summarise([*single, *judged("z", None)], judge_name="fake", seed=0, both_orders=False)
    assert {(row["b_wins"], row["a_wins"]) for row in once["dimensions"].values()} == {(2, 0)}


def test_bad_answers_are_retried_then_counted() -> None:
    def stubborn(number: int, body: dict[str, Any]) -> Reply:
        texts = body["messages"][1]["content"]
        if "of a 0" in texts:
            return 200, {}, completion("Both are good!")
        return 200, {}, completion(answer("second") if number % 2 == 0 else "```json\n{}\n```")

    with serving(stubborn) as server:
        result = judge(judge_items(STUDIES[:3], seed=0), chat(server.url), attempts=3)
    by_study = {judgement.study_id: judgement for judgement in result}
    assert by_study["s0"].choices is None
    assert by_study["s0"].problem == "the answer is not JSON"
    assert by_study["s0"].raw == ("Both are good!",) * 3
    assert by_study["s1"].choices is not None
    assert by_study["s1"].raw[-1] == answer("second")
    summary = summarise(result, judge_name="fake", seed=0, both_orders=False)
    assert (summary["valid"], summary["invalid"]) == (2, 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("[1]", "not a JSON object"),
        (json.dumps(dict.fromkeys(list(DIMENSIONS)[:4], "first")), "five dimensions"),
        (json.dumps({**dict.fromkeys(DIMENSIONS, "first"), "score": 3}), "five dimensions"),
        (json.dumps({**dict.fromkeys(DIMENSIONS, "first"), "detail_richness": "tie"}), "neither first nor second"),
        (json.dumps({**dict.fromkeys(DIMENSIONS, "first"), "detail_richness": ["first"]}), "neither first nor second"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_answers_are_read_strictly(text: str, problem: str) -> None:
    assert problem in str(read_answer(text))


LISTS = {"reference_key_findings": ["effusion"], "first_report_spans": ["a"], "second_report_spans": ["b"]}


@pytest.mark.parametrize(
    ("evidence", "problem"),
    [
        (None, "evidence does not have the keys"),
        ("text", "evidence does not have the keys"),
        ({"first_report_spans": []}, "reference_key_findings, first_report_spans, second_report_spans"),
        ({**LISTS, "more": []}, "evidence does not have the keys"),
        ({**LISTS, "first_report_spans": "a"}, "evidence.first_report_spans is not a list of texts"),
        ({**LISTS, "second_report_spans": [3]}, "evidence.second_report_spans is not a list of texts"),
        ({**LISTS, "second_report_spans": list("abcde")}, "evidence.second_report_spans has 5 texts, not 0 to 4"),
        ({**LISTS, "reference_key_findings": []}, "evidence.reference_key_findings has 0 texts, not 1 to 5"),
    ],
)
def test_evidence_is_read_strictly(evidence: object, problem: str) -> None:
    choices = dict.fromkeys(DIMENSIONS, "first")
    assert problem in str(read_answer(json.dumps({**choices, "evidence": evidence})))
    read = read_answer(json.dumps({**choices, "evidence": LISTS}))
    assert isinstance(read, Answer)
    assert (read.key_findings, read.spans) == (("effusion",), (("first", "a"), ("second", "b")))


def test_spans_are_looked_up_in_their_own_report() -> None:
    """A quote of the other report, of the reference or of nothing is counted, and the choice stays."""
    studies = [(str(n), "A left effusion.", "Small left\neffusion. Clear.", "Large effusions.") for n in range(4)]
    spans = {
        "first_report_spans": ["Small left effusion.", "A left effusion"],
        "second_report_spans": ["Large effusions", "effusion", " "],
    }
    swapped = {"first_report_spans": spans["second_report_spans"], "second_report_spans": spans["first_report_spans"]}

    def quoting(_: int, body: dict[str, Any]) -> Reply:
        a_first = json.loads(body["messages"][1]["content"])["first_report"].startswith("Small")
        return 200, {}, completion(answer("first", **(spans if a_first else swapped)))

    with serving(quoting) as server:
        found = judge(judge_items(studies, seed=0), chat(server.url))
    for judgement in found:
        assert judgement.key_findings == ("normal",)
        assert {(quote.system, quote.text, quote.is_literal) for quote in judgement.quotes} == {
            ("a", "Small left effusion.", True),
            ("a", "A left effusion", False),
            ("b", "Large effusions", True),
            ("b", "effusion", False),
            ("b", " ", False),
        }
    summary = summarise(found, judge_name="fake", seed=0, both_orders=False)
    assert summary["valid"] == 4
    assert summary["evidence"] == {
        "spans": 20,
        "invalid_spans": 12,
        "answers_with_invalid_spans": 4,
        "answers_without_spans": 0,
    }
    with serving(prefers_b) as server:
        silent = judge(judge_items(studies, seed=0), chat(server.url))
    counts = summarise(silent, judge_name="fake", seed=0, both_orders=False)["evidence"]
    assert (counts["spans"], counts["invalid_spans"], counts["answers_without_spans"]) == (0, 0, 4)


def test_busy_server_is_retried_and_refusal_is_not() -> None:
    def busy(number: int, body: dict[str, Any]) -> Reply:
        return (429, {"Retry-After": "0"}, b"") if number < 3 else prefers_b(number, body)

    with serving(busy) as server:
        assert judge(judge_items(STUDIES[:1], seed=0), chat(server.url))[0].choices is not None
        assert len(server.requests) == 3
    with serving(lambda *_: (401, {}, b"bad key secret-key")) as server:
        result = judge(judge_items(STUDIES[:1], seed=0), chat(server.url, key="secret-key"))
        assert len(server.requests) == 1
    assert result[0].problem == "HTTP status 401"


def test_redirect_is_refused() -> None:
    """A redirect would carry the reports and the key to another host."""
    with (
        serving(prefers_b) as other,
        serving(lambda *_: (302, {"Location": f"{other.url}/chat/completions"}, b"")) as server,
    ):
        with pytest.raises(ChatFailedError, match="302"):
            chat(server.url).complete([{"role": "user", "content": "x"}])
        assert other.requests == []


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices": []}', b'{"choices": [{"message": {"content": 3}}]}'])
def test_strange_endpoint_is_no_answer(body: bytes) -> None:
    with serving(lambda *_: (200, {}, body)) as server, pytest.raises(ChatFailedError):
        chat(server.url).complete([{"role": "user", "content": "x"}])


def test_answers_are_saved_when_the_endpoint_fails() -> None:
    class Dying:
        name = "dying"

        def __init__(self) -> None:
            self.num_requests = 0

        def complete(self, messages: Messages) -> str:
            self.num_requests += 1
            if self.num_requests > 2:
                raise ChatFailedError("no connection")
            return answer("first")

    dying = Dying()
    result = judge(judge_items(STUDIES * 3, seed=0), dying)
    assert [judgement.choices is not None for judgement in result[:3]] == [True, True, False]
    assert len(result) == 24
    assert dying.num_requests == 2 + 5
    assert "endpoint is gone" in str(result[-1].problem)


def test_an_unreachable_endpoint_is_reported() -> None:
    with serving(prefers_b) as server:
        url = server.url
    with pytest.raises(ChatFailedError, match="no connection"):
        chat(url, retries=1).complete([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "file:///etc/passwd", "http://user:pw@host/v1"])
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        HttpChat(url, "m")


def test_wilson_interval_by_hand() -> None:
    assert wilson_interval(0, 0) is None
    low, high = wilson_interval(8, 10) or (0, 0)
    # Newcombe, 1998, method 3.
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.2775, abs=1e-4))


def test_limit_draws_studies() -> None:
    assert len(judge_items(STUDIES, seed=0, limit=3)) == 3
    assert isinstance(judge_items(STUDIES, seed=0, limit=3)[0], JudgeItem)
    with pytest.raises(InputError):
        judge_items(STUDIES, seed=0, limit=0)
