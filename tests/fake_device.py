"""A stand-in for an accelerator: a device of its own for tests, whose tensors lie in this machine's memory.

``standing_in()`` gives torch a device ``standin``. Its tensors compute on the CPU with the CPU's kernels and from the
same random numbers. Results are the CPU's, up to the rounding of what torch computes otherwise on a device it does not
know: attention in separate steps, AdamW weight by weight. What its tensors refuse is what CUDA's refuse: to meet a
tensor of the CPU (but for one without axes, and for indices), to be read by NumPy, and random numbers from a generator
of another device.

What it does not show: kernels of a GPU, their rounding, their memory and their speed, streams, inference mode, and what
libraries do only where a device is called ``cuda``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

NAME = "standin"

crossings: Counter[str] = Counter()
"""How often values went to the device, came back, or were read one by one, by the name of torch's operator."""

# CUDA's own exceptions: these move what lies elsewhere, or take indices of the CPU.
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_"}
_READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero"}
_TAKES_INDICES = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
# A number without axes may come from the CPU, but not where tensors become one.
_JOINS = {"aten::stack", "aten::cat"}


class StandinTensor(Tensor):
    """A tensor that says it is on the stand-in; ``inner`` holds its values on the CPU."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> StandinTensor:
        made: StandinTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, *args, **(kwargs or {}))

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else repr(self)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def untyped_storage(self) -> torch.UntypedStorage:
        """Where the values lie: what asks whether two tensors share memory is told."""
        return self.inner.untyped_storage()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        result: Tensor = torch.nn.Parameter(copied, self.requires_grad) if _is_parameter(self) else copied
        memo[id(self)] = result
        return result


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter)


def _computed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What the CPU makes of it, as tensors of the device."""
    name = op.name().partition(".")[0] if hasattr(op, "name") else str(op)
    tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    _refuse_mixture(name, args, tensors)
    _refuse_other_generator(name, kwargs)
    standins = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, StandinTensor)}
    plain = {id(tensor) for tensor in tensors if not isinstance(tensor, StandinTensor)}
    target_device = kwargs.get("device")
    leaves = target_device is not None and torch.device(target_device).type == "cpu"
    if (name in _MOVES and (leaves or plain)) or name in _READS:
        crossings[name] += 1

    def inside(value: Any) -> Any:
        if isinstance(value, StandinTensor):
            return value.inner
        return torch.device("cpu") if isinstance(value, torch.device) else value

    def outside(value: Any) -> Any:
        if not isinstance(value, Tensor) or leaves or id(value) in plain:
            return value
        known = standins.get(id(value))
        if known is None:
            return StandinTensor(value)
        assert known.shape == value.shape, f"{name} gave a tensor another shape in place, which the stand-in cannot"
        return known

    inner_args, inner_kwargs = _mapped(inside, args), _mapped(inside, kwargs)
    if "pin_memory" in inner_kwargs:
        inner_kwargs["pin_memory"] = False
    return _mapped(outside, op(*inner_args, **inner_kwargs))


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The value with what lies in its lists, tuples and dictionaries changed."""
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, item) for item in value])
    if isinstance(value, dict):
        return {key: _mapped(change, item) for key, item in value.items()}
    return change(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _refuse_mixture(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> None:
    if name in _MOVES or not any(isinstance(tensor, StandinTensor) for tensor in tensors):
        return
    if name in _TAKES_INDICES and isinstance(args[0], StandinTensor):
        tensors = [tensor for tensor in (args[0], *args[2:3]) if isinstance(tensor, Tensor)]
    written = args[0] if name.endswith("_") and args else None
    for tensor in tensors:
        if isinstance(tensor, StandinTensor) or tensor.device.type != "cpu":
            continue
        if tensor.dim() or name in _JOINS or tensor is written:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! "
                f"({name}, a tensor of {list(tensor.shape)} on the CPU)"
            )


def _refuse_other_generator(name: str, kwargs: dict[str, Any]) -> None:
    if isinstance(kwargs.get("generator"), torch.Generator):
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' ({name})")


class _Module:
    """What ``torch.standin`` answers."""

    def is_available(self) -> bool:
        return _in_use[0]

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return int(_in_use[0])

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """The device draws from the CPU's generator, which ``torch.manual_seed`` has set."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True


_installed: list[torch.library.Library] = []
_in_use = [False]
"""Outside of ``standing_in`` the device counts as absent, for whatever asks what a process could run on."""

# Torch would make these out of an empty tensor that grows. And it moves values from Python (``torch.tensor``, an index
# that is a list) by ``copy_`` with what asks Python switched off, where it finds kernels by their names alone.
_WHOLE = ("copy_", "arange", "arange.start", "arange.start_step", "linspace", "logspace", "eye", "eye.m", "randperm",
          "randperm.generator", "tril_indices", "triu_indices")  # fmt: skip


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def install() -> torch.device:
    """Make the device known to torch, once for this process."""
    if not _installed:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME, _Module())
        backend = torch.library.Library("_", "IMPL")
        backend.fallback(_computed, "PrivateUse1")
        whole = torch.library.Library("aten", "IMPL")
        for name in _WHOLE:
            whole.impl(name, partial(_computed, _operator(name)), "PrivateUse1")
        _installed.extend((backend, whole))
        _installed.extend(_autocast())
    return torch.device(NAME, 0)


# What CUDA computes in half precision, and what it keeps in float32, under autocast: the operators that networks here
# use (torch's "CUDA op-specific behavior").
_HALF = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "convolution", "conv2d", "conv3d", "conv1d",
         "scaled_dot_product_attention", "einsum")  # fmt: skip
_FLOAT = ("exp", "log", "pow.Tensor_Scalar", "softmax.int", "log_softmax.int", "cross_entropy_loss", "layer_norm",
          "group_norm", "norm.ScalarOpt_dim", "sum", "sum.dim_IntList", "cumsum", "logsumexp", "rsqrt",
          "binary_cross_entropy_with_logits", "nll_loss", "cosine_similarity", "softplus")  # fmt: skip


def _autocast() -> list[torch.library.Library]:
    key = torch._C.DispatchKey.AutocastPrivateUse1
    every = torch.library.Library("_", "IMPL")
    every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten = torch.library.Library("aten", "IMPL")

    def cast(name: str, dtype: Callable[[], torch.dtype]) -> None:
        op = _operator(name)

        def computed(*args: Any, **kwargs: Any) -> Any:
            def fitting(value: Any) -> Any:
                fits = isinstance(value, Tensor) and value.is_floating_point() and value.device.type == NAME
                return value.to(dtype()) if fits and value.dtype != torch.float64 else value

            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                return op(*_mapped(fitting, args), **_mapped(fitting, kwargs))

        aten.impl(name, computed, "AutocastPrivateUse1")

    for name in _HALF:
        cast(name, lambda: torch.get_autocast_dtype(NAME))
    for name in _FLOAT:
        cast(name, lambda: torch.float32)
    return [every, aten]


def _without_gradients(mode: bool = True) -> Any:
    """In the place of inference mode, whose views torch refuses to make of a tensor that wraps another."""
    return torch.no_grad() if mode else nullcontext()


@contextmanager
def standing_in() -> Iterator[torch.device]:
    """The device, with modules that keep their parameters' identity when they move to it, as they do to CUDA."""
    swaps, inference = torch.__future__.get_swap_module_params_on_conversion(), torch._C._InferenceMode
    device = install()
    _in_use[0] = True
    torch.__future__.set_swap_module_params_on_conversion(True)
    # Below torch.inference_mode, so that functions decorated with it before are reached too.
    torch._C._InferenceMode = _without_gradients  # type: ignore[assignment, misc]
    try:
        # Torch starts a thread for each device at the first backward pass of a process, which may long be over.
        with torch.autograd.set_multithreading_enabled(False):
            yield device
    finally:
        _in_use[0] = False
        torch._C._InferenceMode = inference  # type: ignore[misc]
        torch.__future__.set_swap_module_params_on_conversion(swaps)
