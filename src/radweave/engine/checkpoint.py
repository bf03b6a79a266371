"""Checkpoints: safetensors and JSON, whole or absent, each file with its hash.

checkpoints/step-00000400/  model.safetensors  optimizer.safetensors  (average.safetensors)  state.json
checkpoints/best/           model.safetensors  state.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from radweave.core.errors import InputError
from radweave.core.json_files import read_json_object, write_json
from radweave.core.storage import remove_leftovers, sha256_file, write_folder
from radweave.engine.distributed import cut_like, whole_tensor

_MOST_ABSENT = 1_000_000
"""Numbers without a stored tensor that may still be built, so that ``load_weights`` names them."""
OTHER_RUN = "the checkpoint belongs to another configuration, data set or version"


_QUANTIZED: Final = ("Params4bit", "Int8Params")
"""Classes of bitsandbytes' weights, which is not imported to tell them."""


@contextmanager
def without_quantization(model: nn.Module) -> Iterator[None]:
    """Within the block weights in 8 or 4 bits are floats, as a restored run has them; the model cannot compute then."""
    quantized = {
        name: module
        for name, module in model.named_modules()
        if type(module._parameters.get("weight")).__name__ in _QUANTIZED
    }
    try:
        for name, module in quantized.items():
            _replace(model, name, _in_floats(module))
        yield
    finally:
        for name, module in quantized.items():
            _replace(model, name, module)


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, module)


def _in_floats(module: Any) -> nn.Linear:
    """The linear map of a quantised one, on the CPU."""
    from peft.utils.integrations import dequantize_module_weight

    weight = dequantize_module_weight(module).detach().cpu()
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    plain.weight = nn.Parameter(weight, requires_grad=False)
    plain.bias = module.bias
    return plain


def save_weights(model: nn.Module, path: Path, classes: Sequence[str] = ()) -> None:
    """Write every parameter and persistent buffer; tensors that share memory are stored once.

    ``classes`` are named in the file, since they give the outputs their meaning.

    Raises:
        InputError: if the disk is full or the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_model

    try:
        save_model(model, str(path), metadata={"classes": json.dumps(list(classes))})
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot write: {error}", file=path) from None


def refuse_other_classes(path: Path, classes: Sequence[str]) -> None:
    """Refuse weights that were saved for other classes, or for the same in another order.

    Raises:
        InputError: naming the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            saved = (file.metadata() or {}).get("classes")
    except (SafetensorError, OSError) as error:
        raise InputError(f"weights cannot be read: {error}", file=path) from None
    if saved != json.dumps(list(classes)):
        raise InputError("weights are of other classes than run.json, or of another order", file=path, field="classes")


_FLOATS = ("F32", "F16", "BF16")
_STORED = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), _FLOATS),
    torch.float64: ("F64",), torch.int64: ("I64",), torch.int32: ("I32",), torch.bool: ("BOOL",),
}  # fmt: skip
"""Stored types of a tensor; the three short floats are interchangeable."""


def refuse_other_shapes(empty: nn.Module, path: Path) -> None:
    """Compare the header of a weights file with a model on the meta device, before the model takes memory.

    Raises:
        InputError: if the file is broken, a tensor has another shape, or many weights have no tensor.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            stored = {name: list(part.get_shape()) for name, part in slices.items()}
            kinds = {name: str(part.get_dtype()) for name, part in slices.items()}
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"weights do not fit this model: {error}", file=path) from None
    names: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for name, tensor in empty.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
        sizes[id(tensor)] = tensor.numel()
        if name in stored and stored[name] != list(tensor.shape):
            raise InputError(
                "weights do not fit this model", file=path, field=name, got=stored[name], expected=list(tensor.shape)
            )
        # Integers or booleans in the place of weights would be cast silently.
        if name in kinds and kinds[name] not in _STORED.get(tensor.dtype, (kinds[name],)):
            raise InputError(
                "weights do not fit this model", file=path, field=name, got=kinds[name],
                expected=" or ".join(_STORED[tensor.dtype]),
            )  # fmt: skip
    # Weights that share memory are stored under one of their names.
    absent = [key for key, group in names.items() if not any(name in stored for name in group)]
    if sum(sizes[key] for key in absent) > _MOST_ABSENT:
        raise InputError(
            f"weights do not fit this model: {len(absent)} have no tensor", file=path, field=names[absent[0]][0]
        )


def load_weights(model: nn.Module, path: Path) -> None:
    """Load what ``save_weights`` wrote.

    Raises:
        InputError: if the file is broken, or names and shapes are not exactly the model's.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        load_model(model, str(path), strict=True)
    except FileNotFoundError:
        raise InputError("file is missing", file=path) from None
    except (SafetensorError, RuntimeError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InputError(f"weights do not fit this model: {' '.join(lines[:3])[:300]}", file=path) from None


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    state: dict[str, Any],
    *,
    average: dict[str, Tensor] | None = None,
    writes: bool = True,
) -> None:
    """Write a checkpoint folder; an old one of that name is replaced only when the new one is whole.

    Of several ranks all call it, since a sharded optimiser's state is gathered, and one ``writes``.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = None if optimizer is None else _optimizer_tensors(optimizer)
    if not writes:
        return
    with write_folder(folder, overwrite=True) as partial:
        save_weights(model, partial / "model.safetensors")
        for name, values in (("optimizer", tensors), ("average", average)):
            if values is None:
                continue
            path = partial / f"{name}.safetensors"
            try:
                save_file({key: value.contiguous() for key, value in values.items()}, str(path))
            except (SafetensorError, OSError) as error:
                raise InputError(f"cannot write: {error}", file=path) from None
        files = {path.name: sha256_file(path) for path in sorted(partial.iterdir())}
        write_json(partial / "state.json", {**state, "files": files})


def load_checkpoint(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Restore model and optimiser; return the state that was saved.

    Raises:
        InputError: if a file is missing or was changed.
    """
    from safetensors.torch import load_file

    state = read_json_object(folder / "state.json")
    for name, expected in state.pop("files").items():
        path = folder / name
        if not path.is_file():
            raise InputError("file of the checkpoint is missing", file=path)
        if sha256_file(path) != expected:
            raise InputError("file was changed after it was written (SHA-256 differs)", file=path)
    load_weights(model, folder / "model.safetensors")
    if optimizer is not None:
        _restore_optimizer(optimizer, load_file(str(folder / "optimizer.safetensors")))
    return state


def load_average(folder: Path) -> dict[str, Tensor]:
    """The averaged weights of a checkpoint that ``load_checkpoint`` has verified.

    Raises:
        InputError: if it has none.
    """
    from safetensors.torch import load_file

    path = folder / "average.safetensors"
    if not path.is_file():
        raise InputError("file of the checkpoint is missing", file=path)
    return load_file(str(path))


def refuse_checkpoints_of_others(folder: Path, fingerprint: str) -> None:
    """Refuse checkpoints of another configuration, data set or version; damaged ones do not count.

    ``fingerprint`` is its part before the dash, known before images are read.

    Raises:
        InputError: naming the first one.
    """
    for path in sorted(folder.glob("*/*/state.json")):
        try:
            state = read_json_object(path)
        except InputError:
            continue
        if str(state.get("fingerprint", fingerprint)).partition("-")[0] != fingerprint:
            raise InputError(OTHER_RUN, file=path.parent)


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest ``count`` step checkpoints, and leftovers of killed writers."""
    for path in sorted(folder.glob("step-*"), reverse=True)[count:]:
        shutil.rmtree(path)
    remove_leftovers(folder)


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"{index}.{name}"] = whole_tensor(value).clone().contiguous()
    return tensors


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = cut_like(value, parameters[int(index)])
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
