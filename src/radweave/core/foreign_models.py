"""Models, tokenizers and shapes that others wrote: the one door through which they come in.

    model, new = read_model("/weights/llama", "causal_lm", what="a language model", dtype=torch.bfloat16)
    tokenizer = read_tokenizer(run / "tokenizer")

What comes through it is data. No code of a folder runs and nobody is asked whether it should. Weights are safetensors:
a pickle is not opened. A folder is read where it lies, without the network and without links out of it; only a hub
name, which the user gave as such, is downloaded. ``outside_files`` looks at the files before a library does.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from radweave.core.errors import InputError
from radweave.core.foreign_files import (
    Files,
    has_open_clip_layout,
    one_line,
    open_clip_shape,
    refuse_hostile,
    refuse_incomplete,
    weights_bytes,
)

Auto = Literal["causal_lm", "encoder"]
"""Which model of a checkpoint's architecture is wanted: with a language model's head, or without any head."""

_CLASSES: Mapping[Auto, str] = {"causal_lm": "AutoModelForCausalLM", "encoder": "AutoModel"}
_HUB_NAME = re.compile(r"(?:[\w][\w.-]{0,95}/)?[\w][\w.-]{0,95}", re.ASCII)
_DOWNLOADED: Mapping[Files, tuple[str, ...]] = {
    "shape": ("config.json", "preprocessor_config.json"),
    "tokenizer": ("*token*.json", "vocab.*", "merges.txt", "*.model", "*.jinja", "config.json"),
    "weights": ("config.json", "generation_config.json", "model.safetensors", "model-*.safetensors", "*.index.json"),
}
NEEDS_CODE = "it needs code that lies beside it, and code from a model's folder is never run"
_HUB_TIMEOUT_S = 5.0
_LIKE = 0.8
"""Names more alike than this, of 1, are one name with a typing error."""
_GREATEST_WEIGHT = 1e18
"""A norm squares what it gets, and the square of more than this is infinite in float32."""
_ALIGNMENT = 64
"""Bytes. Where torch puts weights of its own on a CPU: at multiples of this."""
_NUMBERS_PER_WEIGHT = 4
"""Numbers a model may have for each one its checkpoint holds: four bits pack two, new layers add to them."""
_lock = threading.RLock()


def locate(path: Path | str, files: Files, *, what: str) -> Path:
    """The folder of a checkpoint: the one at ``path``, or the download of a hub name.

    A ``Path`` is a folder here. A text is a hub name only where nothing of that name is here and it does not look like
    a path; what is complete in the hub's own cache is not asked for again.

    Raises:
        InputError: if there is no such folder or name, or the folder holds what must not be loaded.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        if isinstance(path, Path) or not _is_hub_name(path):
            raise InputError(f"cannot load {what}: no such folder", file=path)
        folder = _downloaded(path, files, what=what)
    if not folder.is_dir():
        raise InputError(f"cannot load {what}: not a folder", file=path)
    refuse_incomplete(folder, files, what=what)
    refuse_hostile(folder, files, what=what)
    return folder


def _is_hub_name(path: str) -> bool:
    return bool(_HUB_NAME.fullmatch(path)) and not ("/" in path and Path(path).parent.exists())


def _like(name: str) -> Path | None:
    """A folder here whose path is this name but for a typing error."""
    asked, found = Path(name), Path()
    for part in asked.parts:
        folders = [path.name for path in found.iterdir() if path.is_dir()] if found.is_dir() else []
        near = get_close_matches(part, folders, n=1, cutoff=_LIKE)
        if not near:
            return None
        found = found / near[0]
    return found


def _downloaded(name: str, files: Files, *, what: str) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError

    patterns = list(_DOWNLOADED[files])
    try:
        kept = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        refuse_incomplete(kept, files, what=what)
        return kept
    except Exception:  # nothing, or not all of it, is in the cache
        pass
    near = _like(name)
    if near is not None:
        raise InputError(f"cannot load {what}: no such folder", file=name, expected=f"{near}, which is here")
    try:
        # The network's own words name hosts, and its exceptions are those of whichever client it has. One short
        # question goes before the download, which would try again and again.
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
    """The configuration of a checkpoint, in transformers' class for it; of an open_clip folder its vision tower's.

    Args:
        path: folder or hub name.
        what: what is being loaded, for messages.
        kind: the one class of configuration that is read, where the folder need not say which it is.
        options: changes to the checkpoint's own values.

    Raises:
        InputError: as ``locate``, or if the configuration cannot be read.
    """
    from transformers import AutoConfig

    folder = locate(path, "shape", what=what)
    if kind is None and has_open_clip_layout(folder):
        return open_clip_shape(folder)
    with _shut(what, path):
        return (kind or AutoConfig).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **(options or {})
        )


def model_class(shape: Any) -> Any:
    """The class without any head that transformers has for a configuration; None if there is none."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    found = MODEL_MAPPING.get(type(shape), None)
    return found[0] if isinstance(found, (tuple, list)) else found


def is_causal(shape: Any) -> bool:
    """Whether a configuration is that of a language model in which no word sees later ones.

    The library builds a language model of an encoder such as BERT, too, which then reads what it is to write.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    sees_both_ways = getattr(shape, "use_bidirectional_attention", None) in (True, "all")
    encoder = type(shape) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(shape, "is_decoder", False)
    return type(shape) in MODEL_FOR_CAUSAL_LM_MAPPING and not sees_both_ways and not encoder


def make_shape(model_type: str, **numbers: Any) -> Any:
    """A configuration from its numbers, without any file."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **numbers)


def read_tokenizer(path: Path | str, *, what: str = "a tokenizer", kind: Any = None, **options: Any) -> Any:
    """A tokenizer from its files; ``kind`` is the one class that is read, else the files say which.

    Raises:
        InputError: as ``locate``, or if the files are not a tokenizer's.
    """
    from transformers import AutoTokenizer

    folder = locate(path, "tokenizer", what=what)
    with _shut(what, path):
        return (kind or AutoTokenizer).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )


def model_of_shape(shape: Any, auto: Auto, *, what: str, file: Path | str, dtype: torch.dtype | None = None) -> Any:
    """A model with random weights.

    Raises:
        InputError: if the shape cannot be built, with ``file`` as its place.
    """
    with _shut(what, file):
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
    """A model with the weights of a checkpoint: all of them, whole and finite.

    Args:
        path: folder or hub name.
        kind: what is wanted of the checkpoint's architecture, or the class of the model.
        what: what is being loaded, for messages.
        dtype: precision of the weights.
        shape: the configuration, if it is not the checkpoint's own.
        may_be_new: parts of parameter names that the checkpoint need not have; they start from nothing.
        options: further arguments of the class.

    Returns:
        The model, and the names of its parameters that the checkpoint did not have.

    Raises:
        InputError: as ``locate``; or if a file is missing or broken, weights of the model are missing, or a weight is
            not finite.
    """
    folder = locate(path, "weights", what=what)
    shape = read_shape(folder, what=what) if shape is None else shape
    chosen: Any = _auto_class(kind) if isinstance(kind, str) else kind
    with _shut(what, path, folder):
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
    """Move weights that lie where they do in a checkpoint's file, mapped into memory, to where torch puts its own.

    A processor's kernels may add in another order at another offset. A run that was trained from a checkpoint and the
    same run restored, whose weights lie where torch puts them, would differ in the last bit.
    """
    for weight in (*model.parameters(), *model.buffers()):
        if weight.device.type == "cpu" and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def refuse_unusable_weights(model: nn.Module, file: Path | str) -> None:
    """Refuse a model with a weight that is not a number, infinite, or too great to compute with.

    Such a model would write nothing, or nonsense, without a word.

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
        # NaN passes through both ends, so that one pass over the memory sees every kind of harm.
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
    """Refuse a model that is far larger than its weights, before there is any memory for it."""
    numbers, stored = sum(weight.numel() for weight in empty.parameters()), weights_bytes(folder)
    if numbers > max(_NUMBERS_PER_WEIGHT * stored, 1_000_000):
        raise InputError(
            "the weights do not belong to this configuration",
            file=path,
            got=f"{stored:,} bytes of weights",
            expected=f"{numbers:,} numbers",
        )


@contextmanager
def _shut(what: str, path: Path | str, folder: Path | None = None) -> Iterator[None]:
    """While a library reads a folder: no network, no question, no talk, and every error one line.

    The two switches reach what arguments do not: a configuration may name another model, which is then loaded with
    the library's own defaults.
    """
    from huggingface_hub import constants
    from transformers import dynamic_module_utils

    closed = _set(constants, "HF_HUB_OFFLINE", True), _set(dynamic_module_utils, "TIME_OUT_REMOTE_CODE", 0)
    with _lock, closed[0], closed[1], _silent():
        # At 0 s the library refuses code at once, where it would else ask on standard input and wait.
        try:
            yield
        except (InputError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # RecursionError, MemoryError and the panics of Rust among them
            broken = None if folder is None else _broken_file(folder)
            reason = NEEDS_CODE if "trust_remote_code" in str(error) else one_line(error)
            raise InputError(f"cannot load {what}: {reason}", file=broken or path) from None


@contextmanager
def _silent() -> Iterator[None]:
    """No bars and no reports of loading: what is missing or does not fit is found and raised here."""
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


def _broken_file(folder: Path) -> Path | None:
    """The first weight file of a folder that cannot be opened."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="pt"):
                pass
        except (OSError, SafetensorError):
            return path
    return None
