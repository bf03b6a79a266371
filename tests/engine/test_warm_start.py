"""Weights of another run to start from: which parts fit, what the card says, and leaks that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from radweave.cli.estimate import show_dry_run
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.run_directory import Started, read_started
from radweave.engine.run_folder import read_card
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset

OPTIONS = (*TOY_OVERRIDES, *TOY_SIZES["baseline"])
STILL = (*OPTIONS, "stages.report.max_steps=0")
"""Nothing is trained: the weights are those that the run starts from."""


def parts_of(run: Path) -> dict[str, dict[str, torch.Tensor]]:
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in load_file(str(run / "weights.safetensors")).items():
        parts.setdefault(name.split(".", 1)[0], {})[name] = value
    return parts


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_starts_from_the_weights_of_all_parts(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    notes: list[str] = []
    run = train("baseline", toy_dataset.path, tmp_path / "run", overrides=[*STILL, "seed=7"], start=toy_run,
                watch=TrainingWatch(note=notes.append))  # fmt: skip
    assert all(equal(tensors, parts_of(toy_run)[part]) for part, tensors in parts_of(run).items())
    card = read_card(run)
    assert card.warm_start is not None
    assert set(card.warm_start.taken) == set(parts_of(run))
    assert card.warm_start.weights == read_card(toy_run).files["weights.safetensors"]
    assert card.warm_start.left == {}
    assert any("weights of a run of baseline on toy" in note for note in notes)
    assert read_started(run).start == toy_run.resolve()
    assert str(toy_run) not in (run / "run.json").read_text()


@pytest.mark.long
def test_parts_that_do_not_fit_start_as_they_would_and_are_named(
    toy_run: Path, toy_dataset: Dataset, tmp_path: Path
) -> None:
    other = [*STILL, "model.language_model.num_layers=1", "seed=7"]
    run = train("baseline", toy_dataset.path, tmp_path / "run", overrides=other, start=toy_run)
    alone = train("baseline", toy_dataset.path, tmp_path / "alone", overrides=other)
    own, plain, source = parts_of(run), parts_of(alone), parts_of(toy_run)
    assert equal(own["vision_encoder"], source["vision_encoder"])
    assert not equal(own["vision_encoder"], plain["vision_encoder"])
    assert equal(own["language_model"], plain["language_model"])
    card = read_card(run)
    assert card.warm_start is not None
    assert "this model has no language_model." in card.warm_start.left["language_model"]
    with pytest.raises(InputError, match="did not start from these weights"):
        train("baseline", toy_dataset.path, alone, overrides=other, start=toy_run, resume=True)
    assert train("baseline", toy_dataset.path, run, overrides=other, start=toy_run, resume=True) == run


@pytest.mark.long
def test_words_are_taken_only_with_their_tokenizer(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    """Another tokenizer of the same size has the same shapes and other words."""
    other = write_toy_dataset(tmp_path / "set", tmp_path / "sources", counts=(12, 4, 2))
    lines = [json.loads(line) for line in other.manifest_path.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["report"] = line["findings"] = f"Quite other words stand here, case {number}: pleura smooth, hila slim."
    other.manifest_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = Dataset.open(other.path)
    notes: list[str] = []
    watch = TrainingWatch(note=notes.append)
    size = len(restore(toy_run).tokenizer)
    overrides = [*STILL, f"data.tokenizer.vocab_size={size}"]
    run = train("baseline", other.path, tmp_path / "run", overrides=overrides, start=toy_run, watch=watch)
    card = read_card(run)
    assert card.warm_start is not None
    reason = card.warm_start.left["language_model"]
    assert "vocabulary" in reason or "is [" in reason
    assert any("another data set (toy)" in note for note in notes)
    tokenizer = [f"data.tokenizer={{kind: pretrained, path: {toy_run / 'tokenizer'}}}"]
    with_words = train("baseline", other.path, tmp_path / "words", overrides=[*STILL, *tokenizer], start=toy_run)
    assert equal(parts_of(with_words)["language_model"], parts_of(toy_run)["language_model"])


def test_heads_of_other_classes_are_not_taken(toy_run: Path, toy_dataset: Dataset) -> None:
    """Tensors that the number of classes shapes are known by building the model for another number."""
    from radweave.engine.warm_start import _shaped_by_classes

    run = restore(toy_run)
    named = _shaped_by_classes(run.experiment, len(run.card.classes), run.model.state_dict(), run.tokenizer)
    classes = len(run.card.classes)
    assert all(classes in run.model.state_dict()[name].shape for name in named)
    heads = {name for name, value in run.model.state_dict().items() if value.ndim and value.shape[0] == classes}
    assert heads <= named


@pytest.mark.long
def test_adapters_start_on_weights_of_the_whole_model(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    adapted = [*STILL, "model.language_model.lora=lora"]
    run = train("baseline", toy_dataset.path, tmp_path / "run", overrides=adapted, start=toy_run)
    card = read_card(run)
    assert card.warm_start is not None
    assert "language_model" in card.warm_start.taken
    before, now = restore(toy_run), restore(run)
    study = next(toy_dataset.studies("test"))
    from radweave.inference.predictor import Predictor

    drafts = [
        Predictor.of(one, untrained=True).report([toy_dataset.image_path(study.images[0].path)]).text
        for one in (before, now)
    ]
    assert drafts[0] == drafts[1]
    back = train("baseline", toy_dataset.path, tmp_path / "back", overrides=STILL, start=run)
    assert "adapters" in (read_card(back).warm_start or card.warm_start).left["language_model"]


def test_a_run_trained_on_test_studies_is_refused(toy_run: Path, tmp_path: Path) -> None:
    """The run's training studies are the other data set's test studies, by id and by report."""
    other = write_toy_dataset(tmp_path / "set", tmp_path / "sources")
    text = other.manifest_path.read_text().replace('"split":"test"', '"split":"other"')
    text = text.replace('"split":"train"', '"split":"test"').replace('"split":"other"', '"split":"train"')
    other.manifest_path.write_text(text)
    with pytest.raises(InputError, match=r"leak: the run was trained on studies .*12 studies"):
        train("baseline", other.path, tmp_path / "run", overrides=STILL, start=toy_run)
    assert not (tmp_path / "run").exists()
    started = Started("baseline", other.path, tmp_path / "run", overrides=STILL, start=toy_run)
    with pytest.raises(InputError, match="leak"):
        show_dry_run(started, tmp_path / "run", overwrite=False, resume=False)


def test_no_part_that_fits_is_an_error(toy_run: Path, toy_dataset: Dataset, tmp_path: Path) -> None:
    other = [*STILL, "model.vision_encoder.hidden_sizes=[8,24]", "model.language_model.hidden_size=48"]
    with pytest.raises(InputError, match=r"no part of this model takes weights .*vision_encoder: .* in the run"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=other, start=toy_run)
    with pytest.raises(InputError, match="no such run folder"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=STILL, start=tmp_path / "nowhere")
    assert not (tmp_path / "run").exists()
