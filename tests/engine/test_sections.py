"""Runs that write findings and impression and are told an indication: from the data set to the scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from radweave.core.batch import Batch, Generation
from radweave.core.errors import InputError
from radweave.core.study import has_both_sections
from radweave.data.dataset import Dataset, DatasetWriter
from radweave.data.loader import Example
from radweave.data.tokenizer import encode
from radweave.engine.plan import refuse_unfit
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.bulk import generate_files, generate_split, group_images
from radweave.inference.explain.support import find_support
from radweave.inference.export import model_card
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.methods import resolve
from radweave.metrics import Options, evaluate_pairs, read_pairs
from radweave.nn.decoding import OWN_DECODER, DecodingConfig, Prefixes, Written
from radweave.nn.language_model import CausalLanguageModel
from radweave.workstation.draft_report import sections_of
from radweave.workstation.result import StudyContext, result_of
from tests.toys import TOY_OVERRIDES, TOY_SIZES, toy_image

IMPRESSIONS = {"left": "Opacity on the left.", "right": "Cardiomegaly and an opacity."}
OVERRIDES = (*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1", "stages.report.select=loss")
WITH_CONTEXT = ("data.target=both", "data.input_sections=[indication,technique]", "data.max_tokens=80")


@pytest.fixture(scope="module")
def dataset(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The toy data set with impressions; every second study has an indication."""
    folder = tmp_path_factory.mktemp("sections") / "set"
    with DatasetWriter(folder, toy_dataset.card.model_copy(update={"counts": {}})) as writer:
        for number, study in enumerate(toy_dataset.studies()):
            side = "left" if "left" in (study.findings or "") else "right"
            indication = "XXXX-year-old, cough since 5/17/2024" if number % 2 else None
            whole = study.model_copy(update={"impression": IMPRESSIONS[side], "indication": indication})
            writer.add(whole, {ref.path: toy_dataset.image_path(ref.path) for ref in study.images})
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def context_run(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A baseline that is told the indication, and was hardly trained."""
    techniqueless = [option for option in WITH_CONTEXT if "technique" not in option] + [
        "data.input_sections=[indication]"
    ]
    out = tmp_path_factory.mktemp("told") / "run"
    return restore(train("baseline", dataset.path, out, overrides=[*OVERRIDES, *techniqueless]))


def test_drafts_by_expected_utility_have_two_parts_and_are_scored_by_section(dataset: Dataset, tmp_path: Path) -> None:
    options = ["data.image_size=32", "data.target=both", "data.tokenizer.vocab_size=300"]
    run = restore(train("kernels", dataset.path, tmp_path / "run", overrides=options))
    assert run.card.dataset.target == "both"
    predictor = Predictor.of(run)
    out = tmp_path / "predictions.jsonl"
    generate_split(run, predictor, dataset.path, "test", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["target"] for row in rows} == {"both"}
    for row in rows:
        assert has_both_sections(row["hyp"])
        assert has_both_sections(row["ref"])
        assert has_both_sections(row["floors"]["constant"])
        assert {sentence["section"] for sentence in row["evidence"]["sentences"]} == {"findings", "impression"}
    scores = evaluate_pairs(read_pairs(out).pairs, options=Options(meteor=False, resamples=0))
    assert set(scores.sections) == {"findings", "impression"}
    images = [dataset.image_path(ref.path) for ref in next(iter(dataset.studies("test"))).images]
    report = predictor.report(images)
    assert set(report.sections) == {"findings", "impression"}
    assert [section.kind for section in sections_of(report.text, "both")] == ["findings", "impression"]
    shown = result_of(report, run.card, get_labeler("chexpert14"), StudyContext())
    assert [row["section"] for row in shown["sentences"]] == [row["section"] for row in report.evidence["sentences"]]


def test_smoothers_over_training_studies_use_the_context(dataset: Dataset, tmp_path: Path) -> None:
    options = ["data.image_size=32", "data.tokenizer.vocab_size=300", "data.input_sections=[indication]"]
    run = restore(train("kernels", dataset.path, tmp_path / "run", overrides=options))
    image = toy_image(tmp_path / "a.png", bright_side="left", seed=1)
    predictor = Predictor.of(run)
    nothing, empty, cough = (
        predictor.report(image, force=True, indication=text).evidence["recalled"]
        for text in (None, "XXXX", "year-old, cough since 5/17/2024")
    )
    assert empty == nothing
    assert [row["scores"] for row in cough] != [row["scores"] for row in nothing]
    has = {study.study_id: study.indication is not None for study in dataset.studies("train")}
    assert all(has[row["study_id"]] for row in cough), "those who had the same indication"


def test_the_indication_reaches_the_model_by_data_set_by_path_and_without_names(
    dataset: Dataset, context_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = Predictor.of(context_run, decoding=["max_new_tokens=2", "num_beams=1", OWN_DECODER])
    lengths: list[int] = []
    write = CausalLanguageModel.write

    def watched(model: CausalLanguageModel, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        def recorded() -> Iterator[Prefixes]:
            for one in batches:
                lengths.extend(one.mask.sum(1).tolist())
                yield one

        return write(model, recorded(), decoding)

    monkeypatch.setattr(CausalLanguageModel, "write", watched)
    image = toy_image(tmp_path / "a.png", bright_side="left", seed=1)
    text = "Indication: year-old, cough since\n"
    tokens = len(encode(context_run.tokenizer, text))
    card = model_card(context_run.card, context_run.experiment, {}, {}, "nothing")
    assert "| told beside the images | indication, at most 64 tokens" in card
    bare = predictor.report(image, force=True)
    known = predictor.report(image, force=True, indication="XXXX-year-old, cough since 5/17/2024")
    assert lengths[1] == lengths[0] + tokens, "names, dates and marks were taken out first"
    assert not any("not looked at" in warning for warning in (*bare.warnings, *known.warnings))
    other = predictor.report(image, force=True, technique="PA.", findings="Clear.")
    assert lengths[2] == lengths[0]
    assert sum("is not looked at: the run was trained without" in warning for warning in other.warnings) == 2
    lengths.clear()
    generate_split(context_run, predictor, dataset.path, "test", tmp_path / "out.jsonl")
    has = [study.indication is not None for study in dataset.studies("test")]
    views = [len(study.images) for study in dataset.studies("test")]
    alone = {lengths[row] for row in range(len(has)) if not has[row] and views[row] == 1}
    assert {lengths[row] for row in range(len(has)) if has[row] and views[row] == 1} == {one + tokens for one in alone}


def test_a_section_belongs_to_one_study(context_run: Run, tmp_path: Path) -> None:
    images = [toy_image(tmp_path / f"{name}.png", bright_side="left", seed=1) for name in "ab"]
    groups = group_images(images, one_study=False)
    with pytest.raises(InputError, match=r"field 'indication': a section is of one study"):
        list(generate_files(Predictor.of(context_run), groups, force=True, context={"indication": "Cough."}))


def test_sections_that_no_study_has_are_refused(toy_dataset: Dataset, dataset: Dataset) -> None:
    for data, option, field in (
        (toy_dataset, "data.target=both", "data.target"),
        (dataset, "data.input_sections=[technique]", "data.input_sections"),
        (dataset, "data.input_sections=[findings]", "data.input_sections"),
    ):
        experiment = resolve("baseline", "tiny", [*OVERRIDES, option])
        with pytest.raises(InputError) as refused:
            refuse_unfit(experiment, data.aimed(experiment.data.target))
        assert refused.value.field == field
    options = ["data.target=impression", "data.input_sections=[findings]"]
    experiment = resolve("baseline", "tiny", [*OVERRIDES, *options])
    refuse_unfit(experiment, dataset.aimed(experiment.data.target))


class Parrot:
    """A model that says the same of every study."""

    def __init__(self, predictor: Predictor, text: str, *, with_scores: bool) -> None:
        self.ids = encode(predictor.tokenizer, text)
        self.notes = {"token_log_probs": [-0.1] * len(self.ids)} if with_scores else {}

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def generate(self, batch: Batch, decoding: object) -> Generation:
        return Generation([self.ids] * len(batch), [dict(self.notes) for _ in range(len(batch))])


@pytest.mark.parametrize("with_scores", [True, False])
def test_removed_sentences_leave_the_sections_apart(context_run: Run, with_scores: bool) -> None:
    """The first sentence of a part goes, and with it the heading went: the rest stood in the part before."""
    own = Predictor.of(context_run, decoding=[OWN_DECODER])

    def draft(text: str) -> tuple[str, list[tuple[str, str]], tuple[str, ...]]:
        parrot = Parrot(own, text, with_scores=with_scores)
        study = Example("s", "p", np.zeros((1, 32, 32), np.uint8), (0,), (1,))
        (report,) = dataclasses.replace(own, model=parrot).reports([study])  # type: ignore[arg-type]
        support = find_support(report, get_labeler("chexpert14"))
        lines = ["".join(part for part, _ in line.parts) for line in support.sentences]
        assert not any("IMPRESSION" in line or "FINDINGS" in line for line in lines)
        rows = [(row.get("section", ""), row["text"]) for row in report.evidence.get("sentences", ())]
        assert not rows or [line.section for line in support.sentences] == [section for section, _ in rows]
        return report.text, rows, report.warnings

    text, rows, _ = draft(
        "FINDINGS: Clear lungs. No mass. IMPRESSION: No interval change. XXXX is enlarged. No acute disease."
    )
    assert text == "FINDINGS: Clear lungs. No mass. IMPRESSION: No acute disease."
    assert rows[-1] == ("impression", "No acute disease.")
    assert {section for section, _ in rows[:-1]} == {"findings"}
    text, _, _ = draft("FINDINGS: Clear lungs. IMPRESSION: The XXXX is enlarged. No acute disease.")
    assert text == "FINDINGS: Clear lungs. IMPRESSION: No acute disease."
    text, _, warnings = draft("findings : Clear lungs. impression : No interval change.")
    assert text == "FINDINGS: Clear lungs."
    assert "the draft has no impression under a heading" in warnings
    text, _, warnings = draft("Clear lungs.")
    assert text == "Clear lungs."
    assert "the draft has no findings and no impression under a heading" in warnings
