"""Memory of one tab over many studies: what was shown once is let go. ``RADWEAVE_TEST_STUDIES`` sets how many."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from playwright.sync_api import BrowserContext, CDPSession, Page, expect

from radweave.data.dataset import Dataset
from radweave.workstation.settings import Settings
from tests.workstation.browser.steps import dicom
from tests.workstation.stations import listening

STUDIES = int(os.environ.get("RADWEAVE_TEST_STUDIES", "24"))
WARM = 8
"""Studies after which all code has run and the browser has compiled it."""
AT_ONCE = 20


def _counted(page: Page, chromium: CDPSession) -> dict[str, float]:
    """Chromium's own counters after a collection, in MiB or pieces, and the images that cornerstone3D holds."""
    for _ in range(3):
        chromium.send("HeapProfiler.collectGarbage")
    found = {one["name"]: one["value"] for one in chromium.send("Performance.getMetrics")["metrics"]}
    cached = page.evaluate(
        "import('/static/vendor/cornerstone/cornerstone.js').then(({ cache }) => [cache.getCacheSize(), "
        "cache.getVolumes?.().length ?? 0])"
    )
    return {
        "heap": found["JSHeapUsedSize"] / 2**20, "listeners": found["JSEventListeners"], "nodes": found["Nodes"],
        "cached": cached[0] / 2**20, "buffers": found["ArrayBufferContents"],
    }  # fmt: skip


def _upload_all(page: Page, files: list[tuple[str, bytes]]) -> None:
    for first in range(0, len(files), AT_ONCE):
        for name, data in files[first : first + AT_ONCE]:
            answer = page.request.post(
                "/api/v1/studies",
                headers={"X-CSRF-Token": page.locator("meta[name=csrf]").get_attribute("content") or ""},
                multipart={"files": {"name": name, "mimeType": "application/octet-stream", "buffer": data}},
            )
            assert answer.ok, answer.text()
    page.reload()
    drafted = page.locator("#states button", has_text="Drafted").locator("b")
    expect(drafted).to_have_text(str(len(files)), timeout=120_000)


def _read_all(page: Page, count: int) -> list[dict[str, float]]:
    """Open one study after the other by its key: the counters after each ten, the first after ``WARM``."""
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable")
    page.locator("tr[data-state=drafted] .study-link").first.click()
    counters = []
    for number in range(1, count + 1):
        page.locator("li.sentence").first.wait_for()
        page.locator(".rv-film[data-center]").first.wait_for()
        if number in (WARM, count) or (number > WARM and number % 10 == 0):
            page.wait_for_load_state("networkidle")
            counters.append(_counted(page, chromium) | {"study": number})
        shown = page.locator("#name").inner_text()
        if number < count:
            page.locator("#main").focus()
            page.keyboard.press("g")
            expect(page.locator("#name")).not_to_have_text(shown)
    return counters


def _assert_flat(counters: list[dict[str, float]]) -> None:
    for one in counters:
        print({name: round(value, 1) for name, value in one.items()})
    first, last = counters[0], counters[-1]
    assert last["heap"] - first["heap"] < 2
    assert last["cached"] <= first["cached"] + 0.1
    assert last["buffers"] - first["buffers"] < 20
    assert last["nodes"] - first["nodes"] < 500
    assert last["listeners"] - first["listeners"] < 50


def _scans(count: int, path: Path) -> list[tuple[str, bytes]]:
    """Scans that differ in their last voxel's bytes, so that none is a repeated one."""
    import gzip

    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    made = []
    for number in range(count):
        changed = raw[:-2] + np.int16(number).tobytes()
        made.append((f"scan{number}.nii.gz", gzip.compress(changed, 1)))
    return made


def _page(watched: Callable[..., BrowserContext], port: int, token: str) -> Page:
    page = watched(f"http://127.0.0.1:{port}").new_page()
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")
    return page


def test_radiographs_leave_nothing_behind(settings: Settings, watched: Callable[..., BrowserContext]) -> None:
    with listening(settings) as (port, token):
        page = _page(watched, port, token)
        _upload_all(page, [(f"chest{n}.dcm", dicom(rows=300, columns=450)) for n in range(STUDIES)])
        _assert_flat(_read_all(page, STUDIES))


def test_scans_leave_nothing_behind(
    toy_ct_run: Path, toy_ct_dataset: Dataset, tmp_path: Path, watched: Callable[..., BrowserContext]
) -> None:
    settings = Settings(run=toy_ct_run, state=tmp_path / "state", drain_s=1.0)
    path = toy_ct_dataset.image_path(next(iter(toy_ct_dataset.studies("test"))).images[0].path)
    with listening(settings) as (port, token):
        page = _page(watched, port, token)
        _upload_all(page, _scans(STUDIES, path))
        _assert_flat(_read_all(page, STUDIES))
