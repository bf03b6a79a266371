"""Checks of foreign checkpoint folders, made before any library opens them.

A configuration can name files elsewhere, code on a hub, or a million layers; JSON can be nested without end.
``refuse_hostile`` refuses these in one line; ``foreign_models`` reads the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from radweave.core.config import Config, Pixels, checked
from radweave.core.errors import InputError
from radweave.core.foreign_tokenizers import MAX_BYTES, refuse_endless_steps, refuse_long_texts, refuse_many_words
from radweave.core.json_files import read_json

_POINTER: Final = b"version https://git-lfs"
_PAGES: Final = (b"<!doctype", b"<html", b"<?xml")


def refuse_stub(file: Path, *, what: str) -> None:
    """Refuse the remains of a failed download: an empty file, a pointer, a web page, a truncated safetensors file.

    Raises:
        InputError: naming the file and its content.
    """
    with file.open("rb") as stream:
        start = stream.read(64).lstrip().lower()
    content = None
    if not start:
        content = "an empty file"
    elif start.startswith(_POINTER):
        content = "a pointer of Git LFS in its place"
    elif start.startswith(_PAGES):
        content = "a web page in its place"
    if content is not None:
        raise InputError(
            f"cannot load {what}: the file was not downloaded",
            file=file,
            got=content,
            expected="'hf download' or 'git lfs pull'",
        )
    if file.suffix == ".safetensors" and (error := safetensors_error(file)):
        raise InputError(f"cannot load {what}: not a whole safetensors file: {error}"[:300], file=file)


def safetensors_error(file: Path) -> str:
    """The reason why a safetensors file cannot be opened; empty for an intact one."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt"):
            return ""
    except (OSError, SafetensorError) as error:
        return str(error) or type(error).__name__


# Folders of open_clip with a plain vision transformer of timm, as BiomedCLIP's. ``open_clip_config.json`` names the
# architecture in timm's terms and the standardisation of images; one file holds the weights of both towers.
# Sources: open_clip (github.com/mlfoundations/open_clip), timm (github.com/huggingface/pytorch-image-models).

SETTINGS: Final = "open_clip_config.json"
WEIGHTS: Final = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""Files of weights in order of preference."""
_OTHERS: Final = ("model.safetensors", "model.safetensors.index.json")
_SIZES: Final = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, layers and heads of timm's names."""
_NAME: Final = re.compile(r"vit_(tiny|small|base|large)_patch(\d{1,3})_(\d{1,4})(?:\..*)?", re.ASCII)
_NORM_EPS: Final = 1e-6

Three = Annotated[tuple[float, ...], Field(min_length=3, max_length=3)]


class Standardisation(Config):
    """Mean and standard deviation per channel; the defaults are open_clip's, those of OpenAI's CLIP."""

    mean: Three = (0.48145466, 0.4578275, 0.40821073)
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=3, max_length=3)] = (
        0.26862954,
        0.26130258,
        0.27577711,
    )


def has_open_clip_layout(folder: Path) -> bool:
    """True for a folder of open_clip that transformers cannot read."""
    return (folder / SETTINGS).is_file() and not any((folder / name).is_file() for name in _OTHERS)


def open_clip_weights(folder: Path, *, what: str) -> Path:
    """The file with the weights.

    Raises:
        InputError: if there is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"cannot load {what}: there are no weights", file=folder, expected=" or ".join(WEIGHTS))


def open_clip_shape(folder: Path) -> Any:
    """The architecture of the vision tower as a ViT of transformers.

    Raises:
        InputError: if it is not a plain vision transformer of timm.
    """
    from transformers import ViTConfig

    tower = _section(folder, "model_cfg").get("vision_cfg")
    tower = tower if isinstance(tower, dict) else {}
    name = tower.get("timm_model_name")
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise InputError(
            "the vision tower is of another architecture",
            file=folder / SETTINGS,
            field="model_cfg.vision_cfg.timm_model_name",
            got=name,
            expected="a plain vision transformer, as vit_base_patch16_224",
        )
    width, layers, heads = _SIZES[match[1]]
    of_images = {"image_size": tower.get("image_size", int(match[3])), "patch_size": int(match[2])}
    sizes = checked(_Sizes, of_images, file=folder / SETTINGS, field="model_cfg.vision_cfg")
    return ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        layer_norm_eps=_NORM_EPS,
        **sizes.model_dump(),
    )


def open_clip_standardisation(folder: Path) -> Standardisation:
    """Mean and standard deviation of the images in training.

    Raises:
        InputError: if they do not fit three channels.
    """
    values = _section(folder, "preprocess_cfg")
    return checked(
        Standardisation,
        {name: values[name] for name in ("mean", "std") if name in values},
        file=folder / SETTINGS,
        field="preprocess_cfg",
    )


class _Sizes(Config):
    image_size: Pixels
    patch_size: Pixels


def _section(folder: Path, name: str) -> dict[str, Any]:
    content = read_json(folder / SETTINGS)
    section = content.get(name) if isinstance(content, dict) else None
    return section if isinstance(section, dict) else {}


Files = Literal["shape", "tokenizer", "processor", "weights"]
"""Parts of a checkpoint folder."""

PROCESSORS: Final = ("processor_config.json", "preprocessor_config.json")
"""Files that say how a model of images and texts prepares its images; newer checkpoints have the first."""
_JSON: dict[Files, tuple[str, ...]] = {
    "shape": ("config.json", "preprocessor_config.json", SETTINGS),
    "tokenizer": (
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "config.json",
    ),
    "processor": (*PROCESSORS, "chat_template.json"),
    "weights": ("config.json", "generation_config.json", "model.safetensors.index.json", SETTINGS),
}  # fmt: skip
_WORDS = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5")
_MAX_JSON_BYTES = 256 << 20
_MAX_VALUES = 1_000_000
_MAX_LAYERS = 1024
"""Layers, blocks or experts; published models have hundreds."""
_MAX_NUMBER = 2**31
_COUNTS = ("layers", "n_layer", "depth", "blocks", "experts", "stages")
_KERNELS = ("attn_implementation", "experts_implementation")
_OWN_KERNELS = ("eager", "sdpa", "flash_attention_2", "flex_attention", "grouped_mm", "batched_mm")


def refuse_incomplete(folder: Path, files: Files, *, what: str) -> None:
    """Refuse a folder that lacks required files.

    Raises:
        InputError: naming the missing file; only weights in safetensors count.
    """
    if files == "tokenizer":
        present = [folder / name for name in _WORDS if (folder / name).is_file()]
        if not present:
            raise InputError(f"cannot load {what}: none is in this folder", file=folder, expected=" or ".join(_WORDS))
        for file in present:
            refuse_stub(file, what=what)
        return
    if files == "processor":
        if not any((folder / name).is_file() for name in PROCESSORS):
            raise InputError(f"cannot load {what}: it has no processor", file=folder, expected=" or ".join(PROCESSORS))
        return
    if has_open_clip_layout(folder):
        if files == "weights":
            refuse_stub(open_clip_weights(folder, what=what), what=what)
        return
    if not (folder / "config.json").is_file():
        raise InputError(f"cannot load {what}: config.json is missing", file=folder)
    if files == "shape":
        return
    if (folder / "model.safetensors").is_file():
        refuse_stub(folder / "model.safetensors", what=what)
        return
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
        raise InputError(
            f"cannot load {what}: it has no weights in safetensors",
            file=folder,
            got=f"{pickles[0]}, a file that can hold code" if pickles else None,
            expected="model.safetensors, or model.safetensors.index.json and its parts",
        )
    for name in _shards(index):
        if not (folder / name).is_file():
            raise InputError(f"cannot load {what}: a part of the weights is missing: {name}", file=folder)
        refuse_stub(folder / name, what=what)


def refuse_hostile(folder: Path, files: Files, *, what: str) -> None:
    """Refuse links out of the folder, broken or endless JSON, and settings that load files or code from elsewhere.

    Raises:
        InputError: naming file and field.
    """
    _refuse_links(folder)
    if files != "tokenizer" and (folder / "adapter_config.json").exists():
        raise InputError(
            f"cannot load {what}: the folder holds adapters of another model",
            file=folder / "adapter_config.json",
            expected="a whole model, with its adapters merged",
        )
    for name in (*_WORDS, "merges.txt") if files == "tokenizer" else ():
        if (folder / name).is_file() and (size := (folder / name).stat().st_size) > MAX_BYTES:
            raise InputError(
                "too large for a tokenizer", file=folder / name, got=f"{size} bytes", expected=f"at most {MAX_BYTES}"
            )
    for name in _JSON[files]:
        path = folder / name
        if not path.is_file():
            continue
        content = _read_object(path)
        if name in ("config.json", SETTINGS):
            _refuse_shape(content, path)
        elif name == "tokenizer.json":
            refuse_endless_steps(content, path)
        elif name == "vocab.json":
            refuse_many_words(content, path)
        elif name == "tokenizer_config.json":
            _refuse_other_files(content, path)
        if name in _TOKENS:
            refuse_long_texts(content, path)


def weights_bytes(folder: Path) -> int:
    """Bytes of the weights in a folder."""
    name = "model.safetensors"
    names = [name] if (folder / name).is_file() else _shards(folder / f"{name}.index.json")
    return sum((folder / name).stat().st_size for name in names)


def one_line(error: BaseException, length: int = 200) -> str:
    """The first line of an error, printable; the error's type if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines and not isinstance(error, (RecursionError, MemoryError)) else type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:length]


def _refuse_links(folder: Path) -> None:
    inside = [folder.resolve()]
    if folder.resolve().parent.name == "snapshots":
        inside.append(folder.resolve().parent.parent / "blobs")  # the files of the hub's cache
    for path in folder.iterdir():
        if path.is_symlink() and not any(path.resolve().is_relative_to(parent) for parent in inside):
            raise InputError("a link out of the folder is not followed", file=path)


def _read_object(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise InputError("too large for a file of this kind", file=path, got=f"{path.stat().st_size} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {one_line(error)}", file=path) from None
    if not isinstance(content, dict):
        raise InputError("not a JSON object", file=path, got=type(content).__name__)
    return content


def _shards(index: Path) -> list[str]:
    """Names of the files of an index, all in its folder."""
    names = _read_object(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise InputError("names no files", file=index, field="weight_map")
    for name in names.values():
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError("not a safetensors file of this folder", file=index, field="weight_map", got=shown(name))
    return sorted(set(names.values()))


def shown(name: str) -> str:
    """A foreign name in a message, as ASCII and cut."""
    return ascii(name[:80])


def _refuse_shape(content: dict[str, Any], path: Path) -> None:
    for field, value in _walk(content, path):
        total = sum(item for item in value if isinstance(item, int)) if isinstance(value, list) else value
        if isinstance(total, int) and abs(total) > _MAX_NUMBER:
            raise InputError("the number is too large", file=path, field=field, expected=f"at most {_MAX_NUMBER}")
        if any(word in field for word in _COUNTS) and isinstance(total, int) and total > _MAX_LAYERS:
            raise InputError("too many", file=path, field=field, got=total, expected=f"at most {_MAX_LAYERS}")
        if any(word in field for word in _KERNELS) and isinstance(value, str) and value not in _OWN_KERNELS:
            raise InputError("code of others is not run", file=path, field=field, got=shown(value))
    quantization = content.get("quantization_config")
    if quantization and (not isinstance(quantization, dict) or quantization.get("quant_method") != "bitsandbytes"):
        raise InputError("weights in this format cannot be loaded", file=path, field="quantization_config")
    elsewhere = content.get("transformers_weights")
    if elsewhere is not None and (not isinstance(elsewhere, str) or elsewhere not in ("model.safetensors",)):
        raise InputError("weights of another name are not loaded", file=path, field="transformers_weights")


def _refuse_other_files(content: dict[str, Any], path: Path) -> None:
    """Refuse tokenizer settings that name files elsewhere or positional arguments."""
    if content.get("init_inputs"):
        raise InputError("arguments without a name are not passed on", file=path, field="init_inputs")
    for field, value in _walk(content, path):
        if not field.split(".")[-1].endswith(("_file", "_files")) or not isinstance(value, str):
            continue
        if Path(value).name != value and Path(value).exists():
            raise InputError("names a file outside of the folder", file=path, field=field)


def _walk(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Every plain value and list with its field; items of a list have the field of the list."""
    waiting: list[tuple[str, Any]] = [("", content)]
    for _ in range(_MAX_VALUES):
        if not waiting:
            return
        field, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend((f"{field}.{key}".lstrip("."), inner) for key, inner in value.items())
            continue
        yield field, value
        if isinstance(value, list):
            waiting.extend((field, inner) for inner in value)
    raise InputError("too many values", file=path, expected=f"at most {_MAX_VALUES}")
