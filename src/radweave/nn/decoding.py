"""How reports are decoded, for every language model: options, and who writes.

Language models that ``radweave.nn.slots`` knows write in its rows, from which finished reports leave and which waiting
ones enter (``radweave.nn.continuous``). Others, and ``cache=growing``, write with transformers' own ``generate``, batch
by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from radweave.base.config import MAX_TOKENS, Config, Seed, Tokens
from radweave.base.errors import InputError, UnusableModelError
from radweave.nn.next_token import refuse_too_long


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
    from radweave.nn.continuous import write_in_slots

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
    from radweave.nn.slots import fits

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
    from radweave.nn.continuous import write_in_slots
    from radweave.nn.slots import fits

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
