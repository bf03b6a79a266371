"""What a reader does in a browser, and images to do it with."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from playwright.sync_api import Locator, Page, expect
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

AXE = Path(__file__).with_name("axe") / "axe.min.js"


def dicom(*, rows: int = 64, columns: int = 96, **fields: Any) -> bytes:
    """A made-up radiograph of 12 bits: a slope from left to right, and a bright bar."""
    pixels = np.tile(np.linspace(0, 4095, columns), (rows, 1)).astype(np.uint16)
    pixels[rows // 4 : rows // 2, columns // 4 : columns // 2] = 4000
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = generate_uid()
    image.StudyInstanceUID, image.SeriesInstanceUID = generate_uid(), generate_uid()
    image.Modality, image.BodyPartExamined, image.ViewPosition = "DX", "CHEST", "PA"
    image.PresentationIntentType = "FOR PRESENTATION"
    image.PhotometricInterpretation, image.SamplesPerPixel, image.PixelRepresentation = "MONOCHROME2", 1, 0
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
    image.Rows, image.Columns = pixels.shape
    image.PixelSpacing = image.ImagerPixelSpacing = [0.2, 0.2]
    image.WindowCenter, image.WindowWidth = 2048, 4096
    for name, value in fields.items():
        setattr(image, name, value)
    image.PixelData = pixels.tobytes()
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, image, enforce_file_format=True)
    return buffer.getvalue()


def upload(page: Page, name: str, data: bytes) -> None:
    """Choose a file on the work list and wait until it is a study."""
    page.set_input_files("#files", {"name": name, "mimeType": "application/dicom", "buffer": data})
    expect(page.locator("#upload-state")).to_contain_text("taken in")


def open_study(page: Page, name: str = "chest.dcm", data: bytes | None = None) -> str:
    """Upload an image, wait for its draft, and open it: its number."""
    upload(page, name, dicom() if data is None else data)
    row = page.locator("tr[data-state=drafted]").first
    row.wait_for(timeout=90_000)
    study = row.get_attribute("data-study")
    assert study is not None
    page.goto(f"/studies/{study}")
    page.locator("li.sentence").first.wait_for()
    return study


def open_two_views(page: Page, *, rows: int, columns: int) -> Locator:
    """Upload a frontal and a lateral image as one study and open it: its two films."""
    views = {
        name: dicom(rows=rows, columns=columns, StudyInstanceUID="1.2.3", PatientID="p", ViewPosition=view)
        for name, view in (("pa.dcm", "PA"), ("lateral.dcm", "LL"))
    }
    page.get_by_label("All files are views of one study").check()
    files = [{"name": name, "mimeType": "application/dicom", "buffer": data} for name, data in views.items()]
    page.set_input_files("#files", files)  # type: ignore[arg-type]
    page.locator("tr[data-state=drafted] .study-link").click(timeout=90_000)
    films = page.locator(".rv-film[data-center]")
    expect(films).to_have_count(2)
    page.wait_for_load_state("networkidle")
    return films


def open_editor(page: Page) -> None:
    """Open the editor of the first sentence, whose buttons show once it is chosen."""
    sentence = page.locator("li.sentence").first
    sentence.locator(".words").click()
    sentence.get_by_role("button", name="Edit").click()


def grave_problems(page: Page) -> list[tuple[str, str, list[Any]]]:
    """What axe finds on a page that keeps people out: rule, impact and the first places. axe is in the page already."""
    result = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']})"
    )
    assert result["passes"], "axe looked at nothing"
    return [
        (one["id"], one["impact"], [node["target"] for node in one["nodes"]][:3])
        for one in result["violations"] if one["impact"] in ("serious", "critical")
    ]  # fmt: skip
