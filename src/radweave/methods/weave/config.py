"""The method's records: its parts, each with an absent form, its stages, and what must agree among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from radweave.core.config import Config, Count, Prompt
from radweave.core.errors import InputError
from radweave.data.tokenizer import decode, encode
from radweave.methods.experiment import BuildContext, EncoderFirstStages, Experiment, ModelConfig, Without
from radweave.methods.prior_change import ChangeConfig, ChangeSetting, NoChangeConfig
from radweave.methods.stage import StageConfig
from radweave.methods.weave.heads import (
    DenseSourceConfig,
    DifferenceSetting,
    DifferenceSourceConfig,
    NoSourceConfig,
    TokenSetting,
    TokenSourceConfig,
)
from radweave.methods.weave.members import Folds, Members
from radweave.methods.weave.model import (
    KINDS,
    LEARNED,
    REMEMBERED,
    SOURCES,
    CopyingWriter,
    LanguageModelWriter,
    WeaveModel,
)
from radweave.methods.weave.recall import (
    CasesConfig,
    CasesSetting,
    KernelsConfig,
    KernelsSetting,
    RecallConfig,
    RecallSetting,
)
from radweave.methods.weave.stack import Stack, StackConfig, StackSetting
from radweave.methods.weave.writing import Prompts, WordingConfig, WriterSetting
from radweave.nn.connector import ConnectorConfig
from radweave.nn.prompt import PromptFormat
from radweave.nn.text_pretraining import DiagnosisTextConfig
from radweave.nn.vision import InputSize, VisionEncoderConfig, VisionPart, tokens_of


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


class WriterConfig(Config):
    """Input and output of the language model: ``samples`` drawn reports beside its likeliest, at this
    ``temperature``. Of the recalled report it reads ``recalled_tokens``.
    """

    samples: int = Field(default=4, ge=0, le=256)
    temperature: float = Field(default=0.7, gt=0)
    recalled_tokens: Count = 96


class WeaveModelConfig(ModelConfig):
    """Parts of the model. ``members`` is K, how many encoders there are, each trained without one fold of the patients.
    ``full_member`` adds one that is trained on all of them, and is asked of new patients beside the others.

    ``prompt`` has the slots ``{image}`` and ``{findings}``; ``recalled_prompt`` has ``{recalled}`` and stands before
    it, for each study that has a nearest report.
    """

    vision_encoder: VisionEncoderConfig
    members: int = Field(default=4, ge=2, le=16)
    full_member: bool = False
    dense: DenseSourceConfig = DenseSourceConfig()
    tokens: TokenSetting = TokenSourceConfig()
    difference: DifferenceSetting = DifferenceSourceConfig()
    kernels: KernelsSetting = KernelsConfig()
    recall: RecallSetting = RecallConfig()
    cases: CasesSetting = CasesConfig()
    change: ChangeSetting = ChangeConfig()
    memory: Annotated[NoMemoryConfig | MemoryConfig, Field(discriminator="kind")] = MemoryConfig()
    stack: StackSetting = StackConfig()
    wording: WordingConfig = WordingConfig()
    connector: ConnectorConfig
    language_model: WriterSetting
    writer: WriterConfig = WriterConfig()
    findings_text: DiagnosisTextConfig = DiagnosisTextConfig()
    prompt: Prompt
    recalled_prompt: Prompt
    prompt_format: PromptFormat = "plain"

    @model_validator(mode="after")
    def _something_is_said(self) -> WeaveModelConfig:
        if not self.sources and "change" in self.absent:
            raise ValueError("no source is left: there is no evidence to weigh")
        if "memory" in self.absent:
            for name in REMEMBERED:
                if name not in self.absent:
                    raise ValueError(f"{name} remembers training studies, and memory is none")
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
            InputError: if there is no language model, or no source that learned.
        """
        if "memory" in self.absent:
            return Without(self)
        if "language_model" in self.absent or not set(self.sources) & set(LEARNED):
            raise InputError("without training studies and a language model nothing is written", field="--no-bank")
        nothing = NoSourceConfig()
        gone: dict[str, Any] = {"memory": NoMemoryConfig(), "kernels": nothing, "recall": nothing, "cases": nothing}
        gone["change"] = NoChangeConfig()
        lost = (
            "no training study is remembered: kernels, recalled reports and differences from similar cases say nothing",
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
        encoders: list[VisionPart] = [part(f"vision_encoder {each}", one) for each in range(number)]
        members, learned = Members(encoders), [name for name in self.sources if name in LEARNED]
        tokens = tokens_of(encoders[0], InputSize(context.image_size, context.volume_size))
        writer, findings = (
            self._writer(context, members),
            self.findings_text.build(partial(encode, context.tokenizer), classes),
        )
        return WeaveModel(
            vision_encoder=members,
            dense=part("dense", lambda: self.dense.build(members, len(context.tokenizer), len(classes))),
            tokens=part("tokens", lambda: self.tokens.build(members, len(classes), tokens)),
            difference=part("difference", lambda: self.difference.build(members, len(classes), tokens)),
            kernels=self.kernels.build(),
            recall=self.recall.build(),
            cases=self.cases.build(),
            change=self.change.build(number, 2 * members.width, len(classes)),
            folds=Folds(self.members, context.seed),
            stack=Stack(KINDS, self.sources, len(classes)),
            bare=Stack(KINDS, learned, len(classes)),
            connector=writer.connector,
            language_model=writer.language_model,
            writer=writer,
            prompts=Prompts(
                context.tokenizer,
                self.prompt,
                self.recalled_prompt,
                self.prompt_format,
                findings,
                self.writer.recalled_tokens,
            ),
            encode=partial(encode, context.tokenizer),
            decode=partial(decode, context.tokenizer),
            weighing=self.stack,
            wording=self.wording.build(),
            classes=classes,
            samples=self.writer.samples,
            temperature=self.writer.temperature,
            max_studies=self.memory.max_studies,
        )

    def _writer(self, context: BuildContext, members: Members) -> LanguageModelWriter | CopyingWriter:
        """The language model and what brings images to it; without one, what copies reports."""
        record = self.language_model
        if record.kind == "none":
            return CopyingWriter()
        language_model = context.part("language_model", lambda: record.build(**context.words))
        connector = context.part("connector", lambda: self.connector.build(members.dim, language_model.width))
        return LanguageModelWriter(language_model, connector)


class WeaveStages(EncoderFirstStages):
    """The members with their dense heads; the other heads on their tokens; then the language model.

    The members are frozen after the first: what sources remember are their vectors.
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
        """The stages in their order. One whose parts are absent trains nothing: it is there for what is fitted then."""
        stages, model = super().named_stages(), self.model
        if "language_model" in model.absent:
            stages["report"] = NOTHING_TO_TRAIN
        heads = stages["sources"]
        left = {name: weight for name, weight in heads.losses.items() if name not in model.absent}
        trained = {name: how for name, how in heads.finetune.items() if name not in model.absent}
        stages["sources"] = heads.model_copy(update={"losses": left, "finetune": trained}) if left else NOTHING_TO_TRAIN
        return stages
