"""Checkpoints of many families, small and random, in the layout in which transformers writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from radweave.data.tokenizer import BpeTokenizerConfig
from tests.toys import TOY_REPORTS

SIZE = 32
VIT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": SIZE, "patch_size": 8, "num_channels": 3,
}  # fmt: skip
TEXT = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "max_position_embeddings": 16,
}  # fmt: skip
CONVNEXT = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_channels": 3}
SWIN = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "image_size": SIZE, "patch_size": 4}
STD = [0.25, 0.3, 0.35]
MEAN = [0.5, 0.4, 0.3]


def _vit(name: str, **more: Any) -> Callable[[], Any]:
    config = getattr(transformers, f"{name}Config")
    return lambda: getattr(transformers, f"{name}Model")(config(**VIT, **more))


def _towers(name: str) -> Callable[[], Any]:
    config = getattr(transformers, f"{name}Config")
    return lambda: getattr(transformers, f"{name}Model")(config(vision_config=dict(VIT), text_config=dict(TEXT)))


# Family -> the model whose checkpoint is written, and how many of its tokens stand before the patches.
ENCODERS: dict[str, tuple[Callable[[], Any], int]] = {
    "vit": (_vit("ViT"), 1),
    "deit": (_vit("DeiT"), 2),
    "dinov2": (_vit("Dinov2", mlp_ratio=2), 1),
    "dinov2_with_registers": (_vit("Dinov2WithRegisters", mlp_ratio=2, num_register_tokens=4), 5),
    "dinov3": (_vit("DINOv3ViT", num_register_tokens=4), 5),
    "mae": (_vit("ViTMAE"), 1),
    "beit": (_vit("Beit"), 1),
    "clip": (_towers("CLIP"), 1),
    "siglip": (_towers("Siglip"), 0),
    "convnext": (lambda: transformers.ConvNextModel(transformers.ConvNextConfig(**CONVNEXT)), 0),
    "convnextv2": (lambda: transformers.ConvNextV2Model(transformers.ConvNextV2Config(**CONVNEXT)), 0),
    "swinv2": (lambda: transformers.Swinv2Model(transformers.Swinv2Config(**SWIN)), 0),
}


def write_encoder(name: str, folder: Path, **processor: Any) -> Any:
    """Write the checkpoint of a vision model, with its processor's facts, and return the model."""
    torch.manual_seed(0)
    model = ENCODERS[name][0]().eval()
    model.save_pretrained(folder)
    facts: dict[str, Any] = {
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
        "size": {"height": SIZE, "width": SIZE},
    }
    facts |= processor
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return model


VOCAB, PAD, BOS, EOS = 310, 0, 1, 2
"""Rows of the embeddings, a few more than the tokenizer has words, and the ids that begin and end its vocabulary."""
POSITIONS = 128
_LM = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": POSITIONS, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD,
}  # fmt: skip
_GROUPED = {**_LM, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 8}
_SLIDING = {"sliding_window": 8}
_GEMMA = {**_HEADS, **_SLIDING, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_VL = {"text_config": {**_GROUPED, "rope_parameters": _ROPE}, "tie_word_embeddings": False}
_QWEN_EYES = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 8}
_QWEN_EYES_2_5 = {**_QWEN_EYES, "out_hidden_size": 32, "fullatt_block_indexes": [0], "intermediate_size": 32}


def _decoder(
    name: str, numbers: dict[str, Any], model: str = "ForCausalLM", config: str = "Config"
) -> Callable[[], Any]:
    made = getattr(transformers, f"{name}{config}")
    return lambda: getattr(transformers, f"{name}{model}")(made(**numbers))


LANGUAGE_MODELS: dict[str, Callable[[], Any]] = {
    "llama": _decoder("Llama", _GROUPED),
    "qwen2": _decoder("Qwen2", _GROUPED),
    "qwen3": _decoder("Qwen3", _HEADS),
    "gemma": _decoder("Gemma", _HEADS),
    "gemma2": _decoder("Gemma2", _GEMMA),
    "gemma3": _decoder("Gemma3", _GEMMA, config="TextConfig"),
    "phi": _decoder("Phi", _LM),
    "phi3": _decoder("Phi3", {**_GROUPED, **_SLIDING}),
    "mistral": _decoder("Mistral", {**_GROUPED, **_SLIDING}),
    "gpt2": _decoder(
        "GPT2", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS}, "LMHeadModel"
    ),
    "gpt_neox": _decoder("GPTNeoX", _LM),
    "opt": _decoder("OPT", {**_LM, "ffn_dim": 48, "word_embed_proj_dim": 16}),
    "stablelm": _decoder("StableLm", _GROUPED),
    # Of images and texts; MedGemma's layout is the first.
    "gemma3 with images": _decoder(
        "Gemma3",
        {"text_config": _GEMMA, "vision_config": dict(VIT), "mm_tokens_per_image": 4},
        "ForConditionalGeneration",
    ),
    "llava": _decoder(
        "Llava",
        {
            "text_config": {**_GROUPED, "model_type": "llama"},
            "vision_config": {**VIT, "model_type": "clip_vision_model"},
        },
        "ForConditionalGeneration",
    ),
    "qwen2_vl": _decoder("Qwen2VL", {**_QWEN_VL, "vision_config": _QWEN_EYES}, "ForConditionalGeneration"),
    "qwen2_5_vl": _decoder("Qwen2_5_VL", {**_QWEN_VL, "vision_config": _QWEN_EYES_2_5}, "ForConditionalGeneration"),
}


def write_language_model(name: str, folder: Path, *, tokenizer: bool = True) -> Any:
    """Write the checkpoint of a language model with its tokenizer, and return the model.

    Its weights are far from small, so that attention, positions and windows change what it says.
    """
    torch.manual_seed(0)
    model = LANGUAGE_MODELS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    if tokenizer:
        BpeTokenizerConfig(vocab_size=300).build(TOY_REPORTS.values()).save_pretrained(str(folder))
    return model
