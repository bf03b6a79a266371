"""Reading of checkpoints: silence, alignment and tied weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from transformers.utils import logging

from radweave.core.foreign_models import read_model
from tests.checkpoints import write_encoder


def test_unused_weights_are_ignored_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_encoder("vit", tmp_path / "vit")
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.enable_propagation()
    capfd.readouterr()
    try:
        model, new = read_model(tmp_path / "vit", transformers.ViTModel, what="an encoder", add_pooling_layer=False)
    finally:
        logging.disable_propagation()
    assert model.num_parameters() > 0
    assert not new
    output = capfd.readouterr()
    assert output.out + output.err == ""
    assert caplog.text == ""
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before, "others hear what they asked for"


def test_weights_have_the_alignment_of_torch(tmp_path: Path) -> None:
    write_encoder("vit", tmp_path / "vit")
    model, _ = read_model(tmp_path / "vit", transformers.ViTModel, what="an encoder", add_pooling_layer=False)
    mapped = transformers.ViTModel.from_pretrained(tmp_path / "vit", add_pooling_layer=False)
    assert not any(weight.data_ptr() % 64 for weight in model.parameters())
    assert any(weight.data_ptr() % 64 for weight in mapped.parameters()), "as they lie in the file"
    for name, weight in mapped.named_parameters():
        assert torch.equal(model.get_parameter(name), weight)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    shape = transformers.GPT2Config(vocab_size=50, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(shape).save_pretrained(tmp_path / "gpt2")
    model, _ = read_model(tmp_path / "gpt2", "causal_lm", what="a language model")
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert not any(weight.data_ptr() % 64 for weight in model.parameters())
