"""Kernels: no network, evidence in closed form, and a draft from the training split."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from radweave.core.errors import InputError
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.methods.descriptors import (
    NUM_PLANES,
    Described,
    DescriptorExtractor,
    DescriptorsConfig,
    among,
    distances,
    placed,
)
from radweave.methods.kernels import tiny
from tests.toys import TOY_OVERRIDES, TOY_SIZES


@pytest.fixture(scope="module")
def run(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("kernels") / "run"
    return restore(train("kernels", toy_dataset.path, out, overrides=[*TOY_OVERRIDES, *TOY_SIZES["kernels"]]))


@pytest.fixture(scope="module")
def examples(run: Run, toy_dataset: Dataset) -> list[Example]:
    cache = build_cache(toy_dataset, size=run.experiment.data.image_size)
    return list(prepare(toy_dataset, "train", run.experiment, run.tokenizer, cache, need_text=False).examples)


def described(images: list[np.ndarray], present: list[list[bool]]) -> tuple[DescriptorExtractor, Described]:
    extractor = DescriptorsConfig(aligned=False).build()
    descriptions = Described.empty(len(images))
    for row, image in enumerate(images):
        for view in np.flatnonzero(present[row]):
            descriptions.vectors[row, view] = extractor.vector(image, int(view))
    descriptions.present[:] = present
    extractor.fit_scales(descriptions)
    return extractor, descriptions


def test_a_missing_view_counts_as_a_typical_one() -> None:
    rng = np.random.default_rng(0)
    images = [rng.random((48, 48), dtype=np.float32) for _ in range(4)]
    extractor, descriptions = described(images, [[True, True], [True, False], [False, True], [True, True]])
    apart = distances(extractor, descriptions, placed(extractor, descriptions))
    assert apart.findings[1, 2] == pytest.approx(1.0, abs=0.4), "no view in common"
    assert apart.findings == pytest.approx(apart.findings.T, abs=1e-3)
    elsewhere = ~np.eye(4, dtype=bool)
    at_once = among(extractor, descriptions).findings
    assert apart.findings[elsewhere] == pytest.approx(at_once[elsewhere], abs=1e-4)
    assert apart.wording != pytest.approx(apart.findings), "the style counts for the wording alone"
    assert not at_once.diagonal().any(), "no study is away from itself"


def test_studies_without_a_lateral_view_leave_no_negative_eigenvalue() -> None:
    """Else the inverse of the kernel is large, and a few such studies decide the weights of all others."""
    rng = np.random.default_rng(0)
    extractor, descriptions = DescriptorsConfig().build(), Described.empty(20)
    descriptions.vectors[:] = rng.normal(size=(20, 2, 1)) * rng.normal(size=descriptions.vectors.shape[-1])
    descriptions.present[:] = True
    descriptions.present[:5, 1] = False
    extractor.fit_scales(descriptions)
    for apart in (among(extractor, descriptions).findings, among(extractor, descriptions).wording):
        middle = np.eye(20) - 1 / 20
        assert np.linalg.eigvalsh(-middle @ apart @ middle).min() > -1e-3


def test_a_view_that_no_training_study_has_does_not_count() -> None:
    rng = np.random.default_rng(0)
    images = [rng.random((48, 48), dtype=np.float32) for _ in range(3)]
    extractor, descriptions = described(images, [[True, False]] * 3)
    other = Described(descriptions.vectors[:1].copy(), np.array([[True, True]]))
    rows = placed(extractor, descriptions)
    assert distances(extractor, other, rows).findings == pytest.approx(
        distances(extractor, descriptions, rows).findings[:1]
    )


def test_a_second_frontal_image_does_not_hide_the_lateral_one() -> None:
    assert tiny().data.max_views > 2


def test_evidence_does_not_depend_on_the_batch(run: Run, examples: list[Example]) -> None:
    model = run.model
    together_said = model.evidence_for(collate(examples[:4], pad_id=0))  # type: ignore[operator]
    for example, statement in zip(examples[:4], together_said, strict=True):
        (alone,) = model.evidence_for(collate([example], pad_id=0))  # type: ignore[operator]
        assert np.array_equal(alone.scores, statement.scores)
        assert np.array_equal(alone.weights, statement.weights)


def test_a_study_of_the_training_split_says_nothing_of_itself(run: Run, examples: list[Example]) -> None:
    (own,) = run.model.evidence_for(collate(examples[:1], pad_id=0))  # type: ignore[operator]
    assert own.weights[0] == 0
    assert own.weights.sum() == pytest.approx(1)
    unknown_patient = replace(examples[0], study_id="file", patient_id="file")
    (other,) = run.model.evidence_for(collate([unknown_patient], pad_id=0))  # type: ignore[operator]
    assert int(other.weights.argmax()) == 0
    (later,) = run.model.evidence_for(collate([replace(examples[0], study_id="later")], pad_id=0))  # type: ignore[operator]
    assert later.weights[0] == 0, "it is of the same patient"


def test_nothing_is_trained_and_the_run_is_finished(run: Run) -> None:
    assert not list(run.model.parameters())
    assert run.card.is_trained
    assert set(run.card.trained_steps.values()) == {0}


def test_a_run_without_shapes_to_keep_can_be_replaced(run: Run, toy_dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    assert not list((folder / "parts").iterdir())
    train(
        "kernels", toy_dataset.path, folder, overrides=[*TOY_OVERRIDES, *TOY_SIZES["kernels"], "seed=1"], overwrite=True
    )
    assert restore(folder).experiment.seed == 1


def test_a_model_without_its_memory_says_so(run: Run, examples: list[Example]) -> None:
    empty = run.experiment.model.build(replace_context(run))
    with pytest.raises(InputError, match="memory"):
        empty.generate(collate(examples[:1], pad_id=0), run.experiment.decoding)


def replace_context(run: Run):  # type: ignore[no-untyped-def]
    from radweave.methods.experiment import BuildContext

    return BuildContext(run.tokenizer, run.experiment.data.image_size, run.card.classes)


def test_a_run_without_a_lateral_view_anywhere_trains(tmp_path: Path, toy_dataset: Dataset, run: Run) -> None:
    """Its scales stay as they began, and nothing is divided by zero."""
    assert torch.isfinite(run.model.descriptors.typical).all()  # type: ignore[union-attr]


@pytest.mark.long
def test_scans_draft_by_their_planes_alone_as_in_a_batch(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    overrides = ["data.ct.size=[8,16,16]", "data.max_tokens=40", "data.tokenizer.vocab_size=300"]
    out = train("kernels", toy_ct_dataset.path, tmp_path / "run", preset="tiny-ct", overrides=overrides)
    scans = restore(out)
    cache = build_cache(toy_ct_dataset, size=scans.experiment.data.image_size, ct=scans.experiment.data.ct)
    prepared = prepare(toy_ct_dataset, "test", scans.experiment, scans.tokenizer, cache, need_text=False).examples
    assert scans.model.descriptors.mean.shape[0] == NUM_PLANES  # type: ignore[union-attr]
    together_said = scans.model.evidence_for(collate(prepared[:3], pad_id=0))  # type: ignore[operator]
    for example, statement in zip(prepared[:3], together_said, strict=True):
        (alone,) = scans.model.evidence_for(collate([example], pad_id=0))  # type: ignore[operator]
        assert np.array_equal(alone.scores, statement.scores)
    assert not np.array_equal(together_said[0].scores, together_said[1].scores)
    image = toy_ct_dataset.image_path(next(iter(toy_ct_dataset.studies("test"))).images[0].path)
    assert Predictor.of(scans).report([image]).text
