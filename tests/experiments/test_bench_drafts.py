"""Drafts of other programs for a benchmark: the forms of files, and what is refused or counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.experiments.bench_drafts import ForeignDrafts, foreign_pairs, named_files, read_foreign
from radweave.metrics.pairs import Pair, Probabilities

DRAFTS = {f"s{number:03d}": f"The lungs are clear, {number}." for number in range(16, 22)}
"""One for each study of the toy data set's test split."""


def read(dataset: Dataset, path: Path) -> ForeignDrafts:
    return read_foreign({"other": [path]}, dataset, {"baseline"})["other"][0]


def written(folder: Path, name: str, drafts: Mapping[str, str] = DRAFTS) -> Path:
    """A file of drafts in the form that its name says."""
    path = folder / name
    lines = [json.dumps({"study_id": study, "hyp": text}) for study, text in drafts.items()]
    cells = [f'{study},"{text}"' for study, text in drafts.items()]
    # The tables that ReXrank's script writes have the column "report"; its own JSON has the references beside drafts.
    entries = {
        study: {"section_findings": "Normal.", "report": "The reference.", "model_prediction": text}
        for study, text in drafts.items()
    }
    texts = {
        "drafts.jsonl": "\n".join(lines),
        "drafts.csv": "\n".join(["study_id,report", *cells]),
        "texts.json": json.dumps(drafts),
        "prediction.json": json.dumps(entries),
    }
    path.write_text(texts[name])
    return path


@pytest.mark.parametrize("name", ["drafts.jsonl", "drafts.csv", "texts.json", "prediction.json"])
def test_every_form_of_file_gives_the_same_drafts(toy_dataset: Dataset, tmp_path: Path, name: str) -> None:
    file = read(toy_dataset, written(tmp_path, name))
    assert (file.drafts, file.others, file.empty) == (DRAFTS, 0, 0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("p1_study2", "p1/study2"), ("s50051329", "50051329"), ("CXR7", "CXR7_IM-0001")]
)
def test_ids_of_rexrank_are_those_of_our_importers(ours: str, theirs: str, tmp_path: Path) -> None:
    from tests.toys import write_toy_dataset

    dataset = write_toy_dataset(tmp_path / "set", tmp_path / "sources", counts=(0, 0, 1))
    manifest = dataset.manifest_path
    manifest.write_text(manifest.read_text().replace('"study_id":"s000"', f'"study_id":"{ours}"'))
    file = read(Dataset.open(dataset.path), written(tmp_path, "prediction.json", {theirs: "Clear."}))
    assert file.drafts == {ours: "Clear."}


def test_empty_drafts_and_rows_of_other_studies_are_counted(toy_dataset: Dataset, tmp_path: Path) -> None:
    drafts = {**DRAFTS, "s016": " ", "s000": "Of the training split.", "another": "Of no study."}
    file = read(toy_dataset, written(tmp_path, "drafts.csv", drafts))
    assert (len(file.drafts), file.empty, file.others) == (6, 1, 2)
    assert "6 drafts, 1 of them empty; 2 rows of studies outside of the test split left out" in file.stated()
    assert str(tmp_path) not in file.stated()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({study: text for study, text in DRAFTS.items() if study != "s018"}), "none of 1 of 6.*'s018'"),
        (json.dumps({f"x{study}": text for study, text in DRAFTS.items()}), "none of 6 of 6 .*first 'xs016'"),
        (json.dumps([{"study_id": "s016", "hyp": "a"}] * 2), "study id comes twice.*s016"),
        (json.dumps([{"study_id": "x", "hyp": "a"}] * 2), "study id comes twice.*got x"),
        (json.dumps([{"study_id": "s016", "hyp": None}]), "hyp.*not a text"),
        (json.dumps([{"study_id": ["s016"], "hyp": "a"}]), "not a study id"),
        (json.dumps([{"study_id": "s016", "report": "a", "ref": "b"}]), "no field for the draft"),
        (json.dumps([{"name": "s016", "hyp": "a"}]), "no field for the study"),
        ("[]", "none of 6 of 6"),
        ("{", "drafts.json"),
    ],
)
def test_files_that_give_no_row_are_refused(toy_dataset: Dataset, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "drafts.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(toy_dataset, path)


def test_the_references_themselves_are_no_drafts(toy_dataset: Dataset, tmp_path: Path) -> None:
    references = {study.study_id: study.report or "" for study in toy_dataset.studies("test")}
    with pytest.raises(InputError, match="file of references"):
        read(toy_dataset, written(tmp_path, "drafts.jsonl", references))
    assert read(toy_dataset, written(tmp_path, "drafts.jsonl", {**references, "s016": "Clear."})).empty == 0


@pytest.mark.parametrize(
    ("options", "sets", "message"),
    [
        (["drafts.csv"], ("xray",), "not a name and a file"),
        (["=drafts.csv"], ("xray",), "not a name and a file"),
        (["maira="], ("xray",), "not a name and a file"),
        (["a\nb=drafts.csv"], ("xray",), "not a name and a file"),
        (["maira=drafts.csv"], ("xray", "ct"), "of which set"),
        (["iu:maira=drafts.csv"], ("xray", "ct"), "not run"),
    ],
)
def test_options_that_name_no_row_are_refused(options: list[str], sets: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        named_files(options, sets, ("xray", "ct", "iu"))


def test_several_files_of_a_name_are_runs_of_one_row(toy_dataset: Dataset, tmp_path: Path) -> None:
    options = ["ct:m=0.csv", "ct:m=1.csv", "xray:C:m=2.csv"]
    files = named_files(options, ("xray", "ct"), ("xray", "ct", "iu"))
    assert files == {"ct": {"m": [Path("0.csv"), Path("1.csv")]}, "xray": {"C:m": [Path("2.csv")]}}
    path = written(tmp_path, "drafts.csv")
    with pytest.raises(InputError, match="given twice"):
        read_foreign({"m": [path, path]}, toy_dataset, ())
    with pytest.raises(InputError, match="has this name already"):
        read_foreign({"baseline": [path]}, toy_dataset, {"baseline"})


def test_nothing_but_the_draft_changes_in_a_pair() -> None:
    own = Pair("s1", "Ours.", ("Ref.",), {"nearest": "N."}, "p1", as_written=False, comparisons_removed=2,
               probabilities=Probabilities({"Edema": 0.5}), prior_report="Before.")  # fmt: skip
    file = ForeignDrafts(Path("f.csv"), "0" * 64, {"s1": "Theirs."}, 0)
    assert foreign_pairs(file, [own]) == [
        Pair("s1", "Theirs.", ("Ref.",), {"nearest": "N."}, "p1", prior_report="Before.")
    ]
    with pytest.raises(InputError, match="lacks the draft"):
        foreign_pairs(file, [Pair("s2", "Ours.", ("Ref.",))])
