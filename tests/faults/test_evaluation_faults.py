"""Bad input to evaluate, compare and label: one clear sentence, nothing half-written, the rest not lost."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from radweave.core.errors import InputError
from radweave.metrics import Options, Pair, evaluate_pairs, pair_up, read_pairs
from radweave.metrics.commands import (
    CompareRequest,
    EvaluateRequest,
    LabelRequest,
    run_compare,
    run_evaluate,
    run_label,
)
from radweave.metrics.meteor import (
    MAX_WORDS,
    JavaTools,
    find_java_tools,
    meteor_statistics,
    one_line,
    ptb_tokenize,
    score_line,
)
from radweave.metrics.statistics import ExternalScores, Unavailable

PLAIN = Options(meteor=False, floors=False, resamples=0)
GOOD = {"study_id": "a", "hyp": "clear lungs", "ref": "the lungs are clear"}
OTHER = {"study_id": "b", "hyp": "effusion", "ref": "left effusion"}


def write(path: Path, *rows: Any) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**GOOD, "study_id": None}, "not a study id"),
        ({**GOOD, "study_id": 3}, "not a study id"),
        ({"study_id": "b", "ref": "x"}, "'hyp': field is missing (expected it, or its name by --hyp)"),
        ({**OTHER, "hyp": None}, "'hyp': not a text"),
        ({**OTHER, "hyp": 3.5}, "'hyp': not a text"),
        ({**OTHER, "hyp": ["x"]}, "'hyp': not a text"),
        ('{"study_id": "b", "hyp": NaN, "ref": "x"}', "'hyp': not a text"),
        ({**OTHER, "ref": ""}, "reference is empty"),
        ({**OTHER, "ref": " \n"}, "reference is empty"),
        ({**OTHER, "ref": None}, "no reference report"),
        ({**OTHER, "refs": ["x"]}, "either 'ref' or 'refs'"),
        ({"study_id": "b", "hyp": "x", "refs": []}, "not a list of references"),
        ({"study_id": "b", "hyp": "x", "refs": "text"}, "not a list of references"),
        ({"study_id": "b", "hyp": "x", "refs": ["y", ""]}, "reference is empty"),
        ({"study_id": "b", "hyp": "x"}, "either 'ref' or 'refs' (expected one of them, or its name by --ref)"),
        ({**OTHER, "floors": "x"}, "'floors'"),
        ({**OTHER, "floors": {"constant": 3}}, "'floors.constant'"),
        ({**OTHER, "has_prior": "yes"}, "'has_prior'"),
        ({**OTHER, "patient_id": 3}, "'patient_id'"),
        ({**OTHER, "labels": {"Edema": "maybe"}}, "'labels.Edema'"),
        ({**OTHER, "hyp": "\ud800"}, "lone surrogate"),
    ],
)
def test_bad_line_is_named_or_left_out_and_counted(tmp_path: Path, row: Any, says: str) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, row)
    with pytest.raises(InputError) as raised:
        read_pairs(path)
    assert says in str(raised.value)
    assert "p.jsonl, line 2" in str(raised.value)
    result = read_pairs(path, skip_invalid=True)
    assert [pair.study_id for pair in result.pairs] == ["a"]
    assert sum(result.left_out.values()) == 1


@pytest.mark.parametrize("content", ["", "\n\n", "not json\n", "[1, 2]\n", '{"study_id": "a"'])
def test_files_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"p\.jsonl"):
        read_pairs(path)
    with pytest.raises(InputError, match="missing"):
        read_pairs(tmp_path / "nothing.jsonl")


def test_duplicate_ids_are_refused_even_when_bad_lines_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", GOOD, OTHER, GOOD)
    for skip in (False, True):
        with pytest.raises(InputError, match=r"line 3.*comes twice"):
            read_pairs(path, skip_invalid=skip)
    with pytest.raises(InputError, match="comes twice"):
        evaluate_pairs([Pair("a", "x", ("y",)), Pair("a", "x", ("y",))], options=PLAIN)


def test_mismatched_ids_are_refused() -> None:
    with pytest.raises(InputError, match="1 without a generated report, 1 without a reference"):
        pair_up({"a": "x", "b": "y"}, {"b": "y", "c": "z"})
    assert [pair.study_id for pair in pair_up({"b": "x", "a": "y"}, {"a": "r", "b": ["r", "s"]})] == ["a", "b"]


@pytest.mark.parametrize(
    "pair",
    [
        Pair("a", None, ("x",)),  # type: ignore[arg-type]
        Pair("a", float("nan"), ("x",)),  # type: ignore[arg-type]
        Pair("a", "x", "text"),  # type: ignore[arg-type]
        Pair("a", "x", ()),
        Pair("a", "x", ("",)),
        Pair("a", "x", (None,)),  # type: ignore[arg-type]
        Pair("", "x", ("y",)),
    ],
)
def test_bad_pairs_from_python_are_refused(pair: Pair) -> None:
    with pytest.raises(InputError):
        evaluate_pairs([pair], options=PLAIN)


def test_empty_hypothesis_is_scored_and_counted() -> None:
    pairs = [Pair("a", "", ("the heart is normal",)), Pair("b", "clear", ("clear lungs",))]
    for protocol in ("full", "ws", "r2gen_iu", "promptmrg", "hf"):
        result = evaluate_pairs(pairs, protocol, options=Options(meteor=False, resamples=20)).to_json()
        json.dumps(result, allow_nan=False)
        assert result["texts"]["empty_hypotheses"] == 1
        assert result["honesty"]["empty_reports_share"]["value"] == 0.5
        assert result["per_study"]["a"]["BLEU_1"] < 0.1
        assert any("empty" in sentence for sentence in result["warnings"])


def test_all_hypotheses_empty() -> None:
    pairs = [Pair(str(i), "", ("the heart is normal",)) for i in range(4)]
    for protocol in ("full", "ws", "hf"):
        result = evaluate_pairs(pairs, protocol, options=Options(meteor=False, resamples=20)).to_json()
        json.dumps(result, allow_nan=False)
        assert result["corpus"]["BLEU_4"]["value"] == 0.0
        assert result["corpus"]["CIDEr"]["value"] == 0.0


def test_reference_that_a_protocol_empties() -> None:
    """Only punctuation: there is a text, but no token is left of it."""
    pairs = [Pair("a", "...", ("...",)), Pair("b", "clear", ("clear",))]
    result = evaluate_pairs(pairs, options=Options(meteor=False, resamples=20)).to_json()
    json.dumps(result, allow_nan=False)
    assert result["per_study"]["a"]["BLEU_1"] == 0.0


def test_one_study_only(tmp_path: Path) -> None:
    result = evaluate_pairs([Pair("a", "clear lungs", ("clear lungs now",))], options=Options(meteor=False)).to_json()
    json.dumps(result, allow_nan=False)
    assert result["corpus"]["BLEU_1"]["value"] > 0
    assert result["corpus"]["BLEU_1"]["interval"] is None
    assert "undefined" in result["corpus"]["BLEU_1"]["interval_note"]
    assert "one study" in result["corpus"]["CIDEr"]["unavailable"]
    assert result["floors"]["shuffled_pairing"]["corpus"] is None
    path = write(tmp_path / "one.jsonl", GOOD)
    run_evaluate(EvaluateRequest(pairs=(path,), meteor=False, out=tmp_path / "out"))
    run_compare(CompareRequest(runs=(path, write(tmp_path / "two.jsonl", GOOD)), meteor=False, out=tmp_path / "cmp"))
    comparison = json.loads((tmp_path / "cmp" / "comparison.json").read_text(encoding="utf-8"))["comparisons"][0]
    assert comparison["p_randomisation"] is None
    assert "one study" in comparison["note"]


@pytest.mark.long
def test_report_of_100000_words() -> None:
    draw = [f"w{i * 7919 % 5000}" for i in range(100_000)]
    pairs = [Pair("a", " ".join(draw), (" ".join(reversed(draw)),)), Pair("b", "clear", ("clear lungs",))]
    start = time.process_time()
    result = evaluate_pairs(pairs, options=Options(floors=False, resamples=20))
    # Quadratic code would take many minutes; this only tells it from that.
    assert time.process_time() - start < 60
    assert result.corpus["BLEU_1"].value is not None
    expected = "unavailable" if isinstance(find_java_tools(), str) else "100000 words"
    assert expected in str(result.corpus["METEOR"].unavailable)


def test_control_characters_neither_shift_nor_break_scores() -> None:
    nasty = "the\x00 heart\x0b is\x0c normal\u2028 in\u2029 size\x85 and\x1c the\r\nlungs ||| are\tclear"
    clean = "the heart is normal in size and the lungs are clear"
    pairs = [Pair("a", nasty, (nasty,)), Pair("b", clean, (clean,))]
    result = evaluate_pairs(pairs, options=PLAIN)
    assert result.per_study()["a"]["BLEU_4"] == pytest.approx(1.0, abs=1e-6)
    assert result.texts.texts_with_control_characters == 2
    assert one_line(nasty) == clean.replace("lungs", "lungs |||")
    assert score_line(nasty, [clean]) == f"SCORE ||| {clean} ||| {clean}"


def test_markup_and_shell_text_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**GOOD, "study_id": f"[red]{i}", "hyp": "[bold]$(rm -rf) & 50% \\x_{2} | pipe"} for i in range(3)]
    path = write(tmp_path / "[red]a|b_&.jsonl", *rows)
    run_evaluate(EvaluateRequest(pairs=(path, write(tmp_path / "c.jsonl", GOOD)), meteor=False, out=tmp_path / "out"))
    assert "[red]a|b_&" in capsys.readouterr().out
    assert r"[red]a|b\_\&" in (tmp_path / "out" / "tables.tex").read_text(encoding="utf-8")
    assert r"[red]a\|b\_&" in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")


def test_nothing_is_written_when_a_later_file_is_bad(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "a.jsonl", GOOD, OTHER), write(tmp_path / "b.jsonl", GOOD, {"study_id": "x"})
    with pytest.raises(InputError, match=r"b\.jsonl, line 2"):
        run_evaluate(EvaluateRequest(pairs=(good, bad), meteor=False, out=tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"protocol": "fulll"}, "did you mean 'full'"),
        ({"second": "nope"}, "no protocol 'nope'"),
        ({"ontology": "icd10"}, "labeler"),
        ({"resamples": -1}, "resamples"),
        ({"seed": -1}, "seed"),
        ({"train": Path("no-such-folder")}, "no such dataset folder"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, OTHER)
    with pytest.raises(InputError, match=says):
        run_evaluate(EvaluateRequest(pairs=(path,), meteor=False, out=tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()


def test_comparisons_that_make_no_sense(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", GOOD, OTHER)
    cases = {
        "not about the same studies": write(tmp_path / "fewer.jsonl", GOOD),
        "the reference differs": write(tmp_path / "ref.jsonl", GOOD, {**OTHER, "ref": "something else"}),
    }
    for says, b in cases.items():
        with pytest.raises(InputError, match=says):
            run_compare(CompareRequest(runs=(a, b), meteor=False))
    with pytest.raises(InputError, match="needs two runs"):
        run_compare(CompareRequest(runs=(a,), meteor=False))
    with pytest.raises(InputError, match="given twice"):
        run_compare(CompareRequest(runs=(a, a), meteor=False))
    with pytest.raises(InputError, match="not a folder"):
        run_compare(CompareRequest(runs=(a, cases["the reference differs"]), seeds=True, meteor=False))


def test_label_goes_on_after_bad_rows_and_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "a", "report": "Cardiomegaly."},
        {"id": "b", "report": None},
        {"id": "a", "report": "Edema."},
        {"report": "Edema."},
        {"id": "c", "report": ""},
    ]
    path = write(tmp_path / "r.jsonl", *rows)
    out = tmp_path / "labels.jsonl"
    assert run_label(LabelRequest(path, out=out)) == 3
    assert [json.loads(line)["study_id"] for line in out.read_text(encoding="utf-8").splitlines()] == ["a", "c"]
    stderr = capsys.readouterr().err
    assert "line 2" in stderr
    assert "3 rows left out" in stderr


def test_label_refuses_files_without_reports(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    broken = tmp_path / "b.csv"
    broken.write_bytes(b'id,report\n1,"unclosed\n')
    binary = tmp_path / "c.csv"
    binary.write_bytes(b"id,report\n1,\0\n")
    nothing = write(tmp_path / "n.jsonl", {"id": "a", "words": "x"})
    for path, says in (
        (broken, "CSV"),
        (binary, "not a text file"),
        (nothing, "no field for the text"),
        (tmp_path / "x.csv", "missing"),
    ):
        with pytest.raises(InputError, match=says):
            run_label(LabelRequest(path, out=out))
        assert not out.exists()
    with pytest.raises(InputError, match="unknown kind"):
        run_label(LabelRequest(nothing, out=tmp_path / "out.xlsx"))


def fake_java(folder: Path, script: str) -> None:
    """A program named java that does what ``script`` says, first on the path."""
    program = folder / "java"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "gave 0 lines for 3 texts (exit status 3)"),
        ("cat > /dev/null; echo one line", "lines for 3 texts"),
        ("cat > /dev/null; yes 'x x x x x x x x x x x x x x x x x x x x x x x' | head -3", "no number"),
        ("cat > /dev/null; yes '1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0' | head -3", "do not belong"),
    ],
)
def test_meteor_that_misbehaves_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    pytest.importorskip("pycocoevalcap")
    fake_java(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    result = meteor_statistics(["a", "b"], [["a"], ["b"]])
    assert isinstance(result, Unavailable)
    assert says in result.reason


@pytest.mark.parametrize("script", ["echo one more; cat", "head -2", "cat; exit 1", "sed s/sentinel/x/"])
def test_tokenizer_that_misbehaves_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """One line too many or too few would give every later study another one's tokens."""
    pytest.importorskip("pycocoevalcap")
    fake_java(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(InputError, match="one line per text"):
        ptb_tokenize(["a", "b", "c"])


def test_bars_reach_the_tokenizer_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in coco's pipeline, which replaces line breaks alone."""
    fake_java(tmp_path, "cat")
    tools = JavaTools(str(tmp_path / "java"), tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "stanford-corenlp-3.4.1.jar").touch()
    monkeypatch.setattr("radweave.metrics.meteor.find_java_tools", lambda: tools)
    assert ptb_tokenize(["heart ||| lungs", "a|b\n||c"]) == ["heart ||| lungs", "a|b ||c"]


def test_meteor_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycocoevalcap")
    fake_java(tmp_path, "exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("radweave.metrics.meteor._START_S", 0.2)
    result = meteor_statistics(["a"], [["a"]])
    assert isinstance(result, Unavailable)
    assert "did not finish" in result.reason
    with pytest.raises(InputError, match="did not finish"):
        ptb_tokenize(["a"], timeout_s=0.2)


def test_without_java_meteor_says_so_and_nothing_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = evaluate_pairs(
        [Pair("a", "x y", ("x z",)), Pair("b", "x", ("x",))], options=Options(resamples=0)
    ).to_json()
    assert result["corpus"]["METEOR"]["value"] is None
    assert "no Java runtime" in result["corpus"]["METEOR"]["unavailable"]
    assert result["per_study"]["a"]["METEOR"] is None
    with pytest.raises(InputError, match="needs Java"):
        evaluate_pairs([Pair("a", "x", ("x",))], "ptb", options=PLAIN)


def test_a_report_too_long_for_meteor_is_reported() -> None:
    if isinstance(find_java_tools(), str):
        pytest.skip("Java or pycocoevalcap is not here")
    result = meteor_statistics(["w " * (MAX_WORDS + 1)], [["x"]])
    assert isinstance(result, Unavailable)
    assert f"{MAX_WORDS + 1} words" in result.reason


def test_java_tokenizer_keeps_one_line_per_report() -> None:
    if isinstance(find_java_tools(), str):
        pytest.skip("Java or pycocoevalcap is not here")
    texts = ["a\u2028b\x0bc", "", "x\ny\r\nz", "Heart (mild) isn't 3.5 cm."]
    assert ptb_tokenize(texts) == ["a b c", "", "x y z", "heart -lrb- mild -rrb- is n't 3.5 cm"]


@pytest.mark.slow
def test_meteor_survives_line_breaks_and_bars() -> None:
    """These hang or shift pycocoevalcap's own wrapper."""
    if isinstance(find_java_tools(), str):
        pytest.skip("Java or pycocoevalcap is not here")
    texts = ["no acute\n\ndisease ||| here", "lungs\u2028clear", "", "..."]
    result = meteor_statistics(texts, [["no acute disease here"], ["lungs clear"], ["heart normal"], ["effusion"]])
    assert isinstance(result, ExternalScores)
    assert result.statistics["METEOR"].per_study.tolist() == [1.0, 1.0, 0.0, 0.0]
