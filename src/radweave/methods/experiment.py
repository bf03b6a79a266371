"""The experiment: one record of everything that makes a run, written resolved into the run folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from radweave.core.config import MAX_TOKENS, Config, Count, Seed, Views
from radweave.core.ontology import LabelSetName
from radweave.core.storage import sha256_json
from radweave.core.study import Modality, TargetText
from radweave.data.augmentation import AugmentationConfig, LightAugmentation, NoAugmentation
from radweave.data.ct import CtPreprocessing
from radweave.data.loader import ShuffleAll, ShuffleConfig
from radweave.data.targets import InputSection, refuse_target_in_context
from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig, TokenizerConfig, spare_words
from radweave.methods.model import ReportModel
from radweave.methods.outside import code_of, load_loss, outside_losses, outside_rewards
from radweave.methods.registry import load_method, outside_entry
from radweave.methods.renamed import rename_keys
from radweave.methods.stage import (
    REWARD,
    OptimizerConfig,
    PlaceStageConfig,
    RewardStageConfig,
    StageConfig,
    Trainability,
    full,
)
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.heads import WordHeadConfig, WordPart
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.text_encoder import TextEncoderConfig, TextPart
from radweave.nn.vision import VISION_RECORDS, AnyVisionConfig, VisionEncoderConfig, VisionPart
from radweave.nn.vision.pretrained import STATED
from radweave.nn.vision.resnet3d import PHANTOM_ENCODER_3D

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from transformers import PreTrainedTokenizerBase

Part = TypeVar("Part")


class DataConfig(Config):
    """Settings of data and batches.

    Radiographs are fitted into squares of ``image_size`` pixels. ``ct`` says how scans are prepared; an experiment with
    ``ct.size`` reads CT volumes instead of radiographs.
    ``max_tokens`` counts the report's tokens and its end token. ``hidden_views`` is the share of training studies
    whose view kinds are hidden, since files in use often do not state theirs. A share ``dropped_views`` of those with
    several views loses one where a stage augments, since often only one is taken.
    ``label_unlabeled`` lets the rule-based
    labeler read the label states of studies that come without. ``priors`` gives a model that can use it the patient's
    study before, from the same split. ``keep_features`` and ``keep_stages`` keep what a frozen encoder gives, and
    trained stages, in the data set's cache for the runs that follow. ``limit`` trains on so many studies and validates
    on as many, spread evenly over each split, for a quick try. ``shuffle`` is the order of an epoch's studies:
    ``blocks`` reads a cache that is larger than the memory from front to back, a stretch at a time. ``workers``
    processes on each rank read and augment batches ahead; the batches are the same bits as with none.
    ``target`` is the text to learn, where it is another than that of the import: ``both`` has findings and impression,
    each under its heading. ``input_sections`` are told to the language model before its prompt, in at most
    ``input_tokens`` tokens: indication, technique, and for an impression the findings. A share ``hidden_sections`` of
    training studies is told nothing, since in use there often is nothing to tell.
    """

    image_size: int = Field(default=128, ge=16, le=2048)
    ct: CtPreprocessing = CtPreprocessing()
    max_views: Views = 2
    max_tokens: int = Field(default=128, ge=2, le=MAX_TOKENS)
    tokenizer: TokenizerConfig = BpeTokenizerConfig()
    augmentation: AugmentationConfig = NoAugmentation()
    hidden_views: float = Field(default=0.2, ge=0, le=1)
    dropped_views: float = Field(default=0.0, ge=0, le=1)
    label_set: LabelSetName = "chexpert14"
    label_unlabeled: bool = True
    priors: bool = False
    keep_features: bool = True
    keep_stages: bool = True
    limit: Count | None = None
    shuffle: ShuffleConfig = ShuffleAll()
    workers: int = Field(default=0, ge=0, le=64)
    target: TargetText | Literal["as_imported"] = "as_imported"
    input_sections: tuple[InputSection, ...] = ()
    input_tokens: int = Field(default=64, ge=1, le=MAX_TOKENS)
    hidden_sections: float = Field(default=0.2, ge=0, le=1)

    @model_validator(mode="after")
    def _one_channel(self) -> DataConfig:
        if self.ct.channels != 1:
            raise ValueError("ct.channels must be 1: the vision encoder repeats the scan for its own channels")
        return self

    @model_validator(mode="after")
    def _does_not_tell_what_it_writes(self) -> DataConfig:
        if len(set(self.input_sections)) < len(self.input_sections):
            raise ValueError("input_sections: a section stands there twice")
        if self.target != "as_imported":  # else the data set says what it is
            refuse_target_in_context(self.input_sections, self.target)
        return self

    @property
    def modality(self) -> Modality:
        """Modality of the images."""
        return "xray" if self.ct.size is None else "ct"


class Words(TypedDict):
    """Vocabulary and special ids of the tokenizer, and the saved shape of a run that is restored.

    The last ``spare`` words of the vocabulary are in no report and no prompt.
    """

    vocab_size: int
    spare: int
    bos_id: int | None
    eos_id: int
    pad_id: int
    saved: Path | None


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Input to build a model from outside its configuration to be built.

    ``parts`` is set when a run is restored: the folder with the shapes of its pretrained parts. ``seed`` decides how
    parts start that are made from nothing. ``volume_size`` (D, H, W) is set where the model reads scans. ``priors``:
    studies come with their prior study, where there is one.
    """

    tokenizer: PreTrainedTokenizerBase
    image_size: int
    classes: tuple[str, ...] = ()
    parts: Path | None = None
    seed: int = 0
    volume_size: tuple[int, int, int] | None = None
    priors: bool = True

    def part(self, name: str, build: Callable[[], Part]) -> Part:
        """Build a part of the model; how it starts does not depend on the other parts."""
        with self.seeded(name):
            return build()

    def vision_encoder(self, record: VisionEncoderConfig) -> VisionPart:
        """Build the vision encoder; a restored run takes its shape from there."""
        name = "vision_encoder"
        return self.part(name, lambda: record.build(self.image_size, saved=self.saved(name)))

    def text_encoder(self, record: TextEncoderConfig) -> TextPart:
        """Build the text encoder."""
        name = "text_encoder"
        return self.part(name, lambda: record.build(saved=self.saved(name)))

    @property
    def words(self) -> Words:
        """Vocabulary of a language model that is built."""
        tokenizer = self.tokenizer
        return {
            "vocab_size": len(tokenizer),
            "spare": spare_words(tokenizer),
            "bos_id": tokenizer.bos_token_id,
            "eos_id": tokenizer.eos_token_id,
            "pad_id": tokenizer.pad_token_id,
            "saved": self.saved("language_model"),
        }

    def word_head(self, record: WordHeadConfig, dim: int) -> WordPart:
        """Build the head that learns from the report's words."""
        size = len(self.tokenizer), len(self.classes)
        return self.part("word_head", lambda: record.build(dim, *size))

    def prompt(self, template: str, prompt_format: PromptFormat, *slots: str) -> PromptTemplate:
        """Parse a prompt with these slots for the tokenizer."""
        return PromptTemplate.for_tokenizer(template, self.tokenizer, prompt_format, slots=slots)

    @contextmanager
    def seeded(self, part: str) -> Iterator[None]:
        """Random numbers that depend on seed and part alone, so that no part's start depends on the others."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(sha256_json([self.seed, part])[:8], 16))
            yield

    def saved(self, part: str) -> Path | None:
        """Folder with the saved shape of a part, if this is a restored run and it has one."""
        folder = None if self.parts is None else self.parts / part
        return folder if folder is not None and folder.is_dir() else None


@dataclass(frozen=True, slots=True)
class Without:
    """A model's record without its memories; ``lost`` says in words what drafts are made without now.

    ``heads_hold`` is False where the heads read the memory too: their calibration does not hold without it.
    """

    config: ModelConfig
    lost: tuple[str, ...] = ()
    heads_hold: bool = True


class ModelConfig(Config, ABC):
    """A method's model record. A part of the model that has a record stands here under its name."""

    @property
    def encoder(self) -> Any:
        """The record of the part that reads the images: the one of a vision encoder, unless a method has its own."""
        (record,) = (record for _, record in self if isinstance(record, VISION_RECORDS))
        return record

    @property
    def absent(self) -> frozenset[str]:
        """Names of the parts that are left out: those whose record is of kind ``none``."""
        return frozenset(name for name, record in self if getattr(record, "kind", "") == "none")

    def write_shapes(self, folder: Path) -> None:
        """Write the shape of a checkpoint that makes several parts, as a run keeps it.

        Raises:
            InputError: if there is no such checkpoint.
        """

    def without_memories(self) -> Without:
        """The record with everything absent that reads a bank of training studies, and what is lost by it.

        Raises:
            InputError: if the method is nothing without.
        """
        return Without(self)

    @abstractmethod
    def build(self, context: BuildContext) -> ReportModel:
        """Compose the model; each part starts from its own random numbers."""


LATER: Mapping[str, Callable[[], Config]] = {REWARD: RewardStageConfig, "place": PlaceStageConfig}
"""Stages that every method has after its own, off by default."""


class Stages(Config):
    """The stages of a method: each field is one, and they run in the order of the fields.

    ``reward`` comes last, and only where it has epochs; ``place`` trains no part of the model and comes when all is
    done (``radweave.engine.place``). A configuration is dumped without either where nothing of it is set, so that a run
    without it is the same as before there were any.
    """

    reward: RewardStageConfig = RewardStageConfig()
    place: PlaceStageConfig = PlaceStageConfig()

    def named(self) -> dict[str, StageConfig]:
        """The stages by name."""
        stages: dict[str, StageConfig] = {
            name: getattr(self, name) for name in type(self).model_fields if name not in LATER
        }
        if not self.reward.is_on:
            return stages
        before = list(stages.values())[-1]
        return {**stages, REWARD: self.reward.model_copy(update={"finetune": self.reward.finetune or before.finetune})}

    @model_validator(mode="after")
    def _as_remembered(self) -> Stages:
        before = [getattr(self, name) for name in type(self).model_fields if name not in LATER][-1:]
        if any("vision_encoder" in self.reward.trained and "vision_encoder" not in stage.trained for stage in before):
            raise ValueError(
                "stages.reward.finetune.vision_encoder must be frozen as in the stage before: memories hold its tokens"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        unset = {name for name, record in LATER.items() if getattr(self, name) == record()}
        return {name: value for name, value in values.items() if name not in unset}


class Experiment(Config):
    """A method with all its numbers. Each method narrows ``model`` and ``stages`` to its own records."""

    method: str
    seed: Seed = 0
    data: DataConfig = DataConfig()
    model: ModelConfig
    stages: Stages
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="before")
    @classmethod
    def _former_keys(cls, values: Any) -> Any:
        return rename_keys(values, note=False) if cls.had_former_keys() and isinstance(values, dict) else values

    @classmethod
    def had_former_keys(cls) -> bool:
        """True for methods of this package: ``radweave.methods.renamed`` has their former keys."""
        return cls.__module__.startswith("radweave.methods.")

    @property
    def language_checkpoint(self) -> str | None:
        """Folder or hub name of the language model's checkpoint, where it is pretrained."""
        path: str | None = getattr(getattr(self.model, "language_model", None), "path", None)
        return path

    @property
    def writes_untrained(self) -> bool:
        """True if the checkpoint writes reports as it is, without any training."""
        return False

    def fitted(self, preset: Self, fields: Collection[str]) -> Self:
        """The experiment adapted to pretrained parts in place of the preset's; ``fields`` set by the user stay.

        A pretrained language model brings its tokenizer, and its chat template where the preset had none that is
        pretrained; a vision encoder that knows the size of its images brings that.
        """
        data: dict[str, Any] = {}
        model: dict[str, Any] = {}
        if self.language_checkpoint is not None:
            tokenizer = self.data.tokenizer
            if tokenizer.kind == "bpe" and not tokenizer.force and "data.tokenizer" not in fields:
                data["tokenizer"] = PretrainedTokenizerConfig()
            brought = preset.language_checkpoint is None and "model.prompt_format" not in fields
            if brought and "prompt_format" in type(self.model).model_fields:
                model["prompt_format"] = "auto"
        encoder = getattr(self.model, "vision_encoder", None)
        if isinstance(encoder, AnyVisionConfig) and "data.image_size" not in fields:
            data["image_size"] = encoder.image_size() or self.data.image_size
        return self.model_copy(
            update={
                "data": self.data.model_copy(update=data),
                "model": self.model.model_copy(update=model),
            }
        )

    @property
    def stated_start(self) -> str | None:
        """Statement about the weights that the encoder starts from, where the package brings them."""
        encoder = self.model.encoder
        starts = getattr(encoder, "start", "nothing") == "phantom" and encoder.path is None
        return STATED if starts else None

    def reads_priors(self, decoding: DecodingConfig) -> bool:
        """True if the model reads a study's prior, or drafts with this decoding are told of it."""
        return self.data.priors or decoding.asks_prior

    def named_stages(self) -> dict[str, StageConfig]:
        """The stages in the order in which they run."""
        return self.stages.named()

    @property
    def report_stage(self) -> str:
        """The stage that writes reports: the last one whose losses are likelihoods."""
        return [name for name in self.named_stages() if name != REWARD][-1]

    def build(self, context: BuildContext) -> ReportModel:
        """The model, with the losses of other packages that a stage weighs.

        Raises:
            InputError: if such a loss cannot be used.
        """
        model = self.model.build(context)
        added = {name: load_loss(entry) for name, entry in self._outside_losses().items() if name not in model.terms}
        if added:
            model.terms = {**model.terms, **added}
        return model

    def _outside_losses(self) -> dict[str, EntryPoint]:
        entries = outside_losses(self.method)
        weighed = _weighed_losses(self) & entries.keys()
        if weighed:  # no package takes the place of a loss of the method's own
            weighed -= {name for make in load_method(self.method).PRESETS.values() for name in _weighed_losses(make())}
        return {name: entries[name] for name in sorted(weighed)}

    def outside_code(self) -> dict[str, dict[str, str]]:
        """Code of other packages, of method, losses or rewards: name -> package, version, and hash of its code."""
        entry = outside_entry(self.method)
        reward = self.named_stages().get(REWARD)
        weighed = reward.rewards if isinstance(reward, RewardStageConfig) else ()
        rewards = {f"reward {name}": entry for name, entry in outside_rewards().items() if name in weighed}
        entries = {**self._outside_losses(), **rewards, **({} if entry is None else {self.method: entry})}
        return {name: code_of(entry) for name, entry in entries.items()}


def _weighed_losses(experiment: Experiment) -> set[str]:
    return {name for stage in experiment.named_stages().values() for name in stage.losses}


# Shared parts of presets: preprocessing at each size, and stages in one line.


TINY_XRAY = DataConfig(
    image_size=144,
    max_views=4,
    max_tokens=96,
    tokenizer=BpeTokenizerConfig(vocab_size=1200),
    augmentation=LightAugmentation(cutout=0.25),
    dropped_views=0.2,
)
TINY_CT = TINY_XRAY.model_copy(
    update={
        "image_size": 128,
        "dropped_views": 0.0,
        "ct": CtPreprocessing(size=(32, 64, 64), fit="resize", window_hu=(-1000, 200)),
        "label_set": "ct18",
        "max_tokens": 160,
        "augmentation": LightAugmentation(contrast=0.04),
    }
)
SMALL_XRAY = DataConfig(
    image_size=224, max_tokens=128, tokenizer=BpeTokenizerConfig(vocab_size=8000), augmentation=LightAugmentation()
)


def as_written(decoding: DecodingConfig) -> DecodingConfig:
    """Decoding of the presets called ``paper``, whose scores are of the text as written: drafts lose nothing."""
    return decoding.model_copy(update={"unprompted_comparisons": "keep", "deidentification_marks": "keep"})


# The decoding of R2GenGPT, which several papers take over.
R2GENGPT_DECODING = as_written(
    DecodingConfig(num_beams=3, min_new_tokens=80, max_new_tokens=120, repetition_penalty=2.0, length_penalty=2.0)
)
# Every linear map of a Llama layer: a decoder from nothing has not seen enough to be bent by two of them.
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


# Off unless given epochs: an encoder from nothing learns which words go with an image (radweave/nn/heads.py), and
# a decoder from nothing learns language from reports alone, where a preset gives it passes.
LANGUAGE = StageConfig(finetune=full("language_model"), losses={"text": 1.0}, epochs=0)
WORDS = StageConfig(finetune=full("vision_encoder", "word_head"), losses={"words": 1.0}, epochs=0)


# The first stage of the tiny presets, the same for every method, so that the runs of all of them on a
# data set train it once; see docs/phantom_encoder.md.
ENCODER_STAGE = StageConfig(
    finetune=full("vision_encoder", "word_head"),
    losses={"words": 1.0},
    optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=100, final_ratio=0.01),
    epochs=14,
    batch_size=32,
    precision="auto",
    ema=0.99,
    select="last",
)


# The last stage of the tiny presets, the same for every method and so for every row of a table; of the small ones the
# recipe alone. docs/engine.md, "Decoders that state findings", has what it was chosen by.
REPORT_EPOCHS, REPORT_PATIENCE, REPORT_BATCH, ABNORMAL_WEIGHT = 16, 4, 8, 4.0
SINGLE_INPUT = 0.4


def stating_findings(report: StageConfig) -> StageConfig:
    """A report stage by the recipe: abnormal sentences weighed, single inputs, an end at the lowest validation loss."""
    own = {"abnormal_weight": ABNORMAL_WEIGHT, "patience": REPORT_PATIENCE, "single_input": SINGLE_INPUT}
    return report.model_copy(update=own)


def report_stage(trained: Mapping[str, Trainability], losses: Mapping[str, float]) -> StageConfig:
    """The stage in which a tiny decoder learns to write reports, until its validation loss falls no further."""
    rate = warm(1e-3, 100)
    return stating_findings(stage(trained, losses, rate, epochs=REPORT_EPOCHS, batch_size=REPORT_BATCH, augment=False))


LANGUAGE_EPOCHS, LANGUAGE_PATIENCE = 30, 3


def language_stage(trained: Mapping[str, Trainability], schedule: OptimizerConfig) -> StageConfig:
    """The stage in which a decoder learns from text until its validation loss falls no further.

    For presets whose decoder is frozen, or has adapters alone, where reports are learned: what it has not learned by
    then it never will.
    """
    losses = {"text_in_context": 1.0}
    passes = stage(trained, losses, schedule, epochs=LANGUAGE_EPOCHS, batch_size=32, augment=False)
    return passes.model_copy(update={"patience": LANGUAGE_PATIENCE})


class EncoderFirstStages(Stages):
    """An encoder learns from classes and words before anything else (off unless given epochs)."""

    encoder: StageConfig = WORDS


class ReportStages(Stages):
    """Report generation alone."""

    report: StageConfig


class VisionFirstStages(EncoderFirstStages):
    """Words from images, language from reports (both off unless given epochs), then report generation."""

    vision: StageConfig = WORDS
    language: StageConfig = LANGUAGE
    report: StageConfig


class DiseaseFirstStages(EncoderFirstStages):
    """Disease tokens; language from reports (off unless given epochs); then report generation."""

    disease: StageConfig
    language: StageConfig = LANGUAGE
    report: StageConfig


MANY_FINDINGS = ExpectedUtilityConfig(further_findings=6)
"""Drafts of scans, whose reports state more findings than those of radiographs."""
SCAN_LANGUAGE_EPOCHS = 12
AnyExperiment = TypeVar("AnyExperiment", bound=Experiment)


def for_scans(plain: AnyExperiment, **model: Config) -> AnyExperiment:
    """A tiny preset for radiographs turned into one for scans, of which there are fewer and whose reports are longer.

    The encoder is another, and so are the parts in ``model``; drafts are longer and state more findings; where there
    are passes over text there are more. Everything else stays.
    """
    stages = plain.stages
    language = stages.named().get("language")
    if language is not None and language.epochs:
        longer = language.model_copy(update={"epochs": SCAN_LANGUAGE_EPOCHS})
        stages = stages.model_copy(update={"language": longer})
    utility = plain.decoding.expected_utility.model_copy(update={"further_findings": MANY_FINDINGS.further_findings})
    return plain.model_copy(
        update={
            "data": TINY_CT,
            "model": plain.model.model_copy(update={"vision_encoder": PHANTOM_ENCODER_3D, **model}),
            "stages": stages,
            "decoding": plain.decoding.model_copy(update={"max_new_tokens": 160, "expected_utility": utility}),
        }
    )


def published(max_tokens: int) -> DataConfig:
    """Radiographs of 224 pixels, and the tokenizer of the language model's checkpoint."""
    return DataConfig(image_size=224, max_tokens=max_tokens, tokenizer=PretrainedTokenizerConfig())


def stage(
    trained: Mapping[str, Trainability],
    losses: Mapping[str, float],
    schedule: OptimizerConfig,
    *,
    epochs: int,
    batch_size: int = 16,
    augment: bool = True,
) -> StageConfig:
    """A stage: what trains, on which losses, how fast and for how long."""
    return StageConfig(
        finetune=dict(trained),
        losses=dict(losses),
        optimizer=schedule,
        epochs=epochs,
        batch_size=batch_size,
        augment=augment,
    )


def warm(learning_rate: float, warmup_steps: int, final_ratio: float = 0.05) -> OptimizerConfig:
    """A learning rate that is reached after some steps and then decays."""
    return OptimizerConfig(learning_rate=learning_rate, warmup_steps=warmup_steps, final_ratio=final_ratio)
