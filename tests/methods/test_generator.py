"""Published models of images and texts: every family trains, restores, and reads as transformers' own pass does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from generators import FAMILIES, write_generator
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode, load_tokenizer
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.generator.model import Forward, GeneratorModel
from radweave.nn.decoding import DecodingConfig

SIZE = 64
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The checkpoint of each family."""
    place = tmp_path_factory.mktemp("generators")
    written = {name: place / name for name in FAMILIES}
    for name, folder in written.items():
        folder.mkdir()
        write_generator(name, folder)
    return written


def built(folder: Path) -> tuple[GeneratorModel, Any]:
    tokenizer = load_tokenizer(folder)
    experiment = resolve("generator", "tiny", [f"model.path={folder}", "model.dtype=float32", "data.priors=true"])
    model = experiment.model.build(BuildContext(tokenizer, SIZE))
    assert isinstance(model, GeneratorModel)
    return model.eval(), tokenizer


def example(tokenizer: Any, number: int, *, views: int = 1, told: str = "", prior: Example | None = None) -> Example:
    pixels = np.random.default_rng(number).integers(0, 255, (views, SIZE, SIZE)).astype(np.uint8)
    text = "There is an opacity on the left."
    return Example(
        study_id=f"s{number}",
        patient_id=f"p{number}",
        source=pixels,
        rows=tuple(range(views)),
        view_ids=tuple(range(1, views + 1)),
        token_ids=(*encode(tokenizer, text), int(tokenizer.eos_token_id)),
        report=text,
        context_ids=tuple(encode(tokenizer, told)),
        prior=prior,
    )


def studies(tokenizer: Any) -> list[Example]:
    """One view; two views and an indication; a prior."""
    return [
        example(tokenizer, 0),
        example(tokenizer, 1, views=2, told="Indication: fall.\n"),
        example(tokenizer, 2, prior=example(tokenizer, 9)),
    ]


@pytest.mark.parametrize("family", ["gemma3", "qwen2_5_vl"])
def test_a_study_reads_and_writes_alone_as_in_a_batch(family: str, folders: dict[str, Path]) -> None:
    model, tokenizer = built(folders[family])
    batch = collate(studies(tokenizer), pad_id=int(tokenizer.pad_token_id))
    brief = DecodingConfig(max_new_tokens=6)
    with torch.no_grad():
        together = Forward(model, batch).logits()
        written = model.generate(batch, brief).token_ids
        for row in range(len(batch)):
            alone = batch.only([row])
            torch.testing.assert_close(Forward(model, alone).logits()[0], together[row], **CLOSE)
            assert model.generate(alone, brief).token_ids == [written[row]]
