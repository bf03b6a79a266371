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


def choose_prior(page: Page, name: str) -> None:
    """Choose a study by its name as the prior of the open one."""
    page.get_by_role("button", name="Choose the prior").click()
    page.get_by_label("Search by name").fill(name)
    page.get_by_role("button", name=f"Take {name}").click()
    expect(page.locator("#prior")).to_contain_text("chosen by a reader")


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


# Parts of a page that lie beside each other, never on each other.
_APART = (
    "header, .banner, #warnings > *, #viewer, #queue, .work", ".top > *", ".banner > *, .banner .row > *",
    ".rv-bar, .rv-thumbs, .rv-film, .rv-foot", ".rv-bar :is(button, select, input)", ".queue > li",
    ".sentence .words, .actions", ".rv-pick",
)  # fmt: skip
_LAID_OUT = """groups => {
  const seen = (one) => one.checkVisibility({ visibilityProperty: true }) && one.getBoundingClientRect().width > 0;
  const named = (one) => one.id || one.className || one.textContent.slice(0, 20) || one.tagName;
  const scrolls = (one) => one !== null && (getComputedStyle(one).overflowX === "auto" || scrolls(one.parentElement));
  const found = [];
  if (document.scrollingElement.scrollWidth > innerWidth) found.push("scrolls sideways");
  for (const group of groups) {
    const parts = [...document.querySelectorAll(group)].filter(seen).map((one) => [one, one.getBoundingClientRect()]);
    for (const [one, { left, right }] of parts)
      if ((left < -1 || right > innerWidth + 1) && !scrolls(one)) found.push(`${named(one)}: cut`);
    parts.forEach(([one, a], place) => parts.slice(place + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1 && !one.contains(other)) found.push(`${named(one)} on ${named(other)}`);
    }));
  }
  return found;
}"""


def layout_problems(page: Page) -> list[str]:
    """Parts of the page that lie on each other or beyond its width, and a page that scrolls sideways."""
    result: list[str] = page.evaluate(_LAID_OUT, list(_APART))
    return result


def share_of_width(page: Page, selector: str) -> float:
    """Share of the window's width between the left and the right end of the elements."""
    boxes = [box for one in page.locator(selector).all() if (box := one.bounding_box()) is not None]
    assert boxes, selector
    assert page.viewport_size is not None
    ends = max(box["x"] + box["width"] for box in boxes), min(box["x"] for box in boxes)
    return (ends[0] - ends[1]) / page.viewport_size["width"]
