"""Leaks between splits that were written so as not to be seen, and manifests and imports that go wrong."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter, PngImagePlugin
from typer.testing import CliRunner

from radweave.cli.data import app
from radweave.core.errors import InputError
from radweave.core.study import ImageRef, Study
from radweave.data.cache.images import build_cache
from radweave.data.check import CheckReport, check_dataset
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.leaks.images import SAME_WEAKEST, ImageIndex
from radweave.engine.train import train
from tests.toys import TOY_OVERRIDES, TOY_SIZES

Rows = list[dict[str, Any]]
Pixels = NDArray[np.float32]


def copy_of(dataset: Dataset, out: Path, change: Callable[[Rows, Path], None]) -> Path:
    shutil.copytree(dataset.path, out, ignore=shutil.ignore_patterns(".cache"))
    manifest = out / "manifest.jsonl"
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    change(rows, out)
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return out


def of_split(rows: Rows, split: str) -> dict[str, Any]:
    return next(row for row in rows if row["split"] == split and row.get("images"))


def refused_by_train(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        train("baseline", path, path.parent / "run", overrides=[*TOY_OVERRIDES, *TOY_SIZES["baseline"]])
    return str(caught.value)


@pytest.mark.parametrize("stated", ["nothing", "false hashes", "the same file as ./path"])
def test_train_refuses_equal_bytes_whatever_the_manifest_says(
    toy_dataset: Dataset, tmp_path: Path, stated: str
) -> None:
    def change(rows: Rows, folder: Path) -> None:
        first, second = of_split(rows, "train")["images"][0], of_split(rows, "test")["images"][0]
        if stated == "the same file as ./path":
            second["path"] = "./" + first["path"]
        else:
            shutil.copy(folder / first["path"], folder / second["path"])
        for number, image in enumerate((first, second)):
            image["sha256"] = f"{number}" * 64 if stated == "false hashes" else None

    assert "share a image" in refused_by_train(copy_of(toy_dataset, tmp_path / "data", change))


def test_train_refuses_equal_pixels_in_different_files(toy_dataset: Dataset, tmp_path: Path) -> None:
    def change(rows: Rows, folder: Path) -> None:
        first, second = of_split(rows, "train")["images"][0], of_split(rows, "test")["images"][0]
        note = PngImagePlugin.PngInfo()
        note.add_text("Comment", "saved anew")
        with Image.open(folder / first["path"]) as image:
            image.save(folder / second["path"], "PNG", pnginfo=note)
        second["sha256"] = None

    assert "share a picture" in refused_by_train(copy_of(toy_dataset, tmp_path / "data", change))


DISGUISES = ("P777", "p777 ", "p00777", "0p777", "\u0440777", "\uff30777", "p\u200b777", "p\u0667\u0667\u0667")


@pytest.mark.parametrize("disguised", DISGUISES)
def test_a_patient_under_a_disguised_id_is_a_leak(toy_dataset: Dataset, tmp_path: Path, disguised: str) -> None:
    def change(rows: Rows, _: Path) -> None:
        of_split(rows, "train")["patient_id"] = "p777"
        of_split(rows, "test")["patient_id"] = disguised

    path = copy_of(toy_dataset, tmp_path / "data", change)
    leaks = {fault.kind for fault in check_dataset(path, read_images=False).leaks}
    assert "same patient in two splits" in leaks
    assert "share a patient" in refused_by_train(path)


def test_an_image_changed_after_it_was_hashed_is_hashed_again(toy_dataset: Dataset, tmp_path: Path) -> None:
    from radweave.data.leaks.identity import hashes_of

    path = copy_of(toy_dataset, tmp_path / "data", lambda rows, folder: None)
    dataset = Dataset.open(path)
    names = [ref.path for study in dataset.studies() for ref in study.images][:2]
    before = hashes_of(dataset, names)
    assert hashes_of(dataset, names) == before
    assert json.loads((path / ".cache" / "hashes.json").read_text()).keys() == set(names)
    (path / names[0]).write_bytes((path / names[1]).read_bytes())
    assert hashes_of(dataset, names) == dict.fromkeys(names, before[names[1]])
    (path / ".cache" / "hashes.json").write_text("[" * 100_000)
    assert hashes_of(dataset, names) == dict.fromkeys(names, before[names[1]])


def chest(seed: int, side: int = 160) -> Pixels:
    """A made-up picture with structure of all sizes, as a radiograph has."""
    draw = np.random.default_rng(seed)
    picture = np.zeros((side, side))
    for cells in (4, 8, 16, 32, 64):
        coarse = Image.fromarray(draw.normal(size=(cells, cells)).astype(np.float32))
        picture += np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC)) * 4 / cells**0.7
    picture -= picture.min()
    return (picture / picture.max()).astype(np.float32)


def as_image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(np.rint(pixels.clip(0, 1) * 255).astype(np.uint8))


def jpeg(pixels: Pixels) -> Pixels:
    buffer = io.BytesIO()
    as_image(pixels).save(buffer, "JPEG", quality=30)
    return np.asarray(Image.open(buffer), np.float32) / 255


def turned(pixels: Pixels) -> Pixels:
    return np.asarray(as_image(pixels).rotate(3, Image.Resampling.BICUBIC), np.float32) / 255


def moved(pixels: Pixels) -> Pixels:
    return np.pad(pixels, ((0, 6), (6, 0)))[6:, :-6]


CHANGES: dict[str, tuple[Callable[[Pixels], Pixels], str]] = {
    "JPEG 30": (jpeg, ""),
    "stretched": (lambda p: np.asarray(as_image(p).resize((120, 170)), np.float32) / 255, ""),
    "gamma": (lambda p: p**0.6, ""),
    "brighter": (lambda p: p + 0.2, ""),
    "blurred": (lambda p: np.asarray(as_image(p).filter(ImageFilter.GaussianBlur(1)), np.float32) / 255, ""),
    "noise": (lambda p: p + np.random.default_rng(0).normal(0, 0.04, p.shape).astype(np.float32), ""),
    "bordered": (lambda p: np.pad(p, 10, constant_values=1), ""),
    "mirrored": (lambda p: p[:, ::-1], "mirrored"),
    "inverted": (lambda p: 1 - p, "inverted"),
    "cut": (lambda p: p[6:-6, 6:-6], "cut, moved or turned"),
    "moved": (moved, "cut, moved or turned"),
    "turned": (turned, "cut, moved or turned"),
    "quarter": (lambda p: np.rot90(p), "turned by 90 degrees"),
    "half a turn": (lambda p: p[::-1, ::-1], "turned by 180 degrees"),
    "three quarters, cut": (lambda p: np.rot90(p[6:-6, 4:-8], 3) ** 0.8, "turned by 90 degrees, cut, moved or turned"),
    "upside down": (lambda p: 1 - p[::-1], "mirrored, turned by 180 degrees, inverted"),
    "transposed": (lambda p: moved(p.T), "mirrored, turned by 90 degrees, cut, moved or turned"),
    "other diagonal": (lambda p: p[::-1, ::-1].T, "mirrored, turned by 90 degrees"),
    "several": (lambda p: turned(1 - p[:, ::-1]), "mirrored, inverted, cut, moved or turned"),
}


def test_changed_copies_are_found_by_kind_and_other_pictures_are_not(tmp_path: Path) -> None:
    """Copies of training pictures in test; as many pictures of nobody's in val."""
    kinds = list(CHANGES)
    pictures = [("train", chest(n)) for n in range(len(kinds))] + [("val", chest(100 + n)) for n in range(len(kinds))]
    pictures += [("test", CHANGES[kind][0](chest(n))) for n, kind in enumerate(kinds)]
    with DatasetWriter(tmp_path / "data", DatasetCard(name="x")) as writer:
        for n, (split, pixels) in enumerate(pictures):
            file = tmp_path / f"{n}.png"
            as_image(pixels).save(file)
            image = ImageRef(path=f"images/{n}.png")
            study = Study.model_validate(
                {"study_id": f"s{n}", "patient_id": f"p{n}", "split": split, "images": [image], "report": f"Word{n}."}
            )
            writer.add(study, {image.path: file})
    pairs: dict[tuple[int, int], str] = {}
    for fault in check_dataset(tmp_path / "data").leaks:
        kind = fault.kind.removeprefix("same picture in two splits, in different files").removeprefix(", ")
        pairs |= {(lines[0], lines[1]): kind for lines in fault.lines}
    first_copy = 2 * len(kinds)
    copies = {(n + 1, first_copy + n + 1): CHANGES[kind][1] for n, kind in enumerate(kinds)}
    # What was cut off as a border, or a turned corner that was not, may move the rest by a hair.
    assert pairs.keys() == copies.keys()
    assert {place for place in copies if not pairs[place].startswith(copies[place])} == set()


def test_train_warns_of_changed_copies_and_compares_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from radweave.data.leaks import images

    with DatasetWriter(tmp_path / "data", DatasetCard(name="x")) as writer:
        pictures = [("train", chest(0)), ("train", chest(1)), ("test", chest(1)[:, ::-1]), ("val", chest(2))]
        for n, (split, pixels) in enumerate(pictures):
            file = tmp_path / f"{n}.png"
            as_image(pixels).save(file)
            image = ImageRef(path=f"images/{n}.png")
            row = {"study_id": f"s{n}", "patient_id": f"p{n}", "split": split, "images": [image], "report": "Clear."}
            writer.add(Study.model_validate(row), {image.path: file})
    dataset = Dataset.open(tmp_path / "data")
    cache = build_cache(dataset, size=96)
    (line,) = images.near_copies(dataset, cache)
    assert line.startswith("1 images of 'test' seem to be changed copies of images of 'train'")
    monkeypatch.setattr(images, "_copies_across_splits", lambda *_: pytest.fail("compared again"))
    assert images.near_copies(dataset, cache) == [line]
    monkeypatch.setattr(images, "_copies_across_splits", lambda *_: ["compared again"])
    as_image(chest(3)).save(tmp_path / "data" / "images" / "2.png")  # the manifest is as it was, the pixels are not
    assert images.near_copies(dataset, build_cache(dataset, size=96)) == ["compared again"]
    assert images.near_copies(dataset, build_cache(dataset, size=32)) == []


def ct_copies(folder: Path, *changes: Callable[[Pixels], Pixels]) -> CheckReport:
    """A scan in train and its changed forms in test."""
    import nibabel

    draw = np.random.default_rng(0)
    slices = np.stack([chest(n, 72) for n in range(3)]).repeat(4, axis=0) * 1400 - 1000
    volume = (slices + draw.normal(0, 10, slices.shape)).astype(np.float32)
    with DatasetWriter(folder / "data", DatasetCard(name="x", modality="ct")) as writer:
        for n, voxels in enumerate([volume, *(change(volume) for change in changes)]):
            file = folder / f"{n}.nii.gz"
            affine = np.diag([-4.0, -4.0, 8.0, 1.0])
            nibabel.save(nibabel.Nifti1Image(voxels.transpose(2, 1, 0), affine), file)  # type: ignore[attr-defined]
            image = {"path": f"images/{n}.nii.gz", "modality": "ct"}
            row = {"study_id": f"s{n}", "patient_id": f"p{n}", "split": "test" if n else "train", "images": [image]}
            writer.add(Study.model_validate(row), {image["path"]: file})
    return check_dataset(folder / "data")


def test_changed_copies_of_a_scan_are_found(tmp_path: Path) -> None:
    changes: list[Callable[[Pixels], Pixels]] = [lambda v: v[:, 2:, 2:], lambda v: v[:, :, ::-1] + 20]
    turns: list[Callable[[Pixels], Pixels]] = [lambda v: np.rot90(v, axes=(1, 2)), lambda v: v[::-1].swapaxes(1, 2)]
    report = ct_copies(tmp_path, *changes, *turns, lambda v: np.rot90(v, axes=(0, 1)))
    assert report.errors == []
    assert sum(fault.count for fault in report.leaks) == 4
    assert sum("turned by 90 degrees" in fault.kind for fault in report.leaks) == 2
    assert any("mirrored" in fault.kind for fault in report.leaks)


def test_similar_patients_raise_the_copy_threshold(tmp_path: Path) -> None:
    index = ImageIndex()
    shared = chest(0)
    for n in range(12):
        index.add(n, "train", shared + 0.05 * chest(n + 1))
    index.add(20, "test", shared + 0.05 * chest(50))
    index.add(21, "test", 1.1 - (shared + 0.05 * chest(3)))
    assert {copy.item for copy in index.pairs_across("test", "train")} == {20, 21}
    weakest = index.least_similarity(lambda item: item)
    assert weakest > SAME_WEAKEST
    assert [(copy.item, copy.other) for copy in index.pairs_across("test", "train", weakest=weakest)] == [(21, 2)]


def check_of(dataset: Dataset, out: Path, change: Callable[[dict[str, Any]], None]) -> tuple[CheckReport, Path]:
    path = copy_of(dataset, out, lambda rows, folder: change(of_split(rows, "train")))
    return check_dataset(path, read_images=False), path


def test_a_hash_that_is_none_is_an_error_of_its_line(toy_dataset: Dataset, tmp_path: Path) -> None:
    _, path = check_of(toy_dataset, tmp_path / "data", lambda row: row["images"][0].update(sha256="zz"))
    result = CliRunner().invoke(app, ["check", str(path), "--no-read-images"])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "images.sha256" in result.stdout


def test_a_report_without_end_is_an_error_of_its_line(toy_dataset: Dataset, tmp_path: Path) -> None:
    report, path = check_of(toy_dataset, tmp_path / "data", lambda row: row.update(report="word " * 200_001))
    assert [fault.kind for fault in report.errors] == ["schema: report: String should have at most 1000000 characters"]
    with pytest.raises(InputError, match=r"line 1.*report.*1000000") as caught:
        list(Dataset.open(path).studies())
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["images/" + "a" * 5000 + ".png", "images/" + "b/" * 2500 + "x.png"])
def test_an_image_path_that_no_file_can_have_costs_its_study_alone(
    toy_dataset: Dataset, tmp_path: Path, name: str
) -> None:
    report, path = check_of(toy_dataset, tmp_path / "data", lambda row: row.update(images=[{"path": name}]))
    assert {fault.kind: fault.count for fault in report.errors} == {"image path cannot be used": 1}
    cache = build_cache(Dataset.open(path), size=16)
    assert cache.unreadable == {name: "image path cannot be used"}
    assert len(cache.rows) > 10


def test_half_a_surrogate_pair_in_an_image_path_is_named(toy_dataset: Dataset, tmp_path: Path) -> None:
    def change(row: dict[str, Any]) -> None:
        row["images"] = [{"path": "images/\ud800.png"}]

    report, path = check_of(toy_dataset, tmp_path / "data", change)
    assert sum(fault.count for fault in report.errors) == 1
    try:
        list(Dataset.open(path).studies())
    except InputError as error:
        str(error).encode()
    assert CliRunner().invoke(app, ["check", str(path)]).exit_code == 2


CARDS = {
    "deep list": "[" * 100_000,
    "deep object": '{"a":' * 100_000,
    "deep options": '{"name": "x", "options": ' + "[" * 5000 + "]" * 5000 + "}",
    "long number": '{"name": "x", "version": ' + "9" * 5000 + "}",
    "infinite": '{"name": "x", "counts": {"studies": 1e400}}',
    "null": "null",
    "number": "3",
    "no name": '{"name": null}',
}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_a_card_of_any_shape_is_refused_in_one_line(toy_dataset: Dataset, tmp_path: Path, card: str) -> None:
    path = copy_of(toy_dataset, tmp_path / "data", lambda rows, folder: None)
    (path / "dataset.json").write_text(card)
    with pytest.raises(InputError) as caught:
        Dataset.open(path)
    assert "dataset.json" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_of_two_writers_of_one_new_data_set_the_second_is_refused(tmp_path: Path) -> None:
    def write(name: str) -> DatasetWriter:
        return DatasetWriter(tmp_path / "out", DatasetCard(name=name))

    second = write("second")
    with pytest.raises(InputError, match="made by another process"), second:
        second.add(Study(study_id="s2", patient_id="p2"))
        with write("first") as first:
            first.add(Study(study_id="s1", patient_id="p1"))
    assert Dataset.open(tmp_path / "out").card.name == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_of_two_imports_into_one_new_folder_the_second_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    as_image(chest(0)).save(source / "a.png")
    (source / "data.csv").write_text("image,report\na.png,Clear.\n")
    inner: list[Dataset] = []

    def meanwhile(_: int, total: int) -> None:
        if not inner:
            inner.append(import_dataset("folder", source, tmp_path / "out", options=ImportOptions(split="test")))

    with pytest.raises(InputError, match="made by another process"):
        import_dataset("folder", source, tmp_path / "out", progress=meanwhile)
    assert [study.split for study in Dataset.open(tmp_path / "out").studies()] == ["test"]
    overwritten = import_dataset("folder", source, tmp_path / "out", overwrite=True)
    assert [study.split for study in overwritten.studies()] == [None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]
