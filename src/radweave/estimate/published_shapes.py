"""Shapes of the published checkpoints that presets name, so that their size is known without downloading them."""

from __future__ import annotations

from typing import Any

_BERT_BASE = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_LLAMA_2_7B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

PUBLISHED: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": _LLAMA_2_7B,
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA_2_7B,
    "microsoft/phi-4": {
        "model_type": "phi3",
        "vocab_size": 100352,
        "hidden_size": 5120,
        "intermediate_size": 17920,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 10,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
    },
    "emilyalsentzer/Bio_ClinicalBERT": {**_BERT_BASE, "vocab_size": 28996},
    "bert-base-uncased": {**_BERT_BASE, "vocab_size": 30522},
    "google-bert/bert-base-uncased": {**_BERT_BASE, "vocab_size": 30522},
    "microsoft/swin-base-patch4-window7-224": {
        "model_type": "swin",
        "image_size": 224,
        "num_channels": 3,
        "embed_dim": 128,
        "depths": [2, 2, 18, 2],
        "num_heads": [4, 8, 16, 32],
        "window_size": 7,
    },
    "google/vit-base-patch16-224-in21k": {
        "model_type": "vit",
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
    "microsoft/resnet-101": {"model_type": "resnet", "num_channels": 3, "depths": [3, 4, 23, 3]},
}
