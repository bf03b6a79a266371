"""A run on CT handed on, estimated and explained; real scans through it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import radweave
from radweave.core.batch import Batch, Generation
from radweave.core.errors import InputError
from radweave.data.cache.images import build_cache
from radweave.data.ct import CtPreprocessing, preprocess_spaced
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import encode
from radweave.engine.estimate import build_on_meta, estimate
from radweave.engine.restore import Run, restore
from radweave.inference.bulk import FileGroup, generate_files, group_images
from radweave.inference.explain import explain_files, explain_study
from radweave.inference.export import export
from radweave.inference.features import build_feature_bank
from radweave.inference.pictures import NoChestError
from radweave.inference.predictor import Predictor
from radweave.io.volumes import Geometry, Volume, read_volume
from radweave.methods import resolve
from radweave.nn.decoding import OWN_DECODER


@pytest.fixture(scope="module")
def run(toy_ct_run: Path) -> Run:
    return restore(toy_ct_run)


class Pointing:
    """Says one sentence and points at one corner of the volume: top, front, right."""

    def __init__(self, run: Run) -> None:
        self.ids = encode(run.tokenizer, "There is a nodule.")
        self.volumes: list[Any] = []

    def loss(self, batch: Batch, terms: Any) -> dict[str, Any]:
        raise AssertionError("nothing is trained here")

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def generate(self, batch: Batch, decoding: Any) -> Generation:
        self.volumes.append(batch.volume)
        hot = np.zeros((1, 2, 4, 4))
        hot[0, 1, 0, 0] = 1.0
        values = {"attention_maps": {"Lung nodule": hot}, "class_probabilities": {"Lung nodule": 0.9}}
        return Generation([self.ids] * len(batch), [values] * len(batch))


def test_explain_draws_maps_on_three_slices(run: Run, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    predictor = replace(Predictor.of(run, decoding=[OWN_DECODER]), model=Pointing(run))
    study = next(iter(toy_ct_dataset.studies("test")))
    path = toy_ct_dataset.image_path(study.images[0].path)
    by_file = explain_files(run, predictor, [path], tmp_path / "file")
    by_study = explain_study(run, predictor, toy_ct_dataset.path, study.study_id, tmp_path / "study")
    for page in (by_file, by_study):
        text = page.read_text()
        for title in ("CT, axial slice 7 of 8", "CT, coronal slice 3 of 16", "CT, sagittal slice 3 of 16"):
            assert title in text
        assert len(list(page.parent.glob("map_lung_nodule_*.png"))) == 3
        assert len(list(page.parent.glob("view_*.png"))) == 3
        assert "does not fit the pictures" not in text
        assert "synthetic phantom" in text
    evidence = json.loads((tmp_path / "study" / "evidence.json").read_text())["evidence"]
    assert evidence["views"] == [{"file": path.name, "view": "AXIAL"}]
    first, second = predictor.model.volumes  # type: ignore[attr-defined]
    assert np.array_equal(first.numpy(), second.numpy())


def test_explain_refuses_the_other_modality(run: Run, toy_dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds radiographs"):
        explain_study(run, Predictor.of(run), toy_dataset.path, "s000", tmp_path / "out")


def test_an_export_reports_as_the_run_does(run: Run, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    path = toy_ct_dataset.image_path(next(iter(toy_ct_dataset.studies("test"))).images[0].path)
    exported = export(run.folder, tmp_path / "model")
    assert radweave.load(exported).report([path]).text == Predictor.of(run).report([path]).text
    numbers = json.loads((exported / "preprocessing.json").read_text())
    assert (numbers["modality"], numbers["ct"]["size"], numbers["ct"]["window_hu"]) == ("ct", [8, 16, 16], [-1000, 200])
    assert "One CT scan of 8 x 16 x 16 voxels" in (exported / "README.md").read_text()


def test_a_model_for_scans_can_be_estimated() -> None:
    result = estimate("baseline", "tiny-ct")
    model = build_on_meta(resolve("baseline", "tiny-ct", []))
    encoder = model.get_submodule("vision_encoder")
    assert result.parts["vision_encoder"].parameters == sum(p.numel() for p in encoder.parameters()) > 100_000
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_feature_bank_of_scans(run: Run, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    bank = build_feature_bank(run, toy_ct_dataset.path, "test", tmp_path / "bank")
    assert bank.tensors["features"].shape == (len(list(toy_ct_dataset.studies("test"))), 8)


def test_the_spacing_of_a_prepared_voxel() -> None:
    geometry = Geometry((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    volume = Volume(np.zeros((10, 20, 30), np.int16), (3.0, 2.0, 1.0), geometry, "nifti", ())

    def spacing(**options: Any) -> tuple[float, ...]:
        return preprocess_spaced(volume, CtPreprocessing(**options))[1]

    assert spacing() == (3.0, 2.0, 1.0)
    assert spacing(size=(5, 40, 30), fit="resize") == (6.0, 1.0, 1.0)
    assert spacing(size=(5, 40, 30)) == (3.0, 2.0, 1.0)
    assert spacing(spacing_mm=(1.5, 1.0, 1.0), size=(10, 40, 15), fit="resize") == (3.0, 1.0, 2.0)


# Real scans


def test_real_scans_run_end_to_end(run: Run, shared_data: Path, tmp_path: Path) -> None:
    """The same chest as NRRD and as DICOM gives the same draft, with the warning that the run knows phantoms only."""
    files = shared_data / "chest_ct" / "files"
    groups = group_images(
        [files / "whole_chest_64.nrrd", files / "whole_chest_64_dicom"], one_study=False, modality="ct"
    )
    assert [group.name for group in groups] == ["whole_chest_64", "whole_chest_64_dicom"]
    nrrd, series = generate_files(Predictor.of(run), groups)
    assert not isinstance(nrrd, FileGroup)
    assert not isinstance(series, FileGroup)
    assert nrrd.text
    assert nrrd.text == series.text
    for report in (nrrd, series):
        assert any("not for real images" in warning for warning in report.warnings)
    page = explain_files(run, Predictor.of(run), [files / "whole_chest_64.nrrd"], tmp_path / "out")
    assert re.search(r"CT, coronal slice 9 of 16", page.read_text())
    assert "not for real images" in page.read_text()


def test_real_scans_of_other_anatomy_are_warned_of_or_refused(run: Run, shared_data: Path) -> None:
    files, predictor = shared_data / "chest_ct" / "files", Predictor.of(run)
    abdomen = files / "abdomen_small_not_chest.nii.gz"
    with pytest.raises(NoChestError, match=r"not a chest: lung makes.*--force"):
        predictor.report([abdomen])
    assert any("not a chest" in warning for warning in predictor.report([abdomen], force=True).warnings)
    with pytest.raises(InputError, match=r"looks like a label map.*--force"):
        predictor.report([files / "whole_chest_64_lung_labels.nrrd"])
    with pytest.raises(InputError, match=r"single DICOM file.*this run reads CT volumes"):
        predictor.report([files / "chest_scout_jpeg_lossless.dcm"])


def test_the_cache_prepares_a_real_scan_as_the_predictor_does(run: Run, shared_data: Path, tmp_path: Path) -> None:
    from radweave.core.study import ImageRef, Study, View
    from radweave.data.dataset import DatasetCard, DatasetWriter

    source = shared_data / "chest_ct" / "files" / "whole_chest_64.nrrd"
    with DatasetWriter(tmp_path / "set", DatasetCard(name="one", modality="ct")) as writer:
        ref = ImageRef(path="images/a.nrrd", modality="ct", view=View.AXIAL)
        writer.add(Study(study_id="s", patient_id="p", images=(ref,)), {"images/a.nrrd": source})
    cache = build_cache(Dataset.open(tmp_path / "set"), size=128, ct=run.experiment.data.ct)
    predictor = Predictor.of(run)
    example = predictor.example(predictor.read_views([source])[0], "s")
    assert np.array_equal(cache.pixels[0], example.pixels[0])
    assert read_volume(source).hu.shape != example.pixels[0].shape
