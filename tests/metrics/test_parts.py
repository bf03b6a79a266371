"""Reports of two parts: scored as a whole without their headings, and by section, floors included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radweave import score
from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.data.dataset import DatasetCard, DatasetWriter
from radweave.labels import get_labeler
from radweave.metrics import Options, evaluate_pairs, read_pairs
from radweave.metrics.commands import EvaluateRequest, run_evaluate

FAST = Options(meteor=False, resamples=0)
ROWS = [
    {
        "study_id": "a",
        "hyp": "FINDINGS: The lungs are clear and there is no effusion. IMPRESSION: The heart is enlarged today.",
        "ref": "FINDINGS: The lungs are clear and there is no effusion. IMPRESSION: No acute disease of the chest.",
        "target": "both",
    },
    {
        "study_id": "b",
        "hyp": "There is a small left pleural effusion.",
        "ref": "FINDINGS: There is a small left pleural effusion. IMPRESSION: There is an effusion on the left.",
        "target": "both",
    },
]


def pairs_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "predictions.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_sections_are_scored_without_headings(tmp_path: Path) -> None:
    pairs = read_pairs(pairs_file(tmp_path, ROWS)).pairs
    result = evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=FAST)
    assert result.sections["findings"].corpus["BLEU_4"].value == pytest.approx(1.0)
    worse = result.sections["impression"].corpus["BLEU_1"].value
    assert worse is not None
    assert worse < 0.5, "a draft without a heading has no impression"
    bare = [
        {**row, "target": None, **{name: text.replace("FINDINGS: ", "").replace("IMPRESSION: ", "")
                                   for name, text in row.items() if name in ("hyp", "ref")}}
        for row in ROWS
    ]  # fmt: skip
    plain = evaluate_pairs(
        read_pairs(pairs_file(tmp_path, bare)).pairs, labeler=get_labeler("chexpert14"), options=FAST
    )
    assert result.corpus == plain.corpus
    assert (result.floors, result.clinical, plain.sections) == (plain.floors, plain.clinical, {})
    assert set(result.to_json()["sections"]) == {"findings", "impression"}  # type: ignore[call-overload]
    assert "sections" not in plain.to_json()


def test_study_without_reference_section_is_left_out_of_it(tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "ref": "FINDINGS: There is a small left pleural effusion."}]
    result = evaluate_pairs(read_pairs(pairs_file(tmp_path, rows)).pairs, options=FAST)
    assert result.sections["impression"].study_ids == ("a",)
    assert result.sections["impression"].left_out == {"reference has no such section": 1}
    assert result.sections["findings"].study_ids == ("a", "b")


def test_texts_of_one_part_with_headings_are_scored_as_they_were(tmp_path: Path) -> None:
    """Whoever brings reports with headings and does not say so has them scored as they stand, word for word."""
    other = [{**row, "target": "my own field"} for row in ROWS]
    assert evaluate_pairs(read_pairs(pairs_file(tmp_path, other)).pairs, options=FAST).sections == {}


def test_floors_are_of_the_text_that_was_to_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DatasetWriter(tmp_path / "set", DatasetCard(name="set")) as writer:
        for name in "xyz":
            study = Study(study_id=name, patient_id=name, split="train", report="Clear.", findings="Clear lungs.")
            writer.add(study.model_copy(update={"impression": "Normal chest."}))
    drafts, refs = ({str(row["study_id"]): str(row[name]) for row in ROWS} for name in ("hyp", "ref"))
    result = score(drafts, refs, train=tmp_path / "set", target="both", options=FAST)
    whole, impression = (
        result.floors["constant_report"].corpus,
        result.sections["impression"].floors["constant_report"].corpus,
    )
    assert whole is not None
    assert impression is not None
    assert impression["BLEU_1"] != whole["BLEU_1"]
    with pytest.raises(InputError, match="field 'target': no such text"):
        score(drafts, refs, target="conclusion")  # type: ignore[arg-type]
    path = pairs_file(tmp_path, ROWS)
    run_evaluate(
        EvaluateRequest(pairs=(path,), train=tmp_path / "set", meteor=False, resamples=0, second="none", show_all=True)
    )
    shown = capsys.readouterr().out
    assert "By section, headings left out" in shown
    mixed = pairs_file(tmp_path, [ROWS[0], {**ROWS[1], "target": None}])
    with pytest.raises(InputError, match="several texts"):
        run_evaluate(EvaluateRequest(pairs=(mixed,), meteor=False, resamples=0))
