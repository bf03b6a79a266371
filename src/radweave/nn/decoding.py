"""How reports are decoded, for every language model: options, and who writes.

Language models that ``radweave.nn.decoding`` knows write in its rows, from which finished reports leave and which waiting
ones enter (``radweave.nn.decoding``). Others, and ``cache=growing``, write with transformers' own ``generate``, batch
by batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache

from radweave.core.config import MAX_TOKENS, Config, Seed, Tokens
from radweave.core.errors import InputError, UnusableModelError
from radweave.nn.global_batch import mean_over_batch

# The loss of every language model here: the next token of a report, after a prefix of embeddings.


def position_ids(mask: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Count present tokens from 0; absent ones get 0."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)


def refuse_too_long(shape: Any, length: int, field: str) -> None:
    """Refuse a sequence with more tokens than a model has positions: it would fail, or write nonsense.

    Raises:
        InputError: naming the field that lets reports be as long.
    """
    most = getattr(shape, "max_position_embeddings", None)
    if isinstance(most, int) and length > most:
        raise InputError(
            "prompt and report are longer than the language model's positions",
            field=field,
            got=f"{length} tokens with the prompt",
            expected=f"at most {most}",
        )


def blank_tokens(embeds: Float[Tensor, "batch text width"], share: float) -> Float[Tensor, "batch text width"]:
    """Zero that share of the tokens' embeddings, so that the next word must be read off something else.

    Source: Bowman et al., "Generating sentences from a continuous space", CoNLL 2016, Sec. 3.1 (word dropout).
    """
    kept = torch.rand(embeds.shape[:2], device=embeds.device) >= share
    return embeds * kept[:, :, None]


def next_token_loss(
    model: Any,
    prefix: Float[Tensor, "batch prefix width"],
    prefix_mask: Bool[Tensor, "batch prefix"],
    text: Float[Tensor, "batch text width"],
    labels: Int[Tensor, "batch text"],
    inputs: Mapping[str, Any] | None = None,
) -> Float[Tensor, ""]:
    """Mean negative log-likelihood of the labels that are not -100.

    The prefix is left-padded and the report right-padded, so that they meet in one column: the last prefix position
    predicts the first report token, and ``labels`` are not shifted by the caller. Position ids count present tokens
    only, which makes a row independent of its padding.

    Args:
        model: a transformers model with a language model's head.
        prefix: embeddings before the report.
        prefix_mask: True where the prefix has a token.
        text: embeddings of the report's tokens.
        labels: the report's token ids, -100 where no loss is taken.
        inputs: further arguments of the forward pass, such as what cross-attention reads.
    """
    refuse_too_long(model.config, prefix.shape[1] + text.shape[1], "data.max_tokens")
    mask = torch.cat([prefix_mask, labels != -100], dim=1)
    logits = model(
        inputs_embeds=torch.cat([prefix, text], dim=1),
        attention_mask=mask.long(),
        position_ids=position_ids(mask),
        logits_to_keep=text.shape[1] + 1,
        use_cache=False,
        **(inputs or {}),
    ).logits[:, :-1]
    total = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return mean_over_batch(total, (labels != -100).sum())


class ExpectedUtilityConfig(Config):
    """How the report with the highest expected utility is chosen, see ``radweave.drafting``.

    A candidate is worth ``cider``, ``rouge_l`` and ``bleu`` times those of its words for what the training reports
    say, and ``findings`` times how far the probability of each finding that it states is above a threshold: one for
    all (``pooled``, for F1 over all findings), each finding its own (``per_class``, which asserts rare ones more often:
    better for the mean over classes), or ``balanced``, which asserts a finding where it pays off for both means
    together and lets rare ones count more, up to ``heaviest`` times: one with five positives among thousands would
    weigh more than all others and every word. The bound does not move from where on a finding pays off. ``macro`` is
    what the mean over classes counts then, beside what the run was calibrated for. ``composites`` lets sentences that
    state findings stand in reports that are normal otherwise. ``consistent`` leaves out reports that contradict
    themselves, and sentences that deny a finding, or call its organ normal, where another one states it; a device is
    named only where its probability is above its threshold. With it, ``unsupported_places`` says what becomes of the
    sides, lobes and measured sizes of findings, for which no evidence speaks. ``further_findings`` is how
    many findings the chosen report may take up beside its own: sentences that composites are made with are put into it
    one by one while that makes it better. With 0 a composite states two findings at most; presets for CT have more.
    ``written`` lets reports join that a language model wrote for the study, of methods that have one for it; without,
    every sentence is one that a radiologist wrote.
    """

    findings: float = Field(default=6.0, ge=0)
    cider: float = Field(default=1.0, ge=0)
    rouge_l: float = Field(default=5.0, ge=0)
    bleu: float = Field(default=0.3, ge=0)
    thresholds: Literal["pooled", "per_class", "balanced"] = "pooled"
    heaviest: float = Field(default=20.0, ge=1)
    macro: float = Field(default=1.0, ge=0)
    composites: bool = True
    consistent: bool = True
    unsupported_places: Literal["remove", "keep"] = "remove"
    further_findings: int = Field(default=0, ge=0, le=64)
    written: bool = True


Compile = Literal["none", "default", "reduce-overhead"]
Written = tuple[list[list[int]], list[list[float]]]
"""Token ids of each report, without end or padding, and the log-probability of each of those tokens."""


class DecodingConfig(Config):
    """How reports are decoded. Greedy unless beams or sampling are asked for; sampling is seeded.

    ``kind`` is ``likelihood``, the method's own decoder with the options below, or ``expected_utility``, which any
    method's evidence can draft with (see ``ExpectedUtilityConfig``).

    ``unprompted_comparisons`` says what becomes of words that compare with an earlier study where the model was given
    none: taken out of the draft, counted and kept as evidence, or left there. ``deidentification_marks`` says the same
    of sentences with marks such as XXXX, which stand in published reports where words were taken out.

    ``cache`` is ``static``, rows of fixed shape that finished reports leave and waiting ones enter, where the language
    model's family is known to it, or ``growing``, transformers' own, batch by batch. ``compile`` compiles a step of the
    static one with torch: ``reduce-overhead`` records CUDA graphs on a GPU. A CPU needs a C++ compiler, a GPU Triton.
    """

    kind: Literal["likelihood", "expected_utility"] = "likelihood"
    expected_utility: ExpectedUtilityConfig = ExpectedUtilityConfig()
    num_beams: int = Field(default=1, ge=1, le=64)
    max_new_tokens: Tokens = 100
    min_new_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS)
    repetition_penalty: float = Field(default=1.0, gt=0)
    length_penalty: float = 1.0
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=64)
    do_sample: bool = False
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: Seed = 0
    unprompted_comparisons: Literal["remove", "keep"] = "remove"
    deidentification_marks: Literal["remove", "keep"] = "remove"
    cache: Literal["static", "growing"] = "static"
    compile: Compile = "none"

    @model_validator(mode="after")
    def _lengths_agree(self) -> DecodingConfig:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}: nothing can be"
                " written"
            )
        if self.compile != "none" and self.cache == "growing":
            raise ValueError("compile needs cache=static: what grows has no fixed shape")
        return self


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What reports are written after: embeddings, padded on the left, and what cross-attention reads.

    Masks are True where a token is there. The padding is that of the batch: each report is written without it.
    """

    embeds: Float[Tensor, "batch prefix width"]
    mask: Bool[Tensor, "batch prefix"]
    memory: Float[Tensor, "batch memory width"] | None = None
    memory_mask: Bool[Tensor, "batch memory"] | None = None

    def __len__(self) -> int:
        return len(self.embeds)

    def only(self, rows: Sequence[int]) -> Prefixes:
        """These rows, some of them perhaps more than once."""
        at = list(rows)
        if self.memory is None or self.memory_mask is None:
            return Prefixes(self.embeds[at], self.mask[at])
        return Prefixes(self.embeds[at], self.mask[at], self.memory[at], self.memory_mask[at])


def write(
    model: Any, batches: Iterator[Prefixes], decoding: DecodingConfig, *, eos_id: int, pad_id: int
) -> Iterator[Written]:
    """Reports for batches of prompts, in order. The next batch is asked for when there is room and none waits.

    As many reports are written at once as the first batch has studies. A report is the same alone and in any batch.

    Raises:
        InputError: if prompt and report do not fit the model's positions, or ``compile`` is asked for and cannot be.
        UnusableModelError: if the model scores a token with anything but a finite number.
    """
    if _is_static(model, decoding):
        yield from write_in_slots(model, batches, decoding, eos_id=eos_id)
        return
    refuse_uncompilable(model, decoding)
    for prompts in batches:
        if not len(prompts):
            yield [], []
            continue
        # Torch draws for all rows at once: a study's draws are its own only where it is alone.
        parts = [prompts.only([row]) for row in range(len(prompts))] if decoding.do_sample else [prompts]
        written = [generate_ids(model, part, decoding, eos_id=eos_id, pad_id=pad_id) for part in parts]
        yield [row for ids, _ in written for row in ids], [row for _, scores in written for row in scores]


def _is_static(model: Any, decoding: DecodingConfig) -> bool:
    """Whether reports are written in rows of fixed shape."""
    return decoding.cache == "static" and fits(model.config) and not (decoding.do_sample and decoding.num_beams > 1)


def refuse_uncompilable(model: Any, decoding: DecodingConfig) -> None:
    """Refuse to compile a step that this language model does not have.

    Raises:
        InputError: if ``compile`` is asked for, and reports are not written in rows of fixed shape.
    """
    if decoding.compile != "none" and not _is_static(model, decoding):
        raise InputError(
            "the step of this language model cannot be compiled",
            field="decoding.compile",
            got=decoding.compile,
            expected="none for this family, for beams that are drawn, and where attention is of another kind",
        )


def write_draws(
    model: Any, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int, *, eos_id: int, pad_id: int
) -> list[list[list[int]]]:
    """The likeliest report of each study and then ``draws`` drawn ones, each prompt read once."""
    drawn = decoding.model_copy(update={"num_beams": 1, "do_sample": True})
    if decoding.cache == "static" and fits(model.config):
        written = write_in_slots(model, iter(prompts), drawn, eos_id=eos_id, draws=draws, seats=len(prompts))
        return [ids[at : at + 1 + draws] for ids, _ in written for at in range(0, len(ids), 1 + draws)]
    greedy, found = drawn.model_copy(update={"do_sample": False}), []
    for some in prompts:
        for row in range(len(some)):
            one = some.only([row])
            first, _ = generate_ids(model, one, greedy, eos_id=eos_id, pad_id=pad_id)
            more: list[list[int]] = []
            if draws:
                more, _ = generate_ids(model, one.only([0] * draws), drawn, eos_id=eos_id, pad_id=pad_id)
            found.append([*first, *more])
    return found


@torch.no_grad()
def generate_ids(model: Any, prompts: Prefixes, decoding: DecodingConfig, *, eos_id: int, pad_id: int) -> Written:
    """Decode one batch with transformers' own ``generate`` and a cache that grows, after left-padded prompts.

    Raises:
        InputError: if prompt and report do not fit the model's positions.
        UnusableModelError: if the model scores a token with anything but a finite number.
    """
    from transformers import DynamicCache, EncoderDecoderCache, RepetitionPenaltyLogitsProcessor

    refuse_too_long(model.config, prompts.embeds.shape[1] + decoding.max_new_tokens, "decoding.max_new_tokens")
    options: dict[str, Any] = {}
    if decoding.do_sample:
        torch.manual_seed(decoding.seed)
        options = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    if decoding.num_beams > 1:
        options["length_penalty"] = decoding.length_penalty
    if prompts.memory is not None and prompts.memory_mask is not None:
        options["past_key_values"] = EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))
        options["encoder_hidden_states"] = prompts.memory
        options["encoder_attention_mask"] = prompts.memory_mask.long()
    out = model.generate(
        inputs_embeds=prompts.embeds,
        attention_mask=prompts.mask.long(),
        max_new_tokens=decoding.max_new_tokens,
        min_new_tokens=decoding.min_new_tokens or None,
        num_beams=decoding.num_beams,
        do_sample=decoding.do_sample,
        no_repeat_ngram_size=decoding.no_repeat_ngram_size,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        # Not the option of that name: it spares as many words of a report as its prompt was padded by.
        logits_processor=[RepetitionPenaltyLogitsProcessor(decoding.repetition_penalty), _refuse_non_finite],
        output_scores=True,
        return_dict_in_generate=True,
        use_cache=True,
        **options,
    )
    scores = model.compute_transition_scores(
        out.sequences, out.scores, getattr(out, "beam_indices", None), normalize_logits=decoding.num_beams == 1
    )
    return trim(out.sequences, scores, eos_id)


def _refuse_non_finite(_: Tensor, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """Let scores through whose greatest is a finite number; forbidden tokens have minus infinity.

    Without this an argmax over NaN names the first token, which may end the report: an empty draft without a word.
    """
    if not bool(scores.amax(dim=-1).isfinite().all()):
        raise UnusableModelError("the model's scores are not finite: its weights or its precision cannot be used")
    return scores


def trim(sequences: Tensor, scores: Tensor, eos_id: int) -> tuple[list[list[int]], list[list[float]]]:
    """Cut every row (B, T) of ids and their scores before its first end token."""
    ids, log_probs = [], []
    for row, row_scores in zip(sequences.tolist(), scores.tolist(), strict=True):
        end = row.index(eos_id) if eos_id in row else len(row)
        ids.append(row[:end])
        log_probs.append(row_scores[:end])
    return ids, log_probs


# A key-value cache of fixed shape: a row for each report that is being written, each at a length of its own.
#
# A row's tokens stand in its columns 0 to n - 1, whatever its neighbours hold. Reports leave and enter row by row, the
# arrays stay where they are, and a step has the same shapes each time: what continuous batching, ``torch.compile`` and
# CUDA graphs ask for. The prompt of a study is read once, by itself, and copied into as many rows as write about it.
#
# Why a row's numbers do not depend on its neighbours: matrix products of torch's CPU kernels sum a row in one order from
# four rows on (below, in another), so a step never has fewer; attention in one order at any width that is a multiple of
# 64, whose absent columns add exact zeros. ``tests/nn/test_continuous.py`` compares the bits.


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


# The next word of each report that is written by itself, greedily or drawn: a choice among a language model's scores.
#
# Options mean what they mean in transformers; penalties and forbidden words first, then temperature and top-p. Every row
# is chosen for by itself, and a drawn one has random numbers of its own, so that neighbours change nothing.


@dataclass(slots=True)
class Line:
    """A report that is being written, and the uniform numbers that its words are drawn by; none of a greedy one."""

    numbers: Sequence[float] = ()
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_done: bool = False
    rows: ClassVar[int] = 1

    @classmethod
    def drawn(cls, decoding: DecodingConfig, draw: int) -> Line:
        """The line of one draw: its numbers hang on the seed and the number of the draw alone."""
        return cls(np.random.default_rng([decoding.seed, draw]).random(decoding.max_new_tokens).tolist())

    @property
    def tokens(self) -> list[int]:
        """What the next step is given."""
        return self.ids[-1:]

    @property
    def sources(self) -> list[int]:
        """From which of its own rows each row goes on."""
        return [0]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids without the end token, and their log-probabilities."""
        return self.ids, self.log_probs


def next_words(
    lines: Sequence[Line], scores: Float[Tensor, "rows vocabulary"], decoding: DecodingConfig, eos_id: int
) -> None:
    """Append a word to each line, or end it.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    scores = steered(scores, [line.ids for line in lines], decoding, eos_id)
    drawn = [row for row, line in enumerate(lines) if line.numbers]
    if drawn:
        scores[drawn] = nucleus(scores[drawn] / decoding.temperature, decoding.top_p)
    words = scores.argmax(dim=-1)
    if drawn:
        numbers = torch.tensor([lines[row].numbers[lines[row].length] for row in drawn], dtype=torch.float64)
        words[drawn] = draw(scores[drawn], numbers.to(scores.device))
    log_probs = scores.log_softmax(dim=-1).gather(1, words[:, None])[:, 0]
    # One crossing from the device for both; a double holds either exactly.
    for line, word, log_prob in zip(lines, *torch.stack([words.double(), log_probs.double()]).tolist(), strict=True):
        refuse_non_finite(log_prob)
        if int(word) != eos_id:
            line.ids.append(int(word))
            line.log_probs.append(log_prob)
        line.is_done = int(word) == eos_id or line.length == decoding.max_new_tokens


def steered(scores: Tensor, histories: Sequence[Sequence[int]], decoding: DecodingConfig, eos_id: int) -> Tensor:
    """Scores (rows, V) with what was said made less likely, and what may not come next forbidden."""
    scores = scores.clone()
    if decoding.repetition_penalty != 1.0:
        # Keskar et al., "CTRL", arXiv:1909.05858, Sec. 4.1, and negative scores multiplied, as transformers has it.
        said = [(row, word) for row, ids in enumerate(histories) for word in dict.fromkeys(ids)]
        if said:
            rows, words = torch.tensor(said, device=scores.device).T
            own = scores[rows, words]
            penalty = decoding.repetition_penalty
            scores[rows, words] = torch.where(own < 0, own * penalty, own / penalty)
    forbidden = [(row, word) for row, ids in enumerate(histories) for word in _forbidden(ids, decoding, eos_id)]
    if forbidden:
        rows, words = torch.tensor(forbidden, device=scores.device).T
        scores[rows, words] = -math.inf
    return scores


def _forbidden(ids: Sequence[int], decoding: DecodingConfig, eos_id: int) -> Iterator[int]:
    """The end before its time, and words that would repeat an n-gram."""
    if len(ids) < decoding.min_new_tokens:
        yield eos_id
    size = decoding.no_repeat_ngram_size
    if size:
        last = list(ids[len(ids) - size + 1 :])
        for start in range(len(ids) - size + 1):
            if list(ids[start : start + size - 1]) == last:
                yield ids[start + size - 1]


def nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Scores (rows, V) with minus infinity outside of the likeliest words that hold ``top_p`` of the probability.

    Source: Holtzman et al., "The curious case of neural text degeneration", ICLR 2020, Sec. 3.1.
    """
    if top_p == 1.0:
        return scores
    probabilities, order = scores.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
    return scores.masked_fill(outside, -math.inf)


def draw(scores: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, " rows"]) -> Tensor:
    """The word of each row whose part of the line from 0 to 1 holds the row's number; likelier words come first."""
    probabilities, order = scores.double().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    ends = probabilities.cumsum(dim=-1)
    place = (ends <= numbers[:, None] * ends[:, -1:]).sum(dim=-1, keepdim=True)
    last = (probabilities > 0).sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return order.gather(1, torch.minimum(place, last))[:, 0]


def refuse_non_finite(log_prob: float) -> None:
    """Refuse what a choice among scores that are no finite numbers looks like.

    Without this an argmax over NaN names the first token, which may end the report: an empty draft without a word.

    Raises:
        UnusableModelError: always, if it is not finite.
    """
    if not math.isfinite(log_prob):
        raise UnusableModelError("the model's scores are not finite: its weights or its precision cannot be used")


# Beam search of each study by itself: the rows of its beams, which sentence went on from which, and when it is over.
#
# Source: as transformers has it, whose results these are: of ``2 K`` best continuations of K beams those that end join
# the finished, by their sum of log-probabilities over the length to the power of ``length_penalty``; the search is over
# when K are finished and the best open one, at its present length, is no better than the worst of them.


# What is added up for beams that are not there yet: all begin alike, and one of them goes on.
ABSENT = -1e9


@dataclass(frozen=True, slots=True)
class Beam:
    """A sentence, the log-probability of each of its words, and their sum as the search adds it up."""

    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class BeamSearch:
    """The search for one study: open beams, likeliest first, and finished ones with their score, best first."""

    rows: int
    open: list[Beam] = field(default_factory=list)
    finished: list[tuple[float, Beam]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    is_done: bool = False

    @classmethod
    def of(cls, beams: int) -> BeamSearch:
        return cls(beams, [Beam(), *[Beam(total=ABSENT)] * (beams - 1)])

    @property
    def tokens(self) -> list[int]:
        """What the next step is given, for each beam."""
        return [beam.ids[-1] for beam in self.open]

    @property
    def length(self) -> int:
        return len(self.open[0].ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids of the best, without the end token, and their log-probabilities."""
        _, best = self.finished[0]
        return list(best.ids), list(best.log_probs)

    def go_on(self, candidates: Sequence[tuple[int, int, float, float]], decoding: DecodingConfig, eos_id: int) -> None:
        """Take the best continuations: (beam, word, log-probability of the word, sum), best first."""
        length = self.length + 1
        scale = length**decoding.length_penalty
        going: list[tuple[int, Beam]] = []
        for rank, (source, word, log_prob, total) in enumerate(candidates):
            before = self.open[source]
            if word == eos_id:
                ended = Beam(before.ids, before.log_probs, total)
            else:
                ended = Beam((*before.ids, word), (*before.log_probs, log_prob), total)
            if word != eos_id and length < decoding.max_new_tokens:
                going.append((source, ended))
            elif rank < self.rows:
                self.finished.append((total / scale, ended))
        self.finished = sorted(self.finished, key=lambda pair: -pair[0])[: self.rows]
        if not going:
            self.is_done = True
            return
        self.sources, self.open = [list(part) for part in zip(*going[: self.rows], strict=True)]
        full = len(self.finished) == self.rows
        self.is_done = full and self.open[0].total / scale <= self.finished[-1][0]


def next_beams(
    searches: Sequence[BeamSearch], scores: Float[Tensor, "rows vocabulary"], decoding: DecodingConfig, eos_id: int
) -> None:
    """One word more for each search; ``scores`` has the rows of one after those of the other.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    beams = decoding.num_beams
    histories = [beam.ids for search in searches for beam in search.open]
    log_probs = steered(scores.log_softmax(dim=-1), histories, decoding, eos_id)
    totals = torch.tensor([[beam.total for beam in search.open] for search in searches], device=scores.device)
    log_probs, words = log_probs.view(len(searches), -1), scores.shape[1]
    summed = (log_probs.view(len(searches), beams, -1) + totals[:, :, None].to(log_probs.dtype)).flatten(1)
    best, places = summed.topk(2 * beams, dim=-1)
    own = log_probs.gather(1, places)
    # One crossing from the device for all three; a double holds each of them exactly.
    for search, (sums, where, each) in zip(
        searches, torch.stack([best.double(), places.double(), own.double()], dim=1).tolist(), strict=True
    ):
        refuse_non_finite(sums[0])
        numbers = [int(place) for place in where]
        found = [
            (place // words, place % words, one, total) for place, one, total in zip(numbers, each, sums, strict=True)
        ]
        search.go_on(found, decoding, eos_id)


# Continuous batching: reports of different lengths are written side by side; who is done leaves, who waits enters.
#
# The rows of a ``SlotCache`` are dealt out in seats: one row for a report, or as many as it has beams. Between two steps
# every free seat is given to a report that waits, whose prompt was read by itself. The next batch of prompts is asked for
# when a seat is free and none waits. Where none waits any more, those who are left move together and steps get smaller.
#
# Source: Yu et al., "Orca", OSDI 2022, Sec. 3.1 (scheduling by iteration).
# Deviations: prompts are read between the steps, one by one, not together with them.


Job = Line | BeamSearch


@dataclass(slots=True)
class Study:
    """A study's prompt, and the reports that are written after it."""

    prompt: Prompt
    jobs: list[Job]
    read: ReadPrompt | None = None

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)


@dataclass(slots=True)
class Room:
    """Seats, who sits there, and who waits. A seat is ``takes`` rows."""

    slots: SlotCache
    takes: int
    seats: list[tuple[Study, Job] | None]
    waiting: deque[tuple[Study, Job]] = field(default_factory=deque)

    @property
    def seated(self) -> list[tuple[int, Study, Job]]:
        return [(seat, *one) for seat, one in enumerate(self.seats) if one is not None]

    @property
    def has_room(self) -> bool:
        return not self.waiting and None in self.seats

    def rows_of(self, seat: int) -> range:
        return range(seat * self.takes, (seat + 1) * self.takes)

    def enter(self) -> None:
        """Give free seats to those who wait. A prompt is read once, when the first of its reports sits down."""
        for seat, one in enumerate(self.seats):
            if one is not None or not self.waiting:
                continue
            study, job = self.waiting.popleft()
            study.read = study.read or self.slots.read(study.prompt)
            self.slots.seat(study.read, self.rows_of(seat))
            self.seats[seat] = (study, job)
            if job is study.jobs[-1]:
                study.read = None

    def choose(self, decoding: DecodingConfig, eos_id: int) -> None:
        """The next word of every report that is being written; who is done leaves."""
        seated = self.seated
        rows = [row for seat, _, _ in seated for row in self.rows_of(seat)]
        scores = self.slots.scores[rows]
        jobs: list[Any] = [job for _, _, job in seated]
        (next_words if decoding.num_beams == 1 else next_beams)(jobs, scores, decoding, eos_id)
        self.seats = [None if one is not None and one[1].is_done else one for one in self.seats]

    def step(self) -> None:
        """Give each report its last word, in the rows that it goes on from."""
        seated = self.seated
        places = [len(study.prompt.embeds) + job.length - 1 for _, study, job in seated]
        sources = [seat * self.takes + source for seat, _, job in seated for source in job.sources]
        targets = [row for seat, _, _ in seated for row in self.rows_of(seat)]
        if not self.waiting and not self.slots.compiled:  # those who are left move together: steps get smaller
            empty: list[tuple[Study, Job] | None] = [None] * (len(self.seats) - len(seated))
            self.seats = [*((study, job) for _, study, job in seated), *empty]
            targets = list(range(len(targets)))
        self.slots.move(sources, targets, max(places))
        tokens = dict(zip(targets, (token for _, _, job in seated for token in job.tokens), strict=True))
        where = dict(zip(targets, (place for place in places for _ in range(self.takes)), strict=True))
        rows = range(max(targets) + 1)
        self.slots.step([tokens.get(row, 0) for row in rows], [where.get(row, 0) for row in rows])


def write_in_slots(
    model: Any,
    batches: Iterator[Prefixes],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    draws: int | None = None,
    seats: int = 0,
) -> Iterator[Written]:
    """Reports for batches of prompts, in order; see ``radweave.nn.decoding.write``.

    With ``draws`` each study has its likeliest report and that many drawn ones, one after the other. ``seats`` is how
    many reports are written at once, if that is more than the first batch has that holds a study.
    """
    room: Room | None = None
    unfinished: deque[list[Study]] = deque()
    more = True
    while more or unfinished:
        while more and (room is None or room.has_room):
            prompts = next(batches, None)
            if prompts is None:
                more = False
                break
            studies = [Study(prompt, _jobs(decoding, draws)) for prompt in _rows_of(prompts)]
            for study in studies:
                length = len(study.prompt.embeds) + decoding.max_new_tokens
                refuse_too_long(model.config, length, "decoding.max_new_tokens")
            unfinished.append(studies)
            if not studies:
                break
            if room is None:
                room = _room(model, decoding, seats=max(seats, sum(len(study.jobs) for study in studies)))
            room.waiting.extend((study, job) for study in studies for job in study.jobs)
        if room is not None:
            room.enter()
            if room.seated:
                room.choose(decoding, eos_id)
        while unfinished and all(study.is_done for study in unfinished[0]):
            reports = [job.report for study in unfinished.popleft() for job in study.jobs]
            yield [ids for ids, _ in reports], [log_probs for _, log_probs in reports]
        if room is not None and room.seated:
            room.step()


def _room(model: Any, decoding: DecodingConfig, *, seats: int) -> Room:
    takes = decoding.num_beams
    slots = SlotCache(model, rows=seats * takes, spare=decoding.max_new_tokens, compile=decoding.compile)
    return Room(slots, takes, [None] * seats)


def _jobs(decoding: DecodingConfig, draws: int | None) -> list[Job]:
    """The reports that are written for one study."""
    if draws is not None:
        return [Line(), *(Line.drawn(decoding, draw) for draw in range(draws))]
    if decoding.num_beams > 1:
        return [BeamSearch.of(decoding.num_beams)]
    return [Line.drawn(decoding, 0) if decoding.do_sample else Line()]


def _rows_of(prompts: Prefixes) -> Iterator[Prompt]:
    """Each study's prompt without the padding that its neighbours brought."""
    for row in range(len(prompts)):
        memory = None
        if prompts.memory is not None and prompts.memory_mask is not None:
            memory = prompts.memory[row][prompts.memory_mask[row]]
        yield Prompt(prompts.embeds[row][prompts.mask[row]], memory)
