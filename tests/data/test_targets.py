"""Sections of the target text, at import and when a data set is opened with another target."""

from __future__ import annotations

from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.study import Study, has_both_sections
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter, Target
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.importers.build import target_text
from radweave.data.importers.source import RawStudy
from radweave.data.targets import Sections, cleaner

WHOLE = Study(
    study_id="a", patient_id="a", split="train", report="Lungs clear.", findings="Lungs clear.", impression="Normal."
)


def written(folder: Path, *studies: Study, cleaning: str = "none") -> Dataset:
    with DatasetWriter(folder, DatasetCard(name="set", cleaning=cleaning)) as writer:
        for study in studies:
            writer.add(study)
    return Dataset.open(folder)


def texts(dataset: Dataset) -> list[str | None]:
    return [study.report for study in dataset.studies()]


def test_a_data_set_can_be_opened_with_another_target_text(tmp_path: Path) -> None:
    lacks = WHOLE.model_copy(update={"study_id": "b", "patient_id": "b", "impression": None})
    dataset = written(tmp_path / "set", WHOLE, lacks)
    assert dataset.aimed("as_imported") is dataset
    assert dataset.aimed("findings") is dataset, "as it was imported"
    both = dataset.aimed("both")
    assert texts(both) == ["FINDINGS: Lungs clear. IMPRESSION: Normal.", None], "one that lacks a section has no report"
    assert texts(dataset.aimed("impression")) == ["Normal.", None]
    assert texts(dataset.aimed("findings+impression")) == ["Lungs clear. Normal.", None]
    assert texts(dataset) == ["Lungs clear.", "Lungs clear."]
    assert (both.card.target, dataset.card.target) == ("both", "findings")
    assert both.fingerprint() == dataset.fingerprint()


@pytest.mark.parametrize("target", ["as_imported", "both"])
def test_a_limit_holds_with_every_target_text(tmp_path: Path, target: Target) -> None:
    many = [WHOLE.model_copy(update={"study_id": f"s{number}", "patient_id": f"p{number}"}) for number in range(6)]
    path = written(tmp_path / "set", *many).path
    aimed = Dataset.open(path, limit=2).aimed(target)
    assert [study.study_id for study in aimed.studies("train")] == ["s0", "s3"]
    assert aimed.fingerprint() == Dataset.open(path, limit=2).fingerprint() != Dataset.open(path).fingerprint()


def test_sections_are_cleaned_one_by_one_so_that_headings_stay(tmp_path: Path) -> None:
    dataset = written(tmp_path / "set", WHOLE, cleaning="r2gen_iu").aimed("both")
    assert texts(dataset) == ["FINDINGS: lungs clear . IMPRESSION: normal ."]
    emptied = WHOLE.model_copy(update={"impression": "XXXX."})
    assert texts(written(tmp_path / "other", emptied, cleaning="drop_deid_sentences").aimed("both")) == [None]


def test_a_heading_within_a_section_does_not_make_a_third_part(tmp_path: Path) -> None:
    """One impression of IU X-Ray is a whole report with headings: by it alone no draft of a run was of two parts."""
    odd = WHOLE.model_copy(
        update={"findings": "Findings: Clear. Impression: Well.", "impression": "IMPRESSION: Normal."}
    )
    (text,) = texts(written(tmp_path / "set", odd).aimed("both"))
    assert text == "FINDINGS: Clear. Well. IMPRESSION: Normal."
    assert has_both_sections(text)


def test_a_mixture_of_several_cleanings_is_refused(tmp_path: Path) -> None:
    dataset = written(tmp_path / "set", WHOLE, cleaning="iu: lower; mimic: none")
    with pytest.raises(InputError, match=r"data.target.*cleaned in different ways"):
        dataset.aimed("both")


def test_the_import_writes_both_sections_of_sources_with_sections() -> None:
    clean = cleaner("none")
    assert target_text(RawStudy("s", "p", sections=Sections("Clear.", "Normal.")), "both", clean) == (
        "FINDINGS: Clear. IMPRESSION: Normal."
    )
    assert target_text(RawStudy("s", "p", report="Clear lungs."), "both", clean) is None
    assert target_text(RawStudy("s", "p", sections=Sections("Clear.")), "both", clean) is None


def test_regions_are_a_target_of_studies_that_have_them(tmp_path: Path) -> None:
    scan = WHOLE.model_copy(update={"regions": {"lung": "Clear: both lungs.", "heart": "XXXX."}})
    lacks = WHOLE.model_copy(update={"study_id": "b", "patient_id": "b"})
    dataset = written(tmp_path / "set", scan, lacks, cleaning="drop_deid_sentences").aimed("regions")
    assert texts(dataset) == ["The region 1 is lung: Clear: both lungs.", None]
    raw = RawStudy("s", "p", report="Clear lungs.", sections=Sections("Clear."))
    assert target_text(raw, "regions", cleaner("none")) is None


def test_a_table_has_no_regions(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("image,findings\na.png,Clear.\n")
    with pytest.raises(InputError) as caught:
        import_dataset("folder", table, tmp_path / "out", options=ImportOptions(target="regions"))
    assert (caught.value.field, caught.value.got) == ("target", "regions")
