"""Small random checkpoints in the layouts of the published ones that the pages name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from radweave.data.tokenizer import BpeTokenizerConfig, save_tokenizer

WORDS = ["The heart is normal in size.", "There is no pleural effusion."] * 4
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
VOCABULARY = 300
LANGUAGE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
BERT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
VISION = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "image_size": 224,
    "patch_size": 16,
}  # fmt: skip


def _model(name: str, config: str, **sizes: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        record = getattr(transformers, config)(**sizes)
        getattr(transformers, name)(record).save_pretrained(folder)

    return write


def _with_words(name: str, config: str, **sizes: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        # Published models have rows to spare; a tokenizer of some families adds marks of its own when it is loaded.
        _model(name, config, vocab_size=_words(folder) + 8, **sizes)(folder)

    return write


def _towers(name: str, **vision: Any) -> Callable[[Path], None]:
    towers = {"vision_config": {**VISION, **vision}, "text_config": {**BERT, "vocab_size": 50}}
    return _model(f"{name}Model", f"{name}Config", **towers)


def _gemma(folder: Path) -> None:
    """MedGemma's layout: a Gemma 3 of images and texts."""
    words = {**LANGUAGE, "vocab_size": VOCABULARY, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64}
    parts = {"text_config": words, "vision_config": VISION, "mm_tokens_per_image": 4}
    _model("Gemma3ForConditionalGeneration", "Gemma3Config", **parts)(folder)
    _words(folder)


def _words(folder: Path) -> int:
    """Write a tokenizer with a chat template; returns how many words it has."""
    tokenizer = BpeTokenizerConfig(vocab_size=VOCABULARY).build(WORDS)
    tokenizer.chat_template = CHAT
    save_tokenizer(tokenizer, folder)
    return len(tokenizer)


def _open_clip(folder: Path) -> None:
    folder.mkdir()
    settings = {"timm_model_name": "vit_base_patch16_224", "timm_pool": "", "timm_proj": "linear", "image_size": 224}
    content = {"model_cfg": {"embed_dim": 512, "vision_cfg": settings}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(content))
    save_file({"logit_scale": torch.tensor(4.0)}, folder / "open_clip_model.safetensors")


def _torch_file(file: Path) -> None:
    torch.save({"model": {"weight": torch.zeros(1)}}, file)


LLAMA = _with_words("LlamaForCausalLM", "LlamaConfig", **LANGUAGE)
BERT_BASE = _with_words("BertForMaskedLM", "BertConfig", **BERT)
DINO = {"mlp_ratio": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SWIN = {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 7, "image_size": 224, "num_channels": 3}

CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "swin-base": _model("SwinModel", "SwinConfig", **SWIN),
    "resnet-101": _model("ResNetModel", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    "llama-2-7b": LLAMA,
    "llama-2-7b-chat": LLAMA,
    "vicuna-7b": LLAMA,
    "phi-4": _with_words("Phi3ForCausalLM", "Phi3Config", **LANGUAGE),
    "medgemma-4b": _gemma,
    "qwen2.5-7b-instruct": _with_words("Qwen2ForCausalLM", "Qwen2Config", **LANGUAGE),
    "bio-clinical-bert": BERT_BASE,
    "bert-base-uncased": BERT_BASE,
    # What has its sizes in the preset is not opened before training begins.
    "vssm_base_0229_ckpt_epoch_237.pth": _torch_file,
    "MambaXrayCLIP-L.pth": _torch_file,
    "resnet_18_23dataset.pth": _torch_file,
    "ct-clip.pt": _torch_file,
    "VoCo_B_SSL_head.pt": _torch_file,
    "rad-dino": _model("Dinov2Model", "Dinov2Config", image_size=518, patch_size=14, **DINO),
    "dinov2-base": _model("Dinov2Model", "Dinov2Config", image_size=518, patch_size=14, **DINO),
    "dinov3-vitb16": _model("DINOv3ViTModel", "DINOv3ViTConfig", num_register_tokens=4, **VISION),
    "siglip-base": _towers("Siglip"),
    "medsiglip-448": _towers("Siglip", image_size=448, patch_size=14),
    "biomedclip": _open_clip,
}
"""By the name that a page gives the folder below ``/weights``."""
