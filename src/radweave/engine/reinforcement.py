"""The update of a stage that rewards drafts: reports drawn, edited, rewarded, and the surrogate loss of the policy.

The policy is a method's own decoder after its own inputs. With k samples y of each study, rewards r and advantages A

    scst:   A_j = r_j - r(likeliest report)              loss = -1/(Bk) sum_ij A_ij sum_t log p(y_ijt)
    grpo:   A_j = (r_j - mean r) / std r                 loss = -1/(Bk) sum_ij A_ij 1/|y_ij| sum_t log p(y_ijt)

and to both is added ``kl`` times the mean over tokens of q/p - log(q/p) - 1, with q the model of before the stage.
Every sample is used for one update, where the ratio of GRPO is 1 and its clipping does nothing.

Source: Rennie et al., "Self-critical sequence training for image captioning", CVPR 2017, Eq. 8; Shao et al.,
"DeepSeekMath", arXiv:2402.03300, Eq. 3 and 4.
Deviations: log-probabilities are of the temperature that is drawn at. Edited samples count like drawn ones, without
importance weights, and not in the divergence.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.study import NO_SECTION, join_sections, split_sections
from radweave.data.tokenizer import decode, encode
from radweave.drafting.candidates import Candidate, Sentence, SentenceLabels, compose
from radweave.engine.rewards import Floats, Rewards
from radweave.labels import Labeler
from radweave.labels.contradictions import takes_back
from radweave.labels.text import split_sentences
from radweave.methods.model import InputReader, ReportModel, required, writes_own
from radweave.methods.stage import RewardStageConfig
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.global_batch import count_over_batch, current_slice, mean_over_batch, of_first_rank
from radweave.nn.language_model import Decoder
from radweave.nn.prompt import Slot

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGGER: Final = logging.getLogger(__name__)
SAME: Final = 1e-9
"""Rewards that differ by less are equal."""


def refuse_wordless(model: ReportModel) -> None:
    """Refuse to reward a model without a language model.

    Raises:
        InputError: if no language model of it draws reports.
    """
    if not writes_own(model):
        reason = "there is no language model whose reports could be rewarded"
        raise InputError(reason, field="epochs", expected="0 for this model")


# Advantages.


def advantages(
    rewards: Float[Tensor, "studies samples"], likeliest: Float[Tensor, " studies"], algorithm: str
) -> tuple[Float[Tensor, "studies samples"], Bool[Tensor, " studies"]]:
    """Advantages of samples, and True for studies whose advantages are all 0: their samples say nothing."""
    if algorithm == "scst":
        compared = rewards - likeliest[:, None]
        constant = compared.abs().amax(1) < SAME
        return compared, constant
    constant = rewards.amax(1) - rewards.amin(1) < SAME
    deviation = rewards.std(1, correction=0, keepdim=True)
    compared = (rewards - rewards.mean(1, keepdim=True)) / deviation.masked_fill(constant[:, None], 1.0)
    return compared.masked_fill(constant[:, None], 0.0), constant


def surrogate(
    log_probs: Float[Tensor, "rows tokens"],
    mask: Bool[Tensor, "rows tokens"],
    weights: Float[Tensor, " rows"],
    algorithm: str,
) -> Float[Tensor, ""]:
    """The loss whose gradient is minus that of the expected reward, from rows with these advantages."""
    summed = (log_probs * mask).sum(1)
    per_row = summed if algorithm == "scst" else summed / mask.sum(1).clamp(min=1)
    return -(weights * per_row).mean()


def divergence(
    log_probs: Float[Tensor, "rows tokens"], before: Float[Tensor, "rows tokens"], mask: Bool[Tensor, "rows tokens"]
) -> Float[Tensor, ""]:
    """Mean over rows of the mean over tokens of q/p - log(q/p) - 1.

    The sum over the tokens of drawn reports is an unbiased estimate of KL(p || q). The gradient at given samples is,
    in expectation, that of KL(q || p) at every token, since p as what drew them is not differentiated.

    Source: Shao et al., arXiv:2402.03300, Eq. 4.
    """
    ratio = (before - log_probs).masked_fill(~mask, 0.0)
    return ((ratio.exp() - ratio - 1).sum(1) / mask.sum(1).clamp(min=1)).mean()


# Samples edited towards the reference, so that a group has something to learn from where all its samples say the same.


class Editor:
    """Edits reports towards references: one sentence put in, or one taken out."""

    def __init__(self, labeler: Labeler) -> None:
        self.labels = SentenceLabels(labeler)

    def edit(self, text: str, reference: str, draws: random.Random) -> str:
        """The text with one edit, drawn among those that there are; as it is where there is none.

        A sentence of the reference is put in that states a finding which the text does not state, in place of what
        denies it; where there is none, any that the text does not have. It comes into its own section, or into the
        first one of a text that lacks that. A sentence of the text is taken out that the reference takes back, or that
        takes back one of the reference.
        """
        own, wanted = _sentences(text, "report"), _sentences(reference, "finding")
        parts = {sentence.part for sentence in own}
        wanted = [one if one.part in parts or not own else replace(one, part=own[0].part) for one in wanted]
        self.labels.read(sentence.text for sentence in (*own, *wanted))
        edits = list(dict.fromkeys(filter(None, (*self._put_in(own, wanted), *self._taken_out(own, wanted)))))
        return draws.choice(edits) if edits else text

    def _put_in(self, own: Sequence[Sentence], wanted: Sequence[Sentence]) -> Iterator[str]:
        stated = {name for sentence in own for name in self.labels.affirmed(sentence.text)}
        missing = [sentence for sentence in wanted if self.labels.affirmed(sentence.text) - stated]
        if not missing:
            texts = {sentence.text for sentence in own}
            missing = [sentence for sentence in wanted if sentence.text not in texts]
        for sentence in missing:
            if not own:
                yield sentence.text
            yield compose(Candidate(tuple(own)), [sentence], self.labels, consistent=True).text

    def _taken_out(self, own: Sequence[Sentence], wanted: Sequence[Sentence]) -> Iterator[str]:
        for number, sentence in enumerate(own):
            if any(self._contradict(sentence.text, other.text) for other in wanted):
                yield Candidate((*own[:number], *own[number + 1 :])).text

    def _contradict(self, text: str, other: str) -> bool:
        labels = self.labels
        return (
            bool(labels.affirmed(text) & labels.denied(other) or labels.denied(text) & labels.affirmed(other))
            or takes_back(text, other)
            or takes_back(other, text)
        )


def _sentences(text: str, kind: Any) -> list[Sentence]:
    sections = split_sections(text)
    parts = sections if sections and join_sections(sections) == text else {NO_SECTION: text}
    return [
        Sentence(sentence, kind, -1, part) for part, content in parts.items() for sentence in split_sentences(content)
    ]


# The policy: log-probabilities of reports after a method's own inputs.


class SameReading:
    """Reader that withholds from the second pass over a batch what another reader withheld from the first."""

    def __init__(self, reader: InputReader) -> None:
        self.reader = reader
        self.withheld: dict[str, Bool[Tensor, " batch"]] = {}

    def __call__(self, name: str, slot: Slot) -> Slot:
        if name not in self.withheld:
            tokens, mask = self.reader(name, slot)
            self.withheld[name] = slot[1].any(1) & ~mask.any(1)
            return tokens, mask
        tokens, mask = slot
        return tokens, mask & ~self.withheld[name].to(mask.device)[:, None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Reports as token ids, right-padded, each with its end token unless it was cut; ``labels`` are -100 in padding.

    ``row`` is the study of each report.
    """

    ids: Tensor
    labels: Tensor
    row: list[int]

    @classmethod
    def of(cls, reports: Sequence[Sequence[int]], row: list[int], decoder: Decoder, most: int) -> Drawn:
        """Reports without end tokens. One of ``most`` tokens was cut there: that it would end was not drawn."""
        ended = [[*ids, decoder.eos_id] if len(ids) < most else list(ids) for ids in reports]
        width = max(map(len, ended))
        device = decoder.model.get_input_embeddings().weight.device
        ids = torch.tensor([[*one, *[decoder.pad_id] * (width - len(one))] for one in ended], device=device)
        labels = torch.tensor([[*one, *[-100] * (width - len(one))] for one in ended], device=device)
        return cls(ids, labels, row)

    @property
    def mask(self) -> Bool[Tensor, "rows tokens"]:
        return self.labels != -100

    def chosen(self, log_probs: Float[Tensor, "rows tokens words"]) -> Float[Tensor, "rows tokens"]:
        """The log-probability of each token."""
        return log_probs.gather(2, self.ids[:, :, None])[:, :, 0]


class Policy(nn.Module):
    """A model as what writes: the log-probabilities of all words at each token of reports, in evaluation mode."""

    def __init__(self, model: ReportModel, temperature: float) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(
        self, batch: Batch, drawn: Drawn, prefixes: Prefixes | None = None
    ) -> Float[Tensor, "rows tokens words"]:
        """``prefixes`` are those of the batch where they were computed before."""
        model: Any = self.model
        prompts = model.to_write(batch).prefixes if prefixes is None else prefixes
        logits = model.language_model.logits_after(prompts.only(drawn.row), drawn.ids, drawn.labels)
        log_probs: Tensor = (logits / self.temperature).log_softmax(-1)
        return _with_one_end(log_probs, getattr(model.language_model, "ends", ()), model.language_model.eos_id)


def _with_one_end(
    log_probs: Float[Tensor, "rows tokens words"], ends: Sequence[int], eos_id: int
) -> Float[Tensor, "rows tokens words"]:
    """Log-probabilities with those of all ends at ``eos_id``: a sample does not say by which one it ended."""
    if len(ends) < 2:
        return log_probs
    others = [end for end in ends if end != eos_id]
    together = log_probs[..., list(ends)].logsumexp(-1, keepdim=True)
    # Not minus infinity, of which the entropy has no number.
    log_probs = log_probs.index_fill(
        2, log_probs.new_tensor(others, dtype=torch.long), torch.finfo(log_probs.dtype).min
    )
    return log_probs.index_copy(2, log_probs.new_tensor([eos_id], dtype=torch.long), together)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within the block: no dropout, and running statistics stay."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(slots=True)
class RewardObjective:
    """The loss of a stage that rewards drafts, beside the terms that it weighs.

    ``priors`` has the report of the prior by study id. Random numbers come from torch's generator, which the loop seeds
    at every update; those of a study depend on its place in the global batch, whichever process draws them.
    """

    stage: RewardStageConfig
    rewards: Rewards
    tokenizer: PreTrainedTokenizerBase
    decoding: DecodingConfig
    editor: Editor
    priors: Mapping[str, str] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)

    def begin(self, model: ReportModel) -> None:
        """Keep the weights that are about to train, as they are before the stage."""
        if self.stage.kl:
            trained = ((name, value) for name, value in model.named_parameters() if value.requires_grad)
            self.before = {f"model.{name}": value.detach().clone() for name, value in trained}

    def __call__(self, model: ReportModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The surrogate loss of a batch, and figures: means over studies.

        Raises:
            InputError: if a reward is no finite number in [0, 1].
        """
        with evaluating(model), _same_reading(model):
            return self._loss(model, batch)

    def _loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        stage, studies = self.stage, len(batch)
        policy = Policy(model, stage.temperature)
        prefixes = model.to_write(batch).prefixes
        likeliest, samples, edited = self._draw(model.language_model, prefixes, required(batch.reports))
        parts, scores, baseline = self._reward(likeliest, samples, batch)
        device = prefixes.embeds.device
        compared, constant = advantages(
            torch.from_numpy(scores.reshape(studies, -1)), torch.from_numpy(baseline), stage.algorithm
        )
        if not count_over_batch(int((~constant).sum())):
            LOGGER.warning("an update learns nothing of its rewards: all samples of each of its studies have one")
        row = [study for study in range(studies) for _ in range(stage.samples)]
        drawn = Drawn.of([ids for ids, _ in samples], row, model.language_model, self.decoding.max_new_tokens)
        all_words = policy(batch, drawn, prefixes)
        log_probs, entropy, mask = drawn.chosen(all_words), _entropy(all_words.detach()), drawn.mask
        loss = surrogate(log_probs, mask, compared.flatten().to(device, log_probs.dtype), stage.algorithm)
        own = torch.tensor([not one for one in edited], device=device)
        kl = log_probs.new_zeros(())
        if self.before:
            with torch.no_grad():
                # Prefixes that nothing which trains has made are those of before.
                same = None if _has_gradient(prefixes) else prefixes
                reference = drawn.chosen(functional_call(policy, self.before, (batch, drawn, same)))
            kl = divergence(log_probs[own], reference[own], mask[own])
            loss = loss + stage.kl * kl
        drawn_only = np.array([not one for one in edited])
        texts = np.array([text for _, text in samples], dtype=object).reshape(studies, -1)
        chosen = drawn_only.reshape(studies, -1)
        distinct = [len({*texts[i][chosen[i]]}) / int(chosen[i].sum()) for i in range(studies)]
        figures: dict[str, float | Tensor] = {
            "reward": float(scores[drawn_only].mean()),
            **{f"reward_{name}": float(values[drawn_only].mean()) for name, values in parts.items()},
            "reward_likeliest": float(baseline.mean()),
            "kl": kl.detach(),
            "entropy": mean_over_batch((entropy[own] * mask[own]).sum(), mask[own].sum()),
            "length": mask[own].sum(1).double().mean(),
            "distinct": float(np.mean(distinct)),
            "constant": constant.double().mean(),
        }
        if stage.num_edited:
            figures["reward_edited"] = float(scores[~drawn_only].mean())
        return loss, {name: torch.as_tensor(value, dtype=torch.float64) for name, value in figures.items()}

    @torch.no_grad()
    def _draw(
        self, decoder: Any, prefixes: Prefixes, references: Sequence[str]
    ) -> tuple[list[str], list[tuple[list[int], str]], list[bool]]:
        """The likeliest text of each study; ids and text of every sample, and if it was edited."""
        stage = self.stage
        plain: dict[str, Any] = {"num_beams": 1, "top_p": 1.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
        plain |= {"min_new_tokens": 0, "temperature": stage.temperature, "compile": "none"}
        seed, edits = of_first_rank(torch.randint(1 << 31, (2,))).tolist()
        part = current_slice()
        begin = 0 if part is None else part.first
        decoding = self.decoding.model_copy(update=plain | {"seed": seed})
        with torch.random.fork_rng(devices=[]):
            drawn = decoder.write_draws([prefixes], decoding, stage.samples, numbered_from=begin)
        likeliest, samples, edited = [], [], []
        for study, (reports, reference) in enumerate(zip(drawn, references, strict=True), start=begin):
            draws = random.Random(edits + study)
            first, *others = [(ids, decode(self.tokenizer, ids)) for ids in reports]
            likeliest.append(first[1])
            for number, (ids, text) in enumerate(others):
                is_edited = number >= stage.samples - stage.num_edited
                samples.append(self._edited(ids, text, reference, draws) if is_edited else (ids, text))
                edited.append(is_edited)
        return likeliest, samples, edited

    def _edited(self, ids: list[int], text: str, reference: str, draws: random.Random) -> tuple[list[int], str]:
        """Ids and text of an edited sample; the reward reads no more of it than its ids say."""
        changed, most = self.editor.edit(text, reference, draws), self.decoding.max_new_tokens
        if changed == text:
            return ids, text
        whole = encode(self.tokenizer, changed)
        return whole[:most], changed if len(whole) <= most else decode(self.tokenizer, whole[:most])

    def _reward(
        self, likeliest: Sequence[str], samples: Sequence[tuple[list[int], str]], batch: Batch
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Rewards by name and in all of the samples, and in all of the likeliest reports."""
        texts = [*(text for _, text in samples), *likeliest]
        rows = [*(row for row in range(len(batch)) for _ in range(self.stage.samples)), *range(len(batch))]
        references, priors = required(batch.reports), [self.priors.get(name) for name in batch.study_ids]
        parts = self.rewards.parts(texts, [references[row] for row in rows], [priors[row] for row in rows])
        total, num = self.rewards.total(parts), len(samples)
        return {name: values[:num] for name, values in parts.items()}, total[:num], total[num:]


def _entropy(log_probs: Float[Tensor, "rows tokens words"]) -> Float[Tensor, "rows tokens"]:
    return -(log_probs.exp() * log_probs).sum(-1)


def _has_gradient(prefixes: Prefixes) -> bool:
    return prefixes.embeds.requires_grad or (prefixes.memory is not None and prefixes.memory.requires_grad)


@contextmanager
def _same_reading(model: ReportModel) -> Iterator[None]:
    """Within the block both passes over a batch read the same inputs."""
    with model.reading_by(None if model.reader is None else SameReading(model.reader)):
        yield
