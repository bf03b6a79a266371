"""``radweave explain``: maps over pictures, support of sentences, tables of sources, and a self-contained page."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from radweave.cli import main
from radweave.core.errors import InputError
from radweave.core.evidence import SentencePlace
from radweave.core.json_files import json_text
from radweave.core.study import RESEARCH_ONLY, LabelState, Report
from radweave.data.boxes import box_of_mask, overlap
from radweave.data.cache.images import build_cache
from radweave.data.ct import CtPreprocessing
from radweave.data.dataset import Dataset
from radweave.data.square import place_in_square, to_square
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.engine.drafts import Drafter, json_value
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, restore
from radweave.inference.explain import explain_files, explain_study, scan_subject, write_explanation
from radweave.inference.explain.maps import (
    LINE_AT,
    PALETTE,
    Panel,
    RadiographSubject,
    ScanSubject,
    between_weights,
    choose,
    middles,
    overlay_indices,
    smallest_half,
)
from radweave.inference.explain.support import (
    Finding,
    Support,
    Verdict,
    _flag,
    added_cells,
    change_rows,
    find_support,
    source_rows,
)
from radweave.inference.predictor import Predictor
from radweave.io.volumes import Geometry, Volume
from radweave.labels import get_labeler
from radweave.labels.comparisons import STATES
from tests.all_evidence import TEXT, AllEvidence, one_hot, stubbed
from tests.toys import toy_image


@pytest.fixture(scope="module")
def run(toy_run: Path) -> Run:
    return restore(toy_run)


@pytest.fixture(scope="module")
def explained(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    images = [
        toy_image(folder / "<b>one.png", bright_side="left", seed=1),
        toy_image(folder / "two.png", bright_side="right", seed=2, size=(40, 48)),
    ]
    return explain_files(run, stubbed(run), images, folder / "out")


# Maps


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 90), st.integers(20, 90), st.integers(2, 9), st.integers(2, 9), st.data())
def test_a_map_is_read_where_each_pixel_lay_in_the_square(
    height: int, width: int, rows: int, columns: int, data: st.DataObject
) -> None:
    hot = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    side = 64
    subject = RadiographSubject("x", np.zeros((height, width), np.float32), side)
    (panel,) = subject.panels_with(one_hot((rows, columns), hot))
    assert panel.heat is not None
    top, left, new_height, new_width = place_in_square(height, width, side)
    shown_height, shown_width = panel.grey.shape
    row, column = data.draw(st.integers(0, shown_height - 1)), data.draw(st.integers(0, shown_width - 1))
    # The pixel's middle, in patches from the middle of the hot one; beyond the outermost middles nothing changes.
    y = (top + (row + 0.5) / shown_height * new_height) / side * rows - 0.5
    x = (left + (column + 0.5) / shown_width * new_width) / side * columns - 0.5
    y, x = min(max(y, 0), rows - 1), min(max(x, 0), columns - 1)
    expected = max(0.0, 1 - abs(y - hot[0])) * max(0.0, 1 - abs(x - hot[1]))
    assert panel.heat[row, column] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", [(90, 60), (60, 90), (75, 75), (121, 50)])
def test_a_bright_spot_that_the_model_sees_is_hot_over_the_same_spot_of_the_picture(shape: tuple[int, int]) -> None:
    height, width = shape
    pixels = np.zeros(shape, np.float32)
    spot = slice(height // 8, height // 4), slice(5 * width // 8, 6 * width // 8)
    pixels[spot] = 1.0
    square = to_square(pixels, 64).astype(np.float64)
    weights = square.reshape(16, 4, 16, 4).mean(axis=(1, 3))
    (panel,) = RadiographSubject("x", pixels, 64).panels_with(weights)
    assert panel.heat is not None
    row, column = np.unravel_index(panel.heat.argmax(), panel.heat.shape)
    shown_height, shown_width = panel.heat.shape
    assert shown_height / shown_width == pytest.approx(height / width, rel=0.02)
    assert spot[0].start <= row / shown_height * height < spot[0].stop
    assert spot[1].start <= column / shown_width * width < spot[1].stop
    assert panel.grey[row, column] > 200


def test_between_patches_values_are_as_torch_has_them() -> None:
    weights = np.random.default_rng(0).random((5, 7))
    own = between_weights(5, middles(32)) @ weights @ between_weights(7, middles(32)).T
    oracle = F.interpolate(torch.tensor(weights)[None, None], (32, 32), mode="bilinear", align_corners=False)
    assert np.allclose(own, oracle[0, 0].numpy(), atol=1e-12)


def test_attention_on_the_padding_is_reported() -> None:
    tall = RadiographSubject("x", np.zeros((64, 32), np.float32), 64)
    assert tall.share_beside(np.ones((4, 4))) == pytest.approx(0.5)
    assert tall.share_beside(one_hot((4, 4), (1, 0))) == pytest.approx(1.0)
    assert tall.share_beside(one_hot((4, 4), (1, 1))) == pytest.approx(0.0)
    assert tall.share_beside(one_hot((1, 3), (0, 0))) == pytest.approx(0.75)


def test_an_even_map_needs_half_of_the_picture_and_a_point_next_to_nothing() -> None:
    assert smallest_half([np.ones((4, 4)), np.ones((4, 4))]) == pytest.approx(0.5)
    assert smallest_half([one_hot((5, 5), (2, 2)), np.zeros((5, 5))]) == pytest.approx(0.5 / 50)
    assert smallest_half([np.zeros((3, 3))]) == 0.5


def test_a_scan_is_cut_through_the_peak_with_the_head_on_top() -> None:
    voxels = np.zeros((8, 12, 16), np.float32)
    weights = one_hot((4, 6, 8), (3, 1, 6))
    axial, coronal, sagittal = ScanSubject("CT", voxels, spacing_mm=(2.0, 1.0, 1.0)).panels_with(weights)
    assert [panel.title for panel in (axial, coronal, sagittal)] == [
        "CT, axial slice 8 of 8",
        "CT, coronal slice 4 of 12",
        "CT, sagittal slice 14 of 16",
    ]
    assert axial.grey.shape[1] / axial.grey.shape[0] == pytest.approx(16 / 12, rel=0.02)
    assert coronal.grey.shape[1] / coronal.grey.shape[0] == pytest.approx(1.0, rel=0.02)
    for panel, place in ((axial, (1.5 / 6, 6.5 / 8)), (coronal, (0.5 / 4, 6.5 / 8)), (sagittal, (0.5 / 4, 1.5 / 6))):
        assert panel.heat is not None
        peak = np.unravel_index(panel.heat.argmax(), panel.heat.shape)
        for result, expected, size in zip(peak, place, panel.heat.shape, strict=True):
            assert result / size == pytest.approx(expected, abs=1 / 8), panel.title


@pytest.mark.parametrize(
    "options",
    [
        CtPreprocessing(),
        CtPreprocessing(spacing_mm=(2.0, 2.0, 2.0), size=(24, 40, 48)),
        CtPreprocessing(crop="foreground", window_hu=(-1000, 200), size=(8, 16, 16), fit="resize"),
    ],
)
def test_a_box_lies_on_its_finding_in_each_plane(options: CtPreprocessing) -> None:
    hu = np.full((20, 40, 48), -1000, np.int16)
    hu[2:18, 4:36, 4:44] = -900
    finding = (slice(12, 16), slice(8, 16), slice(30, 40))
    hu[finding] = 200
    box = box_of_mask(hu == 200)
    assert box is not None
    geometry = Geometry((1, 1, 2), (0, 0, 0), (1, 0, 0, 0, 1, 0, 0, 0, 1))
    subject = scan_subject(Volume(hu, (2.0, 1.0, 1.0), geometry, "nifti", ()), options)
    panels = subject.panels_at(box)
    assert [panel.title.split()[1] for panel in panels] == ["axial", "coronal", "sagittal"]
    for panel in panels:
        assert panel.box is not None
        bright = panel.grey > 110
        found = box_of_mask(bright)
        assert found is not None
        assert overlap(found, panel.box) > 0.6, (panel.title, found, panel.box)
    assert subject.panels_at((0.1, 0.2, 0.3, 0.4)) == [], "a box of a radiograph"


def test_a_box_of_a_radiograph_lies_where_it_was_read() -> None:
    subject = RadiographSubject("x", np.zeros((90, 60), np.float32), 64)
    (panel,) = subject.panels_at((0.1, 0.2, 0.5, 0.9))
    assert panel.box == (0.1, 0.2, 0.5, 0.9)
    for wrong in ((0.5, 0.2, 0.1, 0.9), (0.1, 0.2, 0.5, 1.1), (math.nan, 0.2, 0.5, 0.9), (0, 0, 0, 1, 1, 1)):
        assert subject.panels_at(wrong) == []


def test_colours_grow_lighter_and_a_line_marks_half_of_the_peak() -> None:
    lightness = PALETTE[:255, :3] @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(lightness) > -1).all()
    assert lightness[-1] > 2 * lightness[0]
    heat = np.tile(np.linspace(0, 2.0, 101), (5, 1))
    indices = overlay_indices(Panel("x", np.zeros(heat.shape, np.uint8), heat), 2.0)
    assert sorted(set(np.flatnonzero((indices == 255).any(axis=0)))) == [int(100 * LINE_AT) - 1, int(100 * LINE_AT)]


# Sentences and what supports them


CALIBRATED: dict[str, Any] = {
    "split": "val", "studies": 240, "thresholds": {}, "uncalibrated": {},
    "alike": {name: [9, 24] for name in ("Cardiomegaly", "Pneumothorax", "Pleural Effusion", "Lung Opacity")},
}  # fmt: skip


def placed(probability: float | None, *boxes: tuple[int, list[float]]) -> SentencePlace:
    """The place of an opacity of the left upper lung, with boxes by view."""
    return {
        "finding": "Lung Opacity",
        "sides": ["left"],
        "zones": ["upper"],
        "probability": probability,
        "probabilities": {} if probability is None else {"left": 0.95, "upper": 0.55},
        "boxes": [{"view": view, "box": box} for view, box in boxes],
    }


def support_of(text: str, **evidence: Any) -> Support:
    return find_support(Report(text, "s", evidence), get_labeler("chexpert14"))


@pytest.mark.parametrize(
    ("text", "probability", "recalled", "verdict"),
    [
        ("The heart is enlarged.", 0.9, None, Verdict.SUPPORTED),
        ("The heart is enlarged.", 0.1, None, Verdict.CONTRADICTED),
        ("The heart is enlarged.", 0.3, None, Verdict.UNSUPPORTED),
        ("The heart is enlarged.", None, None, Verdict.UNSUPPORTED),
        ("The heart is enlarged.", None, "Cardiomegaly.", Verdict.UNCONFIRMED),
        ("The heart is enlarged.", None, "Heart size is normal.", Verdict.UNSUPPORTED),
        ("The heart is enlarged.", 0.1, "Cardiomegaly.", Verdict.DISPUTED),
        ("Heart size is normal.", 0.9, None, Verdict.CONTRADICTED),
        ("Heart size is normal.", 0.1, "Cardiomegaly.", Verdict.SUPPORTED),
        ("Heart size is normal.", 0.3, "Heart size is normal.", Verdict.UNCONFIRMED),
        # At the threshold of a half, at half of it, and below.
        ("The heart is enlarged.", 0.5, None, Verdict.SUPPORTED),
        ("The heart is enlarged.", 0.25, None, Verdict.UNSUPPORTED),
        ("The heart is enlarged.", 0.24, None, Verdict.CONTRADICTED),
        ("Heart size is normal.", 0.5, None, Verdict.CONTRADICTED),
        ("Heart size is normal.", 0.25, None, Verdict.UNSUPPORTED),
        ("Heart size is normal.", 0.24, None, Verdict.SUPPORTED),
        ("Possible cardiomegaly.", 0.5, None, Verdict.UNCONFIRMED),
        ("Possible cardiomegaly.", 0.25, None, Verdict.UNCONFIRMED),
        ("Possible cardiomegaly.", 0.24, None, Verdict.UNSUPPORTED),
        ("The lungs are clear.", 0.9, "Cardiomegaly.", Verdict.NO_CLAIM),
    ],
)
def test_a_claim_is_held_against_probability_and_recalled_texts(
    text: str, probability: float | None, recalled: str | None, verdict: Verdict
) -> None:
    support = support_of(
        text,
        class_probabilities={} if probability is None else {"Cardiomegaly": probability},
        calibration=CALIBRATED,
        recalled=[] if recalled is None else [{"kind": "report", "study_id": "r", "text": recalled}],
    )
    assert support.sentences[0].verdict is verdict


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("There is an opacity.", ()),
        ("Subtle opacity in the left upper lung.", ("side", "place", "severity")),
        ("Opacity in the lung bases.", ("place",)),
        ("A 4 mm opacity on the right.", ("side", "size")),
        ("RLL opacity.", ("side", "place")),
        ("Unchanged bilateral opacities.", ("side", "change")),
        ("The heart is enlarged.", ()),
        ("The heart is mildly enlarged.", ("severity",)),
        ("No pneumothorax.", ()),
        ("No large right pneumothorax.", ("side", "size")),
    ],
)
def test_a_tick_covers_everything_that_a_sentence_states(text: str, stated: tuple[str, ...]) -> None:
    present = 0.1 if text.startswith("No ") else 0.9
    names = ("Lung Opacity", "Cardiomegaly", "Pneumothorax")
    # The map lies at the left base, whatever is written: it checks no place.
    heat = {name: [[[0, 0], [0, 1.0]]] for name in names}
    given = {"class_probabilities": dict.fromkeys(names, present), "attention_maps": heat}
    (line,) = support_of(text, **given, calibration=CALIBRATED).sentences
    assert (line.checked, line.not_checked) == (("finding",), stated)
    assert line.verdict is (Verdict.PARTLY if stated else Verdict.SUPPORTED)
    assert line.words == "checked: finding" + (f"; not checked: {', '.join(stated)}" if stated else "")


@pytest.mark.parametrize(
    ("text", "probability", "is_checked"),
    [
        ("There is a pneumothorax.", 0.5, True), ("There is a pneumothorax.", 0.49, False),
        ("No pneumothorax.", 0.09, True), ("Possible pneumothorax.", 0.9, False),
    ],
)  # fmt: skip
def test_a_tick_needs_a_calibrated_probability_of_a_half_and_a_certain_claim(
    text: str, probability: float, is_checked: bool
) -> None:
    low = {**CALIBRATED, "thresholds": {"Pneumothorax": 0.2}}
    for calibration, may in (
        (low, True),
        ({**low, "alike": {}, "uncalibrated": {"Pneumothorax": 2}}, False),
        (None, False),
    ):
        given = {} if calibration is None else {"calibration": calibration}
        (line,) = support_of(text, class_probabilities={"Pneumothorax": probability}, **given).sentences
        assert (line.verdict is Verdict.SUPPORTED) is (is_checked and may)
        assert (line.checked == ("finding",)) is (is_checked and may)
        if not (is_checked and may):
            assert line.not_checked[0] == "finding"
            assert line.words.startswith(("not checked: finding", "nothing agrees with it; not checked: finding"))


@pytest.mark.parametrize(
    ("text", "probability", "verdict", "checked"),
    [
        ("Opacity in the left upper lung.", 0.5, Verdict.SUPPORTED, ("finding", "side", "place")),
        ("Opacity in the left upper lung.", 0.49, Verdict.PARTLY, ("finding",)),
        ("Opacity in the left upper lung.", 0.25, Verdict.PARTLY, ("finding",)),
        ("Opacity in the left upper lung.", 0.24, Verdict.MISPLACED, ("finding",)),
        ("Opacity in the left upper lung.", None, Verdict.PARTLY, ("finding",)),
        ("Opacity in the posterior left upper lung.", 0.9, Verdict.PARTLY, ("finding", "side")),
    ],
)
def test_a_tick_of_place_needs_its_probability(
    text: str, probability: float | None, verdict: Verdict, checked: tuple[str, ...]
) -> None:
    sentences = [{"text": text, "places": [placed(probability)]}]
    given = {"class_probabilities": {"Lung Opacity": 0.9}, "calibration": CALIBRATED, "sentences": sentences}
    (line,) = support_of(text, **given).sentences
    assert (line.verdict, line.checked) == (verdict, checked)
    assert not {*line.checked} & {*line.not_checked}


def test_recalled_texts_that_contradict_each_other_leave_a_claim_disputed() -> None:
    """Unless the probability decides."""
    cases = [{"kind": "report", "study_id": "r", "text": text} for text in ("Cardiomegaly.", "No cardiomegaly.")]
    for probability, verdict in ((None, Verdict.DISPUTED), (0.9, Verdict.SUPPORTED)):
        given = {} if probability is None else {"Cardiomegaly": probability}
        support = support_of("Cardiomegaly.", class_probabilities=given, recalled=cases, calibration=CALIBRATED)
        assert support.sentences[0].verdict is verdict
    assert support_of("Cardiomegaly.", recalled=cases[:1]).sentences[0].verdict is Verdict.UNCONFIRMED


def test_a_sentence_has_the_verdict_of_its_worst_claim_and_marked_words() -> None:
    support = support_of(
        "No effusion or pneumothorax.",
        class_probabilities={"Pneumothorax": 0.9, "Pleural Effusion": 0},
        calibration=CALIBRATED,
    )
    (line,) = support.sentences
    assert {claim.name: claim.verdict for claim in line.claims} == {
        "Pneumothorax": Verdict.CONTRADICTED,
        "Pleural Effusion": Verdict.SUPPORTED,
    }
    assert line.verdict is Verdict.CONTRADICTED
    assert [text for text, marked in line.parts if marked] == ["effusion", "pneumothorax"]
    assert "".join(text for text, _ in line.parts) == "No effusion or pneumothorax."


def test_probable_findings_missing_in_the_draft_are_flagged() -> None:
    given = {"Edema": 0.8, "Fracture": 0.8, "Pneumonia": 0.1, "No Finding": 0.9, "Consolidation": 0.4}
    support = support_of("There is pneumonia. No fracture.", class_probabilities=given)
    flags = {finding.name: finding.flag for finding in support.findings if finding.flag}
    assert set(flags) == {"Edema", "Fracture", "Pneumonia", "No Finding"}
    assert "not in the draft" in str(flags["Edema"])
    assert "denies" in str(flags["Fracture"])
    assert "affirms" in str(flags["Pneumonia"])


def test_copied_sentences_are_matched_on_whole_words() -> None:
    cases = [{"kind": "report", "study_id": "r", "text": text} for text in ("Seen. NO  effusion.", "No effusions.")]
    assert support_of("No effusion.", recalled=cases).sentences[0].verbatim == (1,)


def test_cases_recalled_for_another_class_do_not_count() -> None:
    cases = [
        {"kind": "sentence", "study_id": "r", "text": "Cardiomegaly.", "for": name}
        for name in ("Edema", "Cardiomegaly")
    ]
    (claim,) = support_of("The heart is enlarged.", recalled=cases).sentences[0].claims
    assert (claim.agree, claim.about) == ((2,), (2,))


def test_contradicting_sentences_are_listed_apart() -> None:
    support = support_of("The heart is enlarged. The heart is normal in size.")
    (finding,) = [finding for finding in support.findings if finding.name == "Cardiomegaly"]
    assert (finding.state, finding.sentences, finding.otherwise) == (LabelState.POSITIVE, (1,), (2,))


def test_a_report_without_confidences_is_cut_into_sentences() -> None:
    lines = support_of("Heart is large.  A 1.5 cm nodule.\nNo effusion").sentences
    texts = ["".join(part for part, _ in line.parts) for line in lines]
    assert [text.rstrip(".") for text in texts] == ["Heart is large", "A 1.5 cm nodule", "No effusion"]
    assert all(line.confidence is None for line in lines)
    assert support_of("").sentences == ()


def test_maps_are_shown_for_probable_or_stated_findings() -> None:
    def finding(name: str, probability: float | None, statement: LabelState = LabelState.BLANK) -> Finding:
        return Finding(name, probability, statement, None, (), ())

    rows = [finding("a", 0.1), finding("b", 0.9), finding("c", 0.2, LabelState.POSITIVE), finding("d", 0.6)]
    rows += [finding("e", 0.7), finding("No Finding", 1.0)]
    findings = {row.name: row for row in rows}
    assert choose(list(findings), findings) == ["b", "e", "d", "c"]
    stern = {name: replace(row, threshold=0.95) for name, row in findings.items()}
    assert choose(list(findings), stern) == ["b", "e", "c"]
    unknown = {name: finding(name, None) for name in "abcdefgh"}
    assert choose(list(unknown), unknown) == list("abcdef")


# Evidence as JSON


def test_evidence_becomes_json() -> None:
    values = {
        "tensor": torch.tensor([[1 / 3, float("nan")]], dtype=torch.float64),
        "half": torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
        "array": np.array([1, 2]),
        "float": np.float32(1e-7 / 3),
        "flag": np.bool_(True),
        "tuple": (1, "a", None, float("inf")),
        3: True,
    }
    assert json_value(values) == {
        "tensor": [[0.3333, None]],
        "half": 0.5,
        "array": [1, 2],
        "float": 3.333e-8,
        "flag": True,
        "tuple": [1, "a", None, None],
        "3": True,
    }
    json.dumps(json_value(values), allow_nan=False)
    with pytest.raises(TypeError, match="object"):
        json_value({"a": object()})


def test_arrays_in_json_take_a_line_per_row() -> None:
    value = {"map": [[0.5, -1e-5], [None, 3]], "text": "[\n 1, 2\n]", "mixed": [1, "a"], "empty": []}
    text = json_text(value)
    assert json.loads(text) == value
    assert "[0.5, -1e-05],\n" in text
    assert text.count("\n") == 12


# The page


def test_the_page_holds_every_kind_of_evidence(explained: Path) -> None:
    html = explained.read_text()
    for expected in (
        RESEARCH_ONLY,
        "Trained on synthetic phantom images only",
        "What supports each sentence",
        "probability 0.90 agrees",
        "probability 0.05 speaks against it",
        "contradicted",
        "probable, but not in the draft",
        "improbable, but the draft affirms it",
        "Word for word in case",
        "Recalled for it: case",
        "region for Cardiomegaly, study t2",
        "nearly even and points nowhere",
        "The map of Edema does not fit the pictures",
        "not the outline of a lesion",
        "an array of 8 x 16 numbers",
        "cell: 7",
        "For Edema, which is neither probable nor in the draft",
        "image similarity 0.123",
    ):
        assert expected in html, expected
    assert html.index(RESEARCH_ONLY) < html.index("<h1>")
    assert html.index("Trained on synthetic phantom images only") < html.index("<h1>")


def test_the_page_needs_nothing_from_elsewhere_and_runs_only_its_own_script(explained: Path) -> None:
    html = explained.read_text()
    for target in re.findall(r"""(?:href|src)=["']([^"']*)""", html):
        assert target.startswith(("#", "data:image/png;base64,")), target[:60]
    for target in re.findall(r'href="#([^"]+)"', html):
        assert f'id="{target}"' in html, target
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    (run,) = [text for attributes, text in scripts if "module" in attributes]
    assert len(scripts) == 1
    policy = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(run.encode()).digest()).decode()}'\""
    assert policy in html
    assert "default-src 'none'" in html
    rest = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"<(script|iframe|object|link|base|form)\b|\bon\w+\s*=|@import|https?://", rest)
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|innerHTML", run)
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &#34;quoted&#34; \ufffd\ufffd" in html
    assert "<b>one" not in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_script_controls_are_hidden_without_scripts(explained: Path) -> None:
    """Each control that does nothing by itself; the pictures of the page are there without."""
    html = explained.read_text()
    controls = re.findall(r"<button[^>]*>|<label[^>]*>\s*opacity", html)
    assert len(controls) >= 6
    assert all("hidden" in control for control in controls)
    assert '<svg class="picture"' in html
    assert "<noscript>" in html


def test_every_map_states_its_meaning_and_limits(explained: Path) -> None:
    html = explained.read_text()
    figures = re.findall(r'<figure class="card" id="map-.*?</figure>', html, re.DOTALL)
    assert len(figures) == 2
    for figure in figures:
        assert "<b>Shows:</b>" in figure
        assert "Unit:" in figure
        assert "<b>Does not show:</b> It is not the outline of a lesion" in figure


def page_of(run: Run, out: Path, text: str = TEXT, **options: Any) -> str:
    """The page of a report without images."""
    evidence = options.pop("evidence", {})
    return write_explanation(run, Report(text, "s", evidence), [], out, **options).read_text()


BOXED = "Opacity in the left upper lung."


def boxed_page(run: Run, out: Path, *places: SentencePlace) -> str:
    """The page of two radiographs and two sentences; the second one has these places."""
    subjects = [
        RadiographSubject(f"View {n}", np.zeros(shape, np.float32), 64) for n, shape in ((1, (90, 60)), (2, (60, 90)))
    ]
    sentences = [{"text": "No effusion.", "places": []}, {"text": BOXED, "places": list(places)}]
    report = Report(f"No effusion. {BOXED}", "s", {"sentences": sentences})  # type: ignore[typeddict-item]
    return write_explanation(run, report, subjects, out).read_text()


def test_boxes_lie_on_the_film_of_their_view_and_name_their_sentence(run: Run, tmp_path: Path) -> None:
    html = boxed_page(run, tmp_path / "out", placed(0.5, (1, [0.5, 0.25, 0.75, 0.5]), (0, [0.5, 0.5, 1, 1])))
    films = re.findall(r'<svg class="picture".*?</svg>', html, re.DOTALL)
    assert 'x="213.5" y="320.0" width="213.5" height="320.0"' in films[0], "427 x 640 pixels"
    assert 'x="320.0" y="106.8" width="160.0" height="106.8"' in films[1], "640 x 427 pixels"
    assert all('href="#sentence-2"' in film and 'data-sentences="2"' in film for film in films)
    assert "Place of Lung Opacity: left upper zone, probability 0.50; by the images left 0.95, upper 0.55." in html
    assert '<a href="#box-1">Box on View 2</a>: 50 to 75 % from the left, 25 to 50 % from the top.' in html
    assert re.findall(r'id="(box-\d)"', html) == ["box-2", "box-1"]


def test_a_box_that_is_not_on_the_films_is_not_drawn(run: Run, tmp_path: Path) -> None:
    wrong = (
        (2, [0.1, 0.1, 0.2, 0.2]),
        (-1, [0.1, 0.1, 0.2, 0.2]),
        (0, [0.1, 0.1, 0.1, 0.2, 0.2, 0.2]),
        (0, [0.5, 0, 0.4, 1]),
    )
    html = boxed_page(run, tmp_path / "out", placed(None, *wrong))
    assert "<rect" not in "".join(re.findall(r'<svg class="picture".*?</svg>', html, re.DOTALL))
    assert "4 of the boxes do not lie on the pictures" in html
    assert "left upper zone, place not checked" in html


def test_a_box_that_covers_nearly_the_whole_film_is_not_drawn_and_that_is_said(run: Run, tmp_path: Path) -> None:
    html = boxed_page(run, tmp_path / "out", placed(0.5, (1, [0.5, 0.25, 0.75, 0.5]), (0, [0, 0.01, 0.99, 1])))
    assert re.findall(r'id="(box-\d)"', html) == ["box-1"]
    assert "upper 0.55; a box covers nearly the whole image, which says no place, and is left out." in html


def test_the_boxes_of_a_scan_have_slices_the_likeliest_of_each_finding_first(run: Run, tmp_path: Path) -> None:
    boxes = [(0, [0.1, 0.1, 0.1, 0.2 + n / 100, 0.3, 0.3]) for n in range(15)]
    sentences = [{"text": BOXED, "places": [placed(0.5, *boxes)]}]
    scan = ScanSubject("CT", np.zeros((8, 12, 16), np.float32))
    html = write_explanation(run, Report(BOXED, "s", {"sentences": sentences}), [scan], tmp_path / "out").read_text()  # type: ignore[typeddict-item]
    assert len(re.findall(r'<div class="views cuts"', html)) == 12
    assert "3 of the boxes, the less likely ones" in html
    assert "10 to 20 % from the feet, 10 to 30 % from the front, 10 to 30 % from the patient&#39;s right" in html


def test_a_draft_of_a_run_without_places_shows_none(run: Run, tmp_path: Path) -> None:
    html = page_of(run, tmp_path / "out", evidence={"sentences": [{"text": TEXT}]})
    assert "Place of" not in html
    assert 'data-sentences="' not in html
    assert "what a sentence says of side, place, size, severity or change is checked by nothing" in html


def test_a_barely_trained_model_says_so_first_and_as_generate_does(run: Run, tmp_path: Path) -> None:
    caution = "barely trained: 3 updates of the stage that writes reports"
    card = run.card.model_copy(update={"cautions": (caution,)})
    doubtful = replace(run, card=card)
    html = page_of(doubtful, tmp_path / "out", banner=Predictor.of(doubtful).warnings)
    assert caution in Predictor.of(doubtful).warnings
    statement = html.index("Barely trained: 3 updates")
    assert html.index("<h1>") < statement < html.index('id="draft"')
    assert "Barely trained" not in html[: html.index("<h1>")], "the bar that stays at the top stays small"
    assert 'id="cautions"' not in page_of(run, tmp_path / "other", banner=())


def test_a_comparison_without_a_prior_is_marked_as_invented(run: Run, tmp_path: Path) -> None:
    text = "The heart is enlarged, unchanged from the prior study. No effusion."
    html = page_of(run, tmp_path / "none", text, has_prior=False)
    assert "Invented prior:</b> 1 of its sentences compares" in html
    assert html.count("invented prior</span>") == 1
    for known in (True, None):
        assert "nvented prior" not in page_of(run, tmp_path / f"prior {known}", text, has_prior=known)
    removed = {
        "comparisons_removed": [{"was": "Stable effusion.", "now": None}, {"was": "Heart, unchanged.", "now": "Heart."}]
    }
    html = page_of(run, tmp_path / "removed", "Heart.", has_prior=False, evidence=removed)
    assert "Invented prior: 2 comparisons with a study that was not given" in html
    assert '<span class="removed">Stable effusion.</span> <b>Left out, findings and all.</b>' in html
    assert '<span class="removed">Heart, unchanged.</span> Now: Heart.' in html


def test_differences_from_the_reference_are_marked_by_colour_sign_and_words(run: Run, tmp_path: Path) -> None:
    html = page_of(
        run, tmp_path / "out", "The heart is enlarged. No effusion.", reference="Heart size is normal. Edema."
    )
    section = html[html.index('id="beside"') : html.index("What supports each sentence")]
    marks = re.findall(
        r'<mark class="diff (\w+)"><span aria-hidden="true">(.) </span><span class="unseen">([^<]+)<', section
    )
    assert marks == [
        ("opposite", "≠", "says the opposite, Cardiomegaly: "),
        ("opposite", "≠", "says the opposite, Cardiomegaly: "),
        ("missed", "−", "missed, Edema: "),
    ]
    assert 'id="beside"' not in page_of(run, tmp_path / "alone")


def test_copied_text_is_marked_as_a_draft(run: Run, tmp_path: Path) -> None:
    html = page_of(
        run, tmp_path / "out", banner=("a warning",), evidence={"class_probabilities": {"Cardiomegaly": 0.9}}
    )
    copies = re.findall(r'data-copy="([^"]*)"', html)
    assert copies[0].startswith(TEXT)
    assert any(text.startswith("Cardiomegaly: probability 0.90") for text in copies)
    for text in copies:
        assert RESEARCH_ONLY in text
        assert "A warning." in text


def test_each_grey_picture_is_embedded_once(explained: Path) -> None:
    html = explained.read_text()
    # Two views; two figures over both of them.
    assert html.count("<image id=") == 2
    assert html.count('<image class="heat"') == 4


def test_the_files_beside_the_page(explained: Path) -> None:
    folder = explained.parent
    names = sorted(path.name for path in folder.iterdir())
    maps = [f"map_{name}_{view}.png" for name in ("cardiomegaly", "pneumothorax") for view in (1, 2)]
    assert names == sorted(["index.html", "evidence.json", "view_1.png", "view_2.png", *maps])
    with Image.open(folder / "map_cardiomegaly_1.png") as hot, Image.open(folder / "view_1.png") as plain:
        hot_pixels, plain_pixels = np.asarray(hot).astype(int), np.asarray(plain).astype(int)
        assert hot.size[0] == plain.size[0] >= 460
    assert (hot_pixels[:480] != hot_pixels[:480].mean(axis=2, keepdims=True)).any()
    assert (plain_pixels[:480, :, :1] == plain_pixels[:480]).all()
    evidence = json.loads((folder / "evidence.json").read_text())
    assert evidence["notice"] == RESEARCH_ONLY
    assert evidence["evidence"]["attention_maps"]["Cardiomegaly"][0][1] == [0.0, 1.0, 0.0, 0.0]
    assert [view["file"] for view in evidence["evidence"]["views"]] == ["<b>one.png", "two.png"]


def test_the_same_input_gives_the_same_bytes_and_nothing_is_replaced_unasked(run: Run, tmp_path: Path) -> None:
    image = toy_image(tmp_path / "a.png", bright_side="left", seed=3)
    page = explain_files(run, stubbed(run), [image], tmp_path / "out")
    before = {path.name: path.read_bytes() for path in page.parent.iterdir()}
    with pytest.raises(InputError, match="--overwrite"):
        explain_files(run, stubbed(run), [image], tmp_path / "out")
    explain_files(run, stubbed(run), [image], tmp_path / "out", overwrite=True)
    assert {path.name: path.read_bytes() for path in page.parent.iterdir()} == before


def test_a_page_that_cannot_be_made_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = toy_image(tmp_path / "a.png", bright_side="left", seed=3)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("radweave.inference.explain.write_text", full)
    with pytest.raises(InputError, match="No space left"):
        explain_files(run, stubbed(run), [image], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_a_dataset_study_is_explained_with_patient_id_and_without_its_report(
    run: Run, toy_dataset: Dataset, tmp_path: Path
) -> None:
    predictor = stubbed(run)
    page = explain_study(run, predictor, toy_dataset.path, "s000", tmp_path / "out")
    assert isinstance(predictor.model, AllEvidence)
    assert predictor.model.patients == ["p000"]
    assert predictor.model.class_labels == [None]
    html = page.read_text()
    reference = re.search(r'aria-label="Reference, marked"><h3>Reference</h3><p>(.*?)</p>', html)
    assert reference is not None
    plain = re.sub(r'<span class="unseen">.*?</span>|<span aria-hidden="true">.*?</span>|<[^>]+>', "", reference[1])
    assert plain.strip() == "There is an opacity on the right. The heart is enlarged. No effusion."
    assert "the model was trained on this study" in html
    assert "View 1, PA" in html
    assert "View 2, LATERAL" in html
    test_page = explain_study(run, predictor, toy_dataset.path, "s020", tmp_path / "test")
    assert "the model was trained on this study" not in test_page.read_text()


def test_a_study_of_a_data_set_is_read_as_in_bulk(run: Run, toy_dataset: Dataset, tmp_path: Path) -> None:
    predictor = Predictor.of(run)
    page = explain_study(run, predictor, toy_dataset.path, "s018", tmp_path / "out")
    cache = build_cache(toy_dataset, size=predictor.image_size)
    examples = prepare(toy_dataset, "test", run.experiment, run.tokenizer, cache, need_text=False).examples
    bulk = next(report for report in predictor.reports(examples) if report.study_id == "s018")
    shown = json.loads((page.parent / "evidence.json").read_text())
    assert shown["report"] == bulk.text
    assert shown["evidence"]["sentences"] == bulk.evidence["sentences"]
    assert [view["view"] for view in shown["evidence"]["views"]] == ["PA", "LATERAL"]


def test_the_prior_is_used_and_a_lost_view_is_reported(run: Run, toy_dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(toy_dataset.path, folder, ignore=shutil.ignore_patterns(".cache"))
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    rows[3] |= {"patient_id": "p000", "prior": "s000", "split": None}
    del rows[3]["split"]
    rows[0].pop("split")
    (folder / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / rows[3]["images"][1]["path"]).write_bytes(b"no image")
    data = run.experiment.data.model_copy(update={"priors": True})
    with_priors = replace(run, experiment=run.experiment.model_copy(update={"data": data}))
    assert run.drafting is not None
    predictor = replace(stubbed(run), drafting=replace(run.drafting, reads_priors=True))
    page = explain_study(with_priors, predictor, folder, "s003", tmp_path / "out")
    assert isinstance(predictor.model, AllEvidence)
    assert predictor.model.priors == [["s000"]]
    html = page.read_text()
    assert "3_1.png: left out, is of no kind that can be read" in html
    assert "View 2" not in html
    (folder / rows[3]["images"][0]["path"]).unlink()
    with pytest.raises(InputError, match="cannot be used"):
        explain_study(with_priors, predictor, folder, "s003", tmp_path / "none")


# The command line


def radweave(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["radweave", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_a_method_without_such_evidence_still_gets_a_page(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    images = [toy_dataset.image_path("images/0_0.png"), toy_dataset.image_path("images/0_1.png")]
    assert radweave(monkeypatch, "explain", toy_run, *images, "--own-decoder", "--out", tmp_path / "out") == 0
    output = capsys.readouterr()
    assert str(tmp_path / "out" / "index.html") in output.out
    assert RESEARCH_ONLY in output.err
    html = (tmp_path / "out" / "index.html").read_text()
    assert "This method gives no class probabilities, no attention maps, no recalled cases." in html
    assert "take each as unsupported" in html
    assert 'class="chip ' in html
    assert 'class="shade ' in html
    assert "Where the model looked" not in html


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the image files"),
        (["--data", "DATA"], "go together"),
        (["x.png", "--study", "s000"], "go together"),
        (["--data", "DATA", "--study", "nobody"], "no such study"),
        (["nowhere.png"], "nowhere.png"),
    ],
)
def test_unexplainable_input_gives_a_one_line_error(
    arguments: list[str],
    message: str,
    toy_run: Path,
    toy_dataset: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    given_arguments = [str(toy_dataset.path) if text == "DATA" else text for text in arguments]
    assert radweave(monkeypatch, "explain", toy_run, *given_arguments, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_calibrated_probability_shows_its_reliability_and_threshold() -> None:
    calibration = {
        "split": "val",
        "studies": 240,
        "thresholds": {"Cardiomegaly": 0.2, "Fracture": 0.2},
        "alike": {"Cardiomegaly": [9, 24]},
        "uncalibrated": {"Fracture": 2},
    }
    given = {"Cardiomegaly": 0.3, "Fracture": 0.3}
    support = support_of("The heart is enlarged.", class_probabilities=given, calibration=calibration)
    assert support.sentences[0].verdict is Verdict.UNCONFIRMED, "0.3 is above the run's own threshold, and no tick"
    rows = {row.name: row for row in support.findings}
    assert rows["Cardiomegaly"].experience == (
        "of 100 such validation studies 38 had it (95 %: 21 to 57; 9 of 24 studies)"
    )
    assert str(rows["Fracture"].experience).startswith("not calibrated: 2 of 240 validation studies have it")
    requested = find_support(
        Report("The heart is enlarged.", "s", {"class_probabilities": given, "calibration": calibration}),
        get_labeler("chexpert14"),
        threshold=0.9,
    )
    assert requested.sentences[0].verdict is Verdict.CONTRADICTED, "a reader's own threshold goes before"
    plain = support_of("The heart is enlarged.", class_probabilities=given)
    assert {row.experience for row in plain.findings} == {None}


def test_a_row_for_each_class_and_a_cell_for_each_source() -> None:
    one, other = {"probability": 0.125, "weight": 0.5}, {"probability": 1, "weight": 0}
    statement = {"Edema": {"kernels": one}, "Mass": {"dense": other}}
    names, rows = source_rows({"sources": statement})
    assert names == ["kernels", "dense"]
    assert rows == [("Edema", ["12 % x 0.50", ""]), ("Mass", ["", "100 % x 0.00"])]


@pytest.mark.parametrize("evidence", [{}, {"sources": ["a"]}, {"sources": {"Edema": 0.5}}, {"sources": None}])
def test_other_evidence_has_no_table(evidence: dict[str, object]) -> None:
    assert source_rows(evidence) == ([], [])


def test_a_broken_cell_is_empty() -> None:
    assert source_rows({"sources": {"Edema": {"dense": {"probability": "x"}}}})[1] == [("Edema", [""])]


def test_the_gain_of_a_source_is_the_difference_or_empty() -> None:
    figures = {"together": 0.26, "together_without": 0.25, "by_class": None, "by_class_without": None}
    assert added_cells(["kernels", "dense"], {"kernels": figures}) == ["+0.010 all", ""]
    assert added_cells(["dense"], {}) == []


def test_a_row_for_each_class_that_was_compared_and_none_without_a_prior() -> None:
    states = dict.fromkeys(STATES, 0.0) | {"worse": 0.75, "unchanged": 0.25}
    assert change_rows({"changes": {"Edema": {"before": "affirmed", **states}}}) == [
        ("Edema", ["affirmed", "0 %", "0 %", "75 %", "25 %", "0 %", "0 %"])
    ]
    for other in ({}, {"changes": None}, {"changes": {"Edema": 0.5}}):
        assert change_rows(other) == []


LOWER_CASE = "the heart is normal. size 1.3 cm. no effusion is seen."
SENTENCES = ["the heart is normal.", "size 1.3 cm.", "no effusion is seen."]


def byte_level() -> PreTrainedTokenizerBase:
    """GPT-2's kind: a word's space belongs to its token."""
    return BpeTokenizerConfig(vocab_size=300).build([LOWER_CASE] * 4)


def bytes_alone() -> PreTrainedTokenizerBase:
    """A vocabulary so small that a space is a token of its own."""
    return BpeTokenizerConfig(vocab_size=300).build(["xy"])


def metaspace() -> PreTrainedTokenizerBase:
    """Llama's kind: decoding one token by itself drops its space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [LOWER_CASE] * 4, trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "</s>"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def word_piece() -> PreTrainedTokenizerBase:
    """BERT's kind: spaces stand around every token that does not continue a word."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    tokenizer.train_from_iterator([LOWER_CASE] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


# A word-piece tokenizer writes "1. 3": where a number ends cannot be told from its text.
WITHOUT_NUMBER = "the heart is normal. no effusion is seen."


@pytest.mark.parametrize(
    ("kind", "text"),
    [(byte_level, LOWER_CASE), (bytes_alone, LOWER_CASE), (metaspace, LOWER_CASE), (word_piece, WITHOUT_NUMBER)],
)
def test_a_draft_is_cut_into_its_sentences(kind: Callable[[], PreTrainedTokenizerBase], text: str) -> None:
    tokenizer = kind()
    ids = tokenizer.encode(text, add_special_tokens=False)
    drafter = Drafter(model=None, tokenizer=tokenizer, decoding=None, modality="xray")  # type: ignore[arg-type]
    sentences = drafter._evidence(ids, {"token_log_probs": [math.log(0.5)] * len(ids)})["sentences"]
    expected = [sentence for sentence in SENTENCES if sentence in text]
    assert [sentence["text"].replace(" .", ".") for sentence in sentences] == expected
    assert all(sentence["confidence"] == pytest.approx(0.5, abs=1e-4) for sentence in sentences)


def test_an_abnormal_sentence_outside_of_the_classes_is_not_called_a_finding() -> None:
    flag = _flag("No Finding", 0.9, LabelState.BLANK, 0.5)
    assert flag == "probable, but the draft does not read as normal"
    assert _flag("No Finding", 0.4, LabelState.BLANK, 0.5) is None
