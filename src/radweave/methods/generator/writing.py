"""Reports of a published model, written study by study: each prompt is read by the model's own pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from radweave.methods.generator.network import Network, Query, Words
from radweave.nn.decoding import DecodingConfig, Prefixes, Prompt, Written, generate_ids, supports_slots, write_in_slots
from radweave.nn.language_model import CausalLanguageModel


@dataclass(frozen=True, slots=True)
class StudyPrompt(Prompt):
    """The prompt of one study, the arguments of the model's pass over it, and what they were made of."""

    network: Network
    arguments: Mapping[str, Tensor]
    query: Query

    def read(self, model: Any, cache: Any) -> tuple[Float[Tensor, " vocabulary"], int]:
        """Read the prompt by the whole model's own pass."""
        whole = self.network.model
        out = self.network.run(self.arguments, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ahead = self.network.family.first_position
        if "image_grid_thw" in self.arguments:
            ahead = int(whole.model.rope_deltas.item())
        return out.logits[0, -1].float(), ahead


@dataclass(frozen=True, slots=True)
class StudyPrompts(Prefixes):
    """Prompts of a batch; ``embeds`` are the words' alone, with those of the images' places."""

    studies: tuple[StudyPrompt, ...] = ()

    @classmethod
    def of(cls, network: Network, arguments: Sequence[Mapping[str, Tensor]], queries: Sequence[Query]) -> StudyPrompts:
        """Of the arguments of a pass over each study by itself, and the queries that they were made of."""
        studies = tuple(
            StudyPrompt(network.embed(own["input_ids"])[0], None, network, own, query)
            for own, query in zip(arguments, queries, strict=True)
        )
        length = max(len(study.embeds) for study in studies)
        embeds = studies[0].embeds.new_zeros(len(studies), length, studies[0].embeds.shape[1])
        mask = torch.zeros(len(studies), length, dtype=torch.bool, device=embeds.device)
        for row, study in enumerate(studies):
            embeds[row, length - len(study.embeds) :] = study.embeds
            mask[row, length - len(study.embeds) :] = True
        return cls(embeds, mask, studies=studies)

    def only(self, rows: Sequence[int]) -> StudyPrompts:
        """Select rows, some of them perhaps more than once."""
        at = list(rows)
        return StudyPrompts(self.embeds[at], self.mask[at], studies=tuple(self.studies[row] for row in at))

    def each(self) -> Iterator[Prompt]:
        """The prompt of each study."""
        yield from self.studies

    def inputs(self, config: Any) -> dict[str, Any]:
        """Arguments of transformers' ``generate`` for a single study."""
        (study,) = self.studies
        # Positions are counted on by ``generate``.
        return {name: value for name, value in study.arguments.items() if name != "position_ids"}


class Writer(CausalLanguageModel):
    """The language model of a published model; it writes after prompts that the whole model reads."""

    def __init__(self, words: Words, network: Network, *, bos_id: int | None, eos_id: int, pad_id: int) -> None:
        super().__init__(words, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
        # As a whole it belongs to no part; the reference is no module of this one.
        self._network = (network,)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a report: the tokenizer's, and those of the checkpoint."""
        ends = dict.fromkeys((self.eos_id, *self._network[0].ends))
        return tuple(end for end in ends if end < int(self.model.config.vocab_size))

    def logits_after(
        self, prompts: Prefixes, input_ids: Int[Tensor, "batch text"], labels: Int[Tensor, "batch text"]
    ) -> Float[Tensor, "batch text words"]:
        """Logits of each report token by the whole model's own pass over prompt, images and report.

        After embeddings alone, of which a size is measured, they are the language model's.
        """
        if not isinstance(prompts, StudyPrompts):
            return super().logits_after(prompts, input_ids, labels)
        return self._network[0].logits([study.query for study in prompts.studies], input_ids, labels != -100)

    def write(self, batches: Iterator[Prefixes], decoding: DecodingConfig) -> Iterator[Written]:
        """Reports for batches of prompts, in order; a family that cannot be stepped writes them one by one."""
        if self._steps(decoding):
            yield from write_in_slots(self.model, batches, decoding, eos_id=self.ends)
            return
        for prompts in batches:
            written = [self._generated(prompts.only([row]), decoding) for row in range(len(prompts))]
            yield [row for ids, _ in written for row in ids], [row for _, scores in written for row in scores]

    def write_draws(
        self, prompts: Sequence[Prefixes], decoding: DecodingConfig, draws: int, *, numbered_from: int | None = None
    ) -> list[list[list[int]]]:
        """Token ids of the likeliest report of each study, and then of ``draws`` drawn ones. No end, no padding.

        With ``numbered_from``, the number of the first study, each study has random numbers of its own.
        """
        sampling = decoding.model_copy(update={"num_beams": 1, "do_sample": True})
        if self._steps(sampling):
            written = write_in_slots(
                self.model, iter(prompts), sampling,
                eos_id=self.ends, draws=draws, slots=len(prompts), numbered_from=numbered_from,
            )  # fmt: skip
            return [ids[at : at + 1 + draws] for ids, _ in written for at in range(0, len(ids), 1 + draws)]
        greedy, reports = sampling.model_copy(update={"do_sample": False}), []
        studies = (batch.only([row]) for batch in prompts for row in range(len(batch)))
        for number, study in enumerate(studies, start=numbered_from or 0):
            own = 0 if numbered_from is None else number
            seeds = np.random.default_rng([sampling.seed, own]).integers(1 << 32, size=draws).tolist()
            each = [greedy, *(sampling.model_copy(update={"seed": seed}) for seed in seeds)]
            reports.append([self._generated(study, one)[0][0] for one in each])
        return reports

    def _steps(self, decoding: DecodingConfig) -> bool:
        draws_beams = decoding.do_sample and decoding.num_beams > 1
        return decoding.cache == "static" and supports_slots(self.model.config) and not draws_beams

    def _generated(self, study: Prefixes, decoding: DecodingConfig) -> Written:
        whole = self._network[0].model
        ids, scores = generate_ids(whole, study, decoding, eos_id=self.ends, pad_id=self.pad_id)
        return ids, scores
