"""Shapes of published checkpoints, to estimate memory without a download: numbers and a processor, no weights.

The tokenizer is a stand-in, learned from a few sentences: it counts a prompt's words about as the published one does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from radweave.core.foreign_models import model_of_shape
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.methods.generator.network import Checkpoint

Files = Mapping[str, bytes]
_SENTENCES: Final = (
    "Write the radiology report of this chest X-ray. Image 1: frontal chest X-ray. Image 2: lateral chest X-ray.",
    "Image 3: frontal chest X-ray of the previous study. Report of the previous study: The lungs are clear.",
)


def _tokenizer(special: tuple[str, ...], named: Mapping[str, str], end: str) -> Any:
    """A tokenizer with the control tokens of a family."""
    from transformers import PreTrainedTokenizerFast

    plain: Any = BpeTokenizerConfig(vocab_size=600).build(list(_SENTENCES) * 4)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, pad_token=plain.pad_token, bos_token=plain.bos_token,
        eos_token=plain.eos_token, clean_up_tokenization_spaces=False, extra_special_tokens=dict(named),
    )  # fmt: skip
    tokenizer.add_tokens([*special, end], special_tokens=True)
    return tokenizer


def _files(tokenizer: Any, images: Any, processor: Mapping[str, Any], template: str) -> dict[str, bytes]:
    """The files of a processor in the layout of published folders."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    images = {**images.to_dict(), "processor_class": processor["processor_class"]}
    files["preprocessor_config.json"] = json.dumps(images).encode()
    files["processor_config.json"] = json.dumps(processor).encode()
    files["chat_template.jinja"] = template.encode()
    return files


def _ids(tokenizer: Any, tokens: Mapping[str, str]) -> dict[str, int]:
    return {name: int(tokenizer.convert_tokens_to_ids(token)) for name, token in tokens.items()}


_TURN: Final = (
    "{{% for m in messages %}}{begin}{{{{ m['role'] }}}}\n{{% for c in m['content'] %}}{{% if c['type'] == 'image' %}}"
    "{image}{{% else %}}{{{{ c['text'] }}}}{{% endif %}}{{% endfor %}}{end}\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}{begin}{answer}\n{{% endif %}}"
)

# Numbers of config.json of google/medgemma-4b-it, which is Gemma 3 4B, and of Qwen/Qwen2.5-VL-7B-Instruct.
_GEMMA_TEXT: Final = {
    "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 1024, "vocab_size": 262208,
    "query_pre_attn_scalar": 256, "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA_TOWER: Final = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 14, "image_size": 896, "vision_use_head": False,
}  # fmt: skip
_QWEN_TEXT: Final = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 128000,
    "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0},
}  # fmt: skip
_QWEN_TOWER: Final = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
    "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip


def medgemma(text: Mapping[str, Any] | None = None, tower: Mapping[str, Any] | None = None) -> tuple[Any, Files]:
    """Configuration and processor of MedGemma-4B, with some numbers in place of its own."""
    from transformers import Gemma3Config, Gemma3ImageProcessorPil

    named = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = _tokenizer(("<start_of_turn>",), named, "<end_of_turn>")
    vision = {**_GEMMA_TOWER, **(tower or {})}
    side = int(vision["image_size"])
    grid = side // int(vision["patch_size"])
    per_image = (grid // 4) ** 2
    config = Gemma3Config(
        text_config={**_GEMMA_TEXT, **(text or {})}, vision_config=vision, mm_tokens_per_image=per_image,
        **_ids(tokenizer, {"image_token_id": named["image_token"], "boi_token_index": named["boi_token"],
                           "eoi_token_index": named["eoi_token"]}),
    )  # fmt: skip
    config.eos_token_id = [tokenizer.eos_token_id, *_ids(tokenizer, {"end": "<end_of_turn>"}).values()]
    images = Gemma3ImageProcessorPil(size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor = {"processor_class": "Gemma3Processor", "image_seq_length": per_image}
    turn = _TURN.format(begin="<start_of_turn>", image=named["boi_token"], end="<end_of_turn>", answer="model")
    return config, _files(tokenizer, images, processor, "{{ bos_token }}" + turn)


def qwen(text: Mapping[str, Any] | None = None, tower: Mapping[str, Any] | None = None) -> tuple[Any, Files]:
    """Configuration and processor of Qwen2.5-VL-7B, with some numbers in place of its own."""
    from transformers import Qwen2_5_VLConfig
    from transformers import Qwen2VLImageProcessorPil as ImageProcessor

    image = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
             "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    tokenizer = _tokenizer(("<|im_start|>", *image.values()), {}, "<|im_end|>")
    config = Qwen2_5_VLConfig(
        text_config={**_QWEN_TEXT, **(text or {})}, vision_config={**_QWEN_TOWER, **(tower or {})},
        tie_word_embeddings=False, **_ids(tokenizer, image),
    )  # fmt: skip
    config.eos_token_id = [*_ids(tokenizer, {"end": "<|im_end|>"}).values(), tokenizer.eos_token_id]
    images = ImageProcessor(size={"shortest_edge": 3136, "longest_edge": 12845056})
    turn = _TURN.format(
        begin="<|im_start|>", image="<|vision_start|><|image_pad|><|vision_end|>", end="<|im_end|>", answer="assistant"
    )
    return config, _files(tokenizer, images, {"processor_class": "Qwen2_5_VLProcessor"}, turn)


MEDGEMMA: Final = "google/medgemma-4b-it"
QWEN: Final = "Qwen/Qwen2.5-VL-7B-Instruct"
_KNOWN: Final[Mapping[str, Callable[[], tuple[Any, Files]]]] = {MEDGEMMA: medgemma, QWEN: qwen}


@lru_cache(maxsize=len(_KNOWN))
def published(name: str) -> tuple[Any, Files] | None:
    """Configuration and processor's files of a published checkpoint; None for another name."""
    return _KNOWN[name]() if name in _KNOWN else None


def write_random(folder: Path, seed: int = 0) -> None:
    """Write a checkpoint of MedGemma's layout, small and with random weights: to try commands, never to report."""
    text = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1024, "query_pre_attn_scalar": 16,
    }  # fmt: skip
    tower = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 112,
    }  # fmt: skip
    config, files = medgemma(text, tower)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_of_shape(config, "image_text", what="a checkpoint to try commands", file=folder)
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(str(folder))
    Checkpoint(config, files).save_pretrained(str(folder))
