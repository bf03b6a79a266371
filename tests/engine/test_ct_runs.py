"""CT volumes through the engine: trained on, reported on, refused where they do not belong."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from radweave.cli import main
from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.json_files import read_jsonl
from radweave.data.augmentation import LightAugmentation
from radweave.data.cache.images import build_cache
from radweave.data.ct import preprocess
from radweave.data.dataset import Dataset
from radweave.data.loader import StudyLoader, collate
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.engine.stages import build_features
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from radweave.io.volumes import read_volume
from radweave.methods import resolve
from radweave.nn.connector import encode_views
from radweave.nn.decoding import OWN_DECODER
from tests.toys import TOY_CT_OVERRIDES


@pytest.fixture(scope="module")
def run(toy_ct_run: Path) -> Run:
    return restore(toy_ct_run)


def first_scan(dataset: Dataset) -> Path:
    return dataset.image_path(next(iter(dataset.studies("test"))).images[0].path)


# Loading


def test_a_batch_holds_the_prepared_scans_from_0_to_1(run: Run, toy_ct_dataset: Dataset) -> None:
    data = run.experiment.data
    cache = build_cache(toy_ct_dataset, size=data.image_size, ct=data.ct)
    prepared = prepare(toy_ct_dataset, "test", run.experiment, run.tokenizer, cache, need_text=True)
    batch = next(iter(StudyLoader(prepared.examples, 3, 0).epoch()))
    assert batch.volume is not None
    assert batch.volume.shape == (3, 1, 8, 16, 16)
    assert batch.volume.dtype == torch.float32
    assert batch.pixel_values is None
    assert batch.view_mask is not None
    assert batch.view_mask.tolist() == [[True]] * 3
    assert batch.view_ids is not None
    assert batch.view_ids.tolist() == [[0]] * 3
    assert batch.class_labels is not None
    assert batch.class_labels.shape == (3, 18)
    for row, study in zip(batch.volume, toy_ct_dataset.studies("test"), strict=False):
        hu = preprocess(read_volume(toy_ct_dataset.image_path(study.images[0].path)), data.ct)
        expected = (hu.astype(np.float64) + 1000) / 1200
        assert np.allclose(row[0].numpy(), expected, atol=0.51 / 255)
    assert isinstance(prepared.examples[0].source[0], np.memmap), "scans stay on disk"


def test_the_cache_resumes_and_names_unreadable_scans(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "dataset"
    shutil.copytree(toy_ct_dataset.path, copy, ignore=shutil.ignore_patterns(".cache"))
    dataset, data = Dataset.open(copy), resolve("baseline", "tiny-ct", TOY_CT_OVERRIDES).data
    first = build_cache(dataset, size=128, ct=data.ct)
    files = sorted((copy / ".cache" / "scans").rglob("*.npy"))
    assert len(files) == len(first.rows) == 24
    before = {file: file.stat().st_mtime_ns for file in files}
    files[3].unlink()
    files[5].write_bytes(files[5].read_bytes()[:200])
    for place in (copy / ".cache").glob("*/index.json"):
        place.unlink()
    broken = next(iter(dataset.studies("val"))).images[0].path
    (copy / broken).write_bytes(b"no scan")
    reopened = build_cache(dataset, size=128, ct=data.ct)
    assert list(reopened.unreadable) == [broken]
    assert len(reopened.rows) == 23
    for path in reopened.rows:
        assert np.array_equal(reopened.pixels[reopened.rows[path]], first.pixels[first.rows[path]])
    untouched = [file for file in files if file.exists() and file.stat().st_mtime_ns == before[file]]
    assert len(untouched) >= 22
    calls: list[int] = []
    build_cache(dataset, size=128, ct=data.ct, progress=lambda done, total: calls.append(done))
    assert calls == []


def test_volumes_are_augmented_independently_and_never_mirrored() -> None:
    volume = torch.zeros(8, 1, 8, 16, 24)
    volume[..., 2:6, 4:12, 2:6] = 1.0
    plain = LightAugmentation(rotation_degrees=0, shift=0, zoom=0, contrast=0)
    assert torch.allclose(plain.apply(volume, torch.Generator().manual_seed(0)), volume, atol=1e-5)
    moved = LightAugmentation().apply(volume, torch.Generator().manual_seed(0))
    assert not torch.equal(moved[0], moved[1])
    assert (moved[..., :12].sum((1, 2, 3, 4)) > moved[..., 12:].sum((1, 2, 3, 4))).all()
    assert (float(moved.min()), float(moved.max())) >= (0.0, 0.0)
    part = LightAugmentation().apply(volume[5:], torch.Generator().manual_seed(0), passed=5)
    assert torch.equal(part, moved[5:])


def test_processes_get_slices_of_the_batches_of_one_process(run: Run, toy_ct_dataset: Dataset) -> None:
    data = run.experiment.data
    cache = build_cache(toy_ct_dataset, size=data.image_size, ct=data.ct)
    examples = prepare(toy_ct_dataset, "train", run.experiment, run.tokenizer, cache, need_text=True).examples

    def volumes(rank: int, size: int) -> list[torch.Tensor]:
        loader = StudyLoader(
            examples, 5, 0, seed=1, shuffle=True, augmentation=LightAugmentation(), rank=rank, size=size
        )
        return [batch.volume for batch in loader.epoch(1) if batch.volume is not None]

    for whole, left, right in zip(volumes(0, 1), volumes(0, 2), volumes(1, 2), strict=True):
        if len(left) + len(right) == len(whole):
            assert torch.equal(torch.cat([left, right]), whole)
        else:  # one study is not cut in two
            assert torch.equal(left, whole)


# Refusals


def test_misfitting_weights_are_named(toy_ct_dataset: Dataset, toy_dataset: Dataset, tmp_path: Path) -> None:
    def refused(dataset: Dataset, preset: str, *overrides: str) -> InputError:
        with pytest.raises(InputError) as caught:
            train("baseline", dataset.path, tmp_path / "run", preset=preset, overrides=overrides, overwrite=True)
        assert caught.value.file == str(dataset.path)
        return caught.value

    error = refused(toy_ct_dataset, "tiny")
    assert (error.field, error.got, error.expected) == (
        "model.vision_encoder",
        "resnet",
        "ctvit, resnet3d or swinunetr",
    )
    error = refused(toy_dataset, "tiny-ct")
    assert (error.field, error.got) == ("model.vision_encoder", "resnet3d")
    error = refused(toy_ct_dataset, "tiny-ct", "data.label_set=chexpert14")
    assert (error.field, error.got, error.expected) == ("data.label_set", "chexpert14", "data.label_set=ct18")
    error = refused(toy_ct_dataset, "tiny-ct", "data.ct.size=null")
    assert error.field == "data.ct.size"
    assert "[32,64,64]" in str(error)
    error = refused(toy_dataset, "tiny", "data.ct.size=[8,16,16]")
    assert (error.field, error.got) == ("data.ct.size", "a size")
    with pytest.raises(InputError, match=r"ct\.channels must be 1"):
        resolve("baseline", "tiny-ct", ["data.ct.channels=3"])


def test_a_data_set_of_both_is_refused(toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    copy = tmp_path / "dataset"
    shutil.copytree(toy_ct_dataset.path, copy, ignore=shutil.ignore_patterns(".cache"))
    rows = [row for _, row in read_jsonl(copy / "manifest.jsonl")]
    rows[2]["images"][0]["modality"] = "xray"
    (copy / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="1 of 24 images are not 'ct'"):
        build_cache(Dataset.open(copy), size=32, ct=resolve("baseline", "tiny-ct", TOY_CT_OVERRIDES).data.ct)


# A run


@pytest.mark.long
def test_a_run_on_scans_restores_and_reports_the_same_from_file_and_data_set(
    run: Run, toy_ct_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.card.classes[0] == "Medical material"
    path = first_scan(toy_ct_dataset)
    report = Predictor.of(run).report([path])
    assert any("synthetic phantom" in warning for warning in report.warnings)
    assert report.evidence["views"] == [{"file": path.name, "view": "AXIAL"}]
    out = tmp_path / "predictions.jsonl"
    main_of("generate", str(run.folder), "--data", str(toy_ct_dataset.path), "--out", str(out))
    rows = {row["study_id"]: row for _, row in read_jsonl(out)}
    first = next(iter(toy_ct_dataset.studies("test")))
    assert rows[first.study_id]["hyp"] == report.text
    assert set(rows[first.study_id]["floors"]) == {
        "constant",
        "constant_findings",
        "constant_wording",
        "nearest_neighbour",
    }
    capsys.readouterr()
    main_of("generate", str(run.folder), str(path), "--json")
    (printed,) = json.loads(capsys.readouterr().out)
    assert printed["report"] == report.text
    assert printed["study_id"] == path.name.removesuffix(".nii.gz")
    main_of("generate", str(run.folder), str(path.parent), "--json")
    assert len(json.loads(capsys.readouterr().out)) == 24


def main_of(*arguments: str) -> None:
    """Run the command line; typer leaves with 0."""
    with patch.object(sys, "argv", ["radweave", *arguments]), pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code


def test_files_of_the_other_modality_are_refused(
    run: Run, toy_run: Path, toy_ct_dataset: Dataset, toy_dataset: Dataset
) -> None:
    scan, image = first_scan(toy_ct_dataset), toy_dataset.image_path("images/0_0.png")
    with pytest.raises(InputError, match="this run reads CT volumes"):
        Predictor.of(run).report([image])
    with pytest.raises(InputError, match="this run reads radiographs"):
        Predictor.of(restore(toy_run)).report([scan])
    with pytest.raises(InputError, match="one scan per study"):
        Predictor.of(run).report([scan, scan])
    with pytest.raises(InputError, match="holds no DICOM files"):
        Predictor.of(run).report([image.parent])


def test_cached_features_equal_those_of_the_frozen_encoder(run: Run, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    progress: list[int] = []
    data = run.experiment.data
    cache = build_cache(toy_ct_dataset, size=data.image_size, ct=data.ct)
    examples = prepare(toy_ct_dataset, "test", run.experiment, run.tokenizer, cache, need_text=True).examples
    encoder = run.model.vision_encoder
    assert isinstance(encoder, torch.nn.Module)
    features = build_features(encoder, examples, tmp_path, {}, lambda done, total: progress.append(done))
    assert progress
    batches: list[Batch] = [collate(examples, pad_id=0, features=cached) for cached in (features, None)]
    with torch.no_grad():
        cached, fresh = (encode_views(encoder, batch) for batch in batches)
    assert cached.grid == fresh.grid
    assert torch.allclose(cached.tokens, fresh.tokens, atol=1e-5)
    assert torch.equal(cached.view_mask, fresh.view_mask)


@pytest.mark.long
def test_a_stage_with_a_frozen_encoder_computes_features_once_and_learns_the_same(
    toy_ct_dataset: Dataset, tmp_path: Path
) -> None:
    # A seed of its own: other runs keep the features of their encoders too.
    frozen = [*TOY_CT_OVERRIDES, "seed=7", "stages.report.max_steps=2"]
    losses, stores = [], []
    for name, keep in (("fresh", "false"), ("kept", "true")):
        overrides = [*frozen, f"data.keep_features={keep}"]
        train("baseline", toy_ct_dataset.path, tmp_path / name, preset="tiny-ct", overrides=overrides)
        rows = [row for _, row in read_jsonl(tmp_path / name / "metrics.jsonl")]
        losses.append([row["loss"] for row in rows if "loss" in row])
        stores.append(list((toy_ct_dataset.path / ".cache" / "features").glob("*/tokens.npy")))
    assert losses[0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert len(stores[1]) == len(stores[0]) + 1


@pytest.mark.long
@pytest.mark.parametrize("method", ["dast", "am_mrg", "vdgen"])
def test_methods_of_radiographs_train_and_draft_on_scans(method: str, toy_ct_dataset: Dataset, tmp_path: Path) -> None:
    names = resolve(method, "tiny-ct", []).named_stages()
    short = [f"stages.{name}.epochs=1" for name, stage in names.items() if stage.epochs]
    overrides = [option for option in TOY_CT_OVERRIDES if not option.startswith("stages")]
    run = restore(
        train(method, toy_ct_dataset.path, tmp_path / "run", preset="tiny-ct", overrides=[*overrides, *short])
    )
    written, chosen = (
        Predictor.of(run, decoding=options).report(first_scan(toy_ct_dataset))
        for options in ([OWN_DECODER], ["kind=expected_utility"])
    )
    if method != "vdgen":  # it has no head of its own that an own draft would show
        assert set(written.evidence["class_probabilities"]) == set(run.card.classes)
    for values in written.evidence.get("attention_maps", {}).values():
        assert np.asarray(values).ndim == 4, "one view, and a map over depth, height and width"
    assert chosen.evidence.get("attention_maps") == written.evidence.get("attention_maps"), "of the scan, not of words"
    assert chosen.text


def test_scans_come_with_their_prior_and_in_the_same_order_after_a_stop(toy_ct_dataset: Dataset, run: Run) -> None:
    experiment = run.experiment.model_copy(update={"data": run.experiment.data.model_copy(update={"priors": True})})
    cache = build_cache(toy_ct_dataset, size=128, ct=experiment.data.ct)
    prepared = prepare(toy_ct_dataset, "train", experiment, run.tokenizer, cache, need_text=True)
    assert prepared.with_prior
    loader = StudyLoader(prepared.examples, 4, 0, seed=2, shuffle=True, augmentation=LightAugmentation())
    whole = list(loader.epoch(3))
    for before, after in zip(whole[2:], loader.epoch(3, 2), strict=True):
        assert before.study_ids == after.study_ids
        assert torch.equal(before.volume, after.volume)  # type: ignore[arg-type]
    with_priors = [batch for batch in whole if batch.priors is not None]
    assert with_priors
    for batch in with_priors:
        assert batch.priors is not None
        assert batch.priors.volume is not None
        assert batch.priors.volume.shape == (len(batch.prior_of), 1, 8, 16, 16)
        for row, number in enumerate(batch.prior_of):
            assert batch.priors.patient_ids[row] == batch.patient_ids[number]
