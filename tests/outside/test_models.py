"""A checkpoint is read without talk: what the library says of it is checked by us, or no news."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from transformers.utils import logging

from checkpoints import write_encoder
from radweave.outside.models import read_model


def test_a_checkpoint_with_weights_to_spare_is_read_without_a_word(
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
    said = capfd.readouterr()
    assert said.out + said.err == ""
    assert caplog.text == ""
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before, "others hear what they asked for"
