"""Phrases that drafts share with their reference."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.square import to_square
from radweave.io.images import read_radiograph
from radweave.io.volumes import read_volume
from radweave.metrics.commands import CompareRequest, run_compare
from radweave.metrics.phrases import SHOWN_PX, matched_phrases, shared_phrases, study_pictures

REFERENCE = "Heart size is normal. A small left effusion is seen. No pneumothorax."


def write_pairs(path: Path, drop: int = 0) -> Path:
    """Four drafts that lack the first ``drop`` words of their reference."""
    rows = [{"study_id": f"s{i}", "hyp": " ".join(REFERENCE.split()[drop:]), "ref": REFERENCE} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def compared(folder: Path, out: Path | None) -> None:
    runs = write_pairs(folder / "a.jsonl"), write_pairs(folder / "b.jsonl", drop=3)
    run_compare(CompareRequest(runs=runs, ontology="none", meteor=False, resamples=20, phrases=2, out=out))


def marked(draft: str, reference: str = REFERENCE) -> list[tuple[str, int]]:
    return [(one.text, one.phrase) for one in matched_phrases(draft, reference).passages if one.phrase]


def test_phrases_are_numbered_in_the_order_of_the_reference() -> None:
    draft = "There is a small left effusion. The heart size is normal."
    assert marked(draft) == [("a small left effusion", 2), ("heart size is normal", 1)]
    assert "".join(one.text for one in matched_phrases(draft, REFERENCE).passages) == draft


@pytest.mark.parametrize(
    ("draft", "phrases"),
    [
        ("Small left lung.", []),  # two words within a longer sentence
        ("No pneumothorax.", [("No pneumothorax", 1)]),  # two words, and a whole sentence
        ("No pneumothorax seen.", []),
        ("size is.", []),  # a whole sentence of the draft alone
        ("HEART SIZE, is normal", [("HEART SIZE, is normal", 1)]),  # without case and punctuation
        ("is normal a small", []),  # crosses the end of a sentence of the reference
        ("size is. normal heart", []),  # crosses the end of a sentence of the draft
        ("left effusion is seen", [("left effusion is seen", 1)]),
        ("", []),
    ],
)
def test_a_phrase_has_three_words_or_is_a_sentence(draft: str, phrases: list[tuple[str, int]]) -> None:
    assert marked(draft) == phrases


def test_the_longest_of_several_places_counts() -> None:
    assert marked("no focal lung opacity", "No focal lung mass. No focal lung opacity.") == [
        ("no focal lung opacity", 1)
    ]


def test_the_share_is_that_of_words() -> None:
    assert matched_phrases("Perhaps heart size is normal.", REFERENCE).share == pytest.approx(4 / 5)
    assert matched_phrases("...", REFERENCE).share is None


@pytest.mark.parametrize(
    ("drafts", "shared"),
    [
        (
            {"a": "The heart size is normal. No pneumothorax.", "b": "Now size is normal. A small left lung."},
            [("Heart", "a"), ("size is normal", "ab"), ("A small left", "b"), ("No pneumothorax", "a")],
        ),
        ({"a": REFERENCE, "b": "Seen."}, [("Heart size is normal", "a"), ("A small left effusion is seen", "a"),
                                          ("No pneumothorax", "a")]),
        ({"a": "No pneumothorax."}, [("No pneumothorax", "a")]),
        ({"a": "Clear.", "b": ""}, []),
    ],
)  # fmt: skip
def test_the_reference_is_divided_by_the_systems_that_match_it(
    drafts: dict[str, str], shared: list[tuple[str, str]]
) -> None:
    passages = shared_phrases(REFERENCE, {name: matched_phrases(draft, REFERENCE) for name, draft in drafts.items()})
    assert [(one.text, "".join(one.systems)) for one in passages if one.systems] == shared
    assert "".join(one.text for one in passages) == REFERENCE


def test_a_phrase_that_the_reference_repeats_is_matched_once() -> None:
    reference = "No new effusion. No new effusion."
    passages = shared_phrases(reference, {"a": matched_phrases("no new effusion", reference)})
    assert [one.text for one in passages if one.systems] == ["No new effusion"]
    assert passages[0].systems == ("a",)


def test_the_page_has_every_system_beside_the_reference(tmp_path: Path) -> None:
    compared(tmp_path, tmp_path / "out")
    page = (tmp_path / "out/phrases.html").read_text()
    assert page.count("<article") == page.count("<h3>Reference</h3>") == 2
    assert page.count("100 % of the words matched") == 2
    assert "<script" not in page
    reference = page.partition("<article")[2].partition('<div class="texts">')[0]
    both = ['<mark class="all">A small left effusion is seen</mark>', '<mark class="all">No pneumothorax</mark>']
    assert re.findall(r"<mark.*?</mark>", reference) == [
        '<mark class="some">Heart size is normal<sub>a</sub></mark>',
        *both,
    ]
    assert re.search(r"\.all {[^}]*double", page)
    assert re.search(r"\.some {[^}]*dashed", page)
    legend = page.partition("<article")[0]
    assert '<mark class="all">matched by every system</mark> (double line)' in legend
    assert '<mark class="some">matched by some<sub>their names</sub></mark> (dashed line)' in legend


def test_findings_stand_beneath_each_text(tmp_path: Path) -> None:
    """Matched, missed or invented, as the labeler reads them; without a labeler none."""
    rows = {"a": "A small left effusion is seen.", "b": "There is cardiomegaly. No effusion.", "c": ""}
    runs = tuple(tmp_path / f"{name}.jsonl" for name in rows)
    for path, draft in zip(runs, rows.values(), strict=True):
        path.write_text(json.dumps({"study_id": "s1", "hyp": draft, "ref": REFERENCE}) + "\n")
    request = CompareRequest(runs=runs, ontology="chexpert14", meteor=False, resamples=20, phrases=1)
    run_compare(replace(request, out=tmp_path / "out"))
    page = (tmp_path / "out/phrases.html").read_text()
    assert "Findings: Pleural Effusion</p>" in page
    lists = [re.findall(r'<li class="(\w+)">([\w ]+?)(?: <|</li)', part) for part in page.split("<ul")[1:]]
    assert lists == [
        [("matched", "Pleural Effusion")],
        [("missed", "Pleural Effusion"), ("invented", "Cardiomegaly")],
        [("missed", "Pleural Effusion")],
    ]
    run_compare(replace(request, ontology="none", out=tmp_path / "none"))
    none = (tmp_path / "none/phrases.html").read_text()
    assert "images of studies" not in none
    assert "<ul" not in none
    assert "Beneath each text" in page
    assert "Beneath each text" not in none


def shown_pictures(page: str) -> list[tuple[str, NDArray[np.uint8]]]:
    """Title and pixels of each image of a page."""
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    return [(title, np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))) for data, title in found]


def test_images_of_the_studies_stand_on_the_page(toy_dataset: Dataset, tmp_path: Path) -> None:
    """Each view as the square of a model's input; one that cannot be read is named, and a study of elsewhere left."""
    first, second = list(toy_dataset.studies())[:2]
    folder = tmp_path / "data"
    shutil.copytree(toy_dataset.path, folder)
    toy_dataset = Dataset.open(folder)
    toy_dataset.image_path(second.images[0].path).write_bytes(b"no image")
    rows = [{"study_id": name, "hyp": "Clear.", "ref": REFERENCE} for name in (first.study_id, second.study_id, "gone")]
    runs = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path in runs:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = CompareRequest(runs=runs, ontology="none", meteor=False, resamples=20, phrases=3, images=folder)
    run_compare(replace(request, out=tmp_path / "out"))
    page = (tmp_path / "out/phrases.html").read_text()
    assert "default-src 'none'; img-src data:;" in page
    shown = shown_pictures(page)
    assert [title for title, _ in shown] == [ref.view.value for ref in (*first.images, *second.images[1:])]
    pixels = read_radiograph(toy_dataset.image_path(first.images[0].path)).pixels
    np.testing.assert_array_equal(shown[0][1], to_square(pixels, SHOWN_PX))
    assert page.count("cannot be read") == 1
    assert page.count("The data set has no image of this study.") == 1
    assert "This page holds images of studies" in page
    for row in rows:
        row["study_id"] = "of elsewhere " + row["study_id"]
    for path in runs:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="none of the compared studies"):
        run_compare(replace(request, out=tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(InputError, match="page of phrases"):
        run_compare(replace(request, phrases=0, out=tmp_path / "none"))


def test_a_scan_is_shown_by_its_middle_slices_with_the_head_on_top(toy_ct_dataset: Dataset) -> None:
    study = next(iter(toy_ct_dataset.studies()))
    (pictures,) = study_pictures(toy_ct_dataset, [study.study_id]).values()
    assert [one.title for one in pictures] == ["middle axial slice", "middle coronal slice"]
    shown = shown_pictures("".join(f'<img src="{one.uri}" alt="{one.title}"' for one in pictures))
    volume = read_volume(toy_ct_dataset.image_path(study.images[0].path))
    assert all(pixels.shape == (SHOWN_PX, SHOWN_PX) for _, pixels in shown)
    coronal = volume.hu[:, volume.hu.shape[1] // 2]
    z, _, x = volume.spacing_mm
    height = min(1.0, coronal.shape[0] * z / (coronal.shape[1] * x))
    rows = np.flatnonzero(shown[1][1].any(1))
    assert abs((rows[-1] - rows[0] + 1) / SHOWN_PX - height) < 0.1 * height
    upper, lower = (part.mean() for part in np.array_split(coronal[::-1].astype(float), 2))
    shown_upper, shown_lower = (part.mean() for part in np.array_split(shown[1][1][rows[0] : rows[-1] + 1], 2))
    assert (upper > lower) == (shown_upper > shown_lower)


def test_phrases_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="phrases"):
        compared(tmp_path, None)
