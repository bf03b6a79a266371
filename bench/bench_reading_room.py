"""Times of the reading room in Debian's Chromium: a radiograph, the next study, ten signatures, a scan.

    python bench/bench_reading_room.py [--studies 10]

A workstation with a model of the tests' size listens here. Radiographs have 2,544 x 3,056 pixels of 12 bits, as those
of MIMIC-CXR. Printed are, each as median and greatest: seconds from opening a study's address to its drawn film, and
from the key for the next study to its drawn film, which is fetched ahead; then keys and seconds from the log-in to the
last signed study, of a reader who does not pause: what the machine takes. Last come slices a second of a scan of 512 x
512 x 300 voxels that is scrolled slice by slice, each drawn before the next, in one plane and in three. Chromium draws
without a GPU, at most 60 frames a second.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nibabel
import numpy as np
from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench_serve import train_small

from radweave.engine.train import train
from radweave.phantom.study import PhantomOptions, write_phantom_dataset
from radweave.workstation.settings import Settings
from tests.toys import TOY_CT_OVERRIDES
from tests.workstation.browser.steps import dicom, upload
from tests.workstation.fake_workers import placing_scan_worker
from tests.workstation.stations import listening

ROWS, COLUMNS = 3056, 2544
DRAWN = ".rv-film[data-center]"
SHAPE_XYZ, SPACING_XYZ = (512, 512, 300), (0.7, 0.7, 1.0)
SCROLLED = """async (count) => {
  const { shown } = await import("/static/viewer/films.js");
  const [film] = [...shown];
  const { view } = film;
  const drawn = () => new Promise((done) => view.addEventListener("CORNERSTONE_IMAGE_RENDERED", done, { once: true }));
  film.goTo(20);
  await drawn();
  const begun = performance.now();
  for (let slice = 0; slice < count; slice += 1) {
    const next = drawn();
    film.scroll(1);
    await next;
  }
  return count / ((performance.now() - begun) / 1000);
}"""


def say(what: str, seconds: Sequence[float]) -> None:
    print(f"{what}: median {statistics.median(seconds):.2f} s, greatest {max(seconds):.2f} s", flush=True)


def log_in(page: Page, token: str) -> None:
    page.goto(f"/login#token={token}")
    page.wait_for_url("**/studies")


def open_each(page: Page, studies: Sequence[str]) -> None:
    """By address, each in a page of its own; then all of them by the key for the next one, with time to fetch it."""
    cold, ahead = [], []
    for study in studies:
        begun = time.perf_counter()
        page.goto(f"/studies/{study}")
        page.locator(DRAWN).first.wait_for()
        cold.append(time.perf_counter() - begun)
    page.goto(f"/studies/{studies[0]}")
    for following in studies[1:]:
        page.locator(DRAWN).first.wait_for()
        page.wait_for_function("(id) => import('/static/ahead.js').then((one) => one.aheadOf() === id)", arg=following)
        page.wait_for_load_state("networkidle")
        page.evaluate("document.querySelectorAll('.rv-film').forEach((film) => film.classList.add('of-before'))")
        page.locator("#main").focus()
        begun = time.perf_counter()
        page.keyboard.press("g")
        page.locator(f"{DRAWN}:not(.of-before)").first.wait_for()
        ahead.append(time.perf_counter() - begun)
        assert page.url.endswith(following)
    say(f"opened by its address, {COLUMNS} x {ROWS}", cold)
    say("next study in one key, fetched ahead", ahead)


def sign_each(page: Page, token: str, count: int) -> None:
    keys, begun = 0, time.perf_counter()

    def press(*names: str) -> None:
        nonlocal keys
        for name in names:
            page.keyboard.press(name)
            keys += 1

    log_in(page, token)
    page.locator("tr[data-state=drafted]").nth(count - 1).wait_for()
    page.locator("body").focus()
    press("j", "Enter")
    shown = "Study"
    for _ in range(count):
        expect(page.locator("#name")).not_to_have_text(shown)
        page.locator("li.sentence").first.wait_for()
        page.locator(DRAWN).first.wait_for()
        shown = page.locator("#name").inner_text()
        while page.locator("li.sentence.unseen").count():
            press("n", "l")
        press("s")
        page.locator("dialog[open]").wait_for()
        press("Control+Shift+Enter")
        page.locator("dialog[open]").wait_for(state="hidden")
    expect(page.locator("#alerts")).to_contain_text("No other study waits")
    print(f"{count} studies signed: {keys} keys, {time.perf_counter() - begun:.1f} s from the log-in on", flush=True)


def train_small_ct(place: Path) -> Path:
    """A run of the tests' size for scans: it says what the workstation takes in."""
    options = PhantomOptions(prevalence="balanced", volume_size=16, slices=8)
    dataset = write_phantom_dataset(place / "scans", modality="ct", num_studies=24, seed=0, options=options)
    return train("baseline", dataset.path, place / "ct_run", preset="tiny-ct", overrides=TOY_CT_OVERRIDES)


def write_scan(path: Path) -> Path:
    """A body of soft tissue with two lungs and noise, in Hounsfield units."""
    x, y = np.meshgrid(*(np.linspace(-1, 1, size) for size in SHAPE_XYZ[:2]), indexing="ij")
    plane = np.where((x / 0.9) ** 2 + (y / 0.6) ** 2 < 1, 40, -1000)
    plane[((np.abs(x) - 0.45) / 0.3) ** 2 + (y / 0.4) ** 2 < 1] = -850
    noisy = (plane + np.random.default_rng(0).normal(0, 20, plane.shape)).astype(np.int16)
    affine = np.diag([-SPACING_XYZ[0], -SPACING_XYZ[1], SPACING_XYZ[2], 1.0])
    nibabel.save(nibabel.Nifti1Image(np.repeat(noisy[..., None], SHAPE_XYZ[2], axis=2), affine), path)
    return path


def scroll(page: Page, scan: Path) -> None:
    page.set_input_files("#files", scan)
    page.locator("tr[data-state=drafted] .study-link").click(timeout=600_000)
    begun = time.perf_counter()
    page.locator(".rv-film[data-slice]").first.wait_for(timeout=600_000)
    print(f"scan of {' x '.join(map(str, SHAPE_XYZ))} opened in {time.perf_counter() - begun:.1f} s", flush=True)
    for layout, words in (("planes", "three planes"), ("axial", "one plane")):
        page.locator("select[aria-label=Layout]").select_option(layout)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(1_000)
        rates = [page.evaluate(SCROLLED, 100) for _ in range(5)]
        print(f"{words}: median {statistics.median(rates):.0f} slices a second, least {min(rates):.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=10)
    count = parser.parse_args().studies
    chromium = shutil.which("chromium")
    assert chromium is not None, "there is no Chromium (Debian: apt-get install chromium)"
    expect.set_options(timeout=120_000)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        screen = {"width": 1920, "height": 1080}
        settings = Settings(run=train_small(Path(name)), state=Path(name) / "state", drain_s=1.0, logins=100)
        with listening(settings) as (port, token):

            def new_page() -> Page:
                page = browser.new_page(base_url=f"http://127.0.0.1:{port}", viewport=screen)
                page.set_default_timeout(60_000)
                return page

            page = new_page()
            log_in(page, token)
            for number in range(count):
                upload(page, f"chest{number:02}.dcm", dicom(rows=ROWS, columns=COLUMNS))
            rows = page.locator("tr[data-state=drafted]")
            expect(rows).to_have_count(count, timeout=600_000)
            names = {row.locator(".study-link").inner_text(): row.get_attribute("data-study") for row in rows.all()}
            open_each(page, [str(names[one]) for one in sorted(names)])
            page.close()
            sign_each(new_page(), token, count)
        settings = Settings(run=train_small_ct(Path(name)), state=Path(name) / "ct_state", drain_s=1.0)
        with listening(settings, placing_scan_worker) as (port, token):
            page = browser.new_page(base_url=f"http://127.0.0.1:{port}", viewport=screen)
            log_in(page, token)
            scroll(page, write_scan(Path(name) / "scan.nii"))


if __name__ == "__main__":
    main()
