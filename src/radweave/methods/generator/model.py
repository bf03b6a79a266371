"""A published model of images and texts as a method: its parts, its prompts, its losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from pydantic import Field, model_validator
from torch import Tensor

from radweave.core.batch import Batch, Generation
from radweave.core.config import Config, Heads, Layers, Pixels, Prompt, Width
from radweave.core.evidence import DraftEvidence
from radweave.core.foreign_models import read_processor
from radweave.core.map_kinds import KEY as MAP_KIND
from radweave.core.map_kinds import OF_WORDS
from radweave.core.study import Modality
from radweave.data.loader import VIEW_KINDS
from radweave.data.tokenizer import decode, encode
from radweave.methods.experiment import BuildContext, EncoderFirstStages, Experiment, ModelConfig
from radweave.methods.generator.network import (
    Checkpoint,
    Network,
    Projector,
    Query,
    Tower,
    files_of,
    image_side,
    load,
    pictures,
    read_checkpoint,
    without_margins,
)
from radweave.methods.generator.published import published
from radweave.methods.generator.saving import save_adapters, save_merged
from radweave.methods.generator.served import NoTower, ServedConfig, ServedPrompts, ServedSettings, ServedWriter
from radweave.methods.generator.writing import StudyPrompts, Writer
from radweave.methods.model import (
    WORDS_TERM,
    DecoderInput,
    ForwardPass,
    Look,
    ReportModel,
    StudySize,
    Term,
    ToWrite,
    device_of,
    generation,
    losses,
    required,
    written,
)
from radweave.methods.registry import load_method
from radweave.methods.stage import StageConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import NoWordHeadConfig, WordHeadConfig, WordPart
from radweave.nn.language_model import LoraSetting, NoLoraConfig, adapt, mean_loss, study_nats
from radweave.nn.pretrained import Precision, Quantization

Maps = Literal["none", "gradients"]
Margins = Literal["keep", "crop"]
Prior = Literal["none", "images", "images_and_report"]
"""The parts of a study's prior that a model gets."""


class Forward(ForwardPass["GeneratorModel"]):
    """One batch as the model sees it."""

    @cached_property
    def queries(self) -> list[Query]:
        """The query of each study."""
        batch, model = self.batch, self.model
        own, before = self._views("image", batch), self._prior()
        context = batch.context_ids, batch.context_mask
        queries = []
        for row, views in enumerate(own):
            prior = before.get(row, Views())
            inserted = (*model.report_heading, *prior.report, *model.break_ids) if prior.report else ()
            if context[0] is not None and context[1] is not None:
                inserted = (*inserted, *context[0][row][context[1][row]].tolist())
            images, shown = views.images + prior.images, describe(views.kinds, prior.kinds)
            queries.append(Query(images, shown, inserted, len(views.images)))
        return queries

    def _prior(self) -> dict[int, Views]:
        """Views and report of the prior by row of the batch, of the studies that have one."""
        prior, size = self.batch.priors, len(self.batch)
        if self.model.prior == "none" or prior is None:
            return {}
        return dict(enumerate(self._views("prior", prior, size, list(self.batch.prior_of))))

    def _views(self, name: str, batch: Batch, size: int | None = None, rows: list[int] | None = None) -> list[Views]:
        """The views of each study as a reader of the decoder's inputs lets them through.

        A token of the input is a view: its pixels, its kind, and for a prior the ids of its report, so that whoever
        exchanges priors exchanges all of one.

        Args:
            name: the input.
            batch: the studies.
            size: the rows of the result, where they are others than the batch's; ``rows`` says which are the batch's.
            rows: see ``size``.
        """
        pixels, present = required(batch.pixel_values), required(batch.view_mask)
        parts = [pixels.flatten(2), required(batch.view_ids)[:, :, None].to(pixels)]
        if rows is not None and batch.input_ids is not None and self.model.prior == "images_and_report":
            ids = batch.input_ids.masked_fill(~required(batch.attention_mask), -1)
            parts.append(ids[:, None].expand(-1, pixels.shape[1], -1).to(pixels))
        tokens = torch.cat(parts, dim=2)
        if size is not None:
            tokens, present = _spread(tokens, size, rows), _spread(present, size, rows)
        tokens, present = self.decoder_input(name, (tokens, present))
        return [_one(tokens[row][present[row]], pixels.shape[2:], self.model) for row in range(len(tokens))]

    def logits(self) -> Float[Tensor, "batch text words"]:
        """Scores of each token of the reports: the last token of a prompt predicts the first."""
        ids, mask = required(self.batch.input_ids), required(self.batch.attention_mask)
        return self.model.network.logits(self.queries, ids, mask)


@dataclass(frozen=True, slots=True)
class Views:
    """Images of a study with the kind of each, and ids of its report."""

    images: tuple[Image.Image, ...] = ()
    kinds: tuple[int, ...] = ()
    report: tuple[int, ...] = ()


def _spread(values: Tensor, size: int, rows: Sequence[int] | None) -> Tensor:
    """The values of a few rows in their places among more, which are empty."""
    spread = values.new_zeros(size, *values.shape[1:])
    spread[list(rows or ())] = values
    return spread


def _one(tokens: Float[Tensor, "views numbers"], shape: torch.Size, model: GeneratorModel) -> Views:
    """The views that these tokens of an input stand for."""
    if not len(tokens):
        return Views()
    count = shape.numel()
    images = pictures(tokens[:, :count].reshape(-1, *shape))
    if model.margins == "crop":
        images = [without_margins(one) for one in images]
    kinds, numbers = tokens[:, count].round().long().tolist(), tokens[0, count + 1 :]
    # Of a mean of several studies the ids are no whole numbers: it has no report.
    words = numbers.long().tolist() if torch.equal(numbers, numbers.round()) else []
    end = model.language_model.eos_id
    return Views(tuple(images), tuple(kinds), tuple(word for word in words if word >= 0 and word != end))


def describe(kinds: Sequence[int], prior: Sequence[int]) -> str:
    """The images of a prompt in words, in their order: views of the study, then of its prior."""
    names = [_view(kind) for kind in kinds] + [f"{_view(kind)} of the previous study" for kind in prior]
    return "".join(f"Image {number}: {name}.\n" for number, name in enumerate(names, start=1))


def _view(kind: int) -> str:
    return "chest X-ray" if kind == 0 else f"{VIEW_KINDS[kind]} chest X-ray"


def report_term(forward: Forward) -> Tensor:
    """The report, per token, after the prompt."""
    return mean_loss(forward.logits(), required(forward.batch.labels), forward.batch.label_weights)


INPUTS = {"image": DecoderInput("views of the study"), "prior": DecoderInput("views and report of the previous study")}
TERMS: Mapping[str, Term[Forward]] = {
    "report": Term(("vision_encoder", "connector", "language_model"), report_term, images=True),
    "words": replace(WORDS_TERM, silent="a probe sees the images before the network reads them"),
}


NO_TERMS: Mapping[str, Term[Forward]] = {}
"""Losses of a model that is elsewhere."""


class ReadsPrior(ReportModel):
    """Base of a model here and of one that is served: both may be told of the prior study."""

    prior: Prior
    inputs = INPUTS

    @property
    def absent_inputs(self) -> frozenset[str]:
        """The prior, where the configuration leaves it out or studies come without."""
        return frozenset({"prior"} if self.prior == "none" else ())


@dataclass(eq=False, repr=False, kw_only=True)
class GeneratorModel(ReadsPrior):
    """A report by a published model of images and texts, in its own prompt.

        report ~ LM([images; texts of the study; instruction])

    The prompt is the checkpoint's chat template with the images of the study, those of its prior, and a text: which
    view each image is, the prior's report, the clinical context, the instruction. Texts of a study are put in as ids of
    words alone, so that no text of a study becomes an image or a turn.
    """

    vision_encoder: Tower
    connector: Projector
    language_model: Writer
    word_head: WordPart
    network: Network
    prior: Prior
    margins: Margins
    maps: Maps
    image_size: int
    report_heading: tuple[int, ...]
    break_ids: tuple[int, ...]
    terms = TERMS

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """Losses: ``report`` per token after the prompt, ``words`` of the word head."""
        return losses(self.terms, Forward(self, batch), terms)

    def prompt_tokens(self, study: StudySize) -> int:
        """The tokens of a prompt with black squares as images; a prior has as many views, and a report."""
        black = Image.new("RGB", (self.image_size, self.image_size))
        before = study.views if study.prior and self.prior != "none" else 0
        kinds = [1, *[2] * (study.views - 1)]
        text = describe(kinds, kinds[:before])
        read = self.network.inputs([Query((black,) * (study.views + before), text)])
        return int(read["input_ids"].shape[1]) + study.context

    def report_nats(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean negative log-likelihood per token of each study's report."""
        return study_nats(Forward(self, batch).logits(), required(batch.labels))

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Decode a report per study. Evidence: the log-probability of each token."""
        return generation(self, batch, decoding)

    @torch.no_grad()
    def to_write(self, batch: Batch) -> ToWrite:
        """The prompt of each study, read by itself."""
        device = device_of(self)
        forward = Forward(self, batch)
        arguments = [
            {name: value.to(device) for name, value in self.network.inputs([one]).items()} for one in forward.queries
        ]
        finish = written if self.maps == "none" else partial(self._with_maps, forward)
        return ToWrite(StudyPrompts.of(self.network, arguments, forward.queries), finish)

    def save_merged(self, folder: Path) -> None:
        """Write the model as a published checkpoint, adapters merged; the model has none after that."""
        save_merged(self.network, folder)

    def save_adapters(self, folder: Path, *, base: str, whole: Collection[str]) -> None:
        """Write the adapters in peft's layout, for the checkpoint ``base``; ``whole`` are parts that trained whole.

        Raises:
            InputError: if the adapters are not all that trained, or there are none.
        """
        save_adapters(self.network, self.connector, folder, base=base, whole=whole)

    def _with_maps(self, forward: Forward, ids: list[list[int]], log_probs: list[list[float]]) -> Generation:
        """Reports with maps of their probability over the views of the study."""
        evidence: list[DraftEvidence] = []
        for query, words in zip(forward.queries, ids, strict=True):
            maps = self.network.gradients(query, words)[: query.views]
            peak = max((float(one.max()) for one in maps), default=0.0)
            scaled = [(one / peak if peak > 0 else one).numpy() for one in maps]
            evidence.append({"attention_maps": {"report": np.stack(scaled)}, MAP_KIND: OF_WORDS} if maps else {})
        return written(ids, log_probs, evidence)


@dataclass(eq=False, repr=False, kw_only=True)
class ServedModel(ReadsPrior):
    """A report by a model that another program serves, in a chat.

    The question has the images and texts that ``GeneratorModel`` puts into a prompt; the server has the template. No
    weight is here, so that nothing trains.
    """

    vision_encoder: NoTower
    language_model: ServedWriter
    prior: Prior
    margins: Margins
    report_heading: tuple[int, ...]
    break_ids: tuple[int, ...]
    terms = NO_TERMS

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        """No losses.

        Raises:
            InputError: for any term.
        """
        return losses({}, Forward(cast(GeneratorModel, self), batch), terms)

    @torch.no_grad()
    def generate(self, batch: Batch, decoding: DecodingConfig) -> Generation:
        """Ask for a report per study. Evidence: the model's name, requests and tokens, or why there is no report."""
        return generation(self, batch, decoding)

    @torch.no_grad()
    def to_write(self, batch: Batch) -> ToWrite:
        """The question of each study."""
        # A prompt of either model is made of the fields that both have.
        prompts = ServedPrompts.of(Forward(cast(GeneratorModel, self), batch).queries)
        return ToWrite(prompts, prompts.finish)

    def keep_answers(self, folder: Path, share: int = 1) -> None:
        """Keep answers in a folder as they come; see ``ServedWriter.keep``."""
        self.language_model.keep(folder, share)

    def allow_remote(self, allowed: bool) -> None:
        """Let images leave this machine, or not; a question to another one is refused then."""
        self.language_model.allow_remote(allowed)

    @property
    def settings(self) -> ServedSettings:
        """Address and options of the requests."""
        return self.language_model.settings

    def vary(self, settings: ServedSettings, look: Look) -> None:
        """Ask by other settings in this process."""
        self.language_model.set(settings)


# Configuration.


class TowerConfig(Config):
    """The vision tower of the checkpoint. ``lora`` puts adapters on the linear maps that it names, or on all."""

    reads: ClassVar[Modality] = "xray"
    kind: Literal["checkpoint"] = "checkpoint"
    lora: LoraSetting = NoLoraConfig()


class ProjectorConfig(Config):
    """The projector, from the vision tower to the language model. ``lora`` as for the tower."""

    lora: LoraSetting = NoLoraConfig()


class LanguageConfig(Config):
    """The language model of the checkpoint. ``lora`` as for the tower; the map that gives the words gets none."""

    lora: LoraSetting = NoLoraConfig()


class ScratchConfig(Config):
    """A model from nothing, in LLaVA's layout, where no checkpoint is named: a SigLIP tower and a Llama."""

    patch_size: Pixels = 16
    vision_width: Width = 64
    vision_layers: Layers = 2
    vision_heads: Heads = 4
    width: Width = 128
    layers: Layers = 2
    heads: Heads = 4

    def build(self, instruction: str, tokenizer: Any, image_size: int) -> Network:
        """Build with random weights."""
        from copy import deepcopy

        from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
        from transformers import SiglipImageProcessorPil as ImageProcessor

        words = deepcopy(tokenizer)
        words.chat_template = None
        words.add_special_tokens({"additional_special_tokens": ["<image>"]})
        vision = {
            "model_type": "siglip_vision_model", "hidden_size": self.vision_width, "patch_size": self.patch_size,
            "intermediate_size": 2 * self.vision_width, "num_hidden_layers": self.vision_layers,
            "num_attention_heads": self.vision_heads, "image_size": image_size, "vision_use_head": False,
        }  # fmt: skip
        text = {
            "model_type": "llama", "vocab_size": len(words), "hidden_size": self.width,
            "intermediate_size": 2 * self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads, "max_position_embeddings": 4096, "tie_word_embeddings": False,
            "initializer_range": self.width**-0.5, "pad_token_id": words.pad_token_id,
        }  # fmt: skip
        config = LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=words.convert_tokens_to_ids("<image>"),
            vision_feature_layer=-1, vision_feature_select_strategy="full", tie_word_embeddings=False,
        )  # fmt: skip
        config.eos_token_id = [words.eos_token_id]
        images = ImageProcessor(size={"height": image_size, "width": image_size}, resample=2)
        processor = LlavaProcessor(images, words, patch_size=self.patch_size, vision_feature_select_strategy="full")
        model = LlavaForConditionalGeneration(config)
        return Network(model, processor, Checkpoint(config, files_of(processor)), instruction, (words.eos_token_id,))


class GeneratorModelConfig(ModelConfig):
    """Parts of the model: those of the checkpoint ``path``, or without one a small one from nothing (``scratch``).

    Images are squares with black beside the film; ``margins=crop`` cuts black rows and columns off, so that a processor
    that cuts tiles by the film's shape sees it. With ``maps`` a draft comes with a map of its probability over the
    images, which takes a backward pass for each study. ``prompt`` is the instruction of the user's turn. ``prior`` says
    what the model gets of a study's prior, where ``data.priors`` gives it one. ``quantization`` loads the weights in 8
    or 4 bits; adapters on them can train. ``gradient_checkpointing`` trades time for memory in training.

    With an ``endpoint``, the address of a chat interface in OpenAI's form, the reports are written there instead, by
    the model ``served.name``. Images and texts of patients go to other machines than this one only with
    ``allow_remote``. The key stands in the environment variable RADWEAVE_ENDPOINT_KEY.
    """

    path: str | None = None
    endpoint: str | None = Field(default=None, max_length=2000)
    allow_remote: bool = False
    served: ServedConfig = ServedConfig()
    dtype: Precision = "float32"
    quantization: Quantization = "none"
    gradient_checkpointing: bool = False
    scratch: ScratchConfig = ScratchConfig()
    vision_encoder: TowerConfig = TowerConfig()
    connector: ProjectorConfig = ProjectorConfig()
    language_model: LanguageConfig = LanguageConfig()
    word_head: WordHeadConfig = NoWordHeadConfig()
    prompt: Prompt = Field(default="Write the radiology report of this chest X-ray.", min_length=1)
    prior: Prior = "images_and_report"
    maps: Maps = "none"
    margins: Margins = "keep"

    @property
    def encoder(self) -> TowerConfig:
        """Record of the part that reads the images."""
        return self.vision_encoder

    def write_shapes(self, folder: Path) -> None:
        """Write the configuration and the processor of the checkpoint.

        Raises:
            InputError: if there is no such checkpoint, or it is of no model of images and texts.
        """
        if self.path is None:
            return
        known = None if Path(self.path).exists() else published(self.path)
        checkpoint = read_checkpoint(self.path) if known is None else Checkpoint(*known)
        if known is None:  # so that what is wrong with it is said of this folder
            read_processor(self.path, checkpoint.config, what="the processor of a model of images and texts")
        checkpoint.save_pretrained(str(folder / "vision_encoder"))

    @model_validator(mode="after")
    def _is_served_or_here(self) -> Self:
        if self.endpoint is not None and self.path is not None:
            raise ValueError("endpoint and path both name a model: one of them can write")
        if self.maps != "none" and self.margins != "keep":
            raise ValueError("maps lie over the whole square: they need margins=keep")
        return self

    def build(self, context: BuildContext) -> GeneratorModel | ServedModel:
        """Compose the model.

        Raises:
            InputError: if the checkpoint cannot be opened, or is of no model of images and texts; or for an endpoint
                that must not be asked.
        """
        if self.endpoint is not None:
            return self._served(context, self.endpoint)
        network = context.part("network", lambda: self._network(context))
        black = Image.new("RGB", (context.image_size, context.image_size))
        with torch.device("cpu"):  # also for a model without numbers; refused here rather than at the first study
            network.inputs([Query((black,), describe([1], []))])
        tower, projector, words = network.parts()
        if self.gradient_checkpointing:
            network.model.gradient_checkpointing_enable()
        with context.seeded("adapters"):
            adapt(tower, self.vision_encoder.lora)
            adapt(projector, self.connector.lora)
            adapt(words.text, self.language_model.lora)
        for part in (tower, projector):
            part.put_back(network.model)
        tokenizer = context.tokenizer
        ids: dict[str, Any] = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        return GeneratorModel(
            vision_encoder=tower,
            connector=projector,
            language_model=Writer(words, network, bos_id=ids["bos"], eos_id=int(ids["eos"]), pad_id=int(ids["pad"])),
            word_head=context.word_head(self.word_head, tower.dim),
            network=network,
            prior=self.prior if context.priors else "none",
            margins=self.margins,
            maps=self.maps,
            image_size=context.image_size,
            report_heading=tuple(encode(tokenizer, "Report of the previous study: ")),
            break_ids=tuple(encode(tokenizer, "\n")),
        )

    def _served(self, context: BuildContext, endpoint: str) -> ServedModel:
        tokenizer = context.tokenizer
        settings = ServedSettings(**self.served.model_dump(), endpoint=endpoint, allow_remote=self.allow_remote)
        writer = ServedWriter(
            settings, self.prompt, partial(encode, tokenizer), partial(decode, tokenizer), int(tokenizer.eos_token_id)
        )
        return ServedModel(
            vision_encoder=NoTower(),
            language_model=writer,
            prior=self.prior if context.priors else "none",
            margins=self.margins,
            report_heading=tuple(encode(tokenizer, "Report of the previous study: ")),
            break_ids=tuple(encode(tokenizer, "\n")),
        )

    def _network(self, context: BuildContext) -> Network:
        saved, instruction, dtype = context.saved("vision_encoder"), self.prompt, self.dtype
        quantization: Quantization = self.quantization
        if saved is not None:
            return load(saved, instruction, dtype=dtype, weights=False)
        if self.path is not None:
            return load(self.path, instruction, dtype=dtype, quantization=quantization)
        return self.scratch.build(instruction, context.tokenizer, context.image_size)


class GeneratorStages(EncoderFirstStages):
    """Heads on the vision tower (off unless given epochs), then report generation."""

    report: StageConfig


class GeneratorExperiment(Experiment):
    """The method with all its numbers."""

    method: Literal["generator"] = "generator"
    model: GeneratorModelConfig
    stages: GeneratorStages

    @property
    def language_checkpoint(self) -> str | None:
        """The checkpoint, which brings its tokenizer."""
        return self.model.path

    @property
    def writes_untrained(self) -> bool:
        """True of a checkpoint, and of an endpoint."""
        return self.model.path is not None or self.model.endpoint is not None

    def fitted(self, preset: Self, fields: Collection[str]) -> Self:
        """The experiment adapted to a checkpoint in place of a model from nothing; ``fields`` set by the user stay.

        What the user leaves open is that of the preset ``zero-shot``; of ``lora``, where a training is asked for. With
        an endpoint the run has a tokenizer of its own.
        """
        if self.model.path is None and self.model.endpoint is None:
            return super().fitted(preset, fields)
        changed = self
        if preset.model.path is None:
            presets = load_method(self.method)
            trains = any(name.startswith(("stages.report.", "model.language_model.lora")) for name in fields)
            name = "served" if self.model.path is None else "lora" if trains else "zero_shot"
            base = getattr(presets, name)().model_dump()
            mine = self.model_dump()
            leaves = [name for name in fields if not any(other.startswith(f"{name}.") for other in fields)]
            for name in leaves:
                _copy(mine, base, name.split("."))
            changed = type(self).model_validate(base)
        changed = Experiment.fitted(changed, preset, fields)
        if "data.image_size" in fields or self.model.path is None:
            return changed
        if not Path(self.model.path).exists() and published(self.model.path) is not None:
            return changed
        data = changed.data.model_copy(update={"image_size": image_side(self.model.path)})
        return changed.model_copy(update={"data": data})


def _copy(source: dict[str, Any], target: dict[str, Any], keys: Sequence[str]) -> None:
    """Copy one field of nested values."""
    *above, last = keys
    for key in above:
        if not isinstance(target.get(key), dict) or target[key].get("kind") != source[key].get("kind"):
            target[key] = source[key]
            return
        source, target = source[key], target[key]
    target[last] = source[last]
