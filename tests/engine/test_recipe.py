"""Weighed findings and balanced studies in training: what they change, what they leave, and that runs resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.prepare import abnormal_tokens
from radweave.engine.restore import restore
from radweave.engine.stages import TrainingWatch
from radweave.engine.train import train
from radweave.labels import get_labeler
from radweave.labels.labeler import abnormal_sentences
from radweave.methods import method_names, resolve
from radweave.methods.model import Withheld
from radweave.nn.prompt import Slot
from tests.toys import TOY_OVERRIDES, TOY_SIZES

SIZES = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=2"]
RECIPE = ["stages.report.abnormal_weight=3", "stages.report.balance=0.5"]
REPORT = "Heart size is normal. There is a large left pleural effusion, 2.5 cm. Possible edema. No pneumothorax."


def test_a_sentence_counts_where_it_states_a_finding_surely_or_not() -> None:
    labeler = get_labeler("chexpert14")
    found, none, normal = abnormal_sentences(labeler, [REPORT, "", "No acute cardiopulmonary abnormality."])
    assert [REPORT[first:last] for first, last in found] == [
        "There is a large left pleural effusion, 2.5 cm.",
        "Possible edema.",
    ]
    assert none == normal == []


@pytest.mark.parametrize("text", [REPORT, "Large left effusion.", "The lungs are clear. No effusion.", "XXXX."])
def test_every_token_of_such_a_sentence_is_marked_and_no_other(text: str) -> None:
    experiment = resolve("baseline", "tiny", SIZES)
    tokenizer = experiment.data.tokenizer.build([REPORT] * 3)
    labeler = get_labeler("chexpert14")
    (marks,) = abnormal_tokens([text], tokenizer, labeler)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(marks) == len(ids)
    (ranges,) = abnormal_sentences(labeler, [text])
    marked = tokenizer.decode([number for number, mark in zip(ids, marks, strict=True) if mark])
    assert "".join(marked.split()) == "".join("".join(text[first:last] for first, last in ranges).split())


def run(dataset: Dataset, out: Path, *overrides: str, watch: TrainingWatch | None = None, resume: bool = False) -> Any:
    train("baseline", dataset.path, out, overrides=[*SIZES, *overrides], watch=watch, resume=resume)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return rows, dict(restore(out).model.state_dict())


@pytest.mark.long
def test_training_is_weighed_validation_is_not_and_a_weight_of_one_is_none(
    toy_dataset: Dataset, tmp_path: Path
) -> None:
    plain, plain_weights = run(toy_dataset, tmp_path / "plain")
    same, same_weights = run(
        toy_dataset, tmp_path / "same", "stages.report.abnormal_weight=1", "stages.report.balance=0"
    )
    weighed, weights = run(toy_dataset, tmp_path / "weighed", "stages.report.abnormal_weight=3")
    assert all(torch.equal(plain_weights[name], same_weights[name]) for name in plain_weights)
    assert [row["loss"] for row in plain if "loss" in row] == [row["loss"] for row in same if "loss" in row]
    assert plain[0]["loss"] != weighed[0]["loss"], "the same weights and studies, other weights of tokens"
    assert any(not torch.equal(plain_weights[name], weights[name]) for name in plain_weights)
    # The figure that chooses the epoch is the plain mean over tokens, whatever was weighed in training.
    from radweave.data.cache.images import build_cache
    from radweave.data.loader import StudyLoader
    from radweave.engine.prepare import prepare

    restored = restore(tmp_path / "weighed")
    cache = build_cache(toy_dataset, size=32)
    prepared = prepare(toy_dataset, "val", restored.experiment, restored.tokenizer, cache, need_text=True)
    assert all(example.abnormal is None for example in prepared.examples)
    total = 0.0
    with torch.no_grad():
        for batch in StudyLoader(prepared.examples, 4, 0).epoch():
            total += float(restored.model.eval().loss(batch, ("report",))["report"]) * len(batch)
    best = min(row["validation"]["report"] for row in weighed if "validation" in row)
    assert total / len(prepared.examples) == pytest.approx(best, abs=1e-5)


@pytest.mark.long
def test_a_run_with_the_recipe_is_the_same_twice_and_after_a_stop(toy_dataset: Dataset, tmp_path: Path) -> None:
    from radweave.engine.loop import Watch

    _, once = run(toy_dataset, tmp_path / "once", *RECIPE)
    _, twice = run(toy_dataset, tmp_path / "twice", *RECIPE)

    class KilledError(Exception):
        pass

    def killed(name: str) -> Watch:
        def step(number: int, total: int, figures: dict[str, float]) -> None:
            if name == "report" and number == 4:
                raise KilledError

        return Watch(step=step)

    with pytest.raises(KilledError):
        run(toy_dataset, tmp_path / "cut", *RECIPE, watch=TrainingWatch(stage=killed))
    _, resumed = run(toy_dataset, tmp_path / "cut", *RECIPE, resume=True)
    for name, value in once.items():
        assert torch.equal(value, twice[name]), name
        assert torch.equal(value, resumed[name]), name


def test_two_ways_to_say_how_often_a_study_is_drawn_are_refused() -> None:
    with pytest.raises(InputError, match="balance and mixture"):
        resolve("baseline", "tiny", ["stages.report.balance=0.5", "stages.report.mixture.iu-xray=1.0"])


@pytest.mark.parametrize("kind", ["radiographs", "scans"])
def test_tiny_presets_learn_to_see_and_to_write_by_one_recipe(kind: str) -> None:
    names = {"diffvp": "tiny" if kind == "scans" else "tiny-xray"}
    usual = "tiny-ct" if kind == "scans" else "tiny"
    methods = ("baseline", "am_mrg", "dast", "diffvp", "vdgen", "weave", *(("diffrgennet",) if usual == "tiny" else ()))
    stages = [resolve(method, names.get(method, usual), ()).named_stages() for method in methods]
    recipes = [list(one.values())[-1] for one in stages]
    own = {"finetune", "losses", "withheld"}
    encoders = [one["encoder"] for method, one in zip(methods, stages, strict=True) if method != "weave"]
    assert all(encoder == encoders[0] and encoder.epochs for encoder in encoders)
    texts = [one["language"].epochs for one in stages if "language" in one and one["language"].epochs]
    assert len(texts) >= 4
    assert set(texts) == {12 if kind == "scans" else 4}
    assert all(recipe.model_dump(exclude=own) == recipes[0].model_dump(exclude=own) for recipe in recipes)
    assert all("language_model" in recipe.trained and recipe.losses["report"] == 1 for recipe in recipes)
    assert recipes[0].abnormal_weight > 1
    assert recipes[0].patience is not None
    assert recipes[0].selected_by == "report"


@pytest.mark.parametrize("method", [method for method in method_names() if method != "kernels"])
def test_small_writes_by_the_recipe_of_tiny_and_paper_does_not(method: str) -> None:
    options = {"abnormal_weight", "patience", "single_input"}
    small, paper = (list(resolve(method, preset, ()).named_stages().values())[-1] for preset in ("small", "paper"))
    assert small.model_dump(include=options) == {"abnormal_weight": 4.0, "patience": 4, "single_input": 0.4}
    assert paper.model_dump(include=options) == {"abnormal_weight": 1.0, "patience": None, "single_input": 0.0}


@pytest.mark.parametrize("method", ["am_mrg", "dast", "diffvp", "vdgen"])
def test_decoders_of_small_learn_language_to_a_plateau(method: str) -> None:
    stages = resolve(method, "small", ()).named_stages()
    assert stages["report"].trained.get("language_model", "frozen") != "full"
    assert stages["language"].trained["language_model"] in ("full", "base")
    assert stages["language"].patience is not None
    assert stages["language"].epochs > 5 * stages["language"].patience


@pytest.fixture
def slots() -> dict[str, Slot]:
    return {
        name: (torch.randn(400, 3, 2), torch.ones(400, 3, dtype=torch.bool)) for name in ("image", "memory", "text")
    }


def read_all(reader: Withheld, slots: dict[str, Slot]) -> torch.Tensor:
    """Studies (B) by inputs: True where the study is written after the input."""
    return torch.stack([reader(name, slot)[1].any(1) for name, slot in slots.items()], dim=1)


def test_a_share_of_studies_is_written_after_one_input_alone_drawn_evenly(slots: dict[str, Slot]) -> None:
    torch.manual_seed(0)
    read = read_all(Withheld({}, 0.6, tuple(slots)), slots)
    alone = read.sum(1) == 1
    assert bool(((read.sum(1) == 3) | alone).all())
    assert 0.5 < float(alone.float().mean()) < 0.7
    assert bool((read[alone].float().mean(0) > 0.2).all())
    assert bool(read_all(Withheld({}, 0.6, ("image",)), {"image": slots["image"]}).all())


def test_inputs_are_withheld_by_their_own_shares_and_tokens_stay_as_they_are(slots: dict[str, Slot]) -> None:
    torch.manual_seed(0)
    reader = Withheld({"image": 0.3, "text": 0.8})
    share = read_all(reader, slots).float().mean(0)
    assert 0.6 < float(share[0]) < 0.8
    assert float(share[1]) == 1
    assert 0.1 < float(share[2]) < 0.3
    assert reader("image", slots["image"])[0] is slots["image"][0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "parts", "differs"),
    [
        ("diffrgennet", [], True),
        ("baseline", [], False),
        ("dast", ["model.fusion=none", "model.retrieval=none"], False),
    ],
)
def test_single_inputs_change_what_a_stage_trains_unless_there_is_but_one(
    method: str, parts: list[str], differs: bool, toy_dataset: Dataset, tmp_path: Path
) -> None:
    def weights(share: float) -> dict[str, torch.Tensor]:
        sizes = [*TOY_OVERRIDES, *TOY_SIZES[method], *parts]
        sizes += ["stages.report.epochs=1", f"stages.report.single_input={share}"]
        return load_file(
            train(method, toy_dataset.path, tmp_path / f"{share}", overrides=sizes) / "weights.safetensors"
        )

    always, alone = weights(0.0), weights(0.9)
    assert all(torch.equal(value, alone[name]) for name, value in always.items()) != differs
