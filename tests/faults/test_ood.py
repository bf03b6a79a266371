"""Images of another kind than a run was trained on are told, named, refused, and let through only with force."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from radweave.cli import main
from radweave.core.errors import InputError
from radweave.core.study import Report
from radweave.data.dataset import Dataset
from radweave.data.ood import OutOfDistribution, Verdict, detector, fit_ood, load_ood, save_ood, xray_outliers
from radweave.data.ood.xray_outliers import KINDS, make_outlier
from radweave.data.square import to_square
from radweave.engine.restore import restore
from radweave.engine.run_folder import hash_files, read_card, write_card
from radweave.inference.bulk import FileGroup, generate_files, generate_split, group_images
from radweave.inference.explain import explain_files
from radweave.inference.export import export
from radweave.inference.pictures import UnlikeError
from radweave.inference.predictor import PHANTOMS_ONLY, Predictor

SIZE = 64


def chest(seed: int, size: int = SIZE) -> np.ndarray:
    """A made-up frontal radiograph in [0, 1]: bright trunk, two dark lungs, a bright middle, some ribs."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:size, 0:size] / (size - 1) * 2 - 1
    grey = 0.75 - 0.2 * np.abs(x) + 0.1 * y
    for side in (-1, 1):
        middle, wide, high = side * random.uniform(0.4, 0.5), random.uniform(0.25, 0.33), random.uniform(0.55, 0.7)
        grey -= random.uniform(0.3, 0.45) * (((x - middle) / wide) ** 2 + ((y + 0.1) / high) ** 2 < 1)
    heart = ((x - 0.15) / random.uniform(0.25, 0.35)) ** 2 + ((y - 0.25) / 0.3) ** 2 < 1
    grey += 0.15 * heart + 0.05 * np.sin(14 * y + 3 * np.abs(x) + random.uniform(0, 6))
    grey = ndimage.gaussian_filter(grey, 1.5) + random.normal(0, 0.01, grey.shape)
    return grey.clip(0, 1)


def square(seed: int, size: int = SIZE) -> np.ndarray:
    return (chest(seed, size) * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted() -> OutOfDistribution:
    return fit_ood([square(seed) for seed in range(160)], seed=0)


def test_training_like_images_are_in_distribution(fitted: OutOfDistribution) -> None:
    verdicts = [fitted.judge(square(seed)).verdict for seed in range(1000, 1060)]
    assert verdicts.count(Verdict.IN_DISTRIBUTION) >= 57
    assert Verdict.REFUSED not in verdicts


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("upside down", "detail")])
def test_synthetic_outliers_are_detected(fitted: OutOfDistribution, kind: str) -> None:
    random = np.random.default_rng(7)
    scores = [fitted.judge(make_outlier(kind, square(2000 + n), square(3000 + n), random)) for n in range(10)]
    assert sum(judgement.verdict is Verdict.IN_DISTRIBUTION for judgement in scores) <= 1


def test_outliers_of_unlearned_kinds_are_refused(fitted: OutOfDistribution) -> None:
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    rings = 127 + 120 * np.sin(np.hypot(x - 30, y - 34) / 2)
    letters = 255 * (((x // 3) * 7 + (y // 5) * 3) % 5 == 0)
    mirrored = np.hstack([square(1)[:, ::-1][:, 32:], square(1)[:, :32]])
    for picture in (rings, letters, mirrored):
        assert fitted.judge(picture.astype(np.uint8)).verdict is Verdict.REFUSED


def test_the_same_images_and_seed_give_the_same_test(fitted: OutOfDistribution, tmp_path: Path) -> None:
    second = fit_ood([square(seed) for seed in range(160)], seed=0)
    for name, test in (("a", fitted), ("b", second)):
        save_ood(test, tmp_path / name)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    restored = load_ood(tmp_path / "a")
    assert restored is not None
    assert restored.judge(square(5)) == fitted.judge(square(5))
    assert sum(file.stat().st_size for file in (tmp_path / "a").iterdir()) < 500_000


def test_distance_and_margin_must_both_accept(fitted: OutOfDistribution) -> None:
    def with_bias(change: float) -> OutOfDistribution:
        """The test with another margin against outliers, the distance to the training images as it is."""
        return dataclasses.replace(fitted, arrays={**fitted.arrays, "bias": fitted.arrays["bias"] + np.float32(change)})

    rings = (127 + 120 * np.sin(np.hypot(*(np.mgrid[0:SIZE, 0:SIZE] - 32)) / 2)).astype(np.uint8)
    assert with_bias(1000).judge(rings).verdict is Verdict.REFUSED, "like the run's images, and far from them"
    assert with_bias(-1000).judge(square(5)).verdict is Verdict.REFUSED, "close to the run's images, and unlike them"


def test_another_seed_draws_other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MIN_IMAGES", 10)
    pictures = [square(seed, 32) for seed in range(40)]
    one, other = (fit_ood(pictures, seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.arrays["shift"], other.arrays["shift"])


def test_an_inconsistent_detector_is_refused(fitted: OutOfDistribution, tmp_path: Path) -> None:
    for number, (name, values) in enumerate(
        {"axes": fitted.arrays["axes"][:-1], "units": np.array([np.nan, 1], np.float32)}.items()
    ):
        folder = tmp_path / str(number)
        save_ood(dataclasses.replace(fitted, arrays={**fitted.arrays, name: values.copy()}), folder)
        with pytest.raises(InputError, match="cannot be read"):
            load_ood(folder)


@pytest.mark.long
def test_outlying_scans_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MIN_IMAGES", 10)

    def scan(seed: int) -> np.ndarray:
        """A trunk (8, 16, 16) with lungs that shrink from head to feet."""
        random = np.random.default_rng(seed)
        z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in (8, 16, 16)), indexing="ij")
        grey = np.where((x / 0.9) ** 2 + (y / random.uniform(0.6, 0.7)) ** 2 < 1, 160.0, 5.0)
        for side in (-1, 1):
            lung = ((x - 0.4 * side) / 0.3) ** 2 + (y / 0.45) ** 2 < random.uniform(0.7, 0.9) - 0.5 * z
            grey = np.where(lung, 30.0, grey)
        return (ndimage.gaussian_filter(grey, 0.4) + random.normal(0, 2, grey.shape)).clip(0, 255).astype(np.uint8)

    test = fit_ood([scan(seed) for seed in range(60)], seed=0)
    own = [test.judge(scan(seed)).verdict for seed in range(100, 120)]
    assert own.count(Verdict.IN_DISTRIBUTION) >= 17
    abdomen = np.where((scan(7) < 100) & (scan(7) > 15), 160, scan(7)).astype(np.uint8)
    for odd in (abdomen, np.rot90(scan(8), axes=(1, 2)), scan(9).transpose(0, 2, 1), 255 - scan(10)):
        assert test.judge(odd).verdict is not Verdict.IN_DISTRIBUTION


@pytest.mark.parametrize("count", [10, 30])
def test_a_detector_of_few_images_states_its_error(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MIN_IMAGES", 10)
    test = fit_ood([square(seed) for seed in range(count)], seed=0)
    assert test.reason is None
    error = test.facts["wrongly_refused"]
    assert error["mean_at_most"] == pytest.approx(1 / (count + 1)), "none of those that it had not seen was refused"
    assert error["low"] == 0
    # The upper end is where so many images would all be accepted in 25 of 1,000 runs.
    assert (1 - error["high"]) ** count == pytest.approx(0.025)
    own = [test.judge(square(seed)).verdict for seed in range(1000, 1060)]
    assert own.count(Verdict.REFUSED) <= 60 * error["high"]
    random = np.random.default_rng(7)
    odd = [
        make_outlier(kind, square(2000 + n), square(3000 + n), random) for kind in ("limbs", "turned") for n in range(9)
    ]
    assert sum(test.judge(one).verdict is Verdict.REFUSED for one in odd) >= 16


def test_images_of_one_patient_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "MIN_IMAGES", 10)
    patients = [f"p{number // 3}" for number in range(36)]
    folds = detector._folds(patients, is_many=False)
    assert len(set(folds.tolist())) == 10
    assert all(len({fold for fold, one in zip(folds, patients, strict=True) if one == name}) == 1 for name in patients)
    held = detector._folds([f"p{number // 3}" for number in range(300)], is_many=True)
    assert sorted(set(held.tolist())) == [-1, 0]
    assert int((held == 0).sum()) == 75
    assert held[225 - 1] == -1
    assert held[225] == 0
    # Thirty images of three patients are three samples, not thirty.
    few = fit_ood([square(n, 32) for n in range(30)], seed=0, patients=[n % 3 for n in range(30)])
    assert few.reason == "too few training images for this test (of 3 patients, at least 10)"


def test_held_out_pictures_are_in_no_training_row() -> None:
    """Neither the picture, nor its copies, nor an outlier that is made with it, as the first or the second."""
    pictures = [np.full((16, 16), 20 * number, np.uint8) for number in range(5)]
    table = detector._make_table(pictures, xray_outliers, np.random.default_rng(0))
    marked = dataclasses.replace(
        table,
        plain=np.arange(5.0)[:, None],
        varied=table.copied[:, None].astype(float),
        outliers=table.made_from.astype(float),
    )
    assert len(marked.outliers) > 10
    for held in range(5):
        is_used = np.arange(5) != held
        own, foreign = marked.own(is_used), marked.foreign(is_used)
        assert set(own.ravel().tolist()) == set(range(5)) - {held}
        assert held not in foreign
        assert len(foreign) == sum(held not in pair for pair in table.made_from.tolist())


@pytest.mark.parametrize(("refused", "images", "low", "high"), [(0, 10, 0, 0.3085), (1, 100, 0.0003, 0.0545)])
def test_the_interval_is_that_of_clopper_and_pearson(refused: int, images: int, low: float, high: float) -> None:
    interval = detector.wrongly_refused(refused, images)
    assert (interval["low"], interval["high"]) == pytest.approx((low, high), abs=1e-4)
    assert interval["mean_at_most"] == (refused + 1) / (images + 1)


@pytest.fixture(scope="module")
def predictor(toy_run: Path) -> Predictor:
    """The toy run with a test that was fitted to made-up chests of its image size."""
    own = Predictor.of(restore(toy_run))
    pictures = [to_square(chest(seed).astype(np.float32), own.image_size) for seed in range(160)]
    return dataclasses.replace(own, ood=fit_ood(pictures, seed=0))


def png(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A chest, and a picture of something else that looks neither like noise nor like a pattern."""
    y, x = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    fingers = 230 * np.clip(1 - (6 * (x % 0.2) - 0.6) ** 2, 0, None) * (y > 0.2) + 3 * y
    return png(tmp_path / "chest.png", square(1)), png(tmp_path / "hand.png", ndimage.gaussian_filter(fingers, 1.5))


def test_an_outlier_is_refused_by_name_and_accepted_with_force(predictor: Predictor, files: tuple[Path, Path]) -> None:
    own, hand = files
    report = predictor.report([own])
    assert report.evidence["familiarity"]["verdicts"] == ["familiar"]
    assert not any("trained on" in warning for warning in report.warnings)
    with pytest.raises(UnlikeError, match="does not look like the images that this run was trained on") as caught:
        predictor.report([own, hand])
    assert caught.value.file == str(hand)
    assert "--force" in str(caught.value)
    assert "wrongly" in str(caught.value)
    assert "95 % interval" in str(caught.value)
    assert PHANTOMS_ONLY not in str(caught.value)
    of_phantoms = dataclasses.replace(predictor, warnings=(PHANTOMS_ONLY,))
    with pytest.raises(UnlikeError, match=PHANTOMS_ONLY):
        of_phantoms.report([own, hand])
    forced = predictor.report([own, hand], force=True)
    assert forced.evidence["familiarity"]["verdicts"] == ["familiar", "refused"]
    assert [warning.split(":")[0] for warning in forced.warnings if "trained on" in warning] == ["hand.png"]


def test_a_doubted_image_is_reported_on_with_a_warning(predictor: Predictor, files: tuple[Path, Path]) -> None:
    test = predictor.ood
    assert test is not None
    strict = dataclasses.replace(test, facts={**test.facts, "doubt_below": 5.0, "refuse_below": -50.0})
    report = dataclasses.replace(predictor, ood=strict).report([files[0]])
    assert report.evidence["familiarity"]["verdicts"] == ["doubted"]
    (warning,) = [warning for warning in report.warnings if "trained on" in warning]
    assert warning.startswith("chest.png: does not look quite like")


def test_a_refused_study_does_not_stop_a_batch(predictor: Predictor, files: tuple[Path, Path]) -> None:
    results = list(generate_files(predictor, group_images(files, one_study=False)))
    assert isinstance(results[0], Report)
    assert isinstance(results[1], FileGroup)
    assert results[1].refused is not None
    assert "hand.png" in results[1].refused
    forced = generate_files(predictor, group_images(files, one_study=False), force=True)
    assert all(isinstance(result, Report) for result in forced)


def test_a_split_is_reported_on_completely_and_outliers_are_counted(
    predictor: Predictor, toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.jsonl"
    result = generate_split(restore(toy_run), predictor, toy_dataset.path, "test", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    # Patches beside the middle, as the toy images are, are nothing like the made-up chests.
    assert result.written == result.unlike == len(rows) == 6
    assert all(any("view 1: does not look like" in warning for warning in row["warnings"]) for row in rows)


def test_the_page_shows_the_score(
    predictor: Predictor, toy_run: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    run = restore(toy_run)
    page = explain_files(run, predictor, [files[0]], tmp_path / "own").read_text()
    assert "<dt>familiarity</dt><dd>scores [" in page
    assert "refused below -" in page
    with pytest.raises(InputError, match="trained on"):
        explain_files(run, predictor, [files[1]], tmp_path / "hand")
    assert not (tmp_path / "hand").exists()
    forced = explain_files(run, predictor, [files[1]], tmp_path / "hand", force=True).read_text()
    assert "hand.png: does not look like the images that this run was trained on" in forced


def test_a_run_with_few_training_images_says_so(
    toy_run: Path, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["radweave", "generate", str(toy_run), str(files[1]), "--json"])
    with suppress(SystemExit):
        main()
    (row,) = json.loads(capsys.readouterr().out)
    why = "too few training images for this test (of 12 patients, at least 150)"
    assert row["evidence"]["familiarity"] == {"not judged": why}
    assert any(text.startswith("NOT TESTED") and why in text for text in row["warnings"])
    card = json.loads((toy_run / "run.json").read_text())
    assert "familiarity/familiarity.json" in card["files"]


def test_an_export_has_the_detector_of_its_run(toy_run: Path, fitted: OutOfDistribution, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_run, run)
    save_ood(fitted, run / "familiarity")
    card = read_card(toy_run)
    write_card(run, card.model_copy(update={"files": hash_files(run)}))
    restored = restore(export(run, tmp_path / "export"))
    assert restored.ood is not None
    assert restored.ood.judge(square(3)) == fitted.judge(square(3))
    (run / "familiarity" / "familiarity.json").write_text("{}")
    with pytest.raises(InputError, match="changed after training"):
        read_card(run)


def test_a_run_from_before_the_test_reports_without_it(toy_run: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    assert load_ood(tmp_path) is None
    own = dataclasses.replace(Predictor.of(restore(toy_run)), ood=None)
    assert "familiarity" not in own.report([files[1]]).evidence
