"""What Python hands to a predictor: one image or several, as path, PIL image or array, and what is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.targets import ContextSections
from radweave.inference.predictor import Predictor


@pytest.fixture(scope="module")
def predictor(toy_run: Path) -> Predictor:
    return radweave.load(str(toy_run), device="cpu")


@pytest.fixture(scope="module")
def path(toy_dataset: Dataset) -> Path:
    return toy_dataset.image_path("images/1_0.png")


def test_a_path_a_picture_and_an_array_give_the_same_draft(predictor: Predictor, path: Path) -> None:
    expected = predictor.report([path], views="frontal")
    grey = np.asarray(Image.open(path))
    images_and_views: tuple[Any, ...] = (
        path, str(path), Image.open(path), Image.open(path).convert("RGB"), [Image.open(path)], grey, grey[None],
        np.stack([grey] * 3, axis=2), grey.astype(np.float64) / 255, torch.from_numpy(grey.copy()), (str(path),),
    )  # fmt: skip
    for images in images_and_views:
        result = predictor.report(images, views="frontal")
        assert result.text == expected.text
        assert result.evidence["sentences"] == expected.evidence["sentences"]
    assert predictor.report(grey, views="frontal").evidence["views"] == [{"file": "image 1", "view": "FRONTAL"}]
    mixed = predictor.report([grey, path], views=["frontal", "lateral"])
    assert [view["file"] for view in mixed.evidence["views"]][:1] == ["image 1"]


def test_sixteen_bits_are_read_as_a_file_of_them_is(predictor: Predictor, path: Path, tmp_path: Path) -> None:
    deep = np.asarray(Image.open(path)).astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert predictor.report(deep).text == predictor.report(tmp_path / "deep.png").text


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (3, "'images': not an image .got int, expected a path"),
        (None, "not an image .got NoneType"),
        ([[0, 1]], "not an image .got list"),
        (b"x", "not an image .got bytes"),
        ([], "no image given"),
        ("nowhere.png", "nowhere.png: file is missing"),
        (np.zeros(5, np.uint8), "image 1: is no image .got 5, expected .H, W."),
        (np.zeros((40, 40, 9), np.uint8), "got 40 x 40 x 9"),
        (np.zeros((0, 4), np.uint8), "image 1: is no image"),
        (np.zeros((40, 40), np.uint8), "all pixels are equal"),
        (np.zeros((40, 40), np.int64), "got int64, expected uint8, uint16"),
        (np.eye(40) * 200, "floats go from 0 to 1 .got 0 to 200"),
        (np.full((40, 40), np.nan), "floats go from 0 to 1"),
        (np.array([["a"]]), "cannot be used"),
        (Image.new("CMYK", (40, 40)), "colour mode"),
        (torch.zeros(40, 40, requires_grad=True), "no array that can be read"),
    ],
)
def test_a_non_image_is_named(predictor: Predictor, images: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        predictor.report(images)


def test_wrong_views_runs_and_devices_are_named(predictor: Predictor, path: Path, toy_run: Path) -> None:
    for views, says in (("sideways", "no such view"), ([3], "no such view"), (["pa", "ap"], "one view for all")):
        with pytest.raises(InputError, match=says):
            predictor.report(path, views=views)  # type: ignore[arg-type]
    for named, says in (({"device": "tpu"}, "'device'"), ({"decoding": "num_beams=3"}, "decoding.*one string")):
        with pytest.raises(InputError, match=says):
            radweave.load(toy_run, **named)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"run.*not a path"):
        radweave.load(3)  # type: ignore[arg-type]


def test_a_scan_is_no_picture_in_memory(toy_ct_run: Path) -> None:
    with pytest.raises(InputError, match=r"reads CT scans.*got ndarray.*DICOM series"):
        radweave.load(toy_ct_run).report(np.zeros((8, 16, 16), np.uint8))


def test_notebooks_show_reports_and_predictors_with_what_they_hold_escaped(predictor: Predictor, path: Path) -> None:
    from radweave.core.study import Report

    evil = '<script>alert(1)</script> & "<b>"'
    report = Report(evil, evil, {"class_probabilities": {evil: 0.5, "Edema": None}}, (evil,))
    for html in (report._repr_html_(), predictor._repr_html_(), predictor.report(path)._repr_html_()):
        assert "not a medical device" in html
        assert "<script" not in html
        assert "<b>&quot;" not in html
    assert report._repr_html_().count("&lt;script&gt;") == 4
    assert "squares of 32 pixels" in predictor._repr_html_()
    for printed in (repr(predictor), repr(report)):
        assert len(printed.splitlines()) <= 30
        assert len(printed) < 3000


def test_context_is_cut_to_the_tokens_of_training(
    predictor: Predictor, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    real = Predictor.reports

    def watched(self: Predictor, examples: Any, **options: Any) -> Any:
        calls.extend(examples)
        return real(self, calls[-1:], **options)

    monkeypatch.setattr(Predictor, "reports", watched)
    for sections, most in (((), 4), (("indication",), 0), (("indication",), 4), (("indication",), 400)):
        replace(predictor, context_sections=ContextSections(sections), max_context_tokens=most).report(
            [path], indication="opacity " * 9
        )
    nothing, none, few, whole = (example.context_ids for example in calls)
    assert nothing is None
    assert none == ()
    assert 4 < len(whole) < 400
    assert few == whole[:4]
