"""A training stage: the parts that train, on which losses, for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from radweave.core.config import MAX_STEPS, Config, Open
from radweave.core.errors import InputError
from radweave.methods.model import PartlyUntrained, named_parts, refuse_unknown
from radweave.nn.language_model import MARK, has_lora

Trainability = Literal["full", "base", "lora", "frozen"]
"""All of a part, all but its adapters, its adapters alone, nothing."""
Precision = Literal["float32", "bfloat16", "auto"]
Compiled = Literal["nothing", "encoder", "networks"]
"""Nothing, the vision encoder, or that and the language model."""
Selection = Literal["report", "loss", "BLEU_4", "CIDEr", "reward", "last"]
Weight = Annotated[float, Field(ge=0, le=1e6)]
"""Weight of a loss or a reward; 0 leaves it out."""
REPORT = "report"
"""The term of the reports, by which every method chooses its epoch."""
REWARD = "reward"
"""The stage that rewards drafts, and the mean reward of validation drafts."""
BREAK_EVEN = 0.25
"""Probability of a finding from which on the reward ``statements`` pays for it."""


class OptimizerConfig(Config):
    """AdamW with linear warm-up and cosine decay to ``final_ratio`` of the learning rate."""

    learning_rate: float = Field(default=3e-4, gt=0)
    weight_decay: float = Field(default=0.05, ge=0)
    betas: tuple[float, float] = (0.9, 0.98)
    warmup_steps: int = Field(default=100, ge=0, le=MAX_STEPS)
    final_ratio: float = Field(default=0.05, ge=0, le=1)
    max_grad_norm: float = Field(default=1.0, gt=0)


class StageConfig(Config):
    """One training stage.

    ``finetune`` says how a part of the model trains; a part that it does not name is frozen. ``losses`` maps the terms
    that are computed to their weights. ``select`` names the validation figure that decides the best epoch: ``report``,
    the loss of the reports alone (of all terms, in a stage without reports), ``loss``, the weighted sum of all terms,
    or a score of generated reports (higher is better). One rule holds for all methods, since sums of different terms
    do not compare: a row with one loss more would choose by another figure. A stage of 0 epochs is passed over; one
    without losses trains nothing: it is there for the memories that are built before it. Without
    ``augment`` the stage sees the images as they are; where its vision encoder is frozen too, features are computed
    only once. Of a mixture of data sets the stage sees those that ``mixture`` names, each with its share of an epoch,
    and banks and validation are of them too; where it names none all are seen, as they come. With ``precision``
    bfloat16 the losses are computed in mixed precision (autocast); what trains stays float32, and so does validation;
    ``auto`` takes bfloat16 where the processor multiplies in it, else float32. ``compiled`` names the networks that
    torch.compile translates for the updates: ``encoder``, or ``networks``, which adds the language model. With an
    ``ema`` the stage validates and
    leaves behind a running average of the weights, which keeps that share of itself at every update. ``patience`` ends
    the stage after so many epochs without a better one. ``abnormal_weight`` is the weight of the tokens of sentences
    that state a finding, against 1 for all others, in the losses of reports while training: a decoder writes a finding
    from a probability of 1 / (1 + weight) on, so that 2 lets it state what it holds for likelier than one third.
    ``balance`` draws the studies of an epoch, with replacement, each as often as the share of its rarest finding to the
    power of minus ``balance`` (``data/loader.py``). Validation knows neither.
    ``withheld`` maps inputs of the decoder to the share of training studies that go without them
    (``radweave.methods.model.Withheld``): what stands beside them then has to be read. A share ``single_input`` of
    training studies is written after one input alone, drawn evenly among those that the model has: each has to be read
    by itself.
    """

    finetune: Annotated[dict[str, Trainability], Open()]
    losses: Annotated[dict[str, Weight], Open()]
    mixture: Annotated[dict[str, Annotated[float, Field(gt=0, le=1e6)]], Open()] = Field(default_factory=dict)
    withheld: Annotated[dict[str, Annotated[float, Field(ge=0, lt=1)]], Open()] = Field(default_factory=dict)
    single_input: float = Field(default=0.0, ge=0, lt=1)
    optimizer: OptimizerConfig = OptimizerConfig()
    epochs: int = Field(default=10, ge=0, le=1_000_000)
    max_steps: int | None = Field(default=None, ge=0, le=MAX_STEPS)
    patience: int | None = Field(default=None, ge=1, le=1_000_000)
    batch_size: int = Field(default=16, ge=1, le=65_536)
    augment: bool = True
    abnormal_weight: float = Field(default=1.0, ge=1, le=100)
    balance: float = Field(default=0.0, ge=0, le=1)
    precision: Precision = "float32"
    compiled: Compiled = "nothing"
    ema: float = Field(default=0.0, ge=0, lt=1)
    select: Selection = "report"
    checkpoint_every: int = Field(default=200, ge=1, le=MAX_STEPS)
    keep_checkpoints: int = Field(default=2, ge=1, le=10_000)
    max_skipped_steps: int = Field(default=10, ge=0, le=MAX_STEPS)

    @model_validator(mode="after")
    def _one_order(self) -> StageConfig:
        if self.balance and self.mixture:
            raise ValueError("balance and mixture both say how often a study is drawn: one of them can")
        return self

    @model_validator(mode="after")
    def _has_its_figure(self) -> StageConfig:
        if self.select == REWARD and not isinstance(self, RewardStageConfig):
            raise ValueError("select=reward is the figure of the stage that rewards drafts")
        return self

    @property
    def learns(self) -> bool:
        """True for a stage that makes updates: on losses, or on rewards."""
        return bool(self.losses)

    @property
    def validated(self) -> tuple[str, ...]:
        """The terms that validation computes."""
        return tuple(self.losses)

    @property
    def selected_by(self) -> str | None:
        """The validation figure that decides the best epoch; None where that is the last one."""
        if self.select == "last":
            return None
        return "loss" if self.select == REPORT and REPORT not in self.losses else self.select

    @property
    def lower_is_better(self) -> bool:
        """True if that figure is a loss."""
        return self.selected_by in ("loss", REPORT)

    @property
    def trained(self) -> dict[str, Trainability]:
        """The parts that train, and how."""
        return {part: how for part, how in self.finetune.items() if how != "frozen"}


class RewardStageConfig(StageConfig):
    """A stage that trains a method's own decoder on rewards of the reports that it draws; off with 0 epochs.

    Of each study ``samples`` reports are drawn at ``temperature``. ``scst`` weighs each by its reward less that of the
    likeliest report; ``grpo`` by its reward less the mean of the study's samples, over their standard deviation. ``kl``
    weighs the divergence from the model as it was before the stage. A share ``edited`` of a study's samples is edited
    towards the reference: a sentence of it is put in, or one that it contradicts is taken out. ``rewards`` maps names
    (``radweave.engine.rewards``) to weights; their weighted mean is the reward, and one of weight 0 is only measured.
    ``radgraph`` is a local folder with the weights that the reward of that name reads. The reward ``statements`` pays
    for stating a finding from the probability ``break_even`` on.
    ``losses`` may name terms that are weighed beside it, such as the likelihood of the reference. An empty
    ``finetune`` trains what the stage before trains. Dropout is off: the policy that is trained is the one that is
    drawn from.

    Source: Rennie et al., "Self-critical sequence training for image captioning", CVPR 2017, Eq. 8; Shao et al.,
    "DeepSeekMath", arXiv:2402.03300, Eq. 3 and 4.
    """

    finetune: Annotated[dict[str, Trainability], Open()] = Field(default_factory=dict)
    losses: Annotated[dict[str, Weight], Open()] = Field(default_factory=dict)
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-4, weight_decay=0.0, warmup_steps=20)
    epochs: int = Field(default=0, ge=0, le=1_000_000)
    augment: bool = False
    select: Selection = "reward"
    algorithm: Literal["scst", "grpo"] = "grpo"
    samples: int = Field(default=4, ge=1, le=256)
    kl: float = Field(default=0.05, ge=0, le=1e6)
    temperature: float = Field(default=1.0, ge=0.01, le=100)
    edited: float = Field(default=0.25, ge=0, lt=1)
    rewards: Annotated[dict[str, Weight], Open()] = Field(
        default_factory=lambda: {"findings": 1.0, "cider": 0.5, "repetition": 0.1, "contradictions": 0.1}
    )
    radgraph: str | None = None
    break_even: float = Field(default=BREAK_EVEN, gt=0, lt=1)

    @property
    def radgraph_folder(self) -> Path | None:
        """``radgraph`` as a path."""
        return None if self.radgraph is None else Path(self.radgraph)

    @model_validator(mode="after")
    def _can_be_rewarded(self) -> RewardStageConfig:
        if self.algorithm == "grpo" and self.samples < 2:
            raise ValueError("grpo compares the samples of a study: samples must be 2 or more")
        if self.num_edited == self.samples:
            raise ValueError(f"edited={self.edited:g} of {self.samples} samples leaves none that is drawn")
        if not any(self.rewards.values()):
            raise ValueError("no reward has a weight above 0")
        if self.radgraph is not None and "radgraph" not in self.rewards:
            raise ValueError("radgraph is the folder of the reward of that name, which rewards does not name")
        if self.break_even != BREAK_EVEN and "statements" not in self.rewards:
            raise ValueError("break_even is of the reward statements, which rewards does not name")
        if self.select == "loss":
            raise ValueError("the loss of this stage is a surrogate of a gradient and selects nothing")
        if self.compiled != "nothing":
            raise ValueError("compiled must be nothing: reports are drawn within the updates")
        return self

    @property
    def is_on(self) -> bool:
        """True for a stage that makes an update."""
        return self.epochs > 0 and self.max_steps != 0

    @property
    def learns(self) -> bool:
        return True

    @property
    def validated(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((REPORT, *self.losses)))

    @property
    def selected_by(self) -> str | None:
        return None if self.select == "last" else self.select

    @property
    def num_edited(self) -> int:
        """Number of a study's samples that are edited."""
        return round(self.edited * self.samples)


class PlaceStageConfig(Config):
    """The stage after all others that trains the part ``place`` on the frozen encoder; off with 0 epochs.

    The part says where each finding lies: its side and zone, and its box (``radweave.nn.place``). ``hidden`` is the
    width of its layers. No other part changes, so that a finished run can be given it.
    """

    epochs: int = Field(default=0, ge=0, le=1_000_000)
    batch_size: int = Field(default=32, ge=1, le=65_536)
    hidden: int = Field(default=64, ge=1, le=4096)
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-3, weight_decay=0.05, warmup_steps=30)

    @property
    def is_on(self) -> bool:
        """True for a stage that makes an update."""
        return self.epochs > 0


def full(*parts: str) -> dict[str, Trainability]:
    """These parts train as a whole."""
    return dict.fromkeys(parts, "full")


def apply_finetune(model: nn.Module, finetune: Mapping[str, Trainability]) -> None:
    """Freeze all parts but those named to train; ``lora`` trains a part's adapters only, ``base`` all but them.

    Raises:
        InputError: for a part that the model does not have, or one that has no adapters to train.
    """
    parts = named_parts(model)
    refuse_unknown("finetune", tuple(finetune), parts)
    for name, part in parts.items():
        how = finetune.get(name, "frozen")
        if how != "lora":
            part.requires_grad_(how in ("full", "base"))
            for parameter_name, parameter in part.named_parameters():
                if how == "base" and MARK in parameter_name:
                    parameter.requires_grad_(False)
            continue
        if not has_lora(part):
            raise InputError(
                f"there are no adapters in it; set model.{name}.lora=lora", field=f"finetune.{name}", got="lora"
            )
        # Weights that no checkpoint has set train as well: adapters on random weights learn nothing.
        untrained = part.untrained if isinstance(part, PartlyUntrained) else frozenset()
        for parameter_name, parameter in part.named_parameters():
            parameter.requires_grad_(MARK in parameter_name or parameter_name in untrained)


def set_train_mode(model: nn.Module, finetune: Mapping[str, Trainability]) -> None:
    """Training mode for the parts that train; frozen parts stay in evaluation mode (their batch statistics too).

    The model's own flag says that a step of training is under way, whichever parts are frozen.
    """
    model.training = True
    for name, part in named_parts(model).items():
        part.train(finetune.get(name, "frozen") != "frozen")


def total_loss(terms: dict[str, Tensor], weights: dict[str, float]) -> Tensor:
    """Weighted sum of the terms the stage asked for."""
    assert set(terms) == set(weights), "a model returns exactly the terms it was asked for"
    if not terms:
        return torch.zeros(())
    return torch.stack([weights[name] * term for name, term in sorted(terms.items())]).sum()


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters; vectors (norms, biases) do not decay.

    On a CUDA device all weights are updated by one kernel. Elsewhere the order of operations stays torch's default, by
    which kept results were made.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = bool(trainable) and all(parameter.is_cuda for parameter in trainable)
    return torch.optim.AdamW(groups, fused=fused or None, lr=config.learning_rate, betas=config.betas)


def learning_rate(step: int, total_steps: int, config: OptimizerConfig) -> float:
    """Learning rate of the update number ``step`` (from 0)."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_ratio + (1 - config.final_ratio) * cosine)
