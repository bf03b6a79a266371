"""Drafting by expected utility: any run, from its folder and from its export, and nothing of the study's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radweave.core.batch import Generation
from radweave.core.errors import InputError, UnusableModelError
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example
from radweave.drafting import writer as writer_module
from radweave.drafting.store import load_facts
from radweave.engine import drafts as drafts_module
from radweave.engine.expected_utility import Drafting
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.labels.contradictions import without_kind, without_place
from radweave.labels.text import split_sentences
from radweave.methods.am_mrg.model import AmMrgModel
from radweave.methods.dast.model import DastModel
from radweave.methods.diffrgennet.model import DiffRGenNetModel
from radweave.methods.diffvp.model import DiffvpModel
from radweave.methods.model import Classifying, EvidenceSource, ReportModel, generations
from radweave.nn.decoding import OWN_DECODER
from tests.toys import TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_SIZES

UTILITY = ["kind=expected_utility"]


@pytest.fixture(scope="module")
def baseline(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose method has no heads."""
    out = tmp_path_factory.mktemp("baseline") / "run"
    options = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1"]
    return train("baseline", toy_dataset.path, out, overrides=options)


def prepared_examples(run: Run, dataset: Dataset) -> list[Example]:
    data = run.experiment.data
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    return list(prepare(dataset, "train", run.experiment, run.tokenizer, cache, need_text=False).examples[:6])


def drafts(run: Run, examples: Sequence[Example], *options: str) -> list[tuple[str, list[str]]]:
    """Texts, and the studies that their sentences are from."""
    predictor = Predictor.of(run, decoding=[*UTILITY, *options])
    return [
        (report.text, [row["source"]["study_id"] for row in report.evidence["sentences"]])
        for report in predictor.reports(examples)
    ]


def test_a_run_without_heads_drafts_from_training_reports(baseline: Path, toy_dataset: Dataset) -> None:
    run = restore(baseline)
    reports = {study.study_id: study.report or "" for study in toy_dataset.studies("train")}
    assert load_facts(baseline / "drafting").source == "smoothers"
    decoding, labeler = [*UTILITY, "expected_utility.written=false"], get_labeler("chexpert14")
    predictor = Predictor.of(run, decoding=decoding)
    for report in predictor.reports(prepared_examples(run, toy_dataset)):
        for sentence in report.evidence["sentences"]:
            sentences = split_sentences(reports[sentence["source"]["study_id"]])
            reduced = (form(one, labeler) for one in sentences for form in (without_place, without_kind))
            assert sentence["text"] in {*sentences, *reduced}
        assert set(report.evidence["class_probabilities"]) == set(run.card.classes)


def test_a_run_keeps_the_utilities_that_its_first_draft_needs(
    toy_run: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run whose preset writes with its own decoder too: by default it drafts by expected utility."""

    def computed(*_: Any) -> Any:
        raise AssertionError("utilities were computed for a draft")

    monkeypatch.setattr(writer_module, "utilities", computed)
    run = restore(toy_run)
    assert run.experiment.decoding.kind == "likelihood"
    image = toy_dataset.image_path(next(iter(toy_dataset.studies("test"))).images[0].path)
    assert Predictor.of(run, decoding=UTILITY).report([image]).text


@pytest.mark.parametrize("model", [AmMrgModel, DastModel, DiffRGenNetModel, DiffvpModel])
def test_scores_come_from_heads_where_a_method_has_them(model: type[ReportModel]) -> None:
    assert issubclass(model, Classifying)
    assert not issubclass(model, EvidenceSource)


@pytest.mark.long
def test_an_export_drafts_like_its_run_and_never_from_the_study_itself(
    baseline: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    first, second = restore(baseline), restore(export(baseline, tmp_path / "export"))
    examples = prepared_examples(first, toy_dataset)
    own = {example.study_id for example in examples}
    for queries in (
        examples,
        [replace(example, study_id=f"other-{example.study_id}") for example in examples],
        [replace(example, patient_id=f"other-{example.patient_id}") for example in examples],
    ):
        of_run, of_export = drafts(first, queries), drafts(second, queries)
        assert [text for text, _ in of_run] == [text for text, _ in of_export]
        for example, (_, sources) in zip(examples, of_run, strict=True):
            assert example.study_id not in sources
        assert not own & {source for _, sources in of_export for source in sources}, "the export has other names"


@pytest.mark.parametrize("calibrated", [False, True])
def test_calibrated_probabilities_stand_in_place_of_the_method_s_own(
    baseline: Path, toy_dataset: Dataset, monkeypatch: pytest.MonkeyPatch, calibrated: bool
) -> None:
    """In a draft that the method's own decoder writes; its other evidence stays."""
    run = restore(baseline)
    raw, better = ({"class_probabilities": dict.fromkeys(run.card.classes, value)} for value in (0.75, 0.25))

    def with_raw(*arguments: Any) -> Iterator[Generation]:
        for generation in generations(*arguments):
            evidence = [{**values, **raw, "routing": [1.0]} for values in generation.intermediates]
            yield replace(generation, intermediates=evidence)

    monkeypatch.setattr(drafts_module, "generations", with_raw)
    monkeypatch.setattr(Drafting, "classes", lambda self, batch, decoding: [better] * (len(batch) * calibrated))
    for report in Predictor.of(run, decoding=[OWN_DECODER]).reports(prepared_examples(run, toy_dataset)):
        assert report.evidence["class_probabilities"] == (better if calibrated else raw)["class_probabilities"]
        assert report.evidence["routing"] == [1.0]


def test_a_draft_does_not_depend_on_its_batch(baseline: Path, toy_dataset: Dataset) -> None:
    run = restore(baseline)
    examples = prepared_examples(run, toy_dataset)
    assert [drafts(run, [example])[0] for example in examples] == drafts(run, examples)


def test_an_export_without_its_bank_states_its_limits(baseline: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    folder = export(baseline, tmp_path / "export", bank=False)
    assert not (folder / "drafting").exists()
    run = restore(folder)
    examples = prepared_examples(run, toy_dataset)[:1]
    assert list(Predictor.of(run).reports(examples))
    with pytest.raises(InputError, match="no reports to draft from"):
        drafts(run, examples)


def test_a_method_of_memories_alone_cannot_be_exported_without_them(toy_dataset: Dataset, tmp_path: Path) -> None:
    options = [*TOY_OVERRIDES, *TOY_SIZES["kernels"]]
    run = train("kernels", toy_dataset.path, tmp_path / "run", overrides=options)
    with pytest.raises(InputError, match="memory of training studies"):
        export(run, tmp_path / "export", bank=False)
    assert not (tmp_path / "export").exists()


def test_scans_are_drafted_too(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    options = [*TOY_CT_OVERRIDES, "stages.encoder.epochs=0"]
    out = train("baseline", toy_ct_dataset.path, tmp_path / "run", preset="tiny-ct", overrides=options)
    run = restore(out)
    assert all(text for text, _ in drafts(run, prepared_examples(run, toy_ct_dataset)))


def test_a_report_of_another_split_is_refused_as_a_leak(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import radweave.engine.train as training_module
    from radweave.engine.stages import Training, training_view
    from radweave.methods.model import TrainingView

    def leaking(training: Training) -> TrainingView:
        view = training_view(training)
        leak = replace(view.examples[0], study_id=training.splits["val"].examples[0].study_id)
        studies = (view.studies[0].model_copy(update={"study_id": leak.study_id}), *view.studies[1:])
        return replace(view, examples=(leak, *view.examples[1:]), studies=studies)

    monkeypatch.setattr(training_module, "training_view", leaking)
    options = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1"]
    with pytest.raises(InputError, match="leak"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=options)


def test_a_model_with_non_finite_features_is_refused(baseline: Path, toy_dataset: Dataset) -> None:
    run = restore(baseline)
    with torch.no_grad():
        next(run.model.encoder.parameters()).fill_(float("nan"))
    with pytest.raises(UnusableModelError, match="not finite"):
        drafts(run, prepared_examples(run, toy_dataset)[:1])


def test_a_folder_of_another_method_is_refused(baseline: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    run = restore(baseline)
    shutil.copytree(baseline / "drafting", tmp_path / "drafting")
    facts = (tmp_path / "drafting" / "facts.json").read_text().replace('"smoothers"', '"heads"')
    (tmp_path / "drafting" / "facts.json").write_text(facts)
    assert run.drafting is not None
    other = replace(run, drafting=replace(run.drafting, folder=tmp_path / "drafting"))
    with pytest.raises(InputError, match="does not fit this model"):
        drafts(other, prepared_examples(run, toy_dataset)[:1])
