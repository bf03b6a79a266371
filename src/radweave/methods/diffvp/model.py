"""DiffVP: what tells a scan from a normal one becomes a prompt, before the scan's own tokens, for a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from radweave.core.batch import Batch, Generation
from radweave.core.config import Config, Prompt, Seed
from radweave.core.errors import InputError
from radweave.core.evidence import DraftEvidence
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.data.tokenizer import encode
from radweave.methods.diffvp.diagnosis import Diagnosis, DiagnosisSetting, NoisyOrConfig
from radweave.methods.diffvp.difference import (
    Comparison,
    Difference,
    DifferenceConfig,
    DifferenceSetting,
    NoDifferenceConfig,
    importance_weights,
    top_share,
)
from radweave.methods.diffvp.pool import (
    POOL,
    STUDY_DRAW,
    PoolConfig,
    Reference,
    ReferencePool,
    build_pool,
    pixels_of,
    step_key,
    with_priors,
)
from radweave.methods.diffvp.resampling import Resampler, ResamplerConfig
from radweave.methods.experiment import BuildContext, EncoderFirstStages, Experiment, ModelConfig, Without
from radweave.methods.model import (
    WORDS_TERM,
    DecoderInput,
    ForwardPass,
    ReportModel,
    StudySize,
    Term,
    ToWrite,
    generation,
    losses,
    prompted_loss,
    prompted_nats,
    report_loss,
    required,
    text_loss,
    written,
)
from radweave.methods.stage import StageConfig, full
from radweave.nn.connector import Connector, ConnectorConfig, ViewTokens, encode_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.global_batch import gather_batch
from radweave.nn.heads import (
    FIRST_PRIOR,
    NoWordHeadConfig,
    Prior,
    UncertainPolicy,
    WordHeadConfig,
    WordPart,
    binary_loss,
    binary_targets,
    first_logit,
    noisy_or_logits,
)
from radweave.nn.language_model import CausalLanguageModel, LanguageModelConfig
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot, all_there, nothing
from radweave.nn.query_transformer import QueryOutput
from radweave.nn.text_pretraining import DiagnosisText, DiagnosisTextConfig, hint_generator, noisy_findings, word_hints
from radweave.nn.vision import InputSize, VisionEncoderConfig, VisionPart, tokens_of

if TYPE_CHECKING:
    from radweave.methods.model import Look, TrainingView

# Intermediate results of a batch before the decoder, as evidence for users.


def difference_maps(views: ViewTokens, comparison: Comparison) -> Float[Tensor, "batch views cells"]:
    """The weights of Eq. 6 through the attention of the latents they weigh: sum_i w_i A_i, over the cells of all views.

    Where pixels were subtracted that is the attention of the latents of the subtracted scan; a view that the reference
    does not have was not compared, and its map is 0. A study's map sums to 1; where nothing differs it is 0.
    """
    attention, compared = comparison.reading.attention.float(), comparison.views
    maps = (importance_weights(comparison.importance())[:, :, None] * attention).sum(1)
    maps = maps.view(*compared.view_mask.shape, -1)
    return F.pad(maps, (0, 0, 0, views.view_mask.shape[1] - compared.view_mask.shape[1]))


def class_evidence(
    classes: tuple[str, ...], logits: Float[Tensor, " known"], auxiliary: Float[Tensor, " classes"]
) -> DraftEvidence:
    """Probabilities of E and of the auxiliary head. Without E, which knows no class then, both are the latter's."""
    return {
        "class_probabilities": _named(classes, logits if len(logits) else auxiliary),
        "auxiliary_probabilities": _named(classes, auxiliary),
    }


def reference_evidence(views: ViewTokens, comparison: Comparison) -> list[DraftEvidence]:
    """Per study what it was compared with and where the two differ; nothing is recalled where there is no reference."""
    reference = comparison.reference
    shown: list[DraftEvidence] = [{"recalled": []} for _ in reference.drawn]
    if not bool(reference.present.any()):
        return shown
    importance = comparison.importance()
    maps, shares = difference_maps(views, comparison), top_share(importance)
    kind = "volume" if len(views.grid) == 3 else "image"
    for row in reference.present.nonzero().flatten().tolist():
        seen_map = maps[row][views.view_mask[row]].reshape(-1, *views.grid)
        scores = {"squared_distance": float(importance[row].sum())}
        shown[row] = {
            "token_importance": importance[row].tolist(),
            "top_8_share": float(shares[row]),
            "attention_maps": {"difference": seen_map.cpu().numpy()},
            MAP_KIND: "difference",
            "recalled": [
                {
                    "kind": kind,
                    "study_id": reference.drawn[row],
                    "scores": scores,
                    "is_prior": reference.is_prior[row],
                }
            ],
        }
    return shown


def _named(classes: tuple[str, ...], logits: Float[Tensor, " classes"]) -> dict[str, float]:
    return dict(zip(classes, logits.float().sigmoid().tolist(), strict=True))


# A classifier on tokens: of the encoder that starts from nothing, and of the latent tokens (Eq. 11).


Pooling = Literal["mean", "noisy_or"]


class ClassHead(nn.Module):
    """One logit per class: of the mean token, or by Noisy-OR of the logits of all tokens.

    Noisy-OR lets one token speak for a class, which suits findings that are small; a mean drowns them. It starts as
    ``nn.noisy_or.NoisyOrHead`` does.
    """

    def __init__(self, dim: int, num_classes: int, pooling: Pooling, *, prior: float, num_tokens: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)
        self.pooling = pooling
        if pooling == "noisy_or":
            nn.init.constant_(self.linear.bias, first_logit(prior, num_tokens))

    def forward(
        self, tokens: Float[Tensor, "batch tokens dim"], mask: Bool[Tensor, "batch tokens"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        present = tokens.new_ones(tokens.shape[:2]).bool() if mask is None else mask
        if self.pooling == "noisy_or":
            return noisy_or_logits(self.linear(tokens), present)
        weight = present.to(tokens.dtype)
        logits: Tensor = self.linear((tokens * weight[:, :, None]).sum(1) / weight.sum(1, keepdim=True))
        return logits


class ClassHeadConfig(Config):
    """Pooling of the tokens to a class's logit; ``prior`` is where a fresh Noisy-OR starts."""

    pooling: Pooling = "mean"
    prior: Prior = FIRST_PRIOR

    def build(self, dim: int, num_classes: int, num_tokens: int) -> ClassHead:
        return ClassHead(dim, num_classes, self.pooling, prior=self.prior, num_tokens=num_tokens)


# The stages that train the model.


class DiffvpStages(EncoderFirstStages):
    """An encoder from nothing; E; latents and a language model from nothing (each passed over with 0 epochs); reports.

    While reports are learned the encoder must be frozen, since the pool holds its tokens, and so must E.
    """

    vision: StageConfig
    diagnosis: StageConfig
    latents: StageConfig = StageConfig(
        finetune=full("resampler", "auxiliary_head"), losses={"auxiliary": 1.0}, epochs=0
    )
    language: StageConfig
    report: StageConfig

    @model_validator(mode="after")
    def _frozen_in_report(self) -> DiffvpStages:
        for part in ("vision_encoder", "diagnosis"):
            if part in self.report.trained:
                raise ValueError(f"stages.report.finetune.{part} must be frozen")
        return self


# Settings at test time: the reference pool, and the reference of each study.
#
# Source: the paper's Tables 5 and 7 to 10 (appendices C and F), which train nothing: pairings are drawn again, or the
# references are exchanged while the studies stay the same.


class AtTest(Config):
    """Settings of a trained run.

    ``pairing_seed`` decides which reference a study gets; null is the run's own seed. ``pool`` are the pool's options,
    which see. ``data`` is the folder of the data set that the references are of, null the one that is reported on;
    ``split`` its split: with ``test`` the references are images of the test split, as in the paper. ``noise`` is the
    deviation of Gaussian noise on the references' pixels, which lie in [0, 1]: with much of it nothing is left of
    them.
    """

    pairing_seed: Seed | None = None
    pool: PoolConfig = PoolConfig()
    data: str | None = None
    split: Literal["train", "test"] = "train"
    noise: float = Field(default=0.0, ge=0, le=10)


HINTS = {"missed": 0.3, "wrong": 0.05}
"""Noise of the findings in a context of text, about that of E."""
HINTED_WORDS = 0.15
"""The largest share of a report's words in it: of more, a small decoder need not read the findings."""


@dataclass
class Forward(ForwardPass["DiffvpModel"]):
    """One batch as the model sees it: tokens, latents, E's logits, and how it differs from the references.

    ``key`` decides the draw of references.
    """

    key: int

    @cached_property
    def latents(self) -> QueryOutput:
        latents: QueryOutput = self.model.resampler(self.views)
        return latents

    @cached_property
    def logits(self) -> Float[Tensor, "batch classes"]:
        """E's."""
        return self.model.diagnosis.logits(self.batch, self.views)

    @cached_property
    def comparison(self) -> Comparison:
        return self.model.difference.compare(self)

    @cached_property
    def prefix(self) -> Slot:
        """[Delta_prompt; I; E] in their slots of the prompt (Eq. 9)."""
        model, latents, logits, difference = self.model, self.latents.tokens, self.logits, self.comparison.slot()
        unknown = self.views.view_ids.new_zeros(len(latents))
        ids, mask = model.diagnosis.words(logits, model.diagnosis_text)
        slots = {
            "difference": self.decoder_input("difference", difference),
            "image": self.decoder_input("image", all_there(model.connector(latents, unknown))),
            "diagnosis": self.decoder_input("diagnosis", (model.language_model.embed(ids), mask)),
        }
        return self.spliced(model.prompt, slots)

    def read(self, views: ViewTokens | None = None) -> QueryOutput:
        """Latent tokens of these views, or of the scans themselves, and what each of them looked at."""
        latents: QueryOutput = self.latents if views is None else self.model.resampler(views)
        return latents

    def encode(self, pixels: ViewTokens) -> ViewTokens:
        """Tokens of views that are given as pixels."""
        encoded = self.model.vision_encoder(pixels.tokens[pixels.view_mask])
        tokens = encoded.tokens.new_zeros(*pixels.view_mask.shape, *encoded.tokens.shape[1:])
        tokens[pixels.view_mask] = encoded.tokens
        return ViewTokens(tokens, pixels.view_mask, pixels.view_ids, encoded.grid)

    def reference(self, *, pixels: bool = False) -> tuple[ViewTokens, Reference]:
        """The scans and a draw for each; the patient's own prior where there is one and the pool wants it."""
        pool, priors = self.model.pool, self.batch.priors
        target = pixels_of(self.batch) if pixels else self.views
        reference = pool.references(self.batch, target, self.key)
        if pool.config.use_prior and priors is not None:
            prior_views = pixels_of(priors) if pixels else encode_views(self.model.vision_encoder, priors)
            reference = with_priors(reference, prior_views, self.batch)
        return target, reference

    def disease(self) -> Tensor:
        return self._class_loss(self.model.vision_head(*self.views.flat()))

    def diagnosis(self) -> Tensor:
        labels = required(self.batch.class_labels)
        return self.model.diagnosis.loss(self.logits, labels, self.model.uncertain)

    def auxiliary(self) -> Tensor:
        return self._class_loss(self.model.auxiliary_head(self.latents.tokens))

    def contrast(self) -> Tensor:
        """Classes that a study has and the next one of the batch has not, by the head on I - I' of the two.

        Ours: in reports a study is compared with normal ones alone, so that no other loss asks what the reference
        shows. Here a finding that both studies have must not be left in their difference.
        """
        tokens, states = gather_batch(self.latents.tokens), gather_batch(required(self.batch.class_labels))
        targets, known = binary_targets(states, self.model.uncertain)
        alone, both_known = targets * (1 - targets.roll(-1, 0)), known & known.roll(-1, 0)
        logits = self.model.auxiliary_head(tokens - tokens.roll(-1, 0))
        errors = F.binary_cross_entropy_with_logits(logits, alone.to(logits.dtype), reduction="none")
        return (errors * both_known).sum() / both_known.sum().clamp(min=1)

    def text_in_context(self) -> Tensor:
        """Report after a context of text: some of its words where the scan will stand, and findings as E will name
        them.
        """
        model, batch = self.model, self.batch
        generator = hint_generator(model.language_model.training)
        ids, mask = word_hints(required(batch.labels), generator, largest_share=HINTED_WORDS)
        names, name_mask = model.diagnosis_text.tokens(
            noisy_findings(required(batch.class_labels), model.uncertain, generator, **HINTS)
        )
        embed = model.language_model.embed
        hints = embed(ids), mask
        slots = {"difference": nothing(hints), "image": hints, "diagnosis": (embed(names), name_mask)}
        return prompted_loss(self, self.spliced(model.prompt, slots))

    def difference_maps(self) -> Float[Tensor, "batch views cells"]:
        """Map of the difference of each scan from its reference."""
        return difference_maps(self.views, self.comparison)

    def evidence(self) -> list[DraftEvidence]:
        """Evidence of each study."""
        auxiliary = self.model.auxiliary_head(self.latents.tokens)
        compared = reference_evidence(self.views, self.comparison)
        return [
            class_evidence(self.model.classes, self.logits[row], auxiliary[row]) | shown
            for row, shown in enumerate(compared)
        ]

    def _class_loss(self, logits: Float[Tensor, "batch classes"]) -> Tensor:
        return binary_loss(logits, required(self.batch.class_labels), self.model.uncertain)


INPUTS = {
    "difference": DecoderInput(
        "difference prompt (global and local delta)",
        covered_by=("image",),
        because="it is what sets the target's own image apart, and the decoder sees that image beside it",
    ),
    "image": DecoderInput("latent tokens of the target"),
    "diagnosis": DecoderInput("findings of the classifier E, in words"),
}
TERMS: Mapping[str, Term[Forward]] = {
    "text": Term(("language_model",), text_loss),
    "text_in_context": Term(("language_model",), Forward.text_in_context),
    "disease": Term(("vision_encoder", "vision_head"), Forward.disease),
    "diagnosis": Term(("vision_encoder", "diagnosis"), Forward.diagnosis),
    "words": WORDS_TERM,
    "auxiliary": Term(("vision_encoder", "resampler", "auxiliary_head"), Forward.auxiliary),
    "contrast": Term(("vision_encoder", "resampler", "auxiliary_head"), Forward.contrast),
    "report": Term(
        ("vision_encoder", "diagnosis", "pool", "resampler", "difference", "connector", "language_model"), report_loss
    ),
}


@dataclass(eq=False, repr=False, kw_only=True)
class DiffvpModel(ReportModel):
    """A target X and a normal reference X_r, compared among n latent tokens each.

        I, I_r = Resampler(E(X)), Resampler(E(X_r))                                              (Eq. 3)
        Delta_prompt = Generator([global delta; local delta])(I, I_r)                            (Eq. 4-8)
        report ~ LM([Delta_prompt; P I; diagnosis in words; instruction])                        (Eq. 9-10)

    The tokens of all views of a study stand in one row; a CT scan is one view. Deviations: docs/methods/diffvp.md.
    """

    vision_encoder: VisionPart
    vision_head: ClassHead
    word_head: WordPart
    diagnosis: Diagnosis
    pool: ReferencePool
    resampler: Resampler
    difference: Difference
    auxiliary_head: ClassHead
    connector: Connector
    language_model: CausalLanguageModel
    prompt: PromptTemplate
    diagnosis_text: DiagnosisText
    classes: tuple[str, ...]
    uncertain: UncertainPolicy
    terms = TERMS
    inputs = INPUTS

    @property
    def absent_inputs(self) -> frozenset[str]:
        tokens = {
            "difference": self.difference.prompt_tokens,
            "diagnosis": self.diagnosis.longest(self.diagnosis_text),
        }
        return frozenset(name for name, most in tokens.items() if not most)

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses of the encoder (``disease``, ``words``), of E (``diagnosis``), of a language model from nothing
        (``text``, ``text_in_context``), and of the method: ``report`` per token (Eq. 10) and ``auxiliary``, binary
        cross-entropy of a head on the latent tokens (Eq. 11); ``contrast``, the same head on differences of studies.
        """
        # A draw that no term asks for would give a stage that methods share other random numbers.
        drawn = any("pool" in self.terms[name].reads for name in terms if name in self.terms)
        key = step_key() if drawn and self.training and self.pool.config.redraw else STUDY_DRAW
        return losses(self.terms, Forward(self, batch, key), terms)

    def class_logits(self, batch: Batch) -> Tensor:
        """Logits of E for each class (B, K); without E, of the auxiliary head."""
        forward = Forward(self, batch, STUDY_DRAW)
        logits: Tensor = forward.logits if forward.logits.shape[1] else self.auxiliary_head(forward.latents.tokens)
        return logits

    def prompt_tokens(self, study: StudySize) -> int:
        """The prompt with [Delta_prompt; I; E] and the words of all classes."""
        slots = {
            "image": len(self.resampler.transformer.queries),
            "difference": self.difference.prompt_tokens,
            "diagnosis": self.diagnosis.longest(self.diagnosis_text),
        }
        return self.prompt.length(slots, study.context)

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return prompted_nats(Forward(self, batch, STUDY_DRAW))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: E's probabilities, importance of the latent tokens and where they look
        (``attention_maps``: difference), and the reference that was used.
        """
        return generation(self, batch, decoding)

    def to_write(self, batch: Batch) -> ToWrite:
        """Prefixes of the reports of a batch."""
        forward = Forward(self, batch, STUDY_DRAW)
        return ToWrite(Prefixes(*forward.prefix), lambda ids, log_probs: written(ids, log_probs, forward.evidence()))

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The resampler gets the scale of the tokens; before reports, E gets its thresholds and the pool is filled."""
        if stage in ("latents", "report"):
            device = self.resampler.mean.device
            self.resampler.calibrate(encode_views(self.encoder, batch.to(device)) for batch in training.batches())
        if stage != "report":
            return {}
        self.diagnosis.fit(training, self.encoder, self.uncertain)
        self.pool.seed.fill_(training.seed)
        return self.difference.banks(partial(build_pool, training, self.encoder, self.pool.config))

    @property
    def settings(self) -> AtTest:
        """The run's settings of the reference draws."""
        return AtTest(pool=self.pool.config)

    @torch.no_grad()
    def vary(self, settings: AtTest, look: Look) -> None:
        """Draw references otherwise: of another pool, by another seed, or both.

        Raises:
            InputError: if the run has no references, or there is none such.
        """
        if not self.pool.rows:
            raise InputError("the run compares with no reference", field="model.difference")
        pairing = int(self.pool.seed) if settings.pairing_seed is None else settings.pairing_seed
        if settings.model_copy(update={"pairing_seed": None}) != self.settings:
            source = look(settings.data, settings.split)
            build = partial(build_pool, source, self.encoder, settings.pool, noise=settings.noise)
            self.pool.config = settings.pool
            self.set_memories(self.difference.banks(build))
        self.pool.seed.fill_(pairing)

    def memory_layouts(self) -> Mapping[str, BankLayout]:
        """The pool, unless nothing is compared."""
        return self.difference.layouts(self.vision_encoder.dim)

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the pool."""
        if POOL in banks:
            self.pool.remember(banks[POOL])


class DiffvpModelConfig(ModelConfig):
    """Parts of the model.

    ``prompt`` has the slots ``{difference}``, ``{image}`` (the latent tokens I) and ``{diagnosis}``. ``uncertain`` says
    what an uncertain label counts as: for all classifiers, for E's thresholds, and for the findings in a context of
    text. A study with one is not normal whatever it says.
    """

    vision_encoder: VisionEncoderConfig
    vision_head: ClassHeadConfig = ClassHeadConfig()
    uncertain: UncertainPolicy = "negative"
    word_head: WordHeadConfig = NoWordHeadConfig()
    diagnosis: DiagnosisSetting = NoisyOrConfig()
    diagnosis_text: DiagnosisTextConfig = DiagnosisTextConfig()
    pool: PoolConfig = PoolConfig()
    resampler: ResamplerConfig = ResamplerConfig()
    difference: DifferenceSetting = DifferenceConfig()
    auxiliary_head: ClassHeadConfig = ClassHeadConfig()
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    prompt: Prompt
    prompt_format: PromptFormat = "plain"

    def without_memories(self) -> Without:
        """Without references, and so without the prompt of differences."""
        if "difference" in self.absent:
            return Without(self)
        bare = self.model_copy(update={"difference": NoDifferenceConfig()})
        return Without(bare, ("no study is compared with a normal training study, nor with its own prior",))

    def build(self, context: BuildContext) -> DiffvpModel:
        encoder, part = context.vision_encoder(self.vision_encoder), context.part
        language_model = part("language_model", lambda: self.language_model.build(**context.words))
        resampler = part("resampler", lambda: self.resampler.build(encoder.dim))
        dim, latent_dim, width, classes = encoder.dim, resampler.dim, language_model.width, context.classes
        latents = self.resampler.num_latents
        size = InputSize(context.image_size, context.volume_size)
        saved, tokens = context.saved("diagnosis"), tokens_of(encoder, size)
        return DiffvpModel(
            vision_encoder=encoder,
            vision_head=part("vision_head", lambda: self.vision_head.build(dim, len(classes), tokens)),
            word_head=context.word_head(self.word_head, dim),
            diagnosis=part("diagnosis", lambda: self.diagnosis.build(len(classes), encoder, size, saved)),
            pool=self.pool.build(),
            resampler=resampler,
            difference=part("difference", lambda: self.difference.build(latent_dim, width)),
            auxiliary_head=part("auxiliary_head", lambda: self.auxiliary_head.build(latent_dim, len(classes), latents)),
            connector=part("connector", lambda: self.connector.build(latent_dim, width)),
            language_model=language_model,
            prompt=context.prompt(self.prompt, self.prompt_format, "difference", "image", "diagnosis"),
            diagnosis_text=self.diagnosis_text.build(partial(encode, context.tokenizer), classes),
            classes=classes,
            uncertain=self.uncertain,
        )


class DiffvpExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["diffvp"] = "diffvp"
    model: DiffvpModelConfig
    stages: DiffvpStages
