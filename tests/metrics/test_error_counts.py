"""GREEN and CRIMSON: prompts, answers and scores, at a fake endpoint and with a small local model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from radweave.core.errors import InputError
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.error_counts import (
    crimson_prompt,
    crimson_score,
    green_errors,
    green_prompt,
    green_score,
    read_prompt,
)
from tests.metrics.judge_server import completion, serving
from tests.metrics.score_folders import write_bpe

PAIRS = [Pair("a", "effusion", ("no effusion",)), Pair("b", "clear", ("clear lungs",)), Pair("c", "", ("edema",))]
QUICK = Options(meteor=False, floors=False, resamples=0)


def green_answer(matched: str, significant: str) -> str:
    return (
        f"[Explanation]:\nx\n\n[Clinically Significant Errors]:\n{significant}\n\n[Clinically Insignificant Errors]:\n"
        f"(a) Kind: 9. x\n\n[Matched Findings]:\n{matched}\n"
    )


@pytest.mark.parametrize(
    ("matched", "significant", "expected"),
    [
        ("3. a; b; c", "(a) False report: 1. x\n(d) Severity: 2. y; z", 0.5),
        ("2. a; b", "No errors.", 1.0),
        ("1. a", "(1) False report: 0. none\n(2) Missing: 3. x 3.5 cm", 0.25),
        ("No matched findings.", "(a) False report: 1. x", 0.0),
        ("4. a\n9. b", "(a) without a number", 1.0),
    ],
)  # fmt: skip
def test_green_of_an_answer(matched: str, significant: str, expected: float) -> None:
    assert green_score(green_answer(matched, significant)) == pytest.approx(expected)


def test_green_counts_by_kind_and_leaves_minor_errors_out() -> None:
    assert green_errors(green_answer("1. a", "(f) Change: 2. x; y\n(b) Missing: 1. z")) == (0, 1, 0, 0, 0, 2)
    assert green_score("The report is fine.") is None


def crimson_answer(**errors: object) -> str:
    findings = [("1", "urgent"), ("2", "actionable_not_urgent"), ("3", "benign_expected")]
    record = {
        "reference_findings": [{"id": f"R{n}", "clinical_significance": level} for n, level in findings],
        "predicted_findings": [{"id": f"P{n}", "clinical_significance": level} for n, level in findings],
        "matched_findings": [{"ref_id": "R1", "pred_id": "P1"}, {"ref_id": "R1", "pred_id": "P2"}],
        "errors": {"false_findings": [], "missing_findings": ["R2"], "attribute_errors": []} | errors,
    }
    return f"Here it is:\n```json\n{json.dumps(record)}\n```"


def test_crimson_of_an_answer() -> None:
    # Weights of the reference: 1 + 1/2 + 0. Matched: 1.
    assert crimson_score(crimson_answer()) == pytest.approx(1 / 1.5)
    wrong_side = {"ref_id": "R1", "pred_id": "P1", "severity": "significant", "error_types": ["location"]}
    assert crimson_score(crimson_answer(attribute_errors=[wrong_side])) == pytest.approx(1 / 1.5 / 1.5)
    assert crimson_score(crimson_answer(false_findings=["P2"])) == pytest.approx((1 - 0.5) / 1.5)
    assert crimson_score(crimson_answer(false_findings=["P1", "P1", "P2"])) == pytest.approx(-1.5 / 2.5)
    for unusable in ("", "no", "{}", '{"errors": []}', "[1]", crimson_answer().replace('"R1"', "1")[:40]):
        assert crimson_score(unusable) is None


def test_a_report_cannot_fill_in_the_prompt() -> None:
    text = green_prompt("the {draft} of {reference}", "a {reference}")
    assert "the {draft} of {reference}" in text
    assert "a {reference}" in text
    assert len(green_prompt("word " * 900, "x").split()) < len(crimson_prompt("word " * 900, "x").split())


def test_a_prompt_of_the_folder_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Judge {draft} by {reference}!")
    with serving(lambda *_: (200, {}, completion(green_answer("1. a", "No.")))) as server:
        options = replace(QUICK, judge=server.url, judge_model="m", folders={"green": tmp_path})
        result = evaluate_pairs(PAIRS, options=options)
    assert server.requests[0]["messages"][0]["content"] == "Judge effusion by no effusion!"
    assert result.corpus["GREEN"].value == 1.0
    assert "prompt " in result.protocol.versions["green"]
    (tmp_path / "prompt.txt").write_text("Judge {draft}")
    with pytest.raises(InputError, match=r"prompt\.txt"):
        read_prompt(tmp_path)


def test_a_prompt_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"\xff{reference}{draft}")
    with pytest.raises(InputError, match=r"prompt.txt: not a readable text file"):
        read_prompt(tmp_path)


def test_answers_without_the_form_are_asked_for_again_and_counted() -> None:
    def reply(number: int, body: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
        asks_about_b = "clear lungs" in str(body["messages"])
        text = "no idea" if asks_about_b or number == 1 else green_answer("1. a", "(a) False report: 1. x")
        return 200, {}, completion(text)

    options = Options(meteor=False, resamples=0, scores=("GREEN",), judge_model="m")
    with serving(reply) as server:
        result = evaluate_pairs(PAIRS, options=replace(options, judge=server.url))
    scores = [study["GREEN"] for study in result.per_study().values()]
    assert scores == [0.5, None, 0.5]
    assert result.corpus["GREEN"].value == 0.5
    # Three pairs, two of them asked about twice; floors are not asked about.
    assert len(server.requests) == 5
    assert "no usable answer for 1 of 3 pairs" in result.protocol.versions["green"]


def test_of_two_sections_only_whole_reports_are_asked_about() -> None:
    text = "FINDINGS:\nNo effusion.\n\nIMPRESSION:\nNormal."
    pairs = [Pair(str(i), text, (text,), target="both") for i in range(2)]
    with serving(lambda *_: (200, {}, completion(green_answer("1. a", "No.")))) as server:
        result = evaluate_pairs(pairs, options=replace(QUICK, scores=("GREEN",), judge=server.url, judge_model="m"))
    assert set(result.sections) == {"findings", "impression"}
    assert result.corpus["GREEN"].value == 1.0
    assert "GREEN" not in result.sections["findings"].corpus
    assert len(server.requests) == 1


def test_an_endpoint_that_is_gone_costs_the_row() -> None:
    with serving(lambda *_: (404, {}, b"")) as server:
        options = Options(
            meteor=False,
            floors=False,
            resamples=0,
            scores=("CRIMSON", "temporal_F1"),
            judge=server.url,
            judge_model="m",
        )
        result = evaluate_pairs(PAIRS, options=options)
    assert "gives no answer" in str(result.corpus["CRIMSON"].unavailable)
    assert result.corpus["temporal_F1"].value is not None


def test_without_an_endpoint_the_rows_say_so() -> None:
    result = evaluate_pairs(PAIRS, options=replace(QUICK, scores=("CRIMSON", "GREEN")))
    for key in ("CRIMSON", "GREEN"):
        assert "--judge URL --judge-model NAME" in str(result.corpus[key].unavailable)


def test_green_by_a_local_folder(tmp_path: Path) -> None:
    words = write_bpe(tmp_path)
    shape = LlamaConfig(
        vocab_size=words, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=600, eos_token_id=2, bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(tmp_path)
    (tmp_path / "prompt.txt").write_text("{reference} {draft}")
    result = evaluate_pairs(PAIRS[:1], options=replace(QUICK, folders={"green": tmp_path}))
    # A random model writes no answer of the form; it is counted, and the row has no value.
    assert result.corpus["GREEN"].value is None
    assert "no usable answer for 1 of 1 pairs" in result.protocol.versions["green"]
