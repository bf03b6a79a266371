"""A key-value cache of fixed shape: a row for each report that is being written, each at a length of its own.

A row's tokens stand in its columns 0 to n - 1, whatever its neighbours hold. Reports leave and enter row by row, the
arrays stay where they are, and a step has the same shapes each time: what continuous batching, ``torch.compile`` and
CUDA graphs ask for. The prompt of a study is read once, by itself, and copied into as many rows as write about it.

Why a row's numbers do not depend on its neighbours: matrix products of torch's CPU kernels sum a row in one order from
four rows on (below, in another), so a step never has fewer; attention in one order at any width that is a multiple of
64, whose absent columns add exact zeros. ``tests/nn/test_continuous.py`` compares the bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache

from radweave.base.errors import InputError
from radweave.nn.decoding import Compile

LEAST_ROWS = 4
WIDTH = 64
FAMILIES = frozenset(
    {"bert", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "opt", "phi", "phi3", "qwen2",
     "qwen3", "stablelm"}
)  # fmt: skip
"""Kinds of language model whose steps were compared with transformers' own (``tests/nn/test_language_families.py``)."""


def fits(config: Any) -> bool:
    """Whether a language model of this shape can be stepped here. Others grow a cache of their own."""
    kinds = set(getattr(config, "layer_types", None) or ())
    known = kinds <= {"full_attention", "sliding_attention"}
    return config.model_type in FAMILIES and known and config._attn_implementation in ("sdpa", "eager")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What stands before a report: embeddings (P, H), and what cross-attention reads (M, H), if anything."""

    embeds: Float[Tensor, "prefix width"]
    memory: Float[Tensor, "memory width"] | None


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt that was read: keys and values of each layer (1, heads, P, D), and the scores of the first word."""

    layers: list[tuple[Tensor, Tensor]]
    crossed: list[tuple[Tensor, Tensor]]
    length: int
    scores: Float[Tensor, " vocabulary"]


class _Rows(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values (rows, heads, columns, D). ``cut`` says what a step sees of them."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.is_initialized = True
        self.whole_keys, self.whole_values = keys, values
        self.keys, self.values = keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the arrays are there."""

    def cut(self, rows: int, width: int) -> None:
        """Let the next step see these rows and columns."""
        self.keys, self.values = self.whole_keys[:rows, :, :width], self.whole_values[:rows, :, :width]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write each row's token (rows, heads, 1, D) into its own column."""
        self.keys[self.numbers, :, self.places] = key_states[:, :, 0]
        self.values[self.numbers, :, self.places] = value_states[:, :, 0]
        return self.keys, self.values

    def stand(self, numbers: Tensor, places: Tensor) -> None:
        """Say in which column each row writes."""
        self.numbers, self.places = numbers, places

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Of no use here: masks are given."""
        return int(self.keys.shape[2]), 0

    def get_seq_length(self) -> int:
        """Of no use here: positions are given."""
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        """The columns."""
        return int(self.keys.shape[2])


class SlotCache:
    """The rows of a language model, read and stepped.

    Args:
        model: a transformers model that ``fits``.
        rows: how many reports are written at once; rounded up to four.
        spare: columns behind a prompt, for the longest report.
        compile: how the step is compiled. Then all rows and columns take part in each step, so that shapes stay.

    Raises:
        InputError: if the step is to be compiled for a CPU and there is no C++ compiler.
    """

    def __init__(self, model: Any, *, rows: int, spare: int, compile: Compile = "none") -> None:
        self.model, self.config = model, model.config
        self.rows, self.spare = -(-rows // LEAST_ROWS) * LEAST_ROWS, spare
        self.compiled = compile != "none"
        self.device = model.get_input_embeddings().weight.device
        self._forward = _forward
        if compile != "none":
            refuse_without_compiler(self.device)
            self._forward = _compiled(compile)
        self.layers: list[_Rows] = []
        self.crossed: list[_Rows] = []
        self.columns = self.reach = 0
        self.absent = torch.zeros(self.rows, 0, dtype=torch.bool, device=self.device)
        self.numbers = torch.arange(self.rows, device=self.device)
        self.scores = torch.zeros(self.rows, 0, device=self.device)

    @torch.no_grad()
    def read(self, prompt: Prompt) -> ReadPrompt:
        """Read a prompt by itself: what it gives does not depend on others."""
        inputs: dict[str, Any] = {"past_key_values": DynamicCache()}
        if prompt.memory is not None:
            inputs = {
                "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache()),
                "encoder_hidden_states": prompt.memory[None],
            }
        cache = inputs["past_key_values"]
        out = self.model(inputs_embeds=prompt.embeds[None], use_cache=True, logits_to_keep=1, **inputs)
        own, crossed = (
            (cache, ()) if prompt.memory is None else (cache.self_attention_cache, cache.cross_attention_cache)
        )
        return ReadPrompt(
            [(layer.keys, layer.values) for layer in own.layers],
            [(layer.keys, layer.values) for layer in crossed.layers] if crossed else [],
            len(prompt.embeds),
            out.logits[0, -1].float(),
        )

    @torch.no_grad()
    def seat(self, read: ReadPrompt, rows: Sequence[int]) -> None:
        """Copy a prompt into rows; the scores of their next word are those after the prompt."""
        self._make_room(read)
        for row in rows:
            for layers, given in ((self.layers, read.layers), (self.crossed, read.crossed)):
                for layer, (keys, values) in zip(layers, given, strict=True):
                    layer.whole_keys[row, :, : keys.shape[2]] = keys[0]
                    layer.whole_values[row, :, : values.shape[2]] = values[0]
            if read.crossed:
                self.absent[row] = torch.arange(self.reach, device=self.device) >= read.crossed[0][0].shape[2]
            self.scores[row] = read.scores

    @torch.no_grad()
    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` columns of rows over others, all at once."""
        pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
        if not pairs:
            return
        source, target = torch.tensor(pairs, device=self.device).T
        for layer, columns in (*((one, length) for one in self.layers), *((one, self.reach) for one in self.crossed)):
            for whole in (layer.whole_keys, layer.whole_values):
                whole[target, :, :columns] = whole[source, :, :columns]
        self.absent[target] = self.absent[source]

    @torch.no_grad()
    def step(self, tokens: Sequence[int], places: Sequence[int]) -> None:
        """Give the first rows their next tokens, each into its column; ``scores`` are those of the words after them."""
        count, width = len(tokens), -(-(max(places) + 1) // WIDTH) * WIDTH
        count = self.rows if self.compiled else -(-count // LEAST_ROWS) * LEAST_ROWS
        width = self.columns if self.compiled else width
        idle = [0] * (count - len(tokens))
        given = torch.tensor([[*tokens, *idle], [*places, *idle]], device=self.device)
        if not self.compiled:  # a view has no mark of an address that stays
            for layer, columns in (
                *((one, width) for one in self.layers),
                *((one, self.reach) for one in self.crossed),
            ):
                layer.cut(count, columns)
        for layer in self.layers:
            layer.stand(self.numbers[:count], given[1])
        logits = self._forward(self.model, given[0], given[1], *self._caches(), self.absent[:count], width)
        self.scores[:count] = logits

    def _caches(self) -> tuple[Any, Any]:
        own = Cache(layers=self.layers)
        if not self.crossed:
            return own, None
        both = EncoderDecoderCache(own, Cache(layers=self.crossed))
        both.is_updated = dict.fromkeys(range(len(self.crossed)), True)
        return both, self.model.config.hidden_size

    def _make_room(self, read: ReadPrompt) -> None:
        """Arrays for the first prompt, or wider ones for a longer prompt than all before it."""
        if not self.layers:
            self.scores = read.scores.new_zeros(self.rows, len(read.scores))
        self.columns = max(self.columns, -(-(read.length + self.spare) // WIDTH) * WIDTH)
        self._widen(self.layers, read.layers, self.columns)
        if read.crossed:
            self.reach = max(self.reach, -(-read.crossed[0][0].shape[2] // WIDTH) * WIDTH)
            self._widen(self.crossed, read.crossed, self.reach)
            more = self.absent.new_ones(self.rows, self.reach - self.absent.shape[1])
            self.absent = torch.cat([self.absent, more], dim=1)

    def _widen(self, layers: list[_Rows], like: list[tuple[Tensor, Tensor]], columns: int) -> None:
        if layers and layers[0].whole_keys.shape[2] == columns:
            return
        wide = []
        for number, pair in enumerate(like):
            arrays = [each.new_zeros(self.rows, each.shape[1], columns, each.shape[3]) for each in pair]
            if layers:
                arrays[0][:, :, : layers[number].whole_keys.shape[2]] = layers[number].whole_keys
                arrays[1][:, :, : layers[number].whole_values.shape[2]] = layers[number].whole_values
            if self.compiled:  # torch records no CUDA graph of a step that writes into inputs which could move
                for each in arrays:
                    torch._dynamo.mark_static_address(each)
            wide.append(_Rows(*arrays))
        layers[:] = wide


def _forward(
    model: Any, tokens: Tensor, places: Tensor, cache: Any, memory_width: int | None, absent: Tensor, width: int
) -> Tensor:
    """The scores (rows, V) of the words after ``tokens``. Each row sees its own columns up to where it stands."""
    columns, here = torch.arange(width, device=tokens.device), places[:, None]
    dtype = model.get_input_embeddings().weight.dtype
    inputs: dict[str, Any] = {"attention_mask": _masks(model.config, columns, here, dtype)}
    if memory_width is not None:
        # Keys and values of the memory are there: the memory itself is asked for its shape alone.
        inputs["encoder_hidden_states"] = absent.new_zeros(1, 1, 1, dtype=dtype).expand(*absent.shape, memory_width)
        inputs["encoder_attention_mask"] = _added(~absent, dtype)
    out = model(input_ids=tokens[:, None], position_ids=here, past_key_values=cache, use_cache=True, **inputs)
    logits: Tensor = out.logits[:, -1]
    return logits.float()


def _masks(config: Any, columns: Tensor, here: Tensor, dtype: torch.dtype) -> Any:
    """What a row may look at, added to its attention; by kind of layer where a model has two."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    seen = columns <= here
    if window is None or kinds == {"full_attention"}:
        return _added(seen, dtype)
    near = _added(seen & (columns > here - window), dtype)
    return near if len(kinds) < 2 else {"full_attention": _added(seen, dtype), "sliding_attention": near}


def _added(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask (B, columns) as attention adds it, with both kinds of attention the same: (B, 1, 1, columns)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)[
        :, None, None
    ]


@cache
def _compiled(mode: str) -> Any:
    """One compiled step for this process: torch keeps what it made for each model and shape."""
    return torch.compile(_forward, mode=mode, dynamic=False)


def refuse_without_compiler(device: torch.device) -> None:
    """Refuse to compile for a CPU without a C++ compiler.

    Raises:
        InputError: if there is none.
    """
    if device.type != "cpu":
        return
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError):
        raise InputError(
            "compiling for a CPU needs a C++ compiler, and there is none",
            field="decoding.compile",
            expected="none, or g++ or clang++ installed (or named in CXX)",
        ) from None
