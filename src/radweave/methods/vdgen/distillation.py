"""Disease Information Distillation (DID): the report, as the language model reads it, teaches the image features.

Source: VDGen, Sec. 3.3, Eq. 4-6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Count, Slots
from radweave.core.evidence import DraftEvidence, RecalledEvidence, SentenceFit
from radweave.nn.connector import ViewTokens
from radweave.nn.global_batch import symmetric_info_nce
from radweave.nn.language_model import CausalLanguageModel, adapters_off, position_ids
from radweave.nn.memory.bank import Bank, BankLayout, Column, patient_code
from radweave.nn.memory.index import ExactIndex
from radweave.nn.prompt import SentenceSplitter

if TYPE_CHECKING:
    from radweave.methods.model import TrainingView

# Evidence from the space that DID makes: how well a sentence fits the image, and which training sentences fit it best.
#
# The memory holds what the language model, adapters off, makes of training sentences (``mean_hidden_state``); they are
# projected when they are used, so that they follow W_2 while it trains. Where the language model trains as a whole in
# the report stage, they are computed again with it as it stands.


SENTENCES = "sentences"
"""Name of the bank."""


class SentenceMemoryConfig(Config):
    """The ``max_sentences`` most frequent training sentences are kept, ``top_k`` are shown with a report.

    With ``recall`` off none are kept: reports are the same, and no sentence is shown beside them.
    """

    recall: bool = True
    max_sentences: Count = 2000
    top_k: Slots = 5


@torch.no_grad()
def mean_hidden_state(
    language_model: CausalLanguageModel, input_ids: Int[Tensor, "batch text"], mask: Bool[Tensor, "batch text"]
) -> Float[Tensor, "batch width"]:
    """The teacher: mean of the language model's last hidden states over the tokens of a text, right-padded.

    The text is read after the begin token, whose own state is left out: large models park unrelated values in it (Xiao
    et al., "attention sinks", ICLR 2024). The end token is left out as well, so that reports and sentences compare.
    The teacher stands still: adapters and dropout are off, and no gradient reaches the language model.
    """
    begin = torch.full_like(input_ids[:, :1], language_model.bos_id)
    ids = torch.cat([begin, input_ids], dim=1)
    present = torch.cat([torch.ones_like(begin, dtype=torch.bool), mask], dim=1)
    was_training = language_model.training
    language_model.eval()
    with adapters_off(language_model):
        states: Tensor = language_model.model.base_model(
            input_ids=ids, attention_mask=present.long(), position_ids=position_ids(present), use_cache=False
        ).last_hidden_state
    language_model.train(was_training)
    weight = (mask & (input_ids != language_model.eos_id))[:, :, None].float()
    return (states[:, 1:].float() * weight).sum(1) / weight.sum(1).clamp(min=1)


def build_sentence_bank(
    training: TrainingView, language_model: CausalLanguageModel, splitter: SentenceSplitter, max_sentences: int
) -> Bank:
    """States (N, H) of the most frequent sentences of the training reports, the more frequent first.

    A row names the first study with that sentence and counts all of them. A sentence cut off by the limit of tokens is
    not taken.
    """
    rows: dict[tuple[int, ...], dict[str, Any]] = {}
    for example in training.examples:
        ids = [token for token in example.token_ids or () if token != language_model.eos_id]
        for sentence in dict.fromkeys(splitter.split(ids)):
            if sentence[-1] not in splitter.ends:
                continue
            row = rows.setdefault(
                sentence,
                {
                    "study_id": example.study_id,
                    "patient": patient_code(example.patient_id),
                    "text": splitter.decode(sentence),
                    "token_ids": list(sentence),
                    "studies": 0,
                },
            )
            row["studies"] += 1
    frequent = sorted(rows.items(), key=lambda item: -item[1]["studies"])[:max_sentences]
    states = sentence_states(language_model, [sentence for sentence, _ in frequent])
    return Bank({"states": states}, tuple(row for _, row in frequent))


def sentence_states(
    language_model: CausalLanguageModel, sentences: Sequence[Sequence[int]], batch_size: int = 64
) -> Float[Tensor, "sentences width"]:
    """``mean_hidden_state`` of rows of token ids of any length."""
    device = language_model.model.get_input_embeddings().weight.device
    parts = [torch.zeros(0, language_model.width, device=device)]
    for start in range(0, len(sentences), batch_size):
        chunk = sentences[start : start + batch_size]
        ids = torch.full((len(chunk), max(len(sentence) for sentence in chunk)), language_model.pad_id)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        for row, sentence in enumerate(chunk):
            ids[row, : len(sentence)] = torch.tensor(sentence)
            mask[row, : len(sentence)] = True
        parts.append(mean_hidden_state(language_model, ids.to(device), mask.to(device)))
    return torch.cat(parts)


def sentence_fit(
    distillation: DiseaseDistillation,
    language_model: CausalLanguageModel,
    splitter: SentenceSplitter,
    mean: Float[Tensor, "batch dim"],
    token_ids: Sequence[Sequence[int]],
) -> list[list[SentenceFit]]:
    """Per study and sentence of its report: the text, and its cosine with the image in the DID space."""
    split = [splitter.split(ids) for ids in token_ids]
    vectors = distillation.text_vectors(sentence_states(language_model, [s for row in split for s in row]))
    owner = torch.tensor([study for study, row in enumerate(split) for _ in row], dtype=torch.long)
    images = distillation.image_vectors(mean)[owner.to(mean.device)]
    cosines = iter((vectors.to(images.device) * images).sum(1).tolist())
    return [
        [{"text": splitter.decode(sentence), "image_similarity": round(next(cosines), 4)} for sentence in row]
        for row in split
    ]


class SentenceMemory:
    """The sentences of the bank, found by image."""

    def __init__(self, bank: Bank) -> None:
        self.states = bank.tensors["states"]
        self.rows = bank.rows
        self.owners = bank.owners()

    def follow(self, language_model: CausalLanguageModel) -> None:
        """Compute the states again if those of the first sentence are no longer what the language model makes of it.

        Banks of earlier versions do not hold the sentences' tokens and stay as they are.
        """
        if not self.rows or "token_ids" not in self.rows[0]:
            return
        first, *others = (row["token_ids"] for row in self.rows)
        now = sentence_states(language_model, [first])
        if not torch.allclose(now.float(), self.states[:1].to(now.device).float(), rtol=0.01, atol=0.01):
            self.states = torch.cat([now, sentence_states(language_model, others)])

    def nearest(
        self, distillation: DiseaseDistillation, mean: Float[Tensor, "batch dim"], batch: Batch, top_k: int
    ) -> list[list[RecalledEvidence]]:
        """The training sentences nearest to each image, best first; never one of the query's own study or patient."""
        vectors = distillation.text_vectors(self.states.to(mean.device))
        index = ExactIndex(vectors, self.owners)
        scores, nearest = index.search(
            distillation.image_vectors(mean), top_k, study_ids=batch.study_ids, patient_ids=batch.patient_ids
        )
        return [
            [
                {
                    "kind": "sentence",
                    "study_id": self.rows[row]["study_id"],
                    "text": self.rows[row]["text"],
                    "scores": {"image_similarity": round(score, 4)},
                }
                for score, row in zip(study_scores, study_rows, strict=True)
                if row >= 0
            ]
            for study_scores, study_rows in zip(scores.tolist(), nearest.tolist(), strict=True)
        ]


@dataclass
class Sentences:
    """Sentences shown with a report, in the space of DID; ``memory`` is there once a run has its bank."""

    distillation: DiseaseDistillation
    splitter: SentenceSplitter
    config: SentenceMemoryConfig
    memory: SentenceMemory | None = None

    def banks(self, training: TrainingView, language_model: CausalLanguageModel) -> dict[str, Bank]:
        """The most frequent sentences of the training reports."""
        if not self.config.recall:
            return {}
        return {SENTENCES: build_sentence_bank(training, language_model, self.splitter, self.config.max_sentences)}

    def layouts(self, width: int) -> dict[str, BankLayout]:
        """Layout of the bank; ``width`` is that of the language model's states."""
        layout = BankLayout({"states": Column("float", (width,))}, texts=True, may_be_empty=True)
        return {SENTENCES: layout} if self.config.recall else {}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Take the bank of a run, if it has one."""
        self.memory = SentenceMemory(banks[SENTENCES]) if SENTENCES in banks else None

    def evidence(
        self, language_model: CausalLanguageModel, views: ViewTokens, token_ids: Sequence[Sequence[int]], batch: Batch
    ) -> list[DraftEvidence]:
        """``sentence_fit`` of every report, and with a memory the sentences ``recalled`` for its image."""
        mean = views.mean()
        fits = sentence_fit(self.distillation, language_model, self.splitter, mean, token_ids)
        shown: list[DraftEvidence] = [{"sentence_fit": fit} for fit in fits]
        if self.memory is not None:
            self.memory.follow(language_model)
            recalled = self.memory.nearest(self.distillation, mean, batch, self.config.top_k)
            shown = [{**row, "recalled": rows} for row, rows in zip(shown, recalled, strict=True)]
        return shown


class NoSentences:
    """Without DID sentences and images have no space in common, and nothing is said of how they fit."""

    def banks(self, training: TrainingView, language_model: CausalLanguageModel) -> dict[str, Bank]:
        return {}

    def layouts(self, width: int) -> dict[str, BankLayout]:
        return {}

    def remember(self, banks: Mapping[str, Bank]) -> None:
        """Nothing is kept."""

    def evidence(
        self, language_model: CausalLanguageModel, views: ViewTokens, token_ids: Sequence[Sequence[int]], batch: Batch
    ) -> list[DraftEvidence]:
        return [{} for _ in token_ids]


class DiseaseDistillation(nn.Module):
    """Symmetric InfoNCE between an image and the language model's reading of its report.

        z_img = h / |h|,   z_text = (W_2 t + b_2) / |W_2 t + b_2|                                        (Eq. 4-5)
        L = (L_v2t + L_t2v) / 2 over S_ij = z_img,i . z_text,j / tau                                        (Eq. 6)

    Notation: ``mean`` is their mean over I^e, ``text`` their z-hat^text. Over the global batch where training is
    distributed. Deviations: none; the paper does not say which states of the language model it takes, see
    ``mean_hidden_state``.
    """

    def __init__(self, dim: int, text_width: int, temperature: float) -> None:
        super().__init__()
        self.text_projection = nn.Linear(text_width, dim)
        self.temperature = temperature

    def image_vectors(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """Eq. 4."""
        return F.normalize(mean.float(), dim=-1)

    def text_vectors(self, text: Float[Tensor, "batch width"]) -> Float[Tensor, "batch dim"]:
        """Eq. 5."""
        return F.normalize(self.text_projection(text.to(self.text_projection.weight)).float(), dim=-1)

    def loss(
        self,
        mean: Float[Tensor, "batch dim"],
        language_model: CausalLanguageModel,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        """Eq. 6 for a batch of images and their reports."""
        text = mean_hidden_state(language_model, input_ids, labels != -100)
        return symmetric_info_nce(self.image_vectors(mean), self.text_vectors(text), self.temperature)

    def sentences(self, splitter: SentenceSplitter, config: SentenceMemoryConfig) -> Sentences:
        """Evidence of sentences in this space."""
        return Sentences(self, splitter, config)


class NoDistillation(nn.Module):
    """No DID; asked for its loss it is 0, and nothing is said of how sentences fit the image."""

    def loss(
        self,
        mean: Float[Tensor, "batch dim"],
        language_model: CausalLanguageModel,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        return mean.new_zeros(())

    def sentences(self, splitter: SentenceSplitter, config: SentenceMemoryConfig) -> NoSentences:
        return NoSentences()


class DiseaseDistillationConfig(Config):
    """Eq. 4-6; the paper does not give tau."""

    kind: Literal["report"] = "report"
    temperature: float = Field(default=0.1, gt=0)

    def build(self, dim: int, text_width: int) -> DiseaseDistillation:
        return DiseaseDistillation(dim, text_width, self.temperature)


class NoDistillationConfig(Config):
    """The row w/o DID."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, text_width: int) -> NoDistillation:
        return NoDistillation()


DistillationConfig = Annotated[DiseaseDistillationConfig | NoDistillationConfig, Field(discriminator="kind")]
