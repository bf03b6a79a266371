"""The key of a kept stage holds all that decides what the stage gives, and nothing that does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radweave.core.ontology import CLASSES
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.loader import collate
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.engine import stages
from radweave.engine.distributed import Ranks
from radweave.engine.stages import Training, TrainingWatch
from radweave.methods import load_method, method_names, resolve
from radweave.methods.experiment import BuildContext
from tests.made_view import made_view
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES


def training_of(
    method: str, dataset: Dataset, folder: Path, preset: str = "tiny", sizes: Sequence[str] = ()
) -> Training:
    experiment = resolve(method, preset, [*TOY_OVERRIDES, *(sizes or TOY_SIZES[method])])
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    data, classes = experiment.data, CLASSES[experiment.data.label_set]
    torch.manual_seed(0)
    model = experiment.model.build(BuildContext(tokenizer, data.image_size, classes, volume_size=data.ct.size))
    cache = PixelCache(np.zeros((1, 8, 8), np.uint8), {"a.png": 0}, {}, "digest")
    return Training(experiment, dataset, folder, cache, tokenizer, classes, model, "f", TrainingWatch())


def key_of(training: Training, name: str) -> str:
    return stages._stage_key(training, name, training.experiment.named_stages()[name])


def with_model(training: Training, **changes: object) -> Training:
    """With other fields in the model's record: not checked, since only the key is asked for."""
    model = training.experiment.model.model_copy(update=changes)
    return replace(training, experiment=training.experiment.model_copy(update={"model": model}))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("method", method_names())
def test_a_field_of_the_model_is_in_the_key_unless_it_is_a_part_that_no_loss_reads(
    method: str, toy_dataset: Dataset, tmp_path: Path
) -> None:
    training = training_of(method, toy_dataset, tmp_path)
    parts = {name for name, _ in training.model.named_children()}
    fields = set(type(training.experiment.model).model_fields)
    for name, stage in training.experiment.named_stages().items():
        read = stages._parts_read(training, stage)
        common = set(stage.losses) == {"words"}
        before = key_of(training, name)
        for field in fields:
            changed = key_of(with_model(training, **{field: "something else"}), name) != before
            assert changed == (field in read or (field not in parts and not common)), f"{name}: {field}"
    assert load_method(method).ABLATIONS
    if method in ("am_mrg", "dast", "diffvp"):
        assert "uncertain" in fields - parts, "a field that is no part was looked at"


SHARING = ("baseline", "dast", "am_mrg", "vdgen", "diffrgennet", "diffvp")
"""Methods that share the stage of the encoder."""


def sharing(method: str, dataset: Dataset, folder: Path) -> Training:
    """A toy of such a method for radiographs, with the encoder that all of them have."""
    unfit = ("vision_encoder", "data.ct", "widths") if method == "diffvp" else ("vision_encoder",)
    own = [option for option in TOY_SIZES[method] if not any(part in option for part in unfit)]
    small = [option for option in TOY_SIZES["baseline"] if "vision_encoder" in option]
    preset = "tiny-xray" if method == "diffvp" else "tiny"
    return training_of(method, dataset, folder, preset, (*own, *small, "stages.encoder.epochs=1"))


def test_the_shared_encoder_is_trained_once_for_all_methods(toy_dataset: Dataset, tmp_path: Path) -> None:
    keys = {}
    for method in SHARING:
        training = sharing(method, toy_dataset, tmp_path)
        keys[method] = key_of(training, "encoder")
        assert key_of(other_decoding(training), "encoder") == keys[method]
        assert key_of(other_data(training), "encoder") != keys[method]
    assert len(set(keys.values())) == 1, keys


def test_the_shared_stage_is_the_same_whichever_method_trains_it(toy_dataset: Dataset, tmp_path: Path) -> None:
    """Its loss, and the random numbers that it leaves to the next step."""
    states = np.random.default_rng(0).integers(1, 3, (4, len(CLASSES["chexpert14"])))
    view = made_view(("p0", "p1", "p2", "p3"), states.tolist())
    steps = {}
    for method in SHARING:
        model: Any = sharing(method, toy_dataset, tmp_path).model
        model.word_head.learn_targets((example.token_ids or () for example in view.examples), view.class_states)
        model.train()
        torch.manual_seed(7)
        loss = model.loss(collate(view.examples, pad_id=0), ["words"])["words"]
        steps[method] = float(loss.detach()), float(torch.rand(1))
    assert len(set(steps.values())) == 1, steps


@pytest.fixture(scope="module")
def training(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return training_of("baseline", toy_dataset, tmp_path_factory.mktemp("run"))


def other_seed(training: Training) -> Training:
    return replace(training, experiment=training.experiment.model_copy(update={"seed": 1}))


def other_data(training: Training) -> Training:
    data = training.experiment.data.model_copy(update={"hidden_views": 0.5})
    return replace(training, experiment=training.experiment.model_copy(update={"data": data}))


def other_pixels(training: Training) -> Training:
    return replace(training, cache=replace(training.cache, digest="of other pixels"))


def other_tokenizer(training: Training) -> Training:
    return replace(training, tokenizer=BpeTokenizerConfig(vocab_size=300).build(["Some other words."] * 4))


def other_classes(training: Training) -> Training:
    return replace(training, classes=tuple(reversed(training.classes)))


def other_bank(training: Training) -> Training:
    return replace(training, banks={"reports": "of another data set"})


def processes(training: Training, size: int) -> Training:
    class Several(Ranks):
        def from_first(self, value: Any) -> Any:
            return value

    return replace(training, ranks=Several(0, size))


def two_processes(training: Training) -> Training:
    return processes(training, 2)


def other_method(training: Training) -> Training:
    return replace(training, experiment=training.experiment.model_copy(update={"method": "another"}))


def other_decoding(training: Training) -> Training:
    decoding = training.experiment.decoding.model_copy(update={"num_beams": 7})
    return replace(training, experiment=training.experiment.model_copy(update={"decoding": decoding}))


def other_data_set(training: Training) -> Training:
    class Another(Dataset):
        def fingerprint(self) -> str:
            return "of another manifest"

    return replace(training, dataset=Another(training.dataset.path, training.dataset.card))


CHANGES = [
    other_seed,
    other_data,
    other_pixels,
    other_tokenizer,
    other_classes,
    other_bank,
    two_processes,
    other_method,
    other_decoding,
    other_data_set,
]


@pytest.mark.parametrize("change", CHANGES)
def test_all_inputs_of_the_run_are_in_the_key(training: Training, change: Callable[[Training], Training]) -> None:
    assert key_of(change(training), "report") != key_of(training, "report")
    assert key_of(replace(training, folder=Path("elsewhere")), "report") == key_of(training, "report")


def test_the_number_of_processes_is_in_the_key(training: Training) -> None:
    assert len({key_of(processes(training, size), "vision") for size in (1, 2, 3)}) == 3


@pytest.mark.parametrize("fact", ["code_hash", "library_versions", "arithmetic"])
def test_code_libraries_and_arithmetic_are_in_the_key(
    training: Training, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    before = key_of(training, "vision")
    monkeypatch.setattr(stages, fact, lambda: "another")
    assert key_of(training, "vision") != before


def test_weights_of_parts_are_in_the_key_if_a_loss_reads_them(training: Training) -> None:
    """A checkpoint that was replaced under its name, or a stage before that came out otherwise."""
    vision, report = key_of(training, "vision"), key_of(training, "report")
    weight = next(training.model.language_model.parameters())  # type: ignore[union-attr]
    with torch.no_grad():
        weight.flatten()[0] += 1
    assert key_of(training, "report") != report
    assert key_of(training, "vision") == vision
    with torch.no_grad():
        weight.flatten()[0] -= 1
    assert key_of(training, "report") == report
