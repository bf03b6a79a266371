"""Loading of foreign models, tokenizers and configurations.

    model, new = read_model("/weights/llama", "causal_lm", what="a language model", dtype=torch.bfloat16)
    tokenizer = read_tokenizer(run / "tokenizer")

Only data is loaded: no code of a folder runs, weights are safetensors and never pickles, and folders are read in place
without network access or links out of them. Only hub names are downloaded. ``foreign_files`` checks the files first.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from radweave.core.errors import InputError
from radweave.core.foreign_files import (
    PROCESSORS,
    Files,
    has_open_clip_layout,
    one_line,
    open_clip_shape,
    refuse_hostile,
    refuse_incomplete,
    safetensors_error,
    shown,
    weights_bytes,
)
from radweave.core.json_files import read_json_object

Auto = Literal["causal_lm", "encoder", "image_text"]
"""Model of a checkpoint's architecture: with a language model's head, without any head, or of images and texts."""

_CLASSES: Mapping[Auto, str] = {
    "causal_lm": "AutoModelForCausalLM",
    "encoder": "AutoModel",
    "image_text": "AutoModelForImageTextToText",
}
_HUB_NAME = re.compile(r"(?:[\w][\w.-]{0,95}/)?[\w][\w.-]{0,95}", re.ASCII)
_DOWNLOADED: Mapping[Files, tuple[str, ...]] = {
    "shape": ("config.json", "preprocessor_config.json"),
    "tokenizer": ("*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja", "config.json"),
    "processor": ("*processor_config.json", "chat_template*"),
    "weights": ("config.json", "generation_config.json", "model.safetensors", "model-*.safetensors", "*.index.json"),
}
NEEDS_CODE = "it needs code that lies beside it, and code from a model's folder is never run"
_HUB_TIMEOUT_S = 5.0
_SIMILAR = 0.8
"""Names more similar than this, of 1, are the same name with a typing error."""
_GREATEST_WEIGHT = 1e18
"""Limit of a weight, since a norm squares it and float32 overflows."""
_ALIGNMENT = 64
"""Bytes; torch allocates CPU tensors at multiples of this."""
_NUMBERS_PER_WEIGHT = 4
"""Limit of model parameters per stored byte: four-bit weights pack two, and new layers add some."""
_WIDEST_IMAGE, _MOST_PIXELS, _MOST_TILES = 8192, 1 << 26, 1024
"""Limits of an image that a processor makes: its side, the pixels of all of it, and its tiles or patches."""
_lock = threading.RLock()


def locate(path: Path | str, files: Files, *, what: str) -> Path:
    """The folder of a checkpoint: the one at ``path``, or the download of a hub name.

    A ``Path`` is a local folder. A string is a hub name if no such folder exists and it does not look like a path. A
    complete download in the hub's cache is used without network access.

    Raises:
        InputError: if the folder or name does not exist, or the folder must not be loaded.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if isinstance(path, Path) or not _is_hub_name(path):
            raise InputError(f"cannot load {what}: no such folder", file=path)
        folder = _download(path, files, what=what)
    if not folder.is_dir():
        raise InputError(f"cannot load {what}: not a folder", file=path)
    refuse_incomplete(folder, files, what=what)
    refuse_hostile(folder, files, what=what)
    return folder


def _is_hub_name(path: str) -> bool:
    return bool(_HUB_NAME.fullmatch(path)) and not ("/" in path and Path(path).parent.exists())


def _similar_folder(name: str) -> Path | None:
    """The local folder with this path except for a typing error."""
    similar = Path()
    for part in Path(name).parts:
        folders = [path.name for path in similar.iterdir() if path.is_dir()] if similar.is_dir() else []
        near = get_close_matches(part, folders, n=1, cutoff=_SIMILAR)
        if not near:
            return None
        similar = similar / near[0]
    return similar


def _download(name: str, files: Files, *, what: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError

    patterns = list(_DOWNLOADED[files])
    try:
        cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        refuse_incomplete(cached, files, what=what)
        return cached
    except Exception:  # not cached, or incomplete
        pass
    near = _similar_folder(name)
    if near is not None:
        raise InputError(f"cannot load {what}: no such folder", file=name, expected=f"{near}, which is here")
    try:
        # A short query precedes the download, which would retry for long. Messages of the network client name hosts,
        # and their types depend on the client, so neither is passed on.
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
        return Path(
            snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"], etag_timeout=_HUB_TIMEOUT_S)
        )
    except GatedRepoError:
        raise InputError(
            f"cannot load {what}: the hub gives it only to those who have accepted its terms",
            file=name,
            expected="its terms accepted on its page, then 'hf auth login'; or a folder",
        ) from None
    except Exception as error:
        raise InputError(
            f"cannot load {what}: there is no such folder, and the hub did not give it ({type(error).__name__})",
            file=name,
            expected="a folder, or the hub name of a model that can be reached",
        ) from None


def read_shape(path: Path | str, *, what: str, kind: Any = None, options: Mapping[str, Any] | None = None) -> Any:
    """The configuration of a checkpoint in its class of transformers; for an open_clip folder, of the vision tower.

    Args:
        path: folder or hub name.
        what: description of the object, for messages.
        kind: class of the configuration; by default the one that the folder names.
        options: changes of the checkpoint's values.

    Raises:
        InputError: as ``locate``, or if the configuration cannot be read.
    """
    from transformers import AutoConfig

    folder = locate(path, "shape", what=what)
    if kind is None and has_open_clip_layout(folder):
        return open_clip_shape(folder)
    with _isolated(what, path):
        return (kind or AutoConfig).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **(options or {})
        )


def model_class(shape: Any) -> Any:
    """The model class without a head of a configuration in transformers; None if there is none."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    classes = MODEL_MAPPING.get(type(shape), None)
    return classes[0] if isinstance(classes, (tuple, list)) else classes


def is_causal(shape: Any) -> bool:
    """True for the configuration of a causal language model.

    The library also builds language models of encoders such as BERT, which attend to later tokens.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    sees_both_ways = getattr(shape, "use_bidirectional_attention", None) in (True, "all")
    encoder = type(shape) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(shape, "is_decoder", False)
    return type(shape) in MODEL_FOR_CAUSAL_LM_MAPPING and not sees_both_ways and not encoder


def make_shape(model_type: str, **numbers: Any) -> Any:
    """A configuration from its numbers, without any file."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **numbers)


def writes_about_images(shape: Any) -> bool:
    """True for the configuration of a model that transformers opens as one of images and texts to text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return type(shape) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def read_processor(path: Path | str, shape: Any, *, what: str) -> Any:
    """The processor of a model of images and texts: its image processor, tokenizer and chat template.

    Images are prepared by Pillow, whatever else is installed, so that a run prepares them alike everywhere. The part of
    a processor that reads videos is left out.

    Args:
        path: folder or hub name.
        shape: the configuration of the checkpoint.
        what: description of the object, for messages.

    Raises:
        InputError: as ``locate``, or if the files are not a processor's, or of one that reads no images.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name

    folder, tokenizer = locate(path, "processor", what=what), read_tokenizer(path, what=f"the tokenizer of {what}")
    settings: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name in reversed(PROCESSORS):
        if (folder / name).is_file():
            settings = read_json_object(folder / name)
            named |= settings
    if not (folder / PROCESSORS[0]).is_file():
        settings = {}
    _refuse_wide(named, folder)
    with _isolated(what, path):
        kind: Any = processor_class_from_name(str(named.get("processor_class"))) or PROCESSOR_MAPPING.get(type(shape))
        if kind is None or "image_processor" not in kind.get_attributes():
            raise InputError(f"cannot load {what}: transformers has no processor of images for it", file=folder)
        images = _image_processor(named).from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        parts = {"image_processor": images, "tokenizer": tokenizer}
        template = _chat_template(folder) or settings.get("chat_template") or tokenizer.chat_template
        with without_videos(kind) as shorter:
            return shorter.from_args_and_dict(
                [parts.get(name) for name in kind.get_attributes()], {**settings, "chat_template": template}
            )


def _refuse_wide(value: Any, folder: Path, name: str = "", *, area: bool = False) -> None:
    """Refuse sizes of images that would fill the memory, and negative ones.

    Raises:
        InputError: naming the field.
    """
    if isinstance(value, Mapping):
        area = area or "merge_size" in value  # sizes of these processors are numbers of pixels
        for key, inner in value.items():
            _refuse_wide(inner, folder, f"{name}.{key}".lstrip("."), area=area)
    elif isinstance(value, list):
        for inner in value:
            _refuse_wide(inner, folder, name, area=area)
    elif isinstance(value, int) and not isinstance(value, bool):
        own = name.rpartition(".")[2]
        most = _MOST_PIXELS if area and own.endswith(("edge", "pixels")) else _WIDEST_IMAGE
        if not -1 <= value <= (_MOST_TILES if own.endswith(("patches", "crops", "tiles")) else most):
            raise InputError("an image of this size is not made", file=folder, field=name, got=value)


def _image_processor(settings: Mapping[str, Any]) -> Any:
    """The class of an image processor that works with Pillow.

    Raises:
        InputError: if the settings name none that transformers has.
    """
    import transformers

    own = settings.get("image_processor")
    named = (own if isinstance(own, Mapping) else settings).get("image_processor_type")
    base = str(named).removesuffix("Fast").removesuffix("Pil")
    kind = getattr(transformers, f"{base}Pil", None)
    if kind is None or not base.endswith("ImageProcessor"):
        raise InputError("no such image processor", field="image_processor_type", got=shown(str(named)))
    return kind


def _chat_template(folder: Path) -> str | None:
    """The chat template of a processor, in a file of its own; None where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").is_file():
        template = read_json_object(folder / "chat_template.json").get("chat_template")
        return template if isinstance(template, str) else None
    return None


@contextmanager
def without_videos(kind: Any) -> Iterator[Any]:
    """The class of a processor that need not have its part for videos, nor the libraries that this wants."""

    def check(self: Any, name: str, part: Any) -> Any:
        return (
            None
            if part is None and name != "image_processor"
            else kind.check_argument_for_proper_class(self, name, part)
        )

    module = sys.modules[kind.__module__]
    # SmolVLM's asks for a package that says the number of a video's frames in words.
    spelling = getattr(module, "num2words", None) or str
    with _set(module, "num2words", spelling) if hasattr(module, "num2words") else nullcontext():
        yield type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def read_tokenizer(path: Path | str, *, what: str = "a tokenizer", kind: Any = None, **options: Any) -> Any:
    """A tokenizer from its files; ``kind`` is its class, by default the one that the files name.

    Raises:
        InputError: as ``locate``, or if the files are not a tokenizer's.
    """
    from transformers import AutoTokenizer

    folder = locate(path, "tokenizer", what=what)
    with _isolated(what, path):
        return (kind or AutoTokenizer).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )


def model_of_shape(shape: Any, auto: Auto, *, what: str, file: Path | str, dtype: torch.dtype | None = None) -> Any:
    """A model with random weights.

    Raises:
        InputError: if the shape cannot be built, naming ``file``.
    """
    with _isolated(what, file):
        return _auto_class(auto).from_config(shape, trust_remote_code=False, **({"dtype": dtype} if dtype else {}))


def read_model(
    path: Path | str,
    kind: Auto | type[nn.Module],
    *,
    what: str,
    dtype: torch.dtype = torch.float32,
    shape: Any = None,
    may_be_new: tuple[str, ...] = (),
    **options: Any,
) -> tuple[Any, frozenset[str]]:
    """A model with all weights of a checkpoint, intact and finite.

    Args:
        path: folder or hub name.
        kind: model of the checkpoint's architecture, or a class.
        what: description of the object, for messages.
        dtype: precision of the weights.
        shape: the configuration; by default the checkpoint's.
        may_be_new: parts of names of parameters that the checkpoint may lack; they are initialised at random.
        options: further arguments of the class.

    Returns:
        The model, and the names of its parameters that the checkpoint lacks.

    Raises:
        InputError: as ``locate``, or for missing or broken files, missing weights, or weights that are not finite.
    """
    folder = locate(path, "weights", what=what)
    shape = read_shape(folder, what=what) if shape is None else shape
    chosen: Any = _auto_class(kind) if isinstance(kind, str) else kind
    with _isolated(what, path, folder):
        with torch.device("meta"):
            empty = chosen.from_config(shape, trust_remote_code=False) if isinstance(kind, str) else chosen(shape)
        _refuse_giant(empty, folder, path)
        model, loading = chosen.from_pretrained(
            str(folder),
            config=shape,
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            **options,
        )
    missing = frozenset(loading["missing_keys"])
    lost = sorted(name for name in missing if not any(part in name for part in may_be_new))
    if lost:
        some = ", ".join(lost[:3]) + (" ..." if len(lost) > 3 else "")
        raise InputError(f"the checkpoint lacks {len(lost)} weights of the model: {some}", file=path)
    refuse_unusable_weights(model, path)
    _align(model)
    return model, missing


def _align(model: nn.Module) -> None:
    """Copy memory-mapped weights of a checkpoint to torch's alignment.

    CPU kernels may sum in another order at another offset, and a run trained from a checkpoint would differ in the last
    bit from the same run restored, whose weights torch has allocated.
    """
    for weight in (*model.parameters(), *model.buffers()):
        if weight.device.type == "cpu" and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def refuse_unusable_weights(model: nn.Module, file: Path | str) -> None:
    """Refuse a model with a weight that is NaN, infinite or too large, which would generate nonsense without an error.

    Raises:
        InputError: naming the first such weight.
    """
    for name, weight in model.state_dict().items():
        if (
            not isinstance(weight, torch.Tensor)
            or not weight.is_floating_point()
            or weight.device.type == "meta"
            or not weight.numel()
        ):
            continue
        # NaN propagates to both ends, so one pass over the memory detects all cases.
        least, most = (float(end) for end in weight.detach().aminmax())
        if not (abs(least) <= _GREATEST_WEIGHT and abs(most) <= _GREATEST_WEIGHT):
            raise InputError(
                "a weight is not finite, or too great to compute with",
                file=file,
                field=name,
                got=f"values from {least:g} to {most:g}",
                expected=f"at most {_GREATEST_WEIGHT:g} in size",
            )


def _auto_class(auto: Auto) -> Any:
    import transformers

    return getattr(transformers, _CLASSES[auto])


def _refuse_giant(empty: nn.Module, folder: Path, path: Path | str) -> None:
    """Refuse a model that is far larger than its weights before allocating it."""
    numbers, stored = sum(weight.numel() for weight in empty.parameters()), weights_bytes(folder)
    if numbers > max(_NUMBERS_PER_WEIGHT * stored, 1_000_000):
        raise InputError(
            "the weights do not belong to this configuration",
            file=path,
            got=f"{stored:,} bytes of weights",
            expected=f"{numbers:,} numbers",
        )


@contextmanager
def _isolated(what: str, path: Path | str, folder: Path | None = None) -> Iterator[None]:
    """Disable the network, questions and progress output of a library, and turn its errors into one line.

    The two switches also cover models that a configuration names, which the library loads with its own defaults.
    """
    from huggingface_hub import constants
    from transformers import dynamic_module_utils

    closed = _set(constants, "HF_HUB_OFFLINE", True), _set(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 0)
    with _lock, closed[0], closed[1], _silent():
        # With a timeout of 0 s the library refuses code at once instead of asking on standard input.
        try:
            yield
        except (InputError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # including RecursionError, MemoryError and panics of Rust
            files = [] if folder is None else sorted(folder.glob("*.safetensors"))
            broken = next((file for file in files if safetensors_error(file)), None)
            reason = NEEDS_CODE if "trust_remote_code" in str(error) else one_line(error)
            raise InputError(f"cannot load {what}: {reason}", file=broken or path) from None


@contextmanager
def _silent() -> Iterator[None]:
    """Disable progress bars and loading reports; callers check missing and unexpected weights themselves."""
    from transformers.utils import logging

    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()


@contextmanager
def _set(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
