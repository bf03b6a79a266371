"""How reports are decoded, for every language model: options, and cached batched generation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from radweave.base.config import MAX_TOKENS, Config, Seed, Tokens
from radweave.base.errors import UnusableModelError
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
    themselves, and lets sentences that all is well give way in a composite to a finding. ``written`` lets reports join
    that a language model wrote for the study, of methods that have one for it; without, every sentence is one that a
    radiologist wrote.
    """

    findings: float = Field(default=6.0, ge=0)
    cider: float = Field(default=1.0, ge=0)
    rouge_l: float = Field(default=5.0, ge=0)
    bleu: float = Field(default=0.3, ge=0)
    thresholds: Literal["pooled", "per_class", "balanced"] = "pooled"
    heaviest: float = Field(default=20.0, ge=1)
    macro: float = Field(default=1.0, ge=0)
    composites: bool = True
    consistent: bool = False
    written: bool = True


class DecodingConfig(Config):
    """How reports are decoded. Greedy unless beams or sampling are asked for; sampling is seeded.

    ``kind`` is ``likelihood``, the method's own decoder with the options below, or ``expected_utility``, which any
    method's evidence can draft with (see ``ExpectedUtilityConfig``).

    ``unprompted_comparisons`` says what becomes of words that compare with an earlier study where the model was given
    none: taken out of the draft, counted and kept as evidence, or left there. ``deidentification_marks`` says the same
    of sentences with marks such as XXXX, which stand in published reports where words were taken out.
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

    @model_validator(mode="after")
    def _lengths_agree(self) -> DecodingConfig:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens {self.min_new_tokens} is above max_new_tokens {self.max_new_tokens}: nothing can be"
                " written"
            )
        return self


@torch.no_grad()
def generate_ids(
    model: Any,
    prefix: Float[Tensor, "batch prefix width"],
    prefix_mask: Bool[Tensor, "batch prefix"],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    pad_id: int,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[list[list[int]], list[list[float]]]:
    """Decode with a key-value cache after a left-padded prefix of embeddings.

    Args:
        model: a transformers model that generates.
        prefix: embeddings of what stands before the report.
        prefix_mask: True where the prefix has a token.
        decoding: the options.
        eos_id: the token that ends a report.
        pad_id: the token that fills up the rows that ended.
        inputs: further arguments of every forward pass, such as what cross-attention reads.

    Returns:
        Token ids per row, without end or padding, and the log-probability of each of those tokens.

    Raises:
        InputError: if prompt and report do not fit the model's positions.
        UnusableModelError: if the model scores a token with anything but a finite number.
    """
    refuse_too_long(model.config, prefix.shape[1] + decoding.max_new_tokens, "decoding.max_new_tokens")
    options: dict[str, Any] = {}
    if decoding.do_sample:
        torch.manual_seed(decoding.seed)
        options = {"temperature": decoding.temperature, "top_p": decoding.top_p, "top_k": 0}
    if decoding.num_beams > 1:
        options["length_penalty"] = decoding.length_penalty
    out = model.generate(
        inputs_embeds=prefix,
        attention_mask=prefix_mask.long(),
        max_new_tokens=decoding.max_new_tokens,
        min_new_tokens=decoding.min_new_tokens or None,
        num_beams=decoding.num_beams,
        do_sample=decoding.do_sample,
        repetition_penalty=decoding.repetition_penalty,
        no_repeat_ngram_size=decoding.no_repeat_ngram_size,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        logits_processor=[_refuse_non_finite],
        output_scores=True,
        return_dict_in_generate=True,
        use_cache=True,
        **options,
        **(inputs or {}),
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
