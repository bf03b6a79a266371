"""From a run folder back to a model that reports."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from radweave.base.config import from_yaml
from radweave.base.devices import default_device
from radweave.base.errors import InputError
from radweave.base.ontology import CLASSES
from radweave.contract.experiment import BuildContext, Experiment
from radweave.contract.model import ReportModel
from radweave.data.familiarity import Familiarity, load_familiarity
from radweave.data.preprocessing import PREPROCESSING_VERSION
from radweave.data.tokenizer import load_tokenizer
from radweave.drafting.run_calibration import load_calibration
from radweave.methods import load_method
from radweave.outside.models import refuse_unusable_weights
from radweave.runs.drafting import FOLDER, Drafting
from radweave.runs.folder import RunCard, read_card
from radweave.runs.memories import set_memories
from radweave.train.checkpoint import load_weights, refuse_other_classes
from radweave.train.sizes import refuse_other_shapes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Run:
    """A restored run."""

    folder: Path
    card: RunCard
    experiment: Experiment
    tokenizer: PreTrainedTokenizerBase
    model: ReportModel
    familiarity: Familiarity | None = None
    drafting: Drafting | None = None


def restore(folder: Path, *, device: torch.device | None = None) -> Run:
    """Open a finished run folder; every file is checked against its hash.

    Without ``device`` the model is where ``default_device`` says.

    Raises:
        InputError: if a file is missing or was changed, or does not fit the model.
    """
    card = read_card(folder)
    if card.preprocessing != PREPROCESSING_VERSION:
        raise InputError(
            "the run was trained with another preparation of images; use the version of radweave that trained it",
            file=folder / "run.json",
            field="preprocessing",
            got=card.preprocessing,
            expected=PREPROCESSING_VERSION,
        )
    experiment = from_yaml(type(load_method(card.method).PRESETS["tiny"]()), folder / "config.yaml")
    if experiment.method != card.method:
        raise InputError("the method is not that of config.yaml", file=folder / "run.json", field="method")
    if list(card.trained_steps) != list(experiment.named_stages()):
        raise InputError("the stages are not those of config.yaml", file=folder / "run.json", field="trained_steps")
    refuse_other_classes(folder / "weights.safetensors", card.classes)
    if card.classes != CLASSES[experiment.data.label_set]:
        raise InputError("the classes are not those of config.yaml", file=folder / "run.json", field="classes")
    if card.dataset.modality != experiment.data.modality:
        raise InputError("the modality is not that of config.yaml", file=folder / "run.json", field="dataset.modality")
    tokenizer = load_tokenizer(folder / "tokenizer")
    data, parts = experiment.data, folder / "parts"
    context = BuildContext(tokenizer, data.image_size, card.classes, parts=parts, volume_size=data.ct.size)
    weights = folder / "weights.safetensors"
    with torch.device("meta"):
        refuse_other_shapes(experiment.model.build(context), weights)
    model = experiment.model.build(context)
    load_weights(model, weights)
    refuse_unusable_weights(model, weights)
    set_memories(model, folder, named=card.memories)
    model.to(default_device() if device is None else device).eval()
    drafting = Drafting(folder / FOLDER, model, load_calibration(folder, card.classes))
    familiarity = load_familiarity(folder / "familiarity")
    return Run(folder, card, experiment, tokenizer, model, familiarity, drafting)
