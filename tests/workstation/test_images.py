"""Images of a study over the interface: the stored values, what they stand for, who may see them."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from radweave.core.study import ImageRef, Study, View
from radweave.data.dataset import DatasetCard, DatasetWriter
from radweave.io import viewer
from radweave.io.dicom import display, read_dicom
from radweave.io.images import read_radiograph
from radweave.io.volumes import read_volume
from radweave.workstation import images_api
from radweave.workstation.map_objects import FINE
from radweave.workstation.settings import Limits, Settings
from tests.image_files import chest, dataset, save, shown_bytes, thorax_hu, write_dicom, write_series
from tests.workstation.fake_workers import worker_with_maps
from tests.workstation.stations import running, upload, wait_for


def words_of(client: TestClient, study: str, name: str = "0") -> np.ndarray:
    listed = client.get(f"/api/v1/studies/{study}/images").json()
    about = next(one for one in listed["images"] + listed["prior"] if one["name"] == name)
    result = client.get(f"/api/v1/studies/{study}/images/{name}/pixels")
    assert result.status_code == 200, result.text
    return np.frombuffer(result.content, "<u2").reshape(about["rows"], about["columns"])


def sent(client: TestClient, path: Path) -> str:
    (study,) = upload(client, (path.name, path.read_bytes())).json()["studies"]
    wait_for(client, study, "drafted")
    return str(study)


KINDS: dict[str, dict[str, Any]] = {
    "8 bits": {"bits": 8},
    "12 bits with a window": {"bits": 12, "WindowCenter": 2000, "WindowWidth": 3000},
    "16 bits": {"bits": 16},
    "signed": {"bits": 12, "signed": True},
    "low is bright": {"bits": 12, "PhotometricInterpretation": "MONOCHROME1"},
    "rescaled": {"bits": 12, "RescaleSlope": 1.5, "RescaleIntercept": -100.25, "WindowCenter": [900, 700],
                 "WindowWidth": [1500, 400]},
    "exact window": {"bits": 12, "WindowCenter": 1500, "WindowWidth": 2500, "VOILUTFunction": "LINEAR_EXACT"},
    "sigmoid window": {"bits": 12, "WindowCenter": 1500, "WindowWidth": 2500, "VOILUTFunction": "SIGMOID"},
    "useless window": {"bits": 12, "WindowCenter": -90000, "WindowWidth": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_words_and_first_preset_match_the_reader_of_the_model(kind: str, tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "chest.dcm", **KINDS[kind])
    read = viewer.read_words(path)
    grey = shown_bytes(read.words, read.about, read.about["presets"][0])
    shown, _ = display(read_dicom(path))
    # The range of the image is given as a window, which rounds elsewhere than a plain division does.
    assert np.abs(grey.astype(int) - np.floor(shown * 255 + 0.5)).max() <= 1
    assert np.ptp(grey) > 100


def test_every_grey_level_of_the_file_is_served(client: TestClient, tmp_path: Path) -> None:
    image = np.rint(chest(300, 260) * 65_535)
    study = sent(client, save(dataset(image, bits=16, PixelSpacing=[0.2, 0.1], ImageLaterality="U",
                                      PatientOrientation=["L", "F"]), tmp_path / "chest.dcm"))  # fmt: skip
    words = words_of(client, study)
    about = client.get(f"/api/v1/studies/{study}/images").json()["images"][0]
    np.testing.assert_array_equal(words.astype(int) + about["first"], image)
    assert (about["view"], about["laterality"], about["orientation"]) == ("PA", "U", ["L", "F"])
    assert (about["spacing_mm"], about["pixel_ratio"], about["bits"]) == ([0.2, 0.1], 2.0, 16)


def test_padding_is_black_and_does_not_eat_the_range(tmp_path: Path) -> None:
    image = np.rint(chest() * 1000)
    image[:10] = 65_000
    path = save(dataset(image, bits=16, PixelPaddingValue=65_000), tmp_path / "padded.dcm")
    read = viewer.read_words(path)
    grey = shown_bytes(read.words, read.about, read.about["presets"][-1])
    assert (grey[:10] == 0).all()
    assert grey[10:].max() > 200


def test_tables_of_the_file(tmp_path: Path) -> None:
    """A modality table changes the values; a VOI table is handed on as it is."""
    from pydicom.dataset import Dataset

    def table(entries: np.ndarray) -> list[Dataset]:
        item = Dataset()
        item.LUTDescriptor, item.LUTData = [len(entries), 0, 16], entries.astype("<u2").tobytes()
        item["LUTData"].VR = "OW"
        item.ModalityLUTType = "US"
        return [item]

    levels = np.arange(256)
    image = np.rint(chest() * 255)
    ds = dataset(image, bits=8)
    ds.ModalityLUTSequence, ds.VOILUTSequence = table(levels * 7), table(np.sqrt(np.arange(1800)) * 1000)
    read = viewer.read_words(save(ds, tmp_path / "tables.dcm"))
    np.testing.assert_array_equal(viewer.values_of(read.words, read.about), image * 7)
    assert read.about["presets"][0]["function"] == "TABLE"
    assert read.table is not None
    np.testing.assert_array_equal(read.table, (np.sqrt(np.arange(1800)) * 1000).astype(int))


def test_an_image_that_is_no_grey_radiograph_is_refused_by_name(tmp_path: Path) -> None:
    colours = save(dataset(np.full((32, 32, 3), 9), bits=8), tmp_path / "colour.dcm")
    with pytest.raises(ValueError, match="colour image"):
        viewer.read_words(colours)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)).save(tmp_path / "colour.png")
    with pytest.raises(ValueError, match="colour image"):
        viewer.read_words(tmp_path / "colour.png")


def test_equal_channels_and_sixteen_bits_of_png(tmp_path: Path) -> None:
    grey = np.rint(chest() * 255).astype(np.uint8)
    Image.fromarray(np.stack([grey] * 3, axis=2)).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(viewer.values_of(*_words(tmp_path / "grey.png")), grey)
    deep = np.rint(chest() * 60_000).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    np.testing.assert_array_equal(viewer.values_of(*_words(tmp_path / "deep.png")), deep)


def _words(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    read = viewer.read_words(path)
    return read.words, read.about


def test_one_bad_file_does_not_hide_the_others(client: TestClient, tmp_path: Path) -> None:
    good, bad = write_dicom(tmp_path / "good.dcm"), write_dicom(tmp_path / "bad.dcm")
    data = bad.read_bytes()[:-3000]
    parts = [("good.dcm", good.read_bytes()), ("bad.dcm", data)]
    (study,) = upload(client, *parts, data={"one_study": "true"}).json()["studies"]
    wait_for(client, study, "drafted")
    listed = client.get(f"/api/v1/studies/{study}/images").json()["images"]
    assert [("problem" in one, one["file"]) for one in listed] == [(False, "good.dcm"), (True, "bad.dcm")]
    result = client.get(f"/api/v1/studies/{study}/images/1/pixels")
    assert result.status_code == 400
    assert "truncated" in result.json()["error"]["reason"]
    assert str(tmp_path) not in result.text


def test_etag_compression_and_headers(client: TestClient, tmp_path: Path) -> None:
    study = sent(client, write_dicom(tmp_path / "chest.dcm"))
    place = f"/api/v1/studies/{study}/images/0/pixels"
    packed = client.get(place)
    plain = client.get(place, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert packed.headers["etag"] != plain.headers["etag"]
    for result in (packed, plain):
        assert result.headers.get_list("cache-control") == ["private, no-cache"]
        assert result.headers["content-security-policy"].startswith("default-src 'none'")
        assert result.headers["vary"] == "Accept-Encoding"
    repeated = client.get(place, headers={"If-None-Match": packed.headers["etag"]})
    assert (repeated.status_code, repeated.content) == (304, b"")
    refused = client.get(place, headers={"If-None-Match": packed.headers["etag"], "Authorization": "Bearer no"})
    assert refused.status_code == 401
    assert refused.headers.get_list("cache-control") == ["no-store"]


@pytest.mark.parametrize("name", ["1", "99999", "-1", "x", "prior-0", "..%2f0", "0%00"])
def test_a_missing_image_gives_404(client: TestClient, tmp_path: Path, name: str) -> None:
    study = sent(client, write_dicom(tmp_path / "chest.dcm"))
    assert client.get(f"/api/v1/studies/{study}/images/{name}/pixels").status_code in (404, 422)
    assert client.get(f"/api/v1/studies/{study}/images/0/table").status_code == 404


def test_opening_images_is_logged_once(client: TestClient, tmp_path: Path) -> None:
    study = sent(client, write_dicom(tmp_path / "chest.dcm"))
    for _ in range(2):
        words_of(client, study)
    actions = [entry["action"] for entry in client.get(f"/api/v1/studies/{study}/log").json()["entries"]]
    assert actions.count("images opened") == 1


def test_what_is_fetched_ahead_is_not_logged_as_opened(client: TestClient, tmp_path: Path) -> None:
    (study,) = upload(client, ("chest.dcm", write_dicom(tmp_path / "chest.dcm").read_bytes())).json()["studies"]
    while client.get("/api/v1/studies").json()["counts"]["drafted"] == 0:  # the study's own page would open it
        time.sleep(0.02)
    place = f"/api/v1/studies/{study}"
    ahead = {client.get(f"{place}{rest}", params={"ahead": True}).content for rest in ("", "/images/0/pixels")}
    client.get(f"{place}/images", params={"ahead": True})

    def actions() -> list[str]:
        return [entry["action"] for entry in client.get(f"{place}/log").json()["entries"]]

    assert actions().count("fetched ahead") == 1
    assert not {"opened", "images opened"} & set(actions())
    assert {client.get(f"{place}{rest}").content for rest in ("", "/images/0/pixels")} == ahead
    assert {"opened", "images opened"} <= set(actions())


def test_a_long_study_is_described_in_part(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"limits": Limits(images=2)})
    files = [(f"{n}.dcm", write_dicom(tmp_path / f"{n}.dcm").read_bytes()) for n in range(3)]
    with running(settings) as (client, _):
        (study,) = upload(client, *files, data={"one_study": "true"}).json()["studies"]
        wait_for(client, study, "drafted")
        listed = client.get(f"/api/v1/studies/{study}/images").json()
        assert (len(listed["images"]), listed["left_out"]) == (2, 1)
        assert client.get(f"/api/v1/studies/{study}/images/2/pixels").status_code == 200


def test_the_image_cache_is_bounded_and_removed_with_its_study(settings: Settings, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"limits": Limits(kept_bytes=40_000)})
    with running(settings) as (client, station):
        studies = [sent(client, write_dicom(tmp_path / f"{n}.dcm", chest(128, 100))) for n in range(4)]
        for study in studies:
            assert words_of(client, study).shape == (128, 100)
        held = [file for file in settings.pixels.rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in held) < 60_000
        assert {file.parent.name for file in held} <= {*studies[-3:]}
        assert words_of(client, studies[0]).shape == (128, 100)  # decoded again
        station.inference.forget_files(studies[0])
        assert not (settings.pixels / studies[0]).exists()
    (settings.pixels / "nobody").mkdir()
    with running(settings):
        assert not (settings.pixels / "nobody").exists()


def test_a_volume_lies_where_the_scan_does(tmp_path: Path) -> None:
    write_series(tmp_path / "series", ImageOrientationPatient=[-1, 0, 0, 0, -1, 0])
    volume, about = viewer.read_scan(tmp_path / "series")
    result = nibabel.Nifti1Image.from_bytes(gzip.decompress(viewer.nifti_bytes(volume.hu, viewer.affine_ras(volume))))
    (tmp_path / "again.nii").write_bytes(result.to_bytes())
    repeated = read_volume(tmp_path / "again.nii")
    np.testing.assert_array_equal(np.asarray(result.dataobj).transpose(2, 1, 0), volume.hu)
    np.testing.assert_array_equal(repeated.hu, read_volume(tmp_path / "series").hu)
    np.testing.assert_allclose(repeated.geometry.origin_lps, volume.geometry.origin_lps, atol=1e-3)
    np.testing.assert_allclose(repeated.spacing_mm, volume.spacing_mm)
    assert about["shape_zyx"] == list(thorax_hu().shape)
    assert nibabel.aff2axcodes(result.affine) == ("L", "P", "S")


def evidence(values: Any, covers: Any) -> dict[str, Any]:
    return {"attention_maps": {"Edema": values}, "views": [{"image": 1, "view": "PA", "covers": covers}]}


def test_a_map_in_steps_of_its_peak() -> None:
    result = images_api.read_maps(evidence([[[0.0, 0.1], [0.2, 0.4]]], [(0, 1), (0, 1)]), "Edema", "dast")
    assert result is not None
    assert result["grids"] == [{"image": 1, "shape": [2, 2], "covers": [(0, 1), (0, 1)], "values": [0, 64, 128, 255]}]
    assert (result["peak"], result["method"]) == (0.4, "dast")
    assert "not a lesion boundary" in result["note"]


@pytest.mark.parametrize(
    "values", [[[[0.0, float("nan")]]], [[[0.0, -1.0]]], [[0.1]], "x", None, [[[0.0]]], [[[None]]]]
)
def test_a_map_that_cannot_be_laid_over_the_images(values: Any) -> None:
    inputs = evidence(values, [(0, 1), (0, 1)])
    assert images_api.names(inputs) == []
    assert images_api.read_maps(inputs, "Edema", "dast") is None
    assert images_api.read_maps({}, "Edema", "dast") is None


def test_a_map_of_a_scan_covers_what_the_model_saw() -> None:
    """Two cells along each axis over the upper half of a scan: the peak is at the middle of the cell it is in."""
    values = np.zeros((1, 2, 2, 2))
    values[0, 1, 0, 0] = 1
    laid = images_api.on_scan(evidence(values.tolist(), [(0.5, 0.5), (0, 1), (0, 1)]), "Edema", np.eye(4), (40, 20, 10))
    assert laid is not None
    grid, affine = laid
    assert (grid.shape, grid.max()) == ((FINE,) * 3, 255)
    last = FINE - 0.5
    np.testing.assert_allclose(affine @ [-0.5, -0.5, -0.5, 1], [-0.5, -0.5, 19.5, 1])  # the corners of the upper half
    np.testing.assert_allclose(affine @ [last, last, last, 1], [9.5, 19.5, 39.5, 1])
    # Beyond the middle of the outermost cell the map stays: the peak fills a corner, to a quarter of each axis.
    peak = np.argwhere(grid == 255)
    assert (peak.min(axis=0) == [48, 0, 0]).all()
    assert (peak.max(axis=0) == [63, 15, 15]).all()


def test_maps_over_the_interface(settings: Settings, tmp_path: Path) -> None:
    with running(settings, worker_with_maps) as (client, _):
        study = sent(client, write_dicom(tmp_path / "chest.dcm"))
        listed = client.get(f"/api/v1/studies/{study}/images").json()
        assert (listed["maps"], listed["method"]) == (["Lung / Opacity"], "dast")
        assert listed["images"][0]["view"] == "AP"  # what was settled for the draft, not the file's PA
        result = client.get(f"/api/v1/studies/{study}/maps/Lung / Opacity").json()
        assert result["grids"][0]["values"] == [128, 255]
        assert client.get(f"/api/v1/studies/{study}/maps/Edema").status_code == 404
        assert client.get(f"/api/v1/studies/{study}/maps/Lung / Opacity?form=nifti").status_code == 404


def test_too_many_waiting_requests_are_refused_as_busy(tmp_path: Path) -> None:
    from radweave.workstation.disk import BusyError, ImageCache

    cache = ImageCache(tmp_path, 1 << 20, most_waiting=1, wait_s=0.01)

    def nested() -> Any:
        cache.get("one", "other", lambda: ({}, {}))

    with pytest.raises(BusyError):
        cache.get("one", "key", nested)
    assert cache.get("one", "key", lambda: ({"a": 1}, {})).about == {"a": 1}


def test_a_real_radiograph(client: TestClient, shared_data: Path) -> None:
    path = next(iter(sorted((shared_data / "cxr_dicom").rglob("*.dcm"))))
    study = sent(client, path)
    words = words_of(client, study)
    read = read_dicom(path)
    assert words.shape == read.stored_pixels().shape
    about = client.get(f"/api/v1/studies/{study}/images").json()["images"][0]
    grey = shown_bytes(words, about, about["presets"][0])
    assert np.abs(grey / 255 - read_radiograph(path).pixels).max() < 0.01


def written_dataset(folder: Path) -> Path:
    """Two studies of one patient, the second with two views, one of them stored stretched."""
    card = DatasetCard(name="two", modality="xray", version="1")
    wide = np.rint(chest(60, 120) * 255).astype(np.uint8)
    Image.fromarray(wide).save(folder / "wide.png")
    write_dicom(folder / "before.dcm", chest(50, 40))
    write_dicom(folder / "now.dcm", chest(70, 60))
    with DatasetWriter(folder / "dataset", card) as writer:
        views = (
            ImageRef(path="images/now.dcm", view=View.PA),
            ImageRef(path="images/wide.png", view=View.LATERAL, original_size_wh=(100, 100)),
        )
        shared = {"patient_id": "p", "split": "test", "report": "Normal."}
        before = (ImageRef(path="images/before.dcm", view=View.AP),)
        writer.add(Study(study_id="a", images=before, **shared), {"images/before.dcm": folder / "before.dcm"})
        files = {"images/now.dcm": folder / "now.dcm", "images/wide.png": folder / "wide.png"}
        writer.add(Study(study_id="b", images=views, prior="a", **shared), files)
    return folder / "dataset"


def test_a_study_of_a_data_set_lists_its_prior(settings: Settings, tmp_path: Path) -> None:
    data = written_dataset(tmp_path)
    with running(settings.model_copy(update={"data": data}), worker_with_maps) as (client, _):
        rows = client.get("/api/v1/studies").json()["studies"]
        study = next(row["id"] for row in rows if row["name"] == "b")
        listed = client.get(f"/api/v1/studies/{study}/images").json()
        assert [(one["name"], one["view"]) for one in listed["images"]] == [("0", "PA"), ("1", "LATERAL")]
        assert listed["images"][1]["pixel_ratio"] == 2.0
        assert [(one["name"], one["view"], one["rows"]) for one in listed["prior"]] == [("prior-0", "AP", 50)]
        assert words_of(client, study, "prior-0").shape == (50, 40)
        (data / "images" / "now.dcm").unlink()
        assert client.get(f"/api/v1/studies/{study}/images/0/pixels").status_code == 400
        listed = client.get(f"/api/v1/studies/{study}/images").json()["images"]
        assert [one.get("problem") for one in listed] == ["the image is not there any more", None]


def test_a_scan_over_the_interface(settings: Settings, tmp_path: Path) -> None:
    paths = write_series(tmp_path / "series")
    with running(settings, worker_with_maps) as (client, station):
        station.modality = "ct"
        (study,) = upload(client, *((f"s/{path.name}", path.read_bytes()) for path in paths)).json()["studies"]
        wait_for(client, study, "drafted")
        (listed,) = client.get(f"/api/v1/studies/{study}/images").json()["images"]
        assert (listed["kind"], [preset["name"] for preset in listed["presets"]]) == (
            "volume", ["lung", "mediastinum", "bone"],
        )  # fmt: skip
        result = client.get(f"/api/v1/studies/{study}/images/0/volume")
        assert (result.headers["content-type"], "content-encoding" in result.headers) == ("application/gzip", False)
        scan = nibabel.Nifti1Image.from_bytes(gzip.decompress(result.content))
        np.testing.assert_array_equal(np.asarray(scan.dataobj).transpose(2, 1, 0), read_volume(tmp_path / "series").hu)
        laid = client.get(f"/api/v1/studies/{study}/maps/Lung / Opacity?form=nifti")
        grid = nibabel.Nifti1Image.from_bytes(gzip.decompress(laid.content))
        assert grid.shape == (FINE,) * 3
        middle = grid.affine @ [*[(FINE - 1) / 2] * 3, 1]  # of the map is that of the scan
        np.testing.assert_allclose(middle, scan.affine @ [*((np.array(scan.shape) - 1) / 2), 1], atol=1e-4)
        assert client.get(f"/api/v1/studies/{study}/images/0/pixels").status_code == 404
        page = client.get(f"/api/v1/studies/{study}/report").content
        assert page.count(b"/Subtype /Image") == 3, "the report shows three slices"
