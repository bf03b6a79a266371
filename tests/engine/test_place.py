"""The part ``place``: trained on the frozen encoder, calibrated, kept with the run, and asked for every draft."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.evidence import FindingPlace
from radweave.core.storage import sha256_file
from radweave.core.study import SPLITS, FindingBox, ImageRef, LabelState, Study, View
from radweave.data.boxes import overlap
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.data.loader import collate
from radweave.engine.place import FACTS, FOLDER, WEIGHTS, _ClassOfLabel, boxes_on_images, place_targets
from radweave.engine.restore import restore
from radweave.engine.run_directory import aside_of
from radweave.engine.run_folder import hash_files, read_card
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.labels import get_labeler
from radweave.labels.places import get_place_labeler
from tests.toys import TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES, rewrite_card, toy_image

pytestmark = pytest.mark.long

OPTIONS = (*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=1")
PLACE = ("stages.place.epochs=100", "stages.place.optimizer.warmup_steps=2", "stages.place.batch_size=8")
UTILITY = ("kind=expected_utility", "expected_utility.own=false")
WIDTH, HEIGHT = 48, 32
BOXES = {"left": (4 / 48, 0.25, 16 / 48, 0.75), "right": (32 / 48, 0.25, 44 / 48, 0.75)}
"""The bright patches of ``toy_image``; their sides are those of the image here, not of the patient."""
OTHER = {"left": "right", "right": "left"}


def marked_dataset(folder: Path, *, boxes: bool) -> Dataset:
    """Studies with an opacity on one side of a wide image; every third has a lateral view, which shows another one."""
    with DatasetWriter(folder, DatasetCard(name="marked", split_provenance="made up")) as writer:
        index = 0
        for split, count in zip(SPLITS, (24, 12, 4), strict=True):
            for _ in range(count):
                side = "left" if index % 2 else "right"
                views = [View.LATERAL, View.PA] if index % 3 == 0 else [View.PA]
                files = {
                    f"images/{index}_{view}.png": toy_image(
                        folder.parent / f"{folder.name}_{index}_{view}.png",
                        bright_side=side if view is View.PA else OTHER[side],
                        seed=index,
                        size=(WIDTH, HEIGHT),
                    )
                    for view in views
                }
                marks = {View.PA: BOXES[side], View.LATERAL: BOXES[OTHER[side]]}
                images = tuple(
                    ImageRef(
                        path=path, view=view, boxes=(FindingBox(label="opacity", box=marks[view]),) if boxes else ()
                    )
                    for path, view in zip(files, views, strict=True)
                )
                study = Study(
                    study_id=f"s{index:03d}",
                    patient_id=f"p{index:03d}",
                    split=split,
                    images=images,
                    report=TOY_REPORTS[side],
                    labels={"chexpert14": {"Lung Opacity": LabelState.POSITIVE}},
                )
                writer.add(study, files)
                index += 1
    return Dataset.open(folder)


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return marked_dataset(tmp_path_factory.mktemp("unmarked") / "data", boxes=False)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The same studies with boxes."""
    return marked_dataset(tmp_path_factory.mktemp("marked") / "data", boxes=True)


@pytest.fixture(scope="module")
def plain_run(unmarked: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without the part. Do not change it; copy it first."""
    return train("baseline", unmarked.path, tmp_path_factory.mktemp("runs") / "plain", overrides=list(OPTIONS))


def placed(run: Path, dataset: Dataset, out: Path, *more: str) -> Path:
    """A copy of the run that is given the part."""
    shutil.copytree(run, out)
    return train("baseline", dataset.path, out, overrides=[*OPTIONS, *PLACE, *more], resume=True)


@pytest.fixture(scope="module")
def placed_run(marked: Dataset, plain_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with the part, from data that have got their boxes since. Do not change it; copy it first."""
    return placed(plain_run, marked, tmp_path_factory.mktemp("placed") / "run")


def test_a_finished_run_is_given_the_part_and_nothing_else_changes(plain_run: Path, placed_run: Path) -> None:
    before, card = read_card(plain_run), read_card(placed_run)
    added = {name for name in card.files if name not in before.files}
    assert added == {f"{FOLDER}/{FACTS}", f"{FOLDER}/{WEIGHTS}"}
    assert {name for name in before.files if card.files[name] != before.files[name]} == {"config.yaml"}
    assert (card.trained_steps, card.validation) == (before.trained_steps, before.validation)
    assert not aside_of(placed_run).exists()
    assert restore(plain_run).place is None


def test_a_run_trained_with_the_part_has_the_bits_of_one_that_got_it_later(
    marked: Dataset, placed_run: Path, tmp_path: Path
) -> None:
    run = train("baseline", marked.path, tmp_path / "run", overrides=[*OPTIONS, *PLACE])
    for name in (WEIGHTS, FACTS):
        assert sha256_file(run / FOLDER / name) == sha256_file(placed_run / FOLDER / name)


def test_a_finished_run_of_other_options_or_data_is_not_given_the_part(
    marked: Dataset, plain_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain_run, run)
    for path, more in ((marked.path, ("seed=1",)), (toy_dataset.path, ())):
        with pytest.raises(InputError, match="other options or data"):
            train("baseline", path, run, overrides=[*OPTIONS, *PLACE, *more], resume=True)
    assert hash_files(run) == hash_files(plain_run)


def test_drafts_say_where_findings_lie_and_mark_them_on_their_image(marked: Dataset, placed_run: Path) -> None:
    predictor = Predictor.of(restore(placed_run), decoding=UTILITY)
    for study in marked.studies("test"):
        side = "left" if "left" in (study.report or "") else "right"
        files = {ref.view: marked.path / ref.path for ref in study.images}
        report = predictor.report([str(path) for path in files.values()], force=True, views=list(files))
        rows = [place for row in report.evidence["sentences"] for place in row["places"]]
        (opacity,) = [row for row in rows if row["finding"] == "Lung Opacity"]
        assert opacity["sides"] == [side], "the draft says what the image shows"
        assert opacity["probabilities"][side] > 0.7 > 0.3 > opacity["probabilities"][OTHER[side]]
        assert opacity["probability"] == opacity["probabilities"][side]
        assert report.evidence["expected_utility"]["places"] > 0
        for box in opacity["boxes"]:
            lies = side if report.evidence["views"][box["view"]]["view"] == "PA" else OTHER[side]
            assert overlap(box["box"], BOXES[lies]) > 0.4, "a box belongs to its own view"
        assert {report.evidence["views"][box["view"]]["view"] for box in opacity["boxes"]} == {*map(str, files)}


def test_without_weight_no_draft_is_given_a_place(marked: Dataset, placed_run: Path) -> None:
    predictor = Predictor.of(restore(placed_run), decoding=(*UTILITY, "expected_utility.place=0"))
    (study, *_) = marked.studies("test")
    report = predictor.report([marked.path / study.images[-1].path], force=True, views="PA")
    rows = [place for row in report.evidence["sentences"] for place in row["places"]]
    (opacity,) = [row for row in rows if row["finding"] == "Lung Opacity"]
    assert (opacity["sides"], opacity["probability"]) == ([], None), "it says no place, so none is checked"
    assert opacity["boxes"]
    assert "places" not in report.evidence["expected_utility"]


def test_predictions_of_a_split_have_the_boxes_of_draft_and_reference(
    marked: Dataset, unmarked: Dataset, placed_run: Path, tmp_path: Path
) -> None:
    run = restore(placed_run)
    predictor = Predictor.of(run, decoding=UTILITY)
    for dataset, has_boxes in ((marked, True), (unmarked, False)):
        out = tmp_path / f"{has_boxes}.jsonl"
        generate_split(run, predictor, dataset.path, "test", out)
        for line in out.read_text().splitlines():
            row = json.loads(line)
            assert ("boxes" in row, "ref_boxes" in row) == (has_boxes, has_boxes)
            if has_boxes:
                (reference,) = row["ref_boxes"]
                assert reference["label"] == "Lung Opacity"
                own = [box["box"] for box in row["boxes"] if box["label"] == "Lung Opacity"]
                assert min(overlap(box, reference["box"]) for box in own) > 0.4, "those of the first image alone"


def test_without_boxes_places_are_learned_from_words_and_boxes_from_maps(
    unmarked: Dataset, plain_run: Path, tmp_path: Path
) -> None:
    run = restore(placed(plain_run, unmarked, tmp_path / "run"))
    assert run.place is not None
    assert (run.place.facts.boxes, run.place.facts.sides) == ({}, {"Lung Opacity": 24})
    predictor = Predictor.of(run, decoding=UTILITY)
    for study in unmarked.studies("test"):
        side = "left" if "left" in (study.report or "") else "right"
        report = predictor.report([unmarked.path / study.images[-1].path], force=True, views="PA")
        (row, *_) = report.evidence["sentences"][0]["places"]
        assert row["probabilities"][side] > 0.7
        assert all(0 <= value <= 1 for box in row["boxes"] for value in box["box"])


def test_a_part_of_this_data_set_is_not_trained_again(marked: Dataset, placed_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(placed_run, run)
    before = (run / FOLDER / WEIGHTS).stat()
    train("baseline", marked.path, run, overrides=[*OPTIONS, *PLACE], resume=True)
    after = (run / FOLDER / WEIGHTS).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_part_that_learned_nothing_is_refused_and_the_run_stays(
    unmarked: Dataset, plain_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="validation loss of no epoch is finite"):
        placed(plain_run, unmarked, tmp_path / "run", "stages.place.optimizer.learning_rate=1e18")
    assert hash_files(tmp_path / "run") == hash_files(plain_run)


def test_a_study_has_the_same_places_alone_and_in_a_batch(marked: Dataset, placed_run: Path, tmp_path: Path) -> None:
    run, written = restore(placed_run), []
    for size in (1, 4):
        out = tmp_path / f"{size}.jsonl"
        generate_split(run, Predictor.of(run, decoding=UTILITY), marked.path, "test", out, batch_size=size)
        written.append(out.read_bytes())
    assert written[0] == written[1]


def test_a_finished_run_of_descriptors_is_not_given_the_part(unmarked: Dataset, tmp_path: Path) -> None:
    options = [option for option in (*TOY_OVERRIDES, *TOY_SIZES["kernels"]) if not option.startswith("stages.")]
    run = train("kernels", unmarked.path, tmp_path / "run", overrides=options)
    before = hash_files(run)
    with pytest.raises(InputError, match="descriptors are of a whole image"):
        train("kernels", unmarked.path, run, overrides=[*options, "stages.place.epochs=1"], resume=True)
    assert hash_files(run) == before


def test_an_export_keeps_the_part(placed_run: Path, tmp_path: Path) -> None:
    rewritten = tmp_path / "run"
    shutil.copytree(placed_run, rewritten)
    rewrite_card(rewritten, fitted=True)
    assert restore(export(rewritten, tmp_path / "export", bank=False)).place is not None


def test_a_part_of_another_run_is_refused(placed_run: Path, tmp_path: Path) -> None:
    for change, said in (
        ({"dim": 8}, "do not fit"),
        ({"classes": ["Edema"]}, "not the classes"),
        ({"axes": 5}, "axes"),
    ):
        run = tmp_path / said.replace(" ", "")
        shutil.copytree(placed_run, run)
        facts = json.loads((run / FOLDER / FACTS).read_text())
        (run / FOLDER / FACTS).write_text(json.dumps({**facts, **change}))
        rewrite_card(run, files=hash_files(run))
        with pytest.raises(InputError, match=said):
            restore(run)


def test_the_place_of_a_scan_does_not_depend_on_how_its_file_is_turned(
    toy_ct_dataset: Dataset, toy_ct_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(toy_ct_run, run)
    options = [*TOY_CT_OVERRIDES, "stages.place.epochs=1"]
    train("baseline", toy_ct_dataset.path, run, preset="tiny-ct", overrides=options, resume=True)
    restored = restore(run)
    assert restored.place is not None
    predictor = Predictor.of(restored, untrained=True)
    (study, *_) = toy_ct_dataset.studies("test")
    image = nibabel.load(toy_ct_dataset.path / study.images[0].path)
    turned = tmp_path / "turned.nii.gz"
    turn = np.diag([-1.0, 1.0, 1.0, 1.0])
    turn[0, 3] = image.shape[0] - 1
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj)[::-1], image.affine @ turn), turned)
    located = []
    for path in (toy_ct_dataset.path / study.images[0].path, turned):
        example = predictor.example(predictor.read_views([path], force=True)[0], "s", force=True)
        assert example.window is not None
        assert example.window(0) == ((0.0, 1.0),) * 3
        located.append(restored.place(restored.model.encoder, collate([example], pad_id=0))[0])
    assert located[0] == located[1]
    assert any(one.boxes for one in located[0].values())


def test_boxes_move_from_the_square_to_the_image_and_not_beside_it() -> None:
    window = ((-0.25, 1.5), (0.0, 1.0))
    boxes = [{"view": 0, "box": [0.0, 0.5, 0.5, 1.0]}, {"view": 0, "box": [0.0, 0.0, 1.0, 0.1]}]
    assert list(boxes_on_images(boxes, lambda view: window)) == [{"view": 0, "box": [0.0, 0.5, 0.5, 1.0]}]


def test_a_box_that_is_empty_once_rounded_is_left_out() -> None:
    window = ((-0.25, 1.5), (0.0, 1.0))
    assert list(boxes_on_images([{"view": 0, "box": [0.1, 0.0, 0.5, 0.16668]}], lambda view: window)) == []


def test_a_label_of_alternatives_names_its_class() -> None:
    class_of = _ClassOfLabel(get_labeler("chexpert14"))
    number = class_of("Nodule/Mass")
    assert number is not None
    assert class_of.labeler.classes[number] == "Lung Lesion"
    assert [class_of(label) for label in ("pulmonary edema/hazy opacity", "no pneumothorax", "ILD")] == [None] * 3


def test_words_without_a_side_or_zone_say_nothing_of_it() -> None:
    reader = get_place_labeler("chexpert14")

    def read(text: str, name: str) -> list[float | None]:
        values = place_targets(name, reader.label([text])[0][name])
        return [None if np.isnan(value) else float(value) for value in values]

    assert read("Left basilar opacity.", "Lung Opacity") == [1, 0, 0, 0, 1]
    assert read("Opacities in both lungs.", "Lung Opacity") == [1, 1, None, None, None]
    assert read("There is an opacity.", "Lung Opacity") == [None] * 5
    assert read("Small right pleural effusion at the base.", "Pleural Effusion") == [0, 1, None, None, None]
    assert FindingPlace().boxes == ()
