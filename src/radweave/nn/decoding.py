"""Decoding of reports: options, sequences and beams, the key-value cache, continuous batching.

A report is a ``TokenSequence``, or a ``BeamSearch`` over several. ``KVCache`` holds keys and values, a slot for each
report; ``SlotBatch`` gives free slots to waiting reports and takes a step for all of them. Families that the cache does
not know, and ``cache=growing``, write with transformers' own ``generate``, batch by batch.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache

from radweave.core.config import MAX_TOKENS, Config, Seed, Tokens
from radweave.core.errors import InputError, UnusableModelError


class ExpectedUtilityConfig(Config):
    """The choice of the report with the highest expected utility, see ``radweave.drafting``.

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
    sides, lobes and measured sizes of findings, and of the kinds and positions of devices, for which no evidence
    speaks. ``further_findings`` is how many findings the chosen report may take up beside its own: sentences that
    composites are made with are put into it one by one while that makes it better. With 0 a composite states two
    findings at most; presets for CT have more.
    ``own`` asks the method itself: its decoder's likeliest report and ``samples`` drawn ones (at ``temperature`` and
    ``top_p`` of the decoding), and what it recalled, are candidates; the share of its reports that state a class is
    evidence of that class, as the run's calibration weighs it; and they speak for the wording with ``own_wording`` of
    the weight. None is the run's share: of 0, 1/8 and 1/4 the one whose validation drafts are worth most. With
    ``written`` false no sentence of a draft is a language model's: every one is one that a radiologist wrote.
    ``prior`` says what a draft is told of the patient's prior study, whatever the method: what its report affirms, what
    the method's own evidence says of its image, or both (``radweave.drafting.prior``). A study without a prior is
    drafted as with ``none``.
    ``place`` is what the side and the zone of a stated finding count, each by how far its probability is above one
    half, in a run that has the part ``place`` (``radweave.drafting.places``); with 0 no draft is given a place.
    """

    findings: float = Field(default=6.0, ge=0)
    cider: float = Field(default=1.0, ge=0)
    rouge_l: float = Field(default=5.0, ge=0)
    bleu: float = Field(default=0.3, ge=0)
    thresholds: Literal["pooled", "per_class", "balanced"] = "balanced"
    heaviest: float = Field(default=20.0, ge=1)
    macro: float = Field(default=1.0, ge=0)
    composites: bool = True
    consistent: bool = True
    unsupported_places: Literal["remove", "keep"] = "remove"
    further_findings: int = Field(default=0, ge=0, le=64)
    written: bool = True
    prior: Literal["none", "report", "image", "both"] = "none"
    place: float = Field(default=1.0, ge=0)
    own: bool = True
    samples: int = Field(default=8, ge=0, le=256)
    own_wording: float | None = Field(default=None, ge=0, lt=1)


Compile = Literal["none", "default", "reduce-overhead"]
Written = tuple[list[list[int]], list[list[float]]]
"""Token ids of each report, without end or padding, and the log-probability of each of those tokens."""


class DecodingConfig(Config):
    """Options of decoding. Greedy unless beams or sampling are asked for; sampling is seeded.

    ``kind`` is ``likelihood``, the method's own decoder with the options below, or ``expected_utility``, which any
    method's evidence can draft with (see ``ExpectedUtilityConfig``).

    ``unprompted_comparisons`` says what becomes of words that compare with an earlier study where the model was given
    none: taken out of the draft, counted and kept as evidence, or left there. ``deidentification_marks`` says the same
    of sentences with marks such as XXXX, which stand in published reports where words were taken out.

    ``cache`` is ``static``, slots of fixed shape that finished reports free for waiting ones, where the family of the
    language model is known to it, or ``growing``, transformers' own, batch by batch. ``compile`` compiles a step of the
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

    @property
    def asks_prior(self) -> bool:
        """True if a draft is told of the patient's prior study."""
        return self.kind == "expected_utility" and self.expected_utility.prior != "none"

    @property
    def is_as_written(self) -> bool:
        """True if a draft is all that the method wrote."""
        return self.unprompted_comparisons == self.deidentification_marks == "keep"

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


OWN_DECODER = "kind=likelihood"
"""The option of decoding by which a method's own decoder drafts."""


def sets_kind(options: Sequence[str]) -> bool:
    """True if options of decoding, key=value, say which decoder drafts."""
    return any(option.partition("=")[0] == "kind" for option in options)


def decoding_options(overrides: Sequence[str]) -> tuple[str, ...]:
    """The options of decoding among the overrides of an experiment."""
    return tuple(one.removeprefix("decoding.") for one in overrides if one.startswith("decoding."))


def chosen_options(options: Sequence[str], *, own_decoder: bool) -> tuple[str, ...]:
    """Options of decoding, key=value or decoding.key=value; with ``own_decoder`` those of the method's own decoder.

    Raises:
        InputError: with ``own_decoder``, if they choose the decoder too.
    """
    options = tuple(option.removeprefix("decoding.") for option in options)
    if not own_decoder:
        return options
    if sets_kind(options):
        raise InputError("the decoder is chosen twice", field="--own-decoder", expected="it, or --set kind=...")
    return (*options, OWN_DECODER)


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


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Prompts of a batch: embeddings, padded on the left, and the memory that cross-attention reads.

    Masks are True where a token is present. The padding is that of the batch: each report is written without it.
    """

    embeds: Float[Tensor, "batch prefix width"]
    mask: Bool[Tensor, "batch prefix"]
    memory: Float[Tensor, "batch memory width"] | None = None
    memory_mask: Bool[Tensor, "batch memory"] | None = None

    def __len__(self) -> int:
        return len(self.embeds)

    def only(self, rows: Sequence[int]) -> Prefixes:
        """Select rows, some of them perhaps more than once."""
        at = list(rows)
        if self.memory is None or self.memory_mask is None:
            return Prefixes(self.embeds[at], self.mask[at])
        return Prefixes(self.embeds[at], self.mask[at], self.memory[at], self.memory_mask[at])

    def each(self) -> Iterator[Prompt]:
        """The prompt of each study of a batch, without its padding."""
        for row in range(len(self)):
            memory = None
            if self.memory is not None and self.memory_mask is not None:
                memory = self.memory[row][self.memory_mask[row]]
            yield Prompt(self.embeds[row][self.mask[row]], memory)

    def inputs(self, config: Any) -> dict[str, Any]:
        """Arguments of transformers' ``generate``; ``config`` is the model's."""
        inputs: dict[str, Any] = {"inputs_embeds": self.embeds, "attention_mask": self.mask.long()}
        if self.memory is not None and self.memory_mask is not None:
            inputs["past_key_values"] = EncoderDecoderCache(*(DynamicCache(config=config) for _ in range(2)))
            inputs["encoder_hidden_states"] = self.memory
            inputs["encoder_attention_mask"] = self.memory_mask.long()
        return inputs


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one study without padding: embeddings (P, H), and the memory of cross-attention (M, H), if any."""

    embeds: Float[Tensor, "prefix width"]
    memory: Float[Tensor, "memory width"] | None

    def read(self, model: Any, cache: Any) -> tuple[Float[Tensor, " vocabulary"], int]:
        """Read the prompt into a cache.

        Returns:
            The scores of the first word, and the positions of later tokens less their columns: a model may give an
            image other positions than its tokens have columns.
        """
        inputs: dict[str, Any] = {} if self.memory is None else {"encoder_hidden_states": self.memory[None]}
        out = model(inputs_embeds=self.embeds[None], past_key_values=cache, use_cache=True, logits_to_keep=1, **inputs)
        return out.logits[0, -1].float(), 0


def write(
    model: Any, batches: Iterator[Prefixes], decoding: DecodingConfig, *, eos_id: int, pad_id: int
) -> Iterator[Written]:
    """Reports for batches of prompts, in order. The next batch is requested when a slot is free and no report waits.

    As many reports are written at once as the first batch has studies. A report is the same alone and in any batch.

    Raises:
        InputError: if prompt and report do not fit the model's positions, or ``compile`` is asked for and cannot be.
        UnusableModelError: if the model scores a token with anything but a finite number.
    """
    if _uses_slots(model, decoding):
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


def _uses_slots(model: Any, decoding: DecodingConfig) -> bool:
    draws_beams = decoding.do_sample and decoding.num_beams > 1
    return decoding.cache == "static" and supports_slots(model.config) and not draws_beams


def refuse_uncompilable(model: Any, decoding: DecodingConfig) -> None:
    """Refuse to compile a step that this language model does not have.

    Raises:
        InputError: if ``compile`` is asked for, and reports are not written in slots.
    """
    if decoding.compile != "none" and not _uses_slots(model, decoding):
        raise InputError(
            "the step of this language model cannot be compiled",
            field="decoding.compile",
            got=decoding.compile,
            expected="none for this family, for beams that are drawn, and where attention is of another kind",
        )


def write_draws(
    model: Any,
    prompts: Sequence[Prefixes],
    decoding: DecodingConfig,
    draws: int,
    *,
    eos_id: int,
    pad_id: int,
    numbered_from: int | None = None,
) -> list[list[list[int]]]:
    """The likeliest report of each study and then ``draws`` drawn ones, each prompt read once.

    All studies are drawn by the same random numbers, so that none depends on the others. With ``numbered_from``, the
    number of the first study, each has its own.
    """
    sampling = decoding.model_copy(update={"num_beams": 1, "do_sample": True})
    if _uses_slots(model, sampling):
        written = write_in_slots(
            model, iter(prompts), sampling, eos_id=eos_id, draws=draws, slots=len(prompts), numbered_from=numbered_from
        )
        return [ids[at : at + 1 + draws] for ids, _ in written for at in range(0, len(ids), 1 + draws)]
    greedy = sampling.model_copy(update={"do_sample": False})
    reports = []
    studies = (batch.only([row]) for batch in prompts for row in range(len(batch)))
    for number, study in enumerate(studies, start=numbered_from or 0):
        ids, _ = generate_ids(model, study, greedy, eos_id=eos_id, pad_id=pad_id)
        if draws:
            seed = sampling.seed if numbered_from is None else (sampling.seed + number) % (1 << 32)
            own = sampling.model_copy(update={"seed": seed})
            ids += generate_ids(model, study.only([0] * draws), own, eos_id=eos_id, pad_id=pad_id)[0]
        reports.append(ids)
    return reports


@torch.no_grad()
def generate_ids(
    model: Any, prompts: Prefixes, decoding: DecodingConfig, *, eos_id: int | Sequence[int], pad_id: int
) -> Written:
    """Decode one batch with transformers' own ``generate`` and a cache that grows, after left-padded prompts.

    A report ends with ``eos_id``, or any of these.

    Raises:
        InputError: if prompt and report do not fit the model's positions.
        UnusableModelError: if the model scores a token with anything but a finite number.
    """
    from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

    refuse_too_long(model.config, prompts.embeds.shape[1] + decoding.max_new_tokens, "decoding.max_new_tokens")
    ends = _ends(eos_id)
    options = prompts.inputs(model.config)
    # Of a prompt of ids, options of decoding would count the prompt's words too.
    read = options["input_ids"].shape[1] if "input_ids" in options else 0
    if decoding.do_sample:
        torch.manual_seed(decoding.seed)
        options |= {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    if decoding.num_beams > 1:
        options["length_penalty"] = decoding.length_penalty
    processors: list[Any] = [RepetitionPenaltyLogitsProcessor(decoding.repetition_penalty)]
    if decoding.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(decoding.no_repeat_ngram_size))
    out = model.generate(
        max_new_tokens=decoding.max_new_tokens,
        min_new_tokens=decoding.min_new_tokens or None,
        num_beams=decoding.num_beams,
        do_sample=decoding.do_sample,
        eos_token_id=list(ends),
        pad_token_id=pad_id,
        # Not the options of these names: they count a prompt's words, and spare some of a report after a padded prompt.
        logits_processor=[*(partial(_of_report, each, read) for each in processors), _check_finite],
        output_scores=True,
        return_dict_in_generate=True,
        use_cache=True,
        **options,
    )
    scores = model.compute_transition_scores(
        out.sequences, out.scores, getattr(out, "beam_indices", None), normalize_logits=decoding.num_beams == 1
    )
    return trim(out.sequences[:, read:], scores, *ends)


def _ends(eos_id: int | Sequence[int]) -> tuple[int, ...]:
    return (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)


def _of_report(processor: Any, read: int, ids: Tensor, scores: Tensor) -> Tensor:
    """Scores after a processor that sees the words of the report alone, not the ``read`` words of its prompt."""
    processed: Tensor = processor(ids[:, read:], scores)
    return processed


def _check_finite(_: Tensor, scores: Float[Tensor, "rows vocabulary"]) -> Float[Tensor, "rows vocabulary"]:
    """Pass scores on whose greatest is a finite number; forbidden tokens have minus infinity."""
    refuse_non_finite(bool(scores.amax(dim=-1).isfinite().all()))
    return scores


def refuse_non_finite(is_finite: bool) -> None:
    """Refuse scores that are no finite numbers.

    Without this an argmax over NaN names the first token, which may end the report: an empty draft without a word.

    Raises:
        UnusableModelError: always, if they are not finite.
    """
    if not is_finite:
        raise UnusableModelError("the model's scores are not finite: its weights or its precision cannot be used")


def trim(sequences: Tensor, scores: Tensor, *ends: int) -> Written:
    """Cut every row (B, T) of ids and their scores before its first end token."""
    ids, log_probs = [], []
    for row, row_scores in zip(sequences.tolist(), scores.tolist(), strict=True):
        end = next((place for place, word in enumerate(row) if word in ends), len(row))
        ids.append(row[:end])
        log_probs.append(row_scores[:end])
    return ids, log_probs


# Greedy and sampled sequences. Options mean the same as in transformers; penalties and forbidden words first, then
# temperature and top-p. The word of a row depends on that row alone, and a drawn one has its own random numbers.


@dataclass(slots=True)
class TokenSequence:
    """A report being written, and the uniform numbers that its words are drawn by; none of a greedy one."""

    uniforms: Sequence[float] = ()
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    is_done: bool = False
    parents: ClassVar[Sequence[int]] = (0,)
    """Parent row of each of its rows: it has one."""

    @classmethod
    def drawn(cls, decoding: DecodingConfig, draw: int) -> TokenSequence:
        """The sequence of one draw: its numbers depend on the seed and the number of the draw alone."""
        return cls(np.random.default_rng([decoding.seed, draw]).random(decoding.max_new_tokens).tolist())

    @property
    def tokens(self) -> list[int]:
        """Input of the next step."""
        return self.ids[-1:]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids without the end token, and their log-probabilities."""
        return self.ids, self.log_probs


def next_words(
    sequences: Sequence[TokenSequence],
    scores: Float[Tensor, "rows vocabulary"],
    decoding: DecodingConfig,
    ends: Sequence[int],
) -> None:
    """Append a word to each sequence, or end it with one of ``ends``.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    scores = process_scores(scores, [sequence.ids for sequence in sequences], decoding, ends)
    drawn = [row for row, sequence in enumerate(sequences) if sequence.uniforms]
    if drawn:
        scores[drawn] = nucleus(scores[drawn] / decoding.temperature, decoding.top_p)
    words = scores.argmax(dim=-1)
    if drawn:
        uniforms = torch.tensor([sequences[row].uniforms[sequences[row].length] for row in drawn], dtype=torch.float64)
        words[drawn] = draw(scores[drawn], uniforms.to(scores.device))
    log_probs = scores.log_softmax(dim=-1).gather(1, words[:, None])[:, 0]
    # One crossing from the device for both; a double holds either exactly.
    rows = torch.stack([words.double(), log_probs.double()]).T.tolist()
    for sequence, (number, log_prob) in zip(sequences, rows, strict=True):
        refuse_non_finite(math.isfinite(log_prob))
        word = int(number)
        if word not in ends:
            sequence.ids.append(word)
            sequence.log_probs.append(log_prob)
        sequence.is_done = word in ends or sequence.length == decoding.max_new_tokens


def process_scores(
    scores: Tensor, histories: Sequence[Sequence[int]], decoding: DecodingConfig, ends: Sequence[int]
) -> Tensor:
    """Scores (rows, V) with written words penalised and forbidden words at minus infinity."""
    scores = scores.clone()
    if decoding.repetition_penalty != 1.0:
        # Keskar et al., "CTRL", arXiv:1909.05858, Sec. 4.1, and negative scores multiplied, as transformers has it.
        repeated = [(row, word) for row, ids in enumerate(histories) for word in dict.fromkeys(ids)]
        if repeated:
            rows, words = torch.tensor(repeated, device=scores.device).T
            own = scores[rows, words]
            penalty = decoding.repetition_penalty
            scores[rows, words] = torch.where(own < 0, own * penalty, own / penalty)
    forbidden = [(row, word) for row, ids in enumerate(histories) for word in _forbidden(ids, decoding, ends)]
    if forbidden:
        rows, words = torch.tensor(forbidden, device=scores.device).T
        scores[rows, words] = -math.inf
    return scores


def _forbidden(ids: Sequence[int], decoding: DecodingConfig, ends: Sequence[int]) -> Iterator[int]:
    """The ends before the least length, and words that would repeat an n-gram."""
    if len(ids) < decoding.min_new_tokens:
        yield from ends
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


def draw(scores: Float[Tensor, "rows vocabulary"], uniforms: Float[Tensor, " rows"]) -> Tensor:
    """Draw the word of each row by inversion of the cumulative distribution, likelier words first."""
    probabilities, order = scores.double().softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    ends = probabilities.cumsum(dim=-1)
    rank = (ends <= uniforms[:, None] * ends[:, -1:]).sum(dim=-1, keepdim=True)
    last = (probabilities > 0).sum(dim=-1, keepdim=True).clamp(min=1) - 1
    return order.gather(1, torch.minimum(rank, last))[:, 0]


# Beam search of each study by itself, with the results of transformers: of the ``2 K`` best continuations of K beams
# (``(1 + E) K`` with E > 1 ends) those that end join the finished, by the sum of log-probabilities over the length to
# the power of ``length_penalty``; the search ends when K are finished and the best open one, at its present length, is
# no better than the worst of them.


ABSENT = -1e9
"""Sum of a beam that does not exist yet: all beams begin equal, and one of them is extended."""


@dataclass(frozen=True, slots=True)
class Beam:
    """Words, the log-probability of each, and their sum as the search adds it up."""

    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    total: float = 0.0


@dataclass(slots=True)
class BeamSearch:
    """The search for one study: open beams, likeliest first, and finished ones with their score, best first."""

    rows: int
    open: list[Beam] = field(default_factory=list)
    finished: list[tuple[float, Beam]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Parent beam of each beam."""
    is_done: bool = False

    @classmethod
    def of(cls, beams: int) -> BeamSearch:
        return cls(beams, [Beam(), *[Beam(total=ABSENT)] * (beams - 1)])

    @property
    def tokens(self) -> list[int]:
        """Input of the next step, for each beam."""
        return [beam.ids[-1] for beam in self.open]

    @property
    def length(self) -> int:
        return len(self.open[0].ids)

    @property
    def report(self) -> tuple[list[int], list[float]]:
        """Token ids of the best beam, without the end token, and their log-probabilities."""
        _, best = self.finished[0]
        return list(best.ids), list(best.log_probs)

    def extend(
        self, candidates: Sequence[tuple[int, int, float, float]], decoding: DecodingConfig, ends: Sequence[int]
    ) -> None:
        """Take the best continuations: (beam, word, log-probability of the word, sum), best first."""
        length = self.length + 1
        scale = length**decoding.length_penalty
        extended: list[tuple[int, Beam]] = []
        for rank, (parent, word, log_prob, total) in enumerate(candidates):
            before = self.open[parent]
            if word in ends:
                beam = Beam(before.ids, before.log_probs, total)
            else:
                beam = Beam((*before.ids, word), (*before.log_probs, log_prob), total)
            if word not in ends and length < decoding.max_new_tokens:
                extended.append((parent, beam))
            elif rank < self.rows:
                self.finished.append((total / scale, beam))
        self.finished = sorted(self.finished, key=lambda pair: -pair[0])[: self.rows]
        if not extended:
            self.is_done = True
            return
        self.parents, self.open = [list(part) for part in zip(*extended[: self.rows], strict=True)]
        full = len(self.finished) == self.rows
        self.is_done = full and self.open[0].total / scale <= self.finished[-1][0]


def next_beams(
    searches: Sequence[BeamSearch],
    scores: Float[Tensor, "rows vocabulary"],
    decoding: DecodingConfig,
    ends: Sequence[int],
) -> None:
    """Extend each search by one word; ``scores`` has the rows of one search after those of the other.

    Raises:
        UnusableModelError: if a score is no finite number.
    """
    beams = decoding.num_beams
    histories = [beam.ids for search in searches for beam in search.open]
    log_probs = process_scores(scores.log_softmax(dim=-1), histories, decoding, ends)
    totals = torch.tensor([[beam.total for beam in search.open] for search in searches], device=scores.device)
    log_probs, words = log_probs.view(len(searches), -1), scores.shape[1]
    summed = (log_probs.view(len(searches), beams, -1) + totals[:, :, None].to(log_probs.dtype)).flatten(1)
    best, indices = summed.topk(max(2, 1 + len(ends)) * beams, dim=-1)
    own = log_probs.gather(1, indices)
    # One crossing from the device for all three; a double holds each of them exactly.
    rows = torch.stack([best.double(), indices.double(), own.double()], dim=2).tolist()
    for search, row in zip(searches, rows, strict=True):
        refuse_non_finite(math.isfinite(row[0][0]))
        candidates = [(*divmod(int(index), words), log_prob, total) for total, index, log_prob in row]
        search.extend(candidates, decoding, ends)


# A key-value cache of fixed shape, each row at its own length.
#
# A row's tokens stand in its columns 0 to n - 1, whatever the other rows hold. Finished sequences free their slots, the
# arrays stay in place, and a step has the same shapes each time, which continuous batching, ``torch.compile`` and CUDA
# graphs require. The prompt of a study is read once, by itself, and copied into the rows of each of its reports.
#
# A row's numbers do not depend on the other rows: matrix products of torch's CPU kernels sum a row in one order from 4
# rows on (below, in another), so a step never has fewer; attention sums in one order at any width that is a multiple of
# 64, whose absent columns add exact zeros. ``tests/nn/test_continuous.py`` compares the bits.


LEAST_ROWS = 4
WIDTH = 64
FAMILIES = frozenset(
    {"bert", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "opt", "phi", "phi3", "qwen2",
     "qwen2_vl_text", "qwen2_5_vl_text", "qwen3", "qwen3_vl_text", "stablelm"}
)  # fmt: skip
"""Kinds of language model whose steps were compared with transformers' own (``tests/nn/test_language_families.py``)."""


def supports_slots(config: Any) -> bool:
    """Tell if ``KVCache`` can step a language model of this shape."""
    kinds = set(getattr(config, "layer_types", None) or ())
    known = kinds <= {"full_attention", "sliding_attention"}
    return config.model_type in FAMILIES and known and config._attn_implementation in ("sdpa", "eager")


def _multiple(count: int, of: int) -> int:
    """The count, rounded up to a multiple."""
    return -(-count // of) * of


Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer (1, heads, columns, D)."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt that was read: keys and values of self- and cross-attention, and the scores of the first word."""

    layers: Layers
    cross_layers: Layers
    length: int
    scores: Float[Tensor, " vocabulary"]
    ahead: int = 0
    """Positions of later tokens less their columns."""


class _LayerCache(CacheLayerMixin):  # type: ignore[misc]
    """One layer's keys and values (rows, heads, columns, D); ``view`` selects the part that a step reads."""

    is_compileable = True
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.is_initialized = True
        self.whole_keys, self.whole_values = keys, values
        self.keys, self.values = keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the arrays exist."""

    def view(self, rows: int, columns: int) -> None:
        """Select the rows and columns of the next step."""
        self.keys, self.values = self.whole_keys[:rows, :, :columns], self.whole_values[:rows, :, :columns]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write each row's token (rows, heads, 1, D) into its own column."""
        self.keys[self.rows, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Unused: masks are passed in."""
        return int(self.keys.shape[2]), 0

    def get_seq_length(self) -> int:
        """Unused: positions are passed in."""
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        """The number of columns."""
        return int(self.keys.shape[2])


class KVCache:
    """Keys and values of a language model, with its prefill and its step.

    Args:
        model: a transformers model that ``supports_slots``.
        rows: the number of sequences that are written at once; rounded up to four.
        spare: columns behind a prompt, for the longest report.
        compile: the mode of torch for the step. All rows and columns then take part in each step, so that shapes stay.

    Raises:
        InputError: if the step is to be compiled for a CPU and there is no C++ compiler.
    """

    def __init__(self, model: Any, *, rows: int, spare: int, compile: Compile = "none") -> None:
        self.model = model
        self.num_rows, self.spare = _multiple(rows, LEAST_ROWS), spare
        self.compiled = compile != "none"
        self.device = model.get_input_embeddings().weight.device
        self._forward = _forward
        if compile != "none":
            refuse_without_compiler(self.device)
            self._forward = _compiled(compile)
        self.layers: list[_LayerCache] = []
        self.cross_layers: list[_LayerCache] = []
        self.columns = self.cross_columns = 0
        self.absent = torch.zeros(self.num_rows, 0, dtype=torch.bool, device=self.device)
        self.rows = torch.arange(self.num_rows, device=self.device)
        self.ahead = torch.zeros(self.num_rows, 1, dtype=torch.long, device=self.device)
        self.scores = torch.zeros(self.num_rows, 0, device=self.device)

    @torch.no_grad()
    def prefill(self, prompt: Prompt) -> Prefill:
        """Read a prompt by itself: the result does not depend on others."""
        own, cross = DynamicCache(), DynamicCache()
        scores, ahead = prompt.read(self.model, own if prompt.memory is None else EncoderDecoderCache(own, cross))
        return Prefill(
            [(layer.keys, layer.values) for layer in own.layers],
            [(layer.keys, layer.values) for layer in cross.layers],
            len(prompt.embeds),
            scores,
            ahead,
        )

    @torch.no_grad()
    def insert(self, prefill: Prefill, rows: Sequence[int]) -> None:
        """Copy a prompt into rows; the scores of their next word are those after the prompt."""
        self._reserve(prefill)
        for row in rows:
            for layers, source in ((self.layers, prefill.layers), (self.cross_layers, prefill.cross_layers)):
                for layer, (keys, values) in zip(layers, source, strict=True):
                    layer.whole_keys[row, :, : keys.shape[2]] = keys[0]
                    layer.whole_values[row, :, : values.shape[2]] = values[0]
            if prefill.cross_layers:
                length = prefill.cross_layers[0][0].shape[2]
                self.absent[row] = torch.arange(self.cross_columns, device=self.device) >= length
            self.scores[row] = prefill.scores
            self.ahead[row] = prefill.ahead

    @torch.no_grad()
    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` columns of rows over others, all at once."""
        pairs = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
        if not pairs:
            return
        source, target = torch.tensor(pairs, device=self.device).T
        for layer, columns in self._layers(length):
            for whole in (layer.whole_keys, layer.whole_values):
                whole[target, :, :columns] = whole[source, :, :columns]
        self.absent[target] = self.absent[source]
        self.ahead[target] = self.ahead[source]

    @torch.no_grad()
    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Feed the first rows their next tokens, each into its column; ``scores`` are those of the words after them."""
        if self.compiled:  # a view has no mark of an address that stays
            count, width = self.num_rows, self.columns
        else:
            count, width = _multiple(len(tokens), LEAST_ROWS), _multiple(max(positions) + 1, WIDTH)
            for layer, visible in self._layers(width):
                layer.view(count, visible)
        idle = [0] * (count - len(tokens))
        words, columns = torch.tensor([[*tokens, *idle], [*positions, *idle]], device=self.device)
        for layer in self.layers:
            layer.rows, layer.positions = self.rows[:count], columns
        own, memory_width = Cache(layers=self.layers), None
        if self.cross_layers:
            own = EncoderDecoderCache(own, Cache(layers=self.cross_layers))
            own.is_updated = dict.fromkeys(range(len(self.cross_layers)), True)
            memory_width = self.model.config.hidden_size
        here = columns[:, None]
        inputs = (words, here, here + self.ahead[:count], own, memory_width, self.absent[:count], width)
        self.scores[:count] = self._forward(self.model, *inputs)

    def _layers(self, columns: int) -> Iterator[tuple[_LayerCache, int]]:
        """All layers, each with its number of columns."""
        yield from ((layer, columns) for layer in self.layers)
        yield from ((layer, self.cross_columns) for layer in self.cross_layers)

    def _reserve(self, prefill: Prefill) -> None:
        """Allocate arrays for the first prompt, or wider ones for a longer prompt than all before it."""
        if not self.layers:
            self.scores = prefill.scores.new_zeros(self.num_rows, len(prefill.scores))
        self.columns = max(self.columns, _multiple(prefill.length + self.spare, WIDTH))
        self._widen(self.layers, prefill.layers, self.columns)
        if prefill.cross_layers:
            self.cross_columns = max(self.cross_columns, _multiple(prefill.cross_layers[0][0].shape[2], WIDTH))
            self._widen(self.cross_layers, prefill.cross_layers, self.cross_columns)
            more = self.absent.new_ones(self.num_rows, self.cross_columns - self.absent.shape[1])
            self.absent = torch.cat([self.absent, more], dim=1)

    def _widen(self, layers: list[_LayerCache], like: Layers, columns: int) -> None:
        if layers and layers[0].whole_keys.shape[2] == columns:
            return
        wide = []
        for number, pair in enumerate(like):
            arrays = [each.new_zeros(self.num_rows, each.shape[1], columns, each.shape[3]) for each in pair]
            if layers:
                for array, narrow in zip(arrays, (layers[number].whole_keys, layers[number].whole_values), strict=True):
                    array[:, :, : narrow.shape[2]] = narrow
            if self.compiled:  # torch records no CUDA graph of a step that writes into inputs which could move
                for array in arrays:
                    torch._dynamo.mark_static_address(array)
            wide.append(_LayerCache(*arrays))
        layers[:] = wide


def _forward(
    model: Any,
    tokens: Tensor,
    here: Tensor,
    positions: Tensor,
    cache: Any,
    memory_width: int | None,
    absent: Tensor,
    width: int,
) -> Tensor:
    """The scores (rows, V) of the words after ``tokens``. Each row attends to its own columns up to that one (rows, 1)
    which its token is written into.
    """
    columns = torch.arange(width, device=tokens.device)
    dtype = model.get_input_embeddings().weight.dtype
    inputs: dict[str, Any] = {"attention_mask": _masks(model.config, columns, here, dtype)}
    if memory_width is not None:
        # Keys and values of the memory are cached: of the memory itself only the shape is read.
        inputs["encoder_hidden_states"] = absent.new_zeros(1, 1, 1, dtype=dtype).expand(*absent.shape, memory_width)
        inputs["encoder_attention_mask"] = _additive(~absent, dtype)
    out = model(input_ids=tokens[:, None], position_ids=positions, past_key_values=cache, use_cache=True, **inputs)
    logits: Tensor = out.logits[:, -1]
    return logits.float()


def _masks(config: Any, columns: Tensor, here: Tensor, dtype: torch.dtype) -> Any:
    """Additive masks of self-attention, by kind of layer where a model has two."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    visible = columns <= here
    if window is None or kinds == {"full_attention"}:
        return _additive(visible, dtype)
    near = _additive(visible & (columns > here - window), dtype)
    return near if len(kinds) < 2 else {"full_attention": _additive(visible, dtype), "sliding_attention": near}


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask (B, columns) as numbers that attention adds (B, 1, 1, columns), the same for both implementations."""
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill(~visible, torch.finfo(dtype).min)[:, None, None]


@cache
def _compiled(mode: str) -> Any:
    """One compiled step for this process: torch keeps its result for each model and shape."""
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


# Continuous batching: finished sequences free their slots, and waiting ones take them between two steps.
#
# A slot is one row of the cache for a report, or as many as it has beams. The next batch of prompts is requested when a
# slot is free and no report waits. Once none waits any more, the remaining reports move to the first rows and steps get
# smaller.
#
# Source: Yu et al., "Orca", OSDI 2022, Sec. 3.1 (scheduling by iteration).
# Deviations: prompts are read between the steps, one by one, not together with them.


Job = TokenSequence | BeamSearch


@dataclass(slots=True)
class Request:
    """A study's prompt, and the reports that are written after it."""

    prompt: Prompt
    jobs: list[Job]
    prefill: Prefill | None = None

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)


@dataclass(slots=True)
class SlotBatch:
    """The reports in the slots of a cache, and those that wait. A slot is ``rows_per_slot`` rows."""

    cache: KVCache
    rows_per_slot: int
    slots: list[tuple[Request, Job] | None]
    waiting: deque[tuple[Request, Job]] = field(default_factory=deque)

    @classmethod
    def of(cls, model: Any, decoding: DecodingConfig, slots: int) -> SlotBatch:
        rows = decoding.num_beams
        cache = KVCache(model, rows=slots * rows, spare=decoding.max_new_tokens, compile=decoding.compile)
        return cls(cache, rows, [None] * slots)

    @property
    def active(self) -> list[tuple[int, Request, Job]]:
        return [(slot, *pair) for slot, pair in enumerate(self.slots) if pair is not None]

    @property
    def has_free_slot(self) -> bool:
        return not self.waiting and None in self.slots

    def rows_of(self, slot: int) -> range:
        return range(slot * self.rows_per_slot, (slot + 1) * self.rows_per_slot)

    def admit(self) -> None:
        """Give free slots to waiting reports. A prompt is read once, for the first of its reports."""
        for slot, pair in enumerate(self.slots):
            if pair is not None or not self.waiting:
                continue
            request, job = self.waiting.popleft()
            request.prefill = request.prefill or self.cache.prefill(request.prompt)
            self.cache.insert(request.prefill, self.rows_of(slot))
            self.slots[slot] = (request, job)
            if job is request.jobs[-1]:
                request.prefill = None

    def choose(self, decoding: DecodingConfig, ends: Sequence[int]) -> None:
        """Choose the next word of every active report. Finished reports free their slots."""
        active = self.active
        rows = [row for slot, _, _ in active for row in self.rows_of(slot)]
        jobs: list[Any] = [job for _, _, job in active]
        (next_words if decoding.num_beams == 1 else next_beams)(jobs, self.cache.scores[rows], decoding, ends)
        self.slots = [None if pair is not None and pair[1].is_done else pair for pair in self.slots]

    def step(self) -> None:
        """Feed each report its last word, after the rows of its parent beams were copied."""
        active = self.active
        lengths = [len(request.prompt.embeds) + job.length - 1 for _, request, job in active]
        sources = [slot * self.rows_per_slot + parent for slot, _, job in active for parent in job.parents]
        targets = [row for slot, _, _ in active for row in self.rows_of(slot)]
        if not self.waiting and not self.cache.compiled:  # the remaining reports move to the first rows
            free: list[tuple[Request, Job] | None] = [None] * (len(self.slots) - len(active))
            self.slots = [*((request, job) for _, request, job in active), *free]
            targets = list(range(len(targets)))
        self.cache.copy(sources, targets, max(lengths))
        count = max(targets) + 1
        tokens, positions = [0] * count, [0] * count
        for at, row in enumerate(targets):
            report, beam = divmod(at, self.rows_per_slot)
            tokens[row], positions[row] = active[report][2].tokens[beam], lengths[report]
        self.cache.step(tokens, positions)


def write_in_slots(
    model: Any,
    batches: Iterator[Prefixes],
    decoding: DecodingConfig,
    *,
    eos_id: int | Sequence[int],
    draws: int | None = None,
    slots: int = 0,
    numbered_from: int | None = None,
) -> Iterator[Written]:
    """Reports for batches of prompts, in order; see ``write``. A report ends with ``eos_id``, or any of these.

    With ``draws`` each study has its likeliest report and that many drawn ones, one after the other. ``slots`` is the
    number of reports that are written at once, if that is more than the first batch has that holds a study.
    With ``numbered_from``, the number of the first study, the draws of each have random numbers of their own.
    """
    ends = _ends(eos_id)
    numbers = itertools.repeat(0) if numbered_from is None else itertools.count(numbered_from)
    running: SlotBatch | None = None
    unfinished: deque[list[Request]] = deque()
    more = True
    while more or unfinished:
        while more and (running is None or running.has_free_slot):
            prompts = next(batches, None)
            if prompts is None:
                more = False
                break
            requests = [Request(prompt, _jobs(decoding, draws, next(numbers))) for prompt in prompts.each()]
            for request in requests:
                length = len(request.prompt.embeds) + decoding.max_new_tokens
                refuse_too_long(model.config, length, "decoding.max_new_tokens")
            unfinished.append(requests)
            if not requests:
                break
            waiting = [(request, job) for request in requests for job in request.jobs]
            running = running or SlotBatch.of(model, decoding, max(slots, len(waiting)))
            running.waiting.extend(waiting)
        if running is not None:
            running.admit()
            if running.active:
                running.choose(decoding, ends)
        while unfinished and all(request.is_done for request in unfinished[0]):
            reports = [job.report for request in unfinished.popleft() for job in request.jobs]
            yield [ids for ids, _ in reports], [log_probs for _, log_probs in reports]
        if running is not None and running.active:
            running.step()


def _jobs(decoding: DecodingConfig, draws: int | None, study: int) -> list[Job]:
    """The reports that are written for one study, whose number chooses those to draw by."""
    if draws is not None:
        numbers = range(study * draws, (study + 1) * draws)
        return [TokenSequence(), *(TokenSequence.drawn(decoding, number) for number in numbers)]
    if decoding.num_beams > 1:
        return [BeamSearch.of(decoding.num_beams)]
    return [TokenSequence.drawn(decoding, 0) if decoding.do_sample else TokenSequence()]
