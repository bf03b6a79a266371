"""Runs with parts that a user brings: each family of encoders and language models trains, restores and reports."""

from __future__ import annotations

import shutil
from itertools import cycle
from pathlib import Path

import pytest
import torch

from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.predictor import Predictor
from tests.checkpoints import ENCODERS, LANGUAGE_MODELS, POSITIONS, write_encoder, write_language_model
from tests.toys import TOY_OVERRIDES

PAIRS = list(zip(cycle(ENCODERS), LANGUAGE_MODELS, strict=False))
OVERRIDES = [
    *(option for option in TOY_OVERRIDES if "vocab_size" not in option and "image_size" not in option),
    "data.limit=4", "stages.vision.epochs=0", "stages.report.epochs=2", "stages.report.batch_size=4",
    "decoding.max_new_tokens=6",
]  # fmt: skip


def brought(encoder: Path, words: Path, *more: str) -> list[str]:
    return [
        "model.vision_encoder=transformers", f"model.vision_encoder.path={encoder}",
        "model.language_model=pretrained", f"model.language_model.path={words}", *OVERRIDES, *more,
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("encoder", "words"), PAIRS)
def test_a_pair_trains_restores_without_its_checkpoints_and_reports(
    encoder: str, words: str, toy_dataset: Dataset, tmp_path: Path
) -> None:
    write_encoder(encoder, tmp_path / "encoder")
    write_language_model(words, tmp_path / "words")
    overrides = brought(tmp_path / "encoder", tmp_path / "words")
    folder = train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides)
    shutil.rmtree(tmp_path / "encoder")
    shutil.rmtree(tmp_path / "words")
    run = restore(folder)
    assert run.card.trained_steps["report"] == 2
    assert run.experiment.data.tokenizer.kind == "pretrained"
    assert run.experiment.data.image_size == 32, "what the encoder says of its images"
    assert all(bool(torch.isfinite(weight).all()) for weight in run.model.parameters())
    image = toy_dataset.image_path("images/1_0.png")
    reports = [Predictor.of(one).report([image]) for one in (run, restore(folder))]
    assert reports[0].evidence == reports[1].evidence
    assert reports[0].text == reports[1].text


@pytest.mark.long
def test_one_folder_of_images_and_texts_gives_both_parts(toy_dataset: Dataset, tmp_path: Path) -> None:
    """As MedGemma's: its vision tower reads, its text part writes, and both train their adapters."""
    write_language_model("gemma3 with images", tmp_path / "both")
    adapters = ["model.vision_encoder.lora=lora", "stages.report.finetune.vision_encoder=lora",
                "model.language_model.lora=lora", "stages.report.finetune.language_model=lora"]  # fmt: skip
    overrides = brought(tmp_path / "both", tmp_path / "both", "data.image_size=32", *adapters)
    folder = train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides)
    shutil.rmtree(tmp_path / "both")
    run = restore(folder)
    assert run.card.trained_steps["report"] == 2
    image = toy_dataset.image_path("images/1_0.png")
    assert Predictor.of(run).report([image]).text == Predictor.of(restore(folder)).report([image]).text


def test_parts_that_do_not_fit_are_refused_before_any_image_is_decoded(
    toy_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radweave.engine.train.build_cache", lambda *_, **__: pytest.fail("images were decoded"))
    encoder, words = tmp_path / "encoder", tmp_path / "words"
    write_encoder("vit", encoder)
    write_language_model("gpt2", words)

    def refused(overrides: list[str]) -> str:
        with pytest.raises(InputError) as caught:
            train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides)
        assert not (tmp_path / "run").exists()
        return str(caught.value)

    assert "model.language_model.path" in refused(brought(encoder, tmp_path / "none"))
    assert "vision_encoder.path" in refused(brought(tmp_path / "none", words))
    assert "expected tokenizer.json or" in refused(brought(encoder, encoder))
    assert "not a causal language model (got vit" in refused(
        [*brought(encoder, encoder), f"data.tokenizer={{kind: pretrained, path: {words}, force: true}}"]
    )
    assert "not a vision model (got gpt2" in refused(brought(words, words))
    assert f"at most {POSITIONS}" in refused(brought(encoder, words, f"data.max_tokens={POSITIONS + 1}"))
    assert f"at most {POSITIONS}" in refused(brought(encoder, words, f"decoding.max_new_tokens={POSITIONS + 1}"))
    foreign = "data.tokenizer={kind: bpe, vocab_size: 400, min_frequency: 1, force: true}"
    assert "the tokenizer does not belong" in refused(brought(encoder, words, foreign))
