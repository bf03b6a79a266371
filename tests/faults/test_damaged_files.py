"""Image files that are damaged or odd in ways that libraries pass over: each is refused, doubted, or read unchanged."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import struct
import tarfile
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import nrrd
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import radweave
from radweave.cli import app
from radweave.core.errors import InputError, printable
from radweave.core.study import ImageRef, LabelState, Study
from radweave.data.check import check_dataset
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.importers import ImportOptions, import_dataset
from radweave.data.importers.archives import tar_texts
from radweave.inference.bulk import group_images
from radweave.io.dicom import DOUBTFUL
from radweave.io.images import read_radiograph
from radweave.io.inspect import inspect
from radweave.io.volumes import read_stored, read_volume
from tests.image_files import chest, edit, thorax_hu, write_dicom, write_metaimage, write_series
from tests.toys import toy_image

SMALL_HU = thorax_hu(6, 20, 24)


def write_nifti(path: Path, *, slope: float = 1.0, intercept: float = 0.0, offset: int = 352) -> Path:
    header = nib.Nifti1Header()
    header["dim"] = [3, *SMALL_HU.shape[::-1], 1, 1, 1, 1]
    header["datatype"], header["bitpix"], header["magic"] = 4, 16, b"n+1"
    header["pixdim"][1:4] = 2, 2, 5
    header["xyzt_units"], header["vox_offset"] = 2, offset
    header["scl_slope"], header["scl_inter"] = slope, intercept
    extension = b"" if offset == 352 else b"\1\0\0\0" + struct.pack("<ii", offset - 352, 4)
    data = (bytes(header.binaryblock) + extension.ljust(offset - 348, b"\0")) + SMALL_HU.astype("<i2").tobytes()
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_nrrd(path: Path, encoding: str, **header: object) -> Path:
    stated = {"spacings": [2.0, 2.0, 5.0], "encoding": encoding, **header}
    nrrd.write(str(path), np.ascontiguousarray(SMALL_HU.T), stated)
    return path


def write_xray_set(folder: Path, *, modality: str, files: dict[str, Path]) -> Path:
    folder.mkdir()
    rows = ["image,report,patient_id"]
    for name, source in files.items():
        (folder / name).write_bytes(source.read_bytes())
        rows.append(f"{name},No acute finding number {name}.,p-{name}")
    (folder / "reports.csv").write_text("\n".join(rows) + "\n")
    return folder


COMPRESSED = {
    "a.nii.gz": write_nifti,
    "gzip.nrrd": lambda path: write_nrrd(path, "gzip"),
    "bzip2.nrrd": lambda path: write_nrrd(path, "bzip2"),
    "zlib.mha": lambda path: write_metaimage(path, SMALL_HU, compressed=True),
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_flipped_bit_in_a_compressed_volume_never_changes_a_voxel(tmp_path: Path, name: str) -> None:
    path = COMPRESSED[name](tmp_path / name)
    whole, source = path.read_bytes(), random.Random(1)
    start = len(whole) - len(whole.split(b"\n\n")[-1]) if path.suffix == ".nrrd" else 0
    start = whole.index(b"LOCAL\n") + 6 if path.suffix == ".mha" else start
    truth, refused = read_stored(path).values, 0
    for _ in range(30):
        damaged = bytearray(whole)
        damaged[source.randrange(start, len(whole))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(read_stored(path).values, truth)
        except InputError:
            refused += 1
    assert refused > 24


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_volume_without_its_last_bytes_is_refused(tmp_path: Path, name: str) -> None:
    path = COMPRESSED[name](tmp_path / name)
    whole = path.read_bytes()
    for lost in (1, 4, 8):
        path.write_bytes(whole[:-lost])
        with pytest.raises(InputError, match=r"truncated|damaged"):
            read_stored(path)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "raw.nrrd", "gzip.nrrd", "raw.mha", "zlib.mha"])
def test_a_volume_with_more_data_than_its_header_declares_is_doubted_or_refused(tmp_path: Path, name: str) -> None:
    """A bit flipped in the sizes leaves voxels over: every voxel but the first rows would be in a wrong place."""
    shape = SMALL_HU.shape[::-1]
    path = tmp_path / name
    if path.suffix == ".nrrd":
        write_nrrd(path, path.stem)
        old, new = b"sizes: 24 20 6", b"sizes: 20 20 6"
    elif path.suffix == ".mha":
        write_metaimage(path, SMALL_HU, compressed=path.stem == "zlib")
        old, new = b"DimSize = 24 20 6", b"DimSize = 20 20 6"
    else:
        write_nifti(path)
        old, new = struct.pack("<4h", 3, *shape), struct.pack("<4h", 3, 20, *shape[1:])
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert old in data
    data = data.replace(old, new, 1)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    if path.name in ("a.nii.gz", "a.nii", "raw.nrrd", "raw.mha"):
        assert any(text.startswith(DOUBTFUL) for text in read_stored(path).warnings)
    else:
        with pytest.raises(InputError, match="more"):
            read_stored(path)


@pytest.mark.parametrize("suffix", ["gz", "bz2"])
def test_a_flipped_bit_in_an_archive_of_reports_is_found(tmp_path: Path, suffix: str) -> None:
    source = random.Random(3)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for number in range(8):
            text = " ".join(source.choice(["no", "effusion", "left", "small", "opacity"]) for _ in range(200)).encode()
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    packed = gzip.compress(plain.getvalue(), mtime=0) if suffix == "gz" else bz2.compress(plain.getvalue())
    path = tmp_path / f"reports.tar.{suffix}"
    path.write_bytes(packed)
    truth = list(tar_texts(path, ".txt"))
    assert len(truth) == 8
    for _ in range(60):
        damaged = bytearray(packed)
        damaged[source.randrange(10, len(packed))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            result = list(tar_texts(path, ".txt"))
        except InputError:
            continue
        assert result == truth
    path.write_bytes(packed[:-4])
    with pytest.raises(InputError):
        list(tar_texts(path, ".txt"))


def tar_header(size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo("a.txt")
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def tar_part(content: bytes, kind: bytes) -> bytes:
    return tar_header(len(content), kind) + content + bytes(-len(content) % 512)


HOSTILE_TARS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a name of 40 MB": (lambda: gzip.compress(tar_part(bytes(40 << 20), b"L")), "unpacks to more"),
    "settings of 40 MB": (lambda: gzip.compress(tar_part(b"9" * (40 << 20), b"x")), "unpacks to more"),
    "4 MB of settings, twice": (lambda: gzip.compress(tar_part(b"12 a=bcdefg\n" * 330_000, b"x") * 2), "unpacks to"),
    "settings of settings": (lambda: gzip.compress(tar_part(b"12 a=bcdefg\n", b"x") * 3000), "RecursionError"),
    "names of names": (lambda: gzip.compress(tar_part(b"b", b"L") * 3000), "RecursionError"),
    "a map of words": (lambda: tar_part(b"25 GNU.sparse.map=1,word\n", b"x") + tar_part(b"x", b"0"), "ValueError"),
    "a length of 5,000 digits": (lambda: tar_part(b"9" * 5000 + b" a=b\n", b"x"), "ValueError"),
    "empty parts": (lambda: gzip.compress(b"") * 1000 + gzip.compress(tar_part(b"x", b"0")), "too many empty parts"),
    "many members": (lambda: gzip.compress(tar_header(0, b"0") * 50_001), "too many"),
    "a device": (lambda: tar_header(0, b"3"), "a link or a device"),
    "a large member": (lambda: gzip.compress(tar_part(bytes(5 << 20), b"0")), "too large"),
    "cut": (lambda: gzip.compress(tar_part(bytes(9000), b"0"))[:-12], "too early"),
}


@pytest.mark.parametrize("kind", HOSTILE_TARS)
def test_a_hostile_tar_file_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    make, reason = HOSTILE_TARS[kind]
    path = tmp_path / "reports.tgz"
    path.write_bytes(make())
    with pytest.raises(InputError, match=reason) as caught:
        list(tar_texts(path, ".txt"))
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)


def test_a_tar_file_within_the_limits_is_read(tmp_path: Path) -> None:
    path = tmp_path / "reports.tgz"
    names = ("n" * 900 + ".txt", "\u0107.txt")
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3 << 20
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    path.write_bytes(path.read_bytes() + gzip.compress(b""))
    assert [(name, len(data)) for name, data in tar_texts(path, ".txt")] == [(name, 3 << 20) for name in names]


def jpeg(**options: object) -> bytes:
    grey = Image.fromarray(np.rint(chest(240, 200, noise=0.02) * 255).astype(np.uint8))
    picture = grey.convert(str(options.pop("mode", "L")))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", **options)  # type: ignore[arg-type]
    return buffer.getvalue()


JPEGS: dict[str, dict[str, object]] = {
    "grey": {"quality": 90},
    "optimised": {"quality": 30, "optimize": True},
    "colour": {"mode": "RGB", "quality": 85, "subsampling": 2},
    "progressive": {"quality": 90, "progressive": True},
    "colour progressive": {"mode": "RGB", "quality": 75, "progressive": True},
    "restarts": {"quality": 90, "restart_marker_rows": 2},
}


def doubts(path: Path) -> list[str]:
    return [text for text in read_radiograph(path).warnings if text.startswith(DOUBTFUL)]


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_that_was_cut_and_closed_is_doubted(tmp_path: Path, kind: str) -> None:
    whole, path = jpeg(**JPEGS[kind]), tmp_path / "a.jpg"
    path.write_bytes(whole)
    assert doubts(path) == []
    scan = whole.index(b"\xff\xda")
    for share in (0.3, 0.5, 0.8, 0.97):
        path.write_bytes(whole[: scan + int(share * (len(whole) - scan))] + b"\xff\xd9")
        assert any("JPEG data" in text for text in doubts(path)), share


@pytest.mark.parametrize("kind", ["grey", "progressive", "restarts"])
def test_a_jpeg_that_lost_or_gained_bytes_inside_is_doubted(tmp_path: Path, kind: str) -> None:
    whole, path = jpeg(**JPEGS[kind]), tmp_path / "a.jpg"
    middle = whole.index(b"\xff\xda") + 600 if kind == "progressive" else len(whole) // 2
    for damaged in (whole[:middle] + whole[middle + 40 :], whole[:middle] + b"\x5a" * 40 + whole[middle:]):
        path.write_bytes(damaged)
        assert any("JPEG data" in text for text in doubts(path))


def test_a_jpeg_whose_restart_interval_is_lost_is_doubted(tmp_path: Path) -> None:
    whole, path = jpeg(**JPEGS["restarts"]), tmp_path / "a.jpg"
    first, second = whole.index(b"\xff\xd1"), whole.index(b"\xff\xd2")
    path.write_bytes(whole[:first] + whole[second:])
    assert any("restart" in text for text in doubts(path))


def test_real_jpegs_are_not_doubted(shared_data: Path) -> None:
    files = sorted((shared_data / "covid_chestxray").rglob("*.jp*g"))[::9]
    files += sorted((shared_data / "iu_xray").rglob("*.jp*g"))[::400]
    assert len(files) > 50
    for file in files:
        try:
            result = doubts(file)
        except InputError:
            continue
        assert not any("JPEG" in text for text in result), file.name


def test_a_flipped_bit_in_a_png_is_found(tmp_path: Path) -> None:
    path, source = tmp_path / "a.png", random.Random(2)
    Image.fromarray(np.rint(chest(48, 40) * 255).astype(np.uint8)).save(path)
    whole, truth, refused = path.read_bytes(), read_radiograph(path).pixels, 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[source.randrange(8, len(whole))] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(read_radiograph(path).pixels, truth)
        except InputError:
            refused += 1
    assert refused == 60


def test_a_gzip_bomb_in_the_extension_of_a_nifti_is_refused_from_its_header(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vox_offset"):
        read_stored(write_nifti(tmp_path / "a.nii.gz", offset=64 << 20))


def test_a_gzip_bomb_behind_the_voxels_is_refused(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "a.nii.gz")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(40 << 20), 1))
    with pytest.raises(InputError, match="more"):
        read_stored(path)


@pytest.mark.parametrize(("slope", "intercept"), [(1e30, 0.0), (1.0, 1e30), (1e30, 1e30), (-1e30, 0.5)])
def test_an_absurd_slope_costs_one_study_only(tmp_path: Path, slope: float, intercept: float) -> None:
    good = write_nifti(tmp_path / "good.nii")
    bad = write_nifti(tmp_path / "bad.nii", slope=slope, intercept=intercept)
    source = write_xray_set(tmp_path / "set", modality="ct", files={"a.nii": good, "b.nii": bad})
    records = {Path(record.file).name: record for record in inspect(source) if record.file.endswith("nii")}
    assert records["a.nii"].accepted
    assert not records["b.nii"].accepted
    assert "slope" in (records["b.nii"].reason or "")
    options = ImportOptions(split="train", verify=False)
    taken = import_dataset("folder", source, tmp_path / "taken", options=options)
    report = check_dataset(taken.path)
    assert report.studies["train"] == 2
    assert any("slope" in fault.kind for fault in report.errors)
    checked = import_dataset(
        "folder", source, tmp_path / "checked", options=options.model_copy(update={"verify": True})
    )
    assert sum(1 for _ in checked.studies()) == 1


@pytest.mark.parametrize(
    "values", [np.nan, np.inf, -np.inf, 1e30, 3e38, 1e-40], ids=["nan", "inf", "-inf", "1e30", "3e38", "denormal"]
)
def test_odd_numbers_in_a_volume_print_no_numpy_warning(tmp_path: Path, values: float) -> None:
    hu = SMALL_HU.astype(np.float32)
    hu[2:4] = values
    nib.save(nib.Nifti1Image(hu.T, np.diag([-2, -2, 5, 1])), tmp_path / "a.nii")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [record] = inspect(tmp_path / "a.nii")
    assert record.accepted == (values in (1e-40,) or not np.isfinite(values))


@pytest.mark.parametrize("tags", [{"RescaleSlope": "1e38"}, {"RescaleIntercept": "-1e38"}, {"WindowWidth": "1e-38"}])
def test_odd_numbers_in_a_dicom_header_print_no_numpy_warning(tmp_path: Path, tags: dict[str, str]) -> None:
    path = edit(write_dicom(tmp_path / "a.dcm"), WindowCenter="1e38", **tags)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [record] = inspect(path)
    assert record.shape == (96, 80)


@pytest.mark.parametrize("units", ['"um" "um" "um"', '"cm" "cm" "cm"', '"mm" "mm" "um"'])
def test_an_nrrd_in_other_units_is_refused(tmp_path: Path, units: str) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", "raw", spacings=[2.0, 2.0, 5.0])
    text = path.read_bytes()
    path.write_bytes(text.replace(b"spacings:", f"space units: {units}\nspace dimension: 3\nspacings:".encode(), 1))
    with pytest.raises(InputError, match="not in mm"):
        read_stored(path)
    path.write_bytes(text.replace(b"spacings:", b'units: "mm" "mm" "um"\nspacings:', 1))
    with pytest.raises(InputError, match="not in mm"):
        read_stored(path)


def test_an_nrrd_that_states_mm_is_read(tmp_path: Path) -> None:
    path = write_nrrd(tmp_path / "a.nrrd", "raw")
    path.write_bytes(path.read_bytes().replace(b"spacings:", b'units: "mm" "mm" "mm"\nspacings:', 1))
    np.testing.assert_array_equal(read_stored(path).values, SMALL_HU)


ODD_NAMES = ["a\nforged: accepted.png", "a\x1b[2J.png", "a\u202egnp.png", "a\r.png", os.fsdecode(b"a\xff.png")]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_file_name_is_printed_on_one_line_and_without_control_characters(tmp_path: Path, name: str) -> None:
    Image.fromarray(np.rint(chest(48, 40) * 255).astype(np.uint8)).save(tmp_path / "good.png")
    for content in ((tmp_path / "good.png").read_bytes(), b"no image"):
        (tmp_path / name).write_bytes(content)
        done = CliRunner().invoke(app, ["inspect", str(tmp_path / name)])
        shown = done.stdout.splitlines()[0]
        assert printable(name) in shown
        assert all(character.isprintable() or character == "\n" for character in done.stdout)
    with pytest.raises(InputError) as caught:
        read_radiograph(tmp_path / name)
    assert str(caught.value).isprintable()
    (group,) = group_images([tmp_path / name], one_study=True)
    assert group.name.isprintable()


def test_reports_and_pages_about_files_with_odd_names(toy_run: Path, tmp_path: Path) -> None:
    names = [os.fsdecode(b"a\xff\n.png"), "b\x1b[31m.png"]
    for seed, name in enumerate(names):
        toy_image(tmp_path / name, bright_side="left", seed=seed)
    files = [str(tmp_path / name) for name in names]
    for options in (["generate"], ["generate", "--json"], ["explain", "--out", str(tmp_path / "page")]):
        done = CliRunner().invoke(app, [options[0], str(toy_run), *files, *options[1:], "--force"])
        assert done.exit_code == 0, done.output
        assert "\x1b" not in done.output
        done.output.encode()
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "a\\udcff" in page


def test_a_warning_about_the_number_of_views_names_the_study(toy_run: Path, tmp_path: Path) -> None:
    files = [toy_image(tmp_path / f"{n}.png", bright_side="left", seed=n) for n in range(6)]
    report = radweave.load(toy_run).report(files, force=True)
    assert any(text.startswith("0.png") and "6 views given" in text for text in report.warnings)


def test_names_from_files_are_no_markup_and_no_control_codes(tmp_path: Path) -> None:
    """Rich reads ``[/b]`` as the end of something bold that never began."""
    source = tmp_path / "a.png"
    Image.fromarray(np.rint(chest(48, 40) * 255).astype(np.uint8)).save(source)
    labels = {"set [/b]": {"class [/b]\x1b[2J": LabelState.POSITIVE}}
    out = tmp_path / "set [bold]x[/b]\x1b"
    with DatasetWriter(out, DatasetCard(name="x")) as writer:
        study = Study(study_id="s", patient_id="p", split="train", images=(ImageRef(path="a.png"),), labels=labels)
        writer.add(study, {"a.png": source})
    done = CliRunner().invoke(app, ["data", "check", str(out)])
    assert done.exit_code == 0, done.exception
    assert "class [/b]" in done.output
    assert "set [/b]" in done.output
    assert "\x1b" not in done.output


def test_printable_leaves_plain_names_alone() -> None:
    assert printable("Röntgen 1 (白).png") == "Röntgen 1 (白).png"
    assert printable("a\n\x1b\udcff") == "a\\n\\x1b\\udcff"


def test_half_a_surrogate_pair_in_an_image_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unicode"):
        ImageRef(path="images/\ud800.png")
    with DatasetWriter(tmp_path / "set", DatasetCard(name="x")) as writer:
        (writer.folder / "images").mkdir()
    row = '{"study_id": "s", "patient_id": "p", "split": "train", "images": [{"path": "images/\\ud800.png"}]}\n'
    (tmp_path / "set" / "manifest.jsonl").write_text(row)
    with pytest.raises(InputError, match="line 1"):
        list(Dataset.open(tmp_path / "set").studies())
    assert check_dataset(tmp_path / "set").exit_code == 2


def test_a_fifo_is_never_opened(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "a.png")
    Image.fromarray(np.rint(chest(48, 40) * 255).astype(np.uint8)).save(source / "b.png")
    (source / "reports.csv").write_text("image,report,patient_id\na.png,No effusion.,p\nb.png,Clear lungs.,q\n")
    options = ImportOptions(split="train", verify=False)
    made = import_dataset("folder", source, tmp_path / "out", options=options)
    assert [study.patient_id for study in made.studies()] == ["q"]
    (made.path / "images" / "b.png").unlink()
    os.mkfifo(made.path / "images" / "b.png")
    for read_images in (True, False):
        assert check_dataset(made.path, read_images=read_images).exit_code == 2
    with pytest.raises(InputError, match="not a file"):
        made.image_path("images/b.png")


@pytest.mark.parametrize("sop_class", ["1.2.840.10008.5.1.4.1.1.1", None])
def test_a_radiograph_tagged_as_ct_is_judged_by_its_modality(tmp_path: Path, sop_class: str | None) -> None:
    path = edit(write_dicom(tmp_path / "a.dcm"), Modality="CT", SOPClassUID=sop_class)
    [record] = inspect(path)
    assert not record.accepted
    assert "Modality" in (record.reason or "")
    with pytest.raises(InputError, match="Modality"):
        read_radiograph(path)


def test_a_ct_slice_without_its_position_still_names_the_field(tmp_path: Path) -> None:
    path = edit(write_series(tmp_path / "s", SMALL_HU)[0], ImagePositionPatient=None)
    [record] = inspect(path)
    assert "ImagePositionPatient" in (record.reason or "")


def metaimage(tmp_path: Path, change: Callable[[str], str]) -> Path:
    path = write_metaimage(tmp_path / "a.mha", SMALL_HU)
    head, mark, data = path.read_bytes().partition(b"ElementDataFile = LOCAL\n")
    path.write_bytes(change(head.decode()).encode() + mark + data)
    return path


BAD_METAIMAGES = {
    "no size": ("DimSize = 24 20 6\n", ""),
    "two dimensions": ("NDims = 3", "NDims = 2"),
    "a negative size": ("24 20 6", "24 -20 6"),
    "a huge size": ("24 20 6", "240000 200000 600000"),
    "a size that is no number": ("24 20 6", "24 x 6"),
    "a number of 5,000 digits": ("24 20 6", "9" * 5000 + " 20 6"),
    "an unknown type": ("MET_SHORT", "MET_OTHER"),
    "text data": ("BinaryData = True", "BinaryData = False"),
    "several channels": ("BinaryData", "ElementNumberOfChannels = 3\nBinaryData"),
    "no spacing": ("ElementSpacing = 2 2 5\n", ""),
    "a spacing of 0": ("ElementSpacing = 2 2 5", "ElementSpacing = 2 0 5"),
    "micrometres": ("BinaryData", "DistanceUnits = um\nBinaryData"),
    "centimetres": ("BinaryData", "DistanceUnits = CM\nBinaryData"),
    "a spacing of NaN": ("ElementSpacing = 2 2 5", "ElementSpacing = 2 nan 5"),
    "a singular matrix": ("1 0 0 0 1 0 0 0 1", "1 0 0 1 0 0 0 0 1"),
    "a short matrix": ("1 0 0 0 1 0 0 0 1", "1 0 0 0 1 0"),
    "an infinite origin": ("Offset = 1 2 3", "Offset = 1 inf 3"),
    "a field twice": ("BinaryData", "NDims = 3\nBinaryData"),
    "another modality": ("BinaryData", "Modality = MET_MOD_MR\nBinaryData"),
    "compressed though it is not": ("CompressedData = False", "CompressedData = True"),
    "a long header": ("BinaryData", f"Comment = {'x' * (1 << 20)}\nBinaryData"),
}


@pytest.mark.parametrize("what", BAD_METAIMAGES)
def test_a_bad_metaimage_is_refused(tmp_path: Path, what: str) -> None:
    old, new = BAD_METAIMAGES[what]
    path = metaimage(tmp_path, lambda text: text)
    assert read_stored(path).values.shape == SMALL_HU.shape
    assert old in path.read_bytes().decode("latin-1")
    path = metaimage(tmp_path, lambda text: text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_stored(path)
    assert "the parser failed" not in str(caught.value)


@pytest.mark.parametrize("name", ["../secret.raw", "/etc/passwd", "LIST", "a%03d.raw 1 6 1", "link.raw", "fifo.raw"])
def test_a_metaimage_header_never_leads_to_another_place(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "secret.raw").write_bytes(SMALL_HU.astype("<i2").tobytes())
    (inside / "link.raw").symlink_to(tmp_path / "secret.raw")
    os.mkfifo(inside / "fifo.raw")
    path = write_metaimage(inside / "a.mhd", SMALL_HU)
    assert read_stored(path).values.shape == SMALL_HU.shape
    path.write_text(path.read_text().replace("a.raw", name))
    with pytest.raises(InputError, match=r"data file|ElementDataFile"):
        read_stored(path)


def test_a_metaimage_of_two_files_is_not_imported(tmp_path: Path) -> None:
    """A data set hashes and caches one file for each scan."""
    source = tmp_path / "set"
    source.mkdir()
    write_metaimage(source / "a.mhd", SMALL_HU)
    write_metaimage(source / "b.mha", SMALL_HU)
    (source / "reports.csv").write_text("image,report,patient_id\na.mhd,Clear.,p\nb.mha,Clear lungs.,q\n")
    made = import_dataset("folder", source, tmp_path / "out", options=ImportOptions(split="train"))
    assert [study.patient_id for study in made.studies()] == ["q"]
    assert any(".mha" in reason for reason in made.card.left_out)
    np.testing.assert_array_equal(read_volume(made.path / "images" / "b.mha").hu, SMALL_HU)


def test_a_zlib_bomb_in_a_metaimage_is_refused(tmp_path: Path) -> None:
    path = write_metaimage(tmp_path / "a.mha", SMALL_HU, compressed=True)
    head, mark, _ = path.read_bytes().partition(b"LOCAL\n")
    path.write_bytes(head + mark + zlib.compress(bytes(200 << 20), 1))
    with pytest.raises(InputError, match="more"):
        read_stored(path)
