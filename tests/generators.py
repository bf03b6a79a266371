"""Small random checkpoints of published models of images and texts: weights, processor, chat template, tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from radweave.core.foreign_models import without_videos
from radweave.data.tokenizer import BpeTokenizerConfig
from tests.toys import TOY_REPORTS

SIDE = 32
_EYES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "image_size": SIDE,
    "patch_size": 8, "num_channels": 3,
}  # fmt: skip
_SIGLIP = {**_EYES, "model_type": "siglip_vision_model", "vision_use_head": False}
_CLIP = {**_EYES, "model_type": "clip_vision_model"}
_WORDS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 2048,
}  # fmt: skip
_HEADS = {**_WORDS, "head_dim": 8}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_EYES = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2}
_MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_SQUARE = {"size": {"height": SIDE, "width": SIDE}, **_MEAN}

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<start_of_image>{% else %}{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}@@{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for m in messages %}{{ m['role'].upper() }}: {% for c in m['content'] if c['type'] == 'image' %}<image>\n"
    "{% endfor %}{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
IDEFICS_TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% else %}<image>{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def tokenizer_with(*special: str, **named: str) -> Any:
    """A tokenizer of the toy reports with special tokens, some of them under a name, such as ``image_token``."""
    plain: Any = BpeTokenizerConfig(vocab_size=300).build(list(TOY_REPORTS.values()) * 4)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer, pad_token=plain.pad_token, bos_token=plain.bos_token,
        eos_token=plain.eos_token, clean_up_tokenization_spaces=False, extra_special_tokens=named,
    )  # fmt: skip
    tokenizer.add_tokens(list(special), special_tokens=True)
    return tokenizer


def _ids(tokenizer: Any, **tokens: str) -> dict[str, int]:
    return {name: int(tokenizer.convert_tokens_to_ids(token)) for name, token in tokens.items()}


Parts = tuple[Any, Any, Any]
"""Model, image processor, and a function of the tokenizer's folder that makes the processor."""


def _gemma3() -> Parts:
    tokenizer = tokenizer_with(
        "<start_of_turn>", "<end_of_turn>",
        image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>",
    )  # fmt: skip
    config = transformers.Gemma3Config(
        text_config={
            **_HEADS, "vocab_size": len(tokenizer), "sliding_window": 16, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0,
        },
        vision_config=_SIGLIP, mm_tokens_per_image=4,
        **_ids(tokenizer, image_token_id="<image_soft_token>", boi_token_index="<start_of_image>",
               eoi_token_index="<end_of_image>"),
    )  # fmt: skip
    config.eos_token_id = [2, *_ids(tokenizer, e="<end_of_turn>").values()]
    images = transformers.Gemma3ImageProcessorPil(**_SQUARE, do_pan_and_scan=False)
    return (
        transformers.Gemma3ForConditionalGeneration(config),
        tokenizer,
        lambda t: transformers.Gemma3Processor(images, t, chat_template=GEMMA_TEMPLATE, image_seq_length=4),
    )


def _paligemma() -> Parts:
    tokenizer = tokenizer_with(image_token="<image>")
    config = transformers.PaliGemmaConfig(
        text_config={**_HEADS, "model_type": "gemma", "vocab_size": len(tokenizer), "pad_token_id": 0},
        vision_config={**_SIGLIP, "projection_dim": 32}, projection_dim=32, hidden_size=32,
        **_ids(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    images = transformers.SiglipImageProcessorPil(**_SQUARE)
    images.image_seq_length = 16
    return (
        transformers.PaliGemmaForConditionalGeneration(config),
        tokenizer,
        lambda t: transformers.PaliGemmaProcessor(images, t),
    )


def _llava() -> Parts:
    tokenizer = tokenizer_with(image_token="<image>")
    config = transformers.LlavaConfig(
        text_config={**_WORDS, "model_type": "llama", "vocab_size": len(tokenizer)}, vision_config=_CLIP,
        vision_feature_layer=-2, vision_feature_select_strategy="default", image_seq_length=16,
        **_ids(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, **_MEAN
    )
    return transformers.LlavaForConditionalGeneration(config), tokenizer, lambda t: transformers.LlavaProcessor(
        images, t, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )  # fmt: skip


def _llava_next() -> Parts:
    tokenizer = tokenizer_with(image_token="<image>")
    config = transformers.LlavaNextConfig(
        text_config={**_WORDS, "model_type": "llama", "vocab_size": len(tokenizer)}, vision_config=_CLIP,
        vision_feature_layer=-2, image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]], image_seq_length=16,
        **_ids(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE},
        image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]], **_MEAN,
    )  # fmt: skip
    return transformers.LlavaNextForConditionalGeneration(config), tokenizer, lambda t: transformers.LlavaNextProcessor(
        images, t, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )  # fmt: skip


def _llava_onevision() -> Parts:
    tokenizer = tokenizer_with("<|im_start|>", "<|im_end|>", image_token="<image>", video_token="<video>")
    grid = [[32, 64], [64, 32], [64, 64]]
    config = transformers.LlavaOnevisionConfig(
        text_config={**_WORDS, "model_type": "qwen2", "vocab_size": len(tokenizer)}, vision_config=_SIGLIP,
        vision_feature_layer=-1, vision_feature_select_strategy="full", image_grid_pinpoints=grid,
        **_ids(tokenizer, image_token_index="<image>", video_token_index="<video>"),
    )  # fmt: skip
    config.eos_token_id = _ids(tokenizer, e="<|im_end|>")["e"]
    images = transformers.LlavaOnevisionImageProcessorPil(image_grid_pinpoints=grid, **_SQUARE)
    return transformers.LlavaOnevisionForConditionalGeneration(config), tokenizer, lambda t: _no_videos(
        transformers.LlavaOnevisionProcessor, images, t, num_image_tokens=16, vision_feature_select_strategy="full",
        chat_template=CHATML.replace("@@", "<image>\n"),
    )  # fmt: skip


def _internvl() -> Parts:
    tokenizer = tokenizer_with(
        "<|im_start|>", "<|im_end|>", start_image_token="<img>", end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>", video_token="<video>",
    )  # fmt: skip
    config = transformers.InternVLConfig(
        text_config={**_WORDS, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        vision_config={
            **_EYES, "image_size": [SIDE, SIDE], "patch_size": [8, 8], "use_absolute_position_embeddings": True,
            "layer_scale_init_value": 0.1,
        },
        image_seq_length=4, downsample_ratio=0.5, **_ids(tokenizer, image_token_id="<IMG_CONTEXT>"),
    )  # fmt: skip
    config.eos_token_id = _ids(tokenizer, e="<|im_end|>")["e"]
    images = transformers.GotOcr2ImageProcessorPil(**_SQUARE, crop_to_patches=True, min_patches=1, max_patches=3)
    return transformers.InternVLForConditionalGeneration(config), tokenizer, lambda t: _no_videos(
        transformers.InternVLProcessor, images, t, image_seq_length=4,
        chat_template=CHATML.replace("@@", "<IMG_CONTEXT>\n"),
    )  # fmt: skip


def _idefics3(smol: bool = False) -> Parts:
    tokens = ["<|im_start|>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    tokens += [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    tokenizer = tokenizer_with(*tokens, image_token="<image>")
    name = "SmolVLM" if smol else "Idefics3"
    kind, model = (getattr(transformers, f"{name}{end}") for end in ("Config", "ForConditionalGeneration"))
    config = kind(
        text_config={**_WORDS, "model_type": "llama", "vocab_size": len(tokenizer), "pad_token_id": 0},
        vision_config=dict(_EYES), scale_factor=2, pad_token_id=0,
        **_ids(tokenizer, image_token_id="<image>"),
    )  # fmt: skip
    config.eos_token_id = _ids(tokenizer, e="<end_of_utterance>")["e"]
    images = getattr(transformers, f"{name}ImageProcessorPil")(
        size={"longest_edge": 64}, max_image_size={"longest_edge": SIDE}, **_MEAN
    )
    processor: Any = getattr(transformers, f"{name}Processor")
    return (
        model(config),
        tokenizer,
        lambda t: _no_videos(processor, images, t, image_seq_len=4, chat_template=IDEFICS_TEMPLATE),
    )


def _qwen(name: str, eyes: Mapping[str, Any], words: Mapping[str, Any]) -> Callable[[], Parts]:
    def make() -> Parts:
        tokenizer = tokenizer_with(
            "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
        )
        config = getattr(transformers, f"{name}Config")(
            text_config={**words, "vocab_size": len(tokenizer), "rope_parameters": dict(_MROPE)},
            vision_config=dict(eyes),
            tie_word_embeddings=False,
            **_ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>",
                   vision_start_token_id="<|vision_start|>", vision_end_token_id="<|vision_end|>"),
        )  # fmt: skip
        config.eos_token_id = _ids(tokenizer, e="<|im_end|>")["e"]
        images = transformers.Qwen2VLImageProcessorPil(
            patch_size=eyes["patch_size"], merge_size=2, temporal_patch_size=2, **_MEAN,
            size={"shortest_edge": 16 * 16, "longest_edge": 48 * 48},
        )  # fmt: skip
        template = CHATML.replace("@@", "<|vision_start|><|image_pad|><|vision_end|>")
        made = "Qwen2_5_VL" if name == "Qwen2_5_VL" else name
        return (
            getattr(transformers, f"{name}ForConditionalGeneration")(config),
            tokenizer,
            lambda t: _no_videos(getattr(transformers, f"{made}Processor"), images, t, chat_template=template),
        )

    return make


def _mllama() -> Parts:
    tokenizer = tokenizer_with("<|python_tag|>", image_token="<|image|>")
    words = {**_WORDS, "num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 0}
    config = transformers.MllamaConfig(
        text_config={
            **words, "vocab_size": len(tokenizer) - 1, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        vision_config={
            "hidden_size": 16, "attention_heads": 2, "num_hidden_layers": 2, "num_global_layers": 1, "image_size": SIDE,
            "patch_size": 8, "intermediate_size": 32, "max_num_tiles": 2, "vision_output_dim": 32,
            "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        **_ids(tokenizer, image_token_index="<|image|>"),
    )  # fmt: skip
    images = transformers.MllamaImageProcessorPil(**_SQUARE, max_image_tiles=2)
    return (
        transformers.MllamaForConditionalGeneration(config),
        tokenizer,
        lambda t: transformers.MllamaProcessor(images, t, chat_template=LLAVA_TEMPLATE.replace("<image>", "<|image|>")),
    )


def _no_videos(kind: Any, images: Any, tokenizer: Any, **more: Any) -> Any:
    """A processor of a class that has a part for videos, without it."""
    parts = {"image_processor": images, "tokenizer": tokenizer}
    with without_videos(kind) as shorter:
        return shorter(**{name: parts.get(name) for name in kind.get_attributes()}, **more)


FAMILIES: dict[str, Callable[[], Parts]] = {
    "gemma3": _gemma3,
    "paligemma": _paligemma,
    "llava": _llava,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "internvl": _internvl,
    "idefics3": _idefics3,
    "smolvlm": partial(_idefics3, smol=True),
    "qwen2_vl": _qwen("Qwen2VL", {**_QWEN_EYES, "embed_dim": 16, "mlp_ratio": 2}, _WORDS),
    "qwen2_5_vl": _qwen(
        "Qwen2_5_VL",
        {**_QWEN_EYES, "hidden_size": 16, "out_hidden_size": 32, "fullatt_block_indexes": [1], "intermediate_size": 32,
         "window_size": 16},
        _WORDS,
    ),
    "qwen3_vl": _qwen(
        "Qwen3VL",
        {**_QWEN_EYES, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32,
         "deepstack_visual_indexes": [0],
         "num_position_embeddings": 64},
        _HEADS,
    ),
    "mllama": _mllama,
}  # fmt: skip


def write_generator(name: str, folder: Path, *, shards: str = "5GB") -> Any:
    """Write the checkpoint of a family and return the model. Weights are far from small, so that inputs matter."""
    import json

    torch.manual_seed(0)
    model, tokenizer, make_processor = FAMILIES[name]()
    model = model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.generation_config.eos_token_id = getattr(model.config, "eos_token_id", None) or 2
    model.save_pretrained(folder, max_shard_size=shards)
    tokenizer.save_pretrained(str(folder))
    reloaded = transformers.AutoTokenizer.from_pretrained(str(folder))
    processor = make_processor(reloaded)
    reloaded.save_pretrained(str(folder))
    parts = {name: getattr(processor, name) for name in type(processor).get_attributes()}
    # As published folders have it: image processor and processor each in a file, the template in its own.
    own = {key: value for key, value in processor.to_dict().items() if key not in parts}
    (folder / "processor_config.json").write_text(json.dumps(own))
    images = {**processor.image_processor.to_dict(), "processor_class": type(processor).__name__}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    if processor.chat_template:
        (folder / "chat_template.jinja").write_text(processor.chat_template)
    return model
