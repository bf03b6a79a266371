"""Files of drafts that leaderboards read: their published form, and what must not be written."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.errors import InputError
from radweave.metrics.submissions import SubmissionRequest, run_submission, submitted_reports

REXRANK: dict[str, dict[str, Any]] = {
    "CXR1_IM-0001": {
        "image_path": ["CXR1/0.png"],
        "context": "Indication: Cough.",
        "section_findings": "Clear.",
        "section_impression": "Normal.",
        "split": "test",
    },
    "CXR2_IM-0002": {"image_path": [], "section_findings": "Effusion.", "section_impression": float("nan")},
}
DRAFTS = {"CXR1": "Findings: Clear. Impression: Normal.", "CXR2": ""}


def write_drafts(path: Path, drafts: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps({"study_id": study, "hyp": text}) + "\n" for study, text in drafts.items()))
    return path


@pytest.fixture
def rexrank(tmp_path: Path) -> Path:
    path = tmp_path / "ReXRank_IUXray_test.json"
    path.write_text(json.dumps(REXRANK))
    return path


def as_rexrank_reads(content: dict[str, Any]) -> list[list[str]]:
    """The rows of predictions by ReXrank's published evaluation script."""
    rows = []
    for study, entry in content.items():
        _ = entry["section_findings"], entry["section_impression"]
        rows.append([study, entry["model_prediction"]])
    return rows


def as_vlm3d_reads(content: list[Any]) -> dict[str, str]:
    """The predictions by VLM3D's published scorer of language."""
    items = content[0]["outputs"][0]["value"]["generated_reports"]
    return {item["input_image_name"].rsplit(".", 1)[0]: item["report"] for item in items}


def test_rexrank_file_is_theirs_with_predictions(rexrank: Path, tmp_path: Path) -> None:
    drafts = write_drafts(tmp_path / "drafts.jsonl", DRAFTS)
    out = tmp_path / "prediction.json"
    result = CliRunner().invoke(
        app, ["submission", "rexrank", str(drafts), "--studies", str(rexrank), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    assert "2 reports" in result.stdout
    assert "1 of them empty" in result.stdout
    content = json.loads(out.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert as_rexrank_reads(content) == [["CXR1_IM-0001", DRAFTS["CXR1"]], ["CXR2_IM-0002", ""]]
    assert content["CXR1_IM-0001"]["context"] == "Indication: Cough."
    assert content["CXR2_IM-0002"]["section_impression"] is None
    inner = {study: {**entry, "sizes": [{"side": math.nan}, math.inf]} for study, entry in REXRANK.items()}
    rexrank.write_text(json.dumps(inner))
    run_submission(SubmissionRequest("rexrank", drafts, tmp_path / "inner.json", rexrank))
    assert json.loads((tmp_path / "inner.json").read_text())["CXR1_IM-0001"]["sizes"] == [{"side": None}, None]
    rexrank.write_text(json.dumps(REXRANK))
    with pytest.raises(InputError, match="exists already"):
        run_submission(SubmissionRequest("rexrank", drafts, out, rexrank))
    run_submission(SubmissionRequest("rexrank", drafts, out, rexrank, overwrite=True))
    own = write_drafts(tmp_path / "own.jsonl", dict(zip(REXRANK, DRAFTS.values(), strict=True)))
    assert set(run_submission(SubmissionRequest("rexrank", own, tmp_path / "own.json", rexrank))) == set(REXRANK)


def test_vlm3d_file_is_the_output_of_a_job(tmp_path: Path) -> None:
    volumes = tmp_path / "input"
    volumes.mkdir()
    for name in ("valid_1_a_1.nii.gz", "valid_2_a_1.mha"):
        (volumes / name).write_bytes(b"")
    drafts = write_drafts(tmp_path / "drafts.jsonl", {"valid_1_a_1.nii.gz": "Clear.", "valid_2_a_1": "Nodule."})
    out = tmp_path / "predictions.json"
    run_submission(SubmissionRequest("vlm3d", drafts, out, volumes))
    content = json.loads(out.read_text())
    assert as_vlm3d_reads(content) == {"valid_1_a_1": "Clear.", "valid_2_a_1": "Nodule."}
    value = content[0]["outputs"][0]["value"]
    assert (value["name"], value["type"], value["version"]) == ("Generated reports", "Report generation", "1.0")
    assert submitted_reports(content, out) == {"valid_1_a_1": "Clear.", "valid_2_a_1": "Nodule."}


@pytest.mark.parametrize(
    ("leaderboard", "drafts", "message"),
    [
        ("rexrank", {"CXR1": "Clear."}, "1 studies without a draft"),
        ("rexrank", {**DRAFTS, "CXR3": "Clear."}, "1 drafts of other studies"),
        ("rexrank-2", DRAFTS, "expected rexrank, vlm3d"),
        ("vlm3d", {"a.nii.gz": "Clear.", "a.mha": "Clear."}, "two drafts of one volume"),
        ("vlm3d", {"1.2.3": "Clear.", "1.2.4": "Nodule."}, "takes for one study"),
    ],
)
def test_what_a_leaderboard_would_misread_is_not_written(
    rexrank: Path, tmp_path: Path, leaderboard: str, drafts: dict[str, str], message: str
) -> None:
    path, out = write_drafts(tmp_path / "drafts.jsonl", drafts), tmp_path / "out.json"
    with pytest.raises(InputError, match=message):
        run_submission(SubmissionRequest(leaderboard, path, out, rexrank if leaderboard == "rexrank" else None))
    assert not out.exists()


def test_another_file_is_not_replaced(rexrank: Path, tmp_path: Path) -> None:
    drafts = write_drafts(tmp_path / "drafts.jsonl", DRAFTS)
    other = tmp_path / "notes.json"
    other.write_text('{"a": 1}')
    with pytest.raises(InputError, match="not replaced"):
        run_submission(SubmissionRequest("rexrank", drafts, other, rexrank, overwrite=True))
    assert other.read_text() == '{"a": 1}'
    with pytest.raises(InputError, match="its own file"):
        run_submission(SubmissionRequest("rexrank", drafts, tmp_path / "x.json"))
