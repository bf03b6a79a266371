"""Language models from checkpoint folders or hub names: whole, or refused with the reason."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from radweave.base.errors import InputError
from radweave.outside.models import model_of_shape, read_model, read_shape

Precision = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "8bit", "4bit"]


def load_language_model(
    path: str,
    *,
    dtype: Precision,
    saved: Path | None = None,
    quantization: Quantization = "none",
    model_type: str | None = None,
    options: dict[str, Any] | None = None,
    may_be_new: tuple[str, ...] = (),
) -> tuple[Any, frozenset[str]]:
    """Load a model with a language model's head.

    Args:
        path: folder or hub name of the checkpoint.
        dtype: precision of the weights.
        saved: folder with the ``config.json`` of a part of a run; the shape is built from it, without weights.
        quantization: load in 8 or 4 bits.
        model_type: the one family of models that will do, in transformers' word for it; None for any.
        options: changes to the checkpoint's own configuration.
        may_be_new: parts of parameter names that the checkpoint need not have; they start from nothing.

    Returns:
        The model, and the names of its parameters that the checkpoint did not have.

    Raises:
        InputError: if there is no such checkpoint, it is of another family, a file of it is missing or broken, it
            lacks weights of the model, or the quantisation cannot run here.
    """
    from transformers import GenerationConfig

    what, precision = "a language model", getattr(torch, dtype)
    if saved is not None:
        shape = read_shape(saved, what=what)
        return model_of_shape(shape, "causal_lm", what=what, file=saved, dtype=precision), frozenset()
    shape = read_shape(path, what=what, options=options)
    if model_type not in (None, shape.model_type):
        raise InputError(
            "not a checkpoint of this family",
            file=path,
            field="model_type",
            got=shape.model_type,
            expected=model_type,
        )
    model, missing = read_model(
        path,
        "causal_lm",
        what=what,
        dtype=precision,
        shape=shape,
        may_be_new=may_be_new,
        quantization_config=_quantization_config(quantization, dtype),
    )
    # As a restored run has it: how a report is decoded is the experiment's to say, not the checkpoint's.
    model.generation_config = GenerationConfig.from_model_config(model.config)
    if missing:
        warnings.warn(
            f"{path}: {len(missing)} weights are not in this checkpoint and start from nothing, among them "
            f"{min(missing)}; a stage must train them before the model can report",
            stacklevel=3,
        )
    return model, missing


def check_vocabulary(model: Any, vocab_size: int, path: str) -> None:
    """Refuse a tokenizer with more tokens than the model has embeddings.

    Raises:
        InputError: if so.
    """
    rows = model.get_input_embeddings().num_embeddings
    if rows < vocab_size:
        raise InputError(
            "the tokenizer does not belong to this language model",
            file=path,
            field="vocab_size",
            got=f"{vocab_size} tokens",
            expected=f"at most {rows}",
        )


def _quantization_config(quantization: Quantization, dtype: Precision) -> Any:
    if quantization == "none":
        return None
    from importlib.util import find_spec

    if find_spec("bitsandbytes") is None or not torch.cuda.is_available():
        raise InputError(
            "8- and 4-bit loading needs a CUDA device and the extra 'quantization' (bitsandbytes)",
            field="language_model.quantization",
            got=quantization,
            expected="none",
        )
    from transformers import BitsAndBytesConfig

    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
    )
