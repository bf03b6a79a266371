"""Data sets put together: names, files, leaks between them, and how a stage takes its share of each."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from radweave.cli import app
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.loader import ShuffleAll, mixed_order
from radweave.data.mixing import mix_datasets, shares_of
from radweave.engine.train import train
from radweave.methods.dast.model import DastModel
from radweave.methods.model import TrainingView
from radweave.nn.memory.bank import load_bank
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset

ENCODER = "{kind: resnet, embedding_size: 8, hidden_sizes: [8, 16], depths: [1, 1], layer_type: basic}"
OPTIONS = (*TOY_OVERRIDES, *TOY_SIZES["dast"], f"model.vision_encoder={ENCODER}", "stages.language.epochs=0")


@pytest.fixture
def pair(toy_dataset: Dataset, tmp_path: Path) -> list[Path]:
    """Two data sets that number alike; the second holds the same kind of pictures, in other files."""
    shutil.copytree(toy_dataset.path, tmp_path / "a", ignore=shutil.ignore_patterns(".cache"))
    write_toy_dataset(tmp_path / "b", tmp_path / "sources", counts=(5, 3, 2))
    # Other pictures: the toy ones go by their number alone.
    for path in sorted((tmp_path / "b" / "images").iterdir()):
        path.write_bytes(_darker(path))
    return [tmp_path / "a", tmp_path / "b"]


def _darker(path: Path) -> bytes:
    from io import BytesIO

    from PIL import Image

    out = BytesIO()
    Image.fromarray(np.asarray(Image.open(path)) // 2).save(out, "png")
    return out.getvalue()


@pytest.mark.parametrize("other", ["a.b", "A"])
def test_ambiguous_data_set_names_are_refused(pair: list[Path], tmp_path: Path, other: str) -> None:
    # Patient b.p0 of a, and p0 of a.b, would both be a.b.p0.
    folder = tmp_path / "elsewhere" / other
    shutil.copytree(pair[1], folder)
    with pytest.raises(InputError, match="told apart"):
        mix_datasets([pair[0], folder], tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


def edit(dataset: Path, **changes: str) -> None:
    """Change fields of the first study of a manifest."""
    lines = (dataset / "manifest.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **changes})
    (dataset / "manifest.jsonl").write_text("\n".join(lines) + "\n")


def test_every_study_keeps_its_split_and_records_its_origin(pair: list[Path], tmp_path: Path) -> None:
    edit(pair[0], prior="s001")
    mixed = mix_datasets(pair, tmp_path / "ab")
    studies = {study.study_id: study for study in mixed.studies()}
    assert len(studies) == 22 + 10
    for name, path in zip("ab", pair, strict=True):
        for study in Dataset.open(path).studies():
            mixed_study = studies[f"{name}.{study.study_id}"]
            assert (mixed_study.split, mixed_study.report, mixed_study.labels) == (
                study.split,
                study.report,
                study.labels,
            )
            assert (mixed_study.origin, mixed_study.patient_id) == (name, f"{name}.{study.patient_id}")
            for mixed_image, image in zip(mixed_study.images, study.images, strict=True):
                assert mixed.image_path(mixed_image.path).read_bytes() == (path / image.path).read_bytes()
    assert studies["a.s000"].prior == "a.s001"
    assert mixed.card.counts["studies_of_b"] == 10
    train = {name: sum(1 for _ in Dataset.open(path).studies("train")) for name, path in zip("ab", pair, strict=True)}
    assert shares_of(mixed) == {name: count / sum(train.values()) for name, count in train.items()}
    assert sum(shares_of(mixed).values()) == pytest.approx(1)
    linked_mixture = mix_datasets(pair, tmp_path / "again", link=True)
    assert linked_mixture.fingerprint() == mixed.fingerprint()
    copied_mixture = mix_datasets([pair[0], shutil.copytree(pair[1], tmp_path / "c")], tmp_path / "ac")
    assert {study.origin for study in copied_mixture.studies()} == {"a", "c"}


def test_a_mixture_of_a_mixture_names_every_set_that_a_study_went_through(pair: list[Path], tmp_path: Path) -> None:
    edit(pair[0], prior="s001")
    inner = mix_datasets(pair, tmp_path / "ab")
    third = write_toy_dataset(tmp_path / "c", tmp_path / "others", counts=(2, 1, 1))
    for path in sorted((third.path / "images").iterdir()):
        path.write_bytes(_darker(path)[:-1] + b"\0")
    outer = mix_datasets([inner.path, third.path], tmp_path / "abc")
    studies = {study.study_id: study for study in outer.studies()}
    assert {study.origin for study in studies.values()} == {"ab.a", "ab.b", "c"}
    first = studies["ab.a.s000"]
    assert (first.patient_id, first.prior, first.origin) == ("ab.a.p000", "ab.a.s001", "ab.a")
    assert first.images[0].path.startswith("images/ab/a/")


def test_a_picture_in_two_splits_of_two_sets_is_a_leak(pair: list[Path], tmp_path: Path) -> None:
    shutil.copy(pair[0] / "images" / "0_0.png", pair[1] / "images" / "6_0.png")  # train of a, val of b
    with pytest.raises(InputError, match=r"leak.*image"):
        mix_datasets(pair, tmp_path / "ab")
    assert not (tmp_path / "ab").exists()


def test_same_patients_keeps_patient_ids(pair: list[Path], tmp_path: Path) -> None:
    # p006 is a patient of a's training split and of b's validation split.
    mix_datasets(pair, tmp_path / "ab")
    with pytest.raises(InputError, match=r"leak.*patient"):
        mix_datasets(pair, tmp_path / "other", same_patients=True)
    assert not (tmp_path / "other").exists()


def test_incompatible_data_sets_are_refused(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two data sets or more"):
        mix_datasets(pair[:1], tmp_path / "out")
    with pytest.raises(InputError, match="distinct names"):
        mix_datasets([pair[0], pair[0]], tmp_path / "out")
    card = json.loads((pair[1] / "dataset.json").read_text())
    (pair[1] / "dataset.json").write_text(json.dumps({**card, "modality": "ct"}))
    result = CliRunner().invoke(app, ["data", "mix", *map(str, pair), "--out", str(tmp_path / "out")])
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)
    assert result.exception.field == "modality"
    assert not (tmp_path / "out").exists()


def test_an_epoch_has_its_share_of_each_set() -> None:
    origins = ["a"] * 90 + ["b"] * 10
    order = mixed_order(origins, {"a": 1, "b": 1}, np.random.default_rng(0), ShuffleAll())
    counts = Counter(order.tolist())
    assert len(order) == 100
    assert sum(counts[place] for place in range(90)) == 50
    assert max(counts[place] for place in range(90)) == 1
    assert all(counts[place] == 5 for place in range(90, 100))
    assert order.tolist() == mixed_order(origins, {"a": 1, "b": 1}, np.random.default_rng(0), ShuffleAll()).tolist()
    assert order.tolist() != mixed_order(origins, {"a": 1, "b": 1}, np.random.default_rng(1), ShuffleAll()).tolist()
    thirds = mixed_order(["a", "b", "c", "a"], {"a": 1, "b": 1, "c": 1}, np.random.default_rng(0), ShuffleAll())
    assert len(thirds) == 4
    assert mixed_order(["a"] * 3, {"a": 0.2}, np.random.default_rng(0), ShuffleAll()).tolist() != []


def test_stages_train_on_their_own_mixtures(pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DAST: stage 1 on all data sets, stage 2 on one of them, in one run."""
    mixed = mix_datasets(pair, tmp_path / "ab", link=True)
    origins: dict[str, Counter[str]] = {}
    plain, build = DastModel.loss, DastModel.build_memories

    def watched(self: DastModel, batch: object, terms: tuple[str, ...]) -> object:
        ids: list[str] = batch.study_ids  # type: ignore[attr-defined]
        origins.setdefault("report" if "report" in terms else "disease", Counter()).update(name[0] for name in ids)
        return plain(self, batch, terms)  # type: ignore[arg-type]

    def viewed(self: DastModel, stage: str, training: TrainingView) -> object:
        origins.setdefault(f"view {stage}", Counter()).update(study.study_id[0] for study in training.studies)
        return build(self, stage, training)

    monkeypatch.setattr(DastModel, "loss", watched)
    monkeypatch.setattr(DastModel, "build_memories", viewed)
    options = [*OPTIONS, "stages.report.epochs=1"]
    options += ["stages.disease.mixture={a: 1, b: 1}", "stages.report.mixture={b: 1}", "data.keep_stages=false"]
    run = train("dast", mixed.path, tmp_path / "run", overrides=options)
    # 17 training studies: 9 and 8; and each set's 4 and 3 validation studies.
    assert origins["disease"] == {"a": 9 + 4, "b": 8 + 3}
    assert origins["report"] == {"b": 5 + 3}
    assert origins["view report"] == {"b": 5}
    assert set(load_bank(run / "memories" / "exemplars").study_ids) == {f"b.s00{number}" for number in range(5)}
    with pytest.raises(InputError, match="no such data set") as caught:
        train("dast", mixed.path, tmp_path / "no", overrides=[*options, "stages.report.mixture={c: 1}"])
    assert caught.value.field == "stages.report.mixture"
    assert caught.value.expected == "a, b"
    assert not (tmp_path / "no").exists()


def test_a_bank_with_a_study_of_another_set_is_refused(
    pair: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = mix_datasets(pair, tmp_path / "ab", link=True)
    build = DastModel.build_memories

    def leak(self: DastModel, stage: str, training: TrainingView) -> object:
        banks = build(self, stage, training)
        if stage == "report":
            bank = banks["exemplars"]
            bank.rows[0]["study_id"] = "a.s000"
        return banks

    monkeypatch.setattr(DastModel, "build_memories", leak)
    options = [*OPTIONS, "stages.disease.epochs=0"]
    options += ["stages.report.mixture={b: 1}", "stages.report.epochs=1"]
    with pytest.raises(InputError, match="leak"):
        train("dast", mixed.path, tmp_path / "run", overrides=options)
