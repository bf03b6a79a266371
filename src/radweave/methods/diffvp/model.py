"""DiffVP: what tells a scan from a normal one becomes a prompt, before the scan's own tokens, for a language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from radweave.config import Config
from radweave.data.tokenizer import encode
from radweave.experiment import BuildContext, Experiment
from radweave.memory.bank import Bank
from radweave.methods.diffvp.diagnosis import (
    Diagnosis,
    DiagnosisSetting,
    DiagnosisText,
    DiagnosisTextConfig,
    NoDiagnosis,
    NoisyOrConfig,
    NoisyOrDiagnosis,
    noisy_findings,
)
from radweave.methods.diffvp.difference import (
    Difference,
    DifferenceConfig,
    DifferenceSetting,
    NoDifference,
    PixelDifference,
)
from radweave.methods.diffvp.evidence import StudyReading
from radweave.methods.diffvp.heads import ClassHead, ClassHeadConfig
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
from radweave.methods.diffvp.stages import DiffvpStages
from radweave.nn.connector import Connector, ConnectorConfig
from radweave.nn.language_model import CausalLanguageModel, DecodingConfig, LanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.query_transformer import QueryOutput
from radweave.nn.supervision import UncertainPolicy, binary_loss
from radweave.nn.text_pretraining import hint_generator, word_hints
from radweave.nn.views import ViewTokens, encode_views
from radweave.nn.vision import VisionEncoderConfig
from radweave.nn.word_head import NoWordHead, NoWordHeadConfig, WordHead, WordHeadConfig
from radweave.train.stage import check_terms
from radweave.types import Batch, Generation

if TYPE_CHECKING:
    from radweave.train.view import TrainingView

SLOTS = ("difference", "image", "diagnosis")
IMAGE_TERMS = frozenset({"disease", "words", "diagnosis", "auxiliary", "report"})
HINTS = {"missed": 0.3, "wrong": 0.05}
"""How unreliable the findings are that stand in a context of text: about as unreliable as E's."""
HINTED_WORDS = 0.15
"""The largest share of a report's words in it: of more, a small decoder need not read the findings."""


class DiffvpModel(nn.Module):
    """A target X and a normal reference X_r, compared among n latent tokens each.

        I, I_r = Resampler(E(X)), Resampler(E(X_r))                                              (Eq. 3)
        Delta_prompt = Generator([global delta; local delta])(I, I_r)                            (Eq. 4-8)
        report ~ LM([Delta_prompt; P I; diagnosis in words; instruction])                        (Eq. 9-10)

    The tokens of all views of a study stand in one row; a CT scan is one view. Deviations: docs/methods/diffvp.md.
    """

    LOSS_PARTS: ClassVar[dict[str, tuple[str, ...]]] = {
        "disease": ("vision_encoder", "vision_head"),
        "words": ("vision_encoder", "word_head"),
        "diagnosis": ("vision_encoder", "diagnosis"),
        "text": ("language_model",),
        "text_in_context": ("language_model",),
        "auxiliary": ("vision_encoder", "resampler", "auxiliary_head"),
        "report": (
            "vision_encoder",
            "diagnosis",
            "pool",
            "resampler",
            "difference",
            "connector",
            "language_model",
        ),
    }

    def __init__(
        self,
        *,
        vision_encoder: nn.Module,
        vision_head: ClassHead,
        word_head: WordHead | NoWordHead,
        diagnosis: Diagnosis,
        pool: ReferencePool,
        resampler: Resampler,
        difference: Difference,
        auxiliary_head: ClassHead,
        connector: Connector,
        language_model: CausalLanguageModel,
        prompt: PromptTemplate,
        diagnosis_text: DiagnosisText,
        classes: tuple[str, ...],
        uncertain: UncertainPolicy,
    ) -> None:
        super().__init__()
        self.vision_encoder = vision_encoder
        self.vision_head = vision_head
        self.word_head = word_head
        self.diagnosis = diagnosis
        self.pool = pool
        self.resampler = resampler
        self.difference = difference
        self.auxiliary_head = auxiliary_head
        self.connector = connector
        self.language_model = language_model
        self.prompt = prompt
        self.diagnosis_text = diagnosis_text
        self.classes = classes
        self.uncertain = uncertain

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses of the encoder (``disease``, ``words``), of E (``diagnosis``), of a language model from nothing
        (``text``, ``text_in_context``), and of the method: ``report`` per token (Eq. 10) and ``auxiliary``, binary
        cross-entropy of a head on the latent tokens (Eq. 11).
        """
        check_terms(terms, tuple(self.LOSS_PARTS))
        assert batch.input_ids is not None
        assert batch.labels is not None
        losses: dict[str, Tensor] = {}
        if "text" in terms:
            losses["text"] = self.language_model.text_loss(batch.input_ids, batch.labels)
        if "text_in_context" in terms:
            losses["text_in_context"] = self._text_in_context_loss(batch)
        if not IMAGE_TERMS & set(terms):
            return losses
        key = step_key() if self.resampler.training else STUDY_DRAW
        views = encode_views(self.vision_encoder, batch)
        losses |= self._class_losses(batch, views, terms)
        if "words" in terms:
            losses["words"] = self.word_head.loss(views.tokens, views.view_mask, batch.labels)
        if {"auxiliary", "report"} & set(terms):
            latents = self.resampler(views)
            if "auxiliary" in terms:
                losses["auxiliary"] = self._class_loss(batch, self.auxiliary_head(latents.tokens))
            if "report" in terms:
                prefix, mask = self._prefix(self._study(batch, views, latents, key))
                losses["report"] = self.language_model.loss(prefix, mask, batch.input_ids, batch.labels)
        return losses

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: E's probabilities, importance of the latent tokens and where they look
        (``attention_maps``: difference), and the reference that was used.
        """
        views = encode_views(self.vision_encoder, batch)
        study = self._study(batch, views, self.resampler(views), STUDY_DRAW)
        prefix, mask = self._prefix(study)
        ids, log_probs = self.language_model.generate(prefix, mask, decoding)
        auxiliary = self.auxiliary_head(study.latents.tokens)
        evidence = [
            {"token_log_probs": values, **study.evidence(row, self.classes, auxiliary)}
            for row, values in enumerate(log_probs)
        ]
        return Generation(token_ids=ids, intermediates=evidence)

    @torch.no_grad()
    def build_memories(self, stage: str, training: TrainingView) -> dict[str, Bank]:
        """The resampler gets the scale of the tokens; before reports, E gets its thresholds and the pool is filled."""
        if stage in ("latents", "report"):
            self.resampler.calibrate(self._all_tokens(training))
        if stage != "report":
            return {}
        if not isinstance(self.diagnosis, NoDiagnosis):
            self.diagnosis.fit_thresholds(self._all_logits(self.diagnosis, training), training.class_states)
        self.pool.seed.fill_(training.seed)
        if isinstance(self.difference, NoDifference):
            return {}
        bank = build_pool(training, self.vision_encoder, self.pool.config, pixels=self.difference.in_pixels)
        return {POOL: bank}

    def set_memories(self, banks: Mapping[str, Bank]) -> None:
        """Take the pool."""
        if POOL in banks:
            self.pool.remember(banks[POOL])

    def _all_tokens(self, training: TrainingView) -> Iterator[ViewTokens]:
        device = self.resampler.mean.device
        for batch in training.batches():
            yield encode_views(self.vision_encoder, batch.to(device))

    def _all_logits(self, diagnosis: NoisyOrDiagnosis, training: TrainingView) -> Float[Tensor, "studies classes"]:
        """E's logits of the training split."""
        own = diagnosis.encoder is not None
        device = self.resampler.mean.device
        logits = []
        for batch in training.batches(pixels=own):
            moved = batch.to(device)
            views = encode_views(self.vision_encoder, moved)
            logits.append(diagnosis.logits(moved, views).cpu())
        return torch.cat(logits)

    def _class_loss(self, batch: Batch, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
        assert batch.class_labels is not None
        return binary_loss(logits, batch.class_labels, self.uncertain)

    def _class_losses(self, batch: Batch, views: ViewTokens, terms: Sequence[str]) -> dict[str, Tensor]:
        losses = {}
        if "disease" in terms:
            losses["disease"] = self._class_loss(batch, self.vision_head(*views.flat()))
        if "diagnosis" in terms:
            losses["diagnosis"] = views.tokens.new_zeros(())
            if not isinstance(self.diagnosis, NoDiagnosis):
                losses["diagnosis"] = self._class_loss(batch, self.diagnosis.logits(batch, views))
        return losses

    def _text_in_context_loss(self, batch: Batch) -> Tensor:
        """Report after a context of text: some of its words where the scan will stand, and findings as E will name
        them.
        """
        assert batch.input_ids is not None
        assert batch.labels is not None
        assert batch.class_labels is not None
        generator = hint_generator(self.language_model.training)
        ids, mask = word_hints(batch.labels, generator, largest_share=HINTED_WORDS)
        names, name_mask = self.diagnosis_text.tokens(noisy_findings(batch.class_labels, generator, **HINTS))
        embed = self.language_model.embed
        hints = embed(ids), mask
        slots = {"difference": _nothing(hints), "image": hints, "diagnosis": (embed(names), name_mask)}
        prefix, prefix_mask = self.prompt.splice(embed, slots)
        return self.language_model.loss(prefix, prefix_mask, batch.input_ids, batch.labels)

    def _study(self, batch: Batch, views: ViewTokens, latents: QueryOutput, key: int) -> StudyReading:
        logits = None if isinstance(self.diagnosis, NoDiagnosis) else self.diagnosis.logits(batch, views)
        if isinstance(self.difference, NoDifference):
            return StudyReading(views, latents, logits)
        if isinstance(self.difference, PixelDifference):
            return self._compare_pixels(self.difference, batch, StudyReading(views, latents, logits), key)
        reference = self._reference(batch, views, key)
        compared = self.resampler(reference.views).tokens
        prompt = self.difference(latents.tokens, compared)
        return StudyReading(views, latents, logits, reference, compared, prompt)

    def _reference(self, batch: Batch, values: ViewTokens, key: int) -> Reference:
        """A draw for each study; the patient's own prior where there is one and the pool wants it."""
        reference = self.pool.references(batch, values, key)
        if not self.pool.config.use_prior or batch.priors is None:
            return reference
        if self.difference.in_pixels:
            return with_priors(reference, pixels_of(batch.priors), batch)
        return with_priors(reference, encode_views(self.vision_encoder, batch.priors), batch)

    def _compare_pixels(self, difference: PixelDifference, batch: Batch, study: StudyReading, key: int) -> StudyReading:
        """(X - X_r + 1) / 2, over the views that both have, through encoder and resampler."""
        target = pixels_of(batch)
        reference = self._reference(batch, target, key)
        number = min(target.tokens.shape[1], reference.views.tokens.shape[1])
        shared = target.view_mask[:, :number] & reference.views.view_mask[:, :number]
        subtracted = (target.tokens[:, :number] - reference.views.tokens[:, :number] + 1) / 2
        encoded = self.vision_encoder(subtracted[shared])
        tokens = encoded.tokens.new_zeros(*shared.shape, *encoded.tokens.shape[1:])
        tokens[shared] = encoded.tokens
        residuals = self.resampler(ViewTokens(tokens, shared, target.view_ids[:, :number], encoded.grid)).tokens
        return replace(
            study,
            reference=reference,
            compared=torch.zeros_like(residuals),
            prompt=difference(residuals),
            residuals=residuals,
        )

    def _prefix(self, study: StudyReading) -> tuple[Float[Tensor, "batch prefix width"], Bool[Tensor, "batch prefix"]]:
        """[Delta_prompt; I; E] in their slots of the prompt (Eq. 9)."""
        unknown = study.views.view_ids.new_zeros(len(study.latents.tokens))
        image = _all_there(self.connector(study.latents.tokens, unknown))
        slots = {"image": image, "difference": _nothing(image), "diagnosis": _nothing(image)}
        if study.prompt is not None and study.reference is not None:
            there = study.reference.there[:, None].expand(study.prompt.shape[:2])
            slots["difference"] = study.prompt, there
        if not isinstance(self.diagnosis, NoDiagnosis) and study.logits is not None:
            ids, mask = self.diagnosis_text.tokens(self.diagnosis.found(study.logits))
            slots["diagnosis"] = self.language_model.embed(ids), mask
        return self.prompt.splice(self.language_model.embed, {name: slots[name] for name in ("image", *SLOTS)})


def _all_there(tokens: Float[Tensor, "batch tokens width"]) -> Slot:
    return tokens, torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)


def _nothing(like: Slot) -> Slot:
    return like[0][:, :0], like[1][:, :0]


class DiffvpModelConfig(Config):
    """Parts of the model.

    ``prompt`` has the slots ``{difference}``, ``{image}`` (the latent tokens I) and ``{diagnosis}``. ``uncertain`` says
    what an uncertain label counts as for all classifiers.
    """

    vision_encoder: VisionEncoderConfig
    vision_head: ClassHeadConfig = ClassHeadConfig()
    word_head: WordHeadConfig = NoWordHeadConfig()
    diagnosis: DiagnosisSetting = NoisyOrConfig()
    diagnosis_text: DiagnosisTextConfig = DiagnosisTextConfig()
    pool: PoolConfig = PoolConfig()
    resampler: ResamplerConfig = ResamplerConfig()
    difference: DifferenceSetting = DifferenceConfig()
    auxiliary_head: ClassHeadConfig = ClassHeadConfig()
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    prompt: str
    prompt_format: PromptFormat = "plain"
    uncertain: UncertainPolicy = "negative"

    def build(self, context: BuildContext) -> DiffvpModel:
        """Compose the model; each part starts from its own random numbers."""
        tokenizer, num_classes = context.tokenizer, len(context.classes)
        with context.seeded("vision_encoder"):
            vision_encoder = self.vision_encoder.build(context.image_size, saved=context.saved("vision_encoder"))
        with context.seeded("language_model"):
            language_model = self.language_model.build(
                vocab_size=len(tokenizer),
                bos_id=tokenizer.bos_token_id,
                eos_id=tokenizer.eos_token_id,
                pad_id=tokenizer.pad_token_id,
                saved=context.saved("language_model"),
            )
        source_dim, width = vision_encoder.dim, language_model.width

        with context.seeded("vision_head"):
            vision_head = self.vision_head.build(source_dim, num_classes)
        with context.seeded("word_head"):
            word_head = self.word_head.build(source_dim, len(tokenizer))
        with context.seeded("diagnosis"):
            diagnosis = self.diagnosis.build(num_classes, source_dim, context.image_size, context.saved("diagnosis"))
        with context.seeded("resampler"):
            resampler = self.resampler.build(source_dim)
        with context.seeded("difference"):
            difference = self.difference.build(resampler.dim, width)
        with context.seeded("auxiliary_head"):
            auxiliary_head = self.auxiliary_head.build(resampler.dim, num_classes)
        with context.seeded("connector"):
            connector = self.connector.build(resampler.dim, width)
        return DiffvpModel(
            vision_encoder=vision_encoder,
            vision_head=vision_head,
            word_head=word_head,
            diagnosis=diagnosis,
            pool=self.pool.build(),
            resampler=resampler,
            difference=difference,
            auxiliary_head=auxiliary_head,
            connector=connector,
            language_model=language_model,
            prompt=PromptTemplate.for_tokenizer(self.prompt, tokenizer, self.prompt_format, slots=SLOTS),
            diagnosis_text=self.diagnosis_text.build(partial(encode, tokenizer), context.classes),
            classes=context.classes,
            uncertain=self.uncertain,
        )


class DiffvpExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["diffvp"] = "diffvp"
    model: DiffvpModelConfig
    stages: DiffvpStages
