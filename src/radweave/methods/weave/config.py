"""The method's records: its parts, each with an absent form, its stages, and what must agree among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from radweave.core.config import Config, Count, Prompt
from radweave.core.errors import InputError
from radweave.data.tokenizer import decode, encode
from radweave.methods.experiment import BuildContext, EncoderFirstStages, Experiment, ModelConfig, Without
from radweave.methods.stage import StageConfig
from radweave.methods.weave.heads import DenseSourceConfig, TokenSetting, TokenSourceConfig
from radweave.methods.weave.members import Folds, Members
from radweave.methods.weave.memory import KernelsConfig, KernelsSetting, NoKernelsConfig
from radweave.methods.weave.model import KINDS, LEARNED, SOURCES, WeaveModel
from radweave.methods.weave.stack import Stack, StackConfig, StackSetting
from radweave.methods.weave.writing import Prompts
from radweave.nn.connector import ConnectorConfig
from radweave.nn.language_model import LanguageModelConfig
from radweave.nn.prompt import PromptFormat
from radweave.nn.text_pretraining import DiagnosisTextConfig
from radweave.nn.vision import VisionEncoderConfig, VisionPart


class NoMemoryConfig(Config):
    """No training study is kept, and no source remembers any."""

    kind: Literal["none"] = "none"
    max_studies: ClassVar[None] = None


class MemoryConfig(Config):
    """The training studies that sources remember. Of more than ``max_studies`` so many are used, evenly spread: memory
    and time grow with their square.
    """

    kind: Literal["studies"] = "studies"
    max_studies: Count = 2048


class WeaveModelConfig(ModelConfig):
    """Parts of the model. ``members`` is K, how many encoders there are, each trained without one fold of the patients.
    ``full_member`` adds one that is trained on all of them, and is asked of new patients beside the others.

    ``prompt`` has the slots ``{image}`` and ``{findings}``.
    """

    vision_encoder: VisionEncoderConfig
    members: int = Field(default=4, ge=2, le=16)
    full_member: bool = False
    dense: DenseSourceConfig = DenseSourceConfig()
    tokens: TokenSetting = TokenSourceConfig()
    kernels: KernelsSetting = KernelsConfig()
    memory: Annotated[NoMemoryConfig | MemoryConfig, Field(discriminator="kind")] = MemoryConfig()
    stack: StackSetting = StackConfig()
    connector: ConnectorConfig
    language_model: LanguageModelConfig
    findings_text: DiagnosisTextConfig = DiagnosisTextConfig()
    prompt: Prompt
    prompt_format: PromptFormat = "plain"

    @model_validator(mode="after")
    def _something_is_said(self) -> WeaveModelConfig:
        if not self.sources:
            raise ValueError("no source is left: there is no evidence to weigh")
        if "memory" in self.absent and "kernels" not in self.absent:
            raise ValueError("kernels remembers training studies, and memory is none")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the stack weighs, in its order."""
        return tuple(
            name for name in SOURCES if name not in self.absent and getattr(getattr(self, name), "is_source", True)
        )

    def without_memories(self) -> Without:
        """With the sources that learned alone, weighed by a stack of their own; the language model writes.

        Raises:
            InputError: if no source learned.
        """
        if "memory" in self.absent:
            return Without(self)
        if not set(self.sources) & set(LEARNED):
            raise InputError("without training studies nothing is known of a study", field="--no-bank")
        gone = {"memory": NoMemoryConfig(), "kernels": NoKernelsConfig()}
        lost = (
            "no training study is remembered: kernels say nothing",
            "probabilities are those of the sources that learned, weighed by themselves; no prior is compared with",
        )
        return Without(self.model_copy(update=gone), lost, heads_hold=False)

    def build(self, context: BuildContext) -> WeaveModel:
        if context.volume_size is not None and "kernels" not in self.absent:
            raise InputError(
                "descriptors are of radiographs, and the experiment reads scans",
                field="model.kernels",
                got=self.kernels.kind,
                expected="model.kernels=none",
            )
        part, classes = context.part, context.classes
        one: Callable[[], VisionPart] = partial(
            self.vision_encoder.build, context.image_size, saved=context.saved("vision_encoder")
        )
        number = self.members + self.full_member
        members = Members([part(f"vision_encoder {each}", one) for each in range(number)])
        language_model = part("language_model", lambda: self.language_model.build(**context.words))
        prompts = Prompts(
            context.tokenizer,
            self.prompt,
            self.prompt_format,
            self.findings_text.build(partial(encode, context.tokenizer), classes),
        )
        return WeaveModel(
            vision_encoder=members,
            dense=part("dense", lambda: self.dense.build(members, len(context.tokenizer), len(classes))),
            tokens=part("tokens", lambda: self.tokens.build(members, len(classes))),
            kernels=self.kernels.build(),
            folds=Folds(self.members, context.seed),
            stack=Stack(KINDS, self.sources, len(classes)),
            bare=Stack(KINDS, [name for name in self.sources if name in LEARNED], len(classes)),
            connector=part("connector", lambda: self.connector.build(members.dim, language_model.width)),
            language_model=language_model,
            prompts=prompts,
            decode=partial(decode, context.tokenizer),
            weighing=self.stack,
            classes=classes,
            max_studies=self.memory.max_studies,
        )


class WeaveStages(EncoderFirstStages):
    """The members with their dense heads; the other heads on their tokens; then the language model.

    The members are frozen after the first: the later stages and the stack are fitted to their scores.
    """

    encoder: StageConfig
    sources: StageConfig
    report: StageConfig

    @model_validator(mode="after")
    def _frozen_after(self) -> WeaveStages:
        for name, stage in (("sources", self.sources), ("report", self.report)):
            if "vision_encoder" in stage.trained:
                raise ValueError(f"stages.{name}.finetune.vision_encoder must be frozen")
        return self


NOTHING_TO_TRAIN = StageConfig(finetune={}, losses={}, epochs=0, augment=False, select="last")


class WeaveExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["weave"] = "weave"
    model: WeaveModelConfig
    stages: WeaveStages

    @model_validator(mode="after")
    def _drafts_from_something(self) -> WeaveExperiment:
        if "memory" in self.model.absent and self.decoding.kind == "expected_utility":
            raise ValueError("drafts by expected utility are of remembered reports, and model.memory is none")
        return self

    def named_stages(self) -> dict[str, StageConfig]:
        """The stages in their order. ``sources`` trains nothing where its part is absent."""
        stages = super().named_stages()
        return stages | ({"sources": NOTHING_TO_TRAIN} if "tokens" in self.model.absent else {})
