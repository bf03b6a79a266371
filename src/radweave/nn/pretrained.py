"""Language models from checkpoint folders or hub names: whole, or refused with the reason.

Of a checkpoint of images and texts (MedGemma, LLaVA, Qwen-VL) the text part is taken, as if it lay there alone.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import torch

from radweave.core.errors import InputError
from radweave.core.extras import refuse_without
from radweave.core.foreign_models import is_causal, make_shape, model_of_shape, read_model, read_shape

FIELD = "language_model.path"
Precision = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["none", "8bit", "4bit"]
_SAME_AS = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Text parts without a causal model of their own, and the family that has their layers. They turn each third of a
position by time, row and column; for words the three are one number, and the families compute the same."""
_IMAGE_AXES = ("mrope_section", "mrope_interleaved")
_TEXT_WEIGHTS = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
"""Prefix of the text part's weights in checkpoints of images and texts, and its replacement."""


def load_language_model(
    path: str,
    *,
    vocab_size: int,
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
        vocab_size: words of the tokenizer, each of which needs a row of the embeddings.
        dtype: precision of the weights.
        saved: folder with the ``config.json`` of a part of a run; the shape is built from it, without weights.
        quantization: load in 8 or 4 bits.
        model_type: the one family of models that will do, in transformers' word for it; None for any.
        options: changes to the checkpoint's own configuration.
        may_be_new: parts of parameter names that the checkpoint need not have; they start from nothing.

    Returns:
        The model, and the names of its parameters that the checkpoint did not have.

    Raises:
        InputError: if there is no such checkpoint, it is no causal language model or of another family, it has fewer
            words than the tokenizer, a file of it is missing or broken, it lacks weights of the model, or the
            quantisation cannot run here.
    """
    from transformers import GenerationConfig

    what, precision = "a language model", getattr(torch, dtype)
    if saved is not None:
        shape = text_shape(read_shape(saved, what=what))
        _refuse_misfit(shape, path, vocab_size)
        return model_of_shape(shape, "causal_lm", what=what, file=saved, dtype=precision), frozenset()
    whole = read_shape(path, what=what, options=options)
    shape = text_shape(whole)
    if model_type not in (None, shape.model_type):
        what_it_is = {"got": shape.model_type, "expected": model_type}
        raise InputError("not a checkpoint of this family", file=path, field="model_type", **what_it_is)
    _refuse_misfit(shape, path, vocab_size)
    model, missing = read_model(
        path,
        "causal_lm",
        what=what,
        dtype=precision,
        shape=shape,
        may_be_new=may_be_new,
        key_mapping=None if shape is whole else _TEXT_WEIGHTS,
        quantization_config=quantization_config(quantization, dtype),
    )
    # As a restored run has it: how a report is decoded is the experiment's to say, not the checkpoint's.
    model.generation_config = GenerationConfig.from_model_config(model.config)
    if missing:
        first = f"{path}: {len(missing)} weights are not in this checkpoint and start from nothing, among them"
        warnings.warn(f"{first} {min(missing)}; a stage must train them before the model can report", stacklevel=3)
    return model, missing


def text_shape(shape: Any) -> Any:
    """The text part's configuration of a checkpoint of images and texts; any other as it is."""
    text = getattr(shape, "text_config", None)
    if text is None:
        return shape
    if text.model_type in _SAME_AS:
        numbers = text.to_dict()
        for name in ("model_type", "architectures"):
            numbers.pop(name, None)
        turns = dict(numbers.get("rope_parameters") or {})
        if turns.get("rope_type") == "mrope":
            turns["rope_type"] = "default"
        numbers["rope_parameters"] = {name: value for name, value in turns.items() if name not in _IMAGE_AXES}
        text = make_shape(_SAME_AS[text.model_type], **numbers)
    # Only the configuration of the whole model states whether the last layer shares the embeddings.
    text.tie_word_embeddings = shape.tie_word_embeddings
    return text


def _refuse_misfit(shape: Any, path: str, vocab_size: int) -> None:
    """Refuse what reads no text from left to right, or has fewer words than the tokenizer."""
    if not is_causal(shape):
        raise InputError(
            "not a causal language model",
            file=path,
            field=FIELD,
            got=shape.model_type,
            expected="a decoder such as Llama, Gemma, Qwen, Phi, Mistral or GPT-2, in which no word sees later ones",
        )
    if shape.vocab_size < vocab_size:
        raise InputError(
            "the tokenizer does not belong to this language model",
            file=path,
            field="vocab_size",
            got=f"{vocab_size} tokens",
            expected=f"at most {shape.vocab_size}",
        )


def quantization_config(quantization: Quantization, dtype: Precision) -> Any:
    """Settings of transformers to load weights in 8 or 4 bits; None for whole ones.

    Raises:
        InputError: if the quantisation cannot run here.
    """
    if quantization == "none":
        return None
    field = "language_model.quantization"
    if not torch.cuda.is_available():
        raise InputError("8- and 4-bit loading needs a CUDA device", field=field, got=quantization, expected="none")
    refuse_without("quantization", "8- and 4-bit loading", field=field, got=quantization)
    from transformers import BitsAndBytesConfig

    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
    )
