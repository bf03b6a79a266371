"""Restore a run folder to a model that reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from radweave.core.config import from_yaml, override
from radweave.core.devices import default_device
from radweave.core.errors import InputError
from radweave.core.foreign_models import refuse_unusable_weights
from radweave.core.ontology import CLASSES
from radweave.core.study import Split
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.examples import refuse_shared_images
from radweave.data.ood import OutOfDistribution, load_ood
from radweave.data.square import PREPROCESSING_VERSION
from radweave.data.tokenizer import decode, load_tokenizer
from radweave.drafting.calibration import load_calibration
from radweave.engine.checkpoint import load_weights, refuse_other_classes, refuse_other_shapes
from radweave.engine.expected_utility import FOLDER, Drafting
from radweave.engine.place import FOLDER as PLACE
from radweave.engine.place import PlacePart, load_place
from radweave.engine.prepare import prepare, split_view
from radweave.engine.run_folder import RunCard, read_card
from radweave.methods import load_method
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.model import ReportModel, Served, TrainingView, Varied
from radweave.methods.renamed import rename_stages
from radweave.nn.memory.bank import load_bank

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
    ood: OutOfDistribution | None = None
    drafting: Drafting | None = None
    place: PlacePart | None = None


def read_experiment(folder: Path, card: RunCard) -> Experiment:
    """The experiment of a run folder.

    Raises:
        InputError: if ``config.yaml`` is missing or broken, or the method is not there.
    """
    experiment: Experiment = from_yaml(type(load_method(card.method).PRESETS["tiny"]()), folder / "config.yaml")
    return experiment


def restore(folder: Path, *, device: torch.device | None = None) -> Run:
    """Open a finished run folder; every file is checked against its hash.

    Without ``device`` the model is on the default device.

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
    experiment = read_experiment(folder, card)
    if experiment.method != card.method:
        raise InputError("the method is not that of config.yaml", file=folder / "run.json", field="method")
    if experiment.had_former_keys():
        stages = {name: rename_stages(getattr(card, name)) for name in ("trained_steps", "validation")}
        card = card.model_copy(update=stages)
    if list(card.trained_steps) != list(experiment.named_stages()):
        raise InputError("the stages are not those of config.yaml", file=folder / "run.json", field="trained_steps")
    refuse_other_classes(folder / "weights.safetensors", card.classes)
    if card.classes != CLASSES[experiment.data.label_set]:
        raise InputError("the classes are not those of config.yaml", file=folder / "run.json", field="classes")
    if card.dataset.modality != experiment.data.modality:
        raise InputError("the modality is not that of config.yaml", file=folder / "run.json", field="dataset.modality")
    tokenizer = load_tokenizer(folder / "tokenizer")
    data, parts = experiment.data, folder / "parts"
    context = BuildContext(
        tokenizer,
        data.image_size,
        card.classes,
        parts=parts,
        volume_size=data.ct.size,
        priors=data.priors,
    )
    weights = folder / "weights.safetensors"
    with torch.device("meta"):
        refuse_other_shapes(experiment.model.build(context), weights)
    model = experiment.model.build(context)
    load_weights(model, weights)
    refuse_unusable_weights(model, weights)
    set_memories(model, folder, named=card.memories)
    if isinstance(model, Served) and "preprocessing.json" in card.files:
        model.allow_remote(False)  # an export: where its maker's images went is not where those of its user go
    model.to(default_device() if device is None else device).eval()
    calibration = load_calibration(folder, card.classes)
    drafting = Drafting(folder / FOLDER, model, calibration, partial(decode, tokenizer), experiment.data.priors)
    ood = load_ood(folder / "familiarity")
    place = load_place(folder / PLACE, card.classes)
    return Run(folder, card, experiment, tokenizer, model, ood, drafting, None if place is None else place.to(model))


def set_memories(model: ReportModel, folder: Path, *, named: Mapping[str, int] | None = None) -> None:
    """Load the banks of a run folder into a model; ``named`` are the banks of a finished run with their rows.

    Raises:
        InputError: for a broken or missing bank, or one that fits neither the model nor ``named``.
    """
    places = sorted((folder / "memories").glob("[!.]*")) if (folder / "memories").is_dir() else []
    banks = {place.name: load_bank(place) for place in places}
    for name, bank in banks.items():
        if named is not None and named.get(name) != len(bank):
            raise InputError(
                f"the memory '{name}' has other rows than the run says",
                file=folder / "memories",
                got=len(bank),
                expected=named.get(name),
            )
    layouts = model.memory_layouts()
    for name in () if named is None else layouts:
        if name not in banks:
            raise InputError(
                f"the method reads its memory '{name}', and the folder lacks it", file=folder, field="memories"
            )
    if banks:
        try:
            for name, bank in banks.items():
                if name in layouts:
                    bank.refuse_misfit(name, layouts[name])
                if named is not None:  # new banks were checked when they were saved
                    bank.refuse_non_finite(name)
            model.set_memories(banks)
        except (KeyError, RuntimeError) as error:  # a tensor or a field is missing or differs
            raise InputError(f"the memories do not fit this model: {error}", file=folder / "memories") from None
        except InputError as error:
            raise error.at(file=folder / "memories") from None


def rows_of_memories(folder: Path) -> dict[str, int]:
    """Rows of each bank of a run folder, with that of its drafting."""
    places = {place.name: place for place in sorted((folder / "memories").glob("[!.]*"))}
    if (folder / "drafting" / "bank").is_dir():
        places["drafting"] = folder / "drafting" / "bank"
    return {name: len(load_bank(place)) for name, place in places.items()}


# Settings at test time (``--at-test pool.size=10``): the run folder is unchanged, and every report warns of them.


def vary(run: Run, dataset: Dataset, assignments: Sequence[str]) -> str:
    """Change settings (``key=value``) of the run's model for reports on ``dataset``; return a warning.

    Raises:
        InputError: for a method without settings, an unknown setting, or an unfit data set.
    """
    model = run.model
    if not isinstance(model, Varied):
        raise InputError("this method has nothing to set at test time", field="--at-test", got=run.card.method)
    model.vary(override(model.settings, assignments), lambda folder, split: view_of(run, dataset, folder, split))
    return f"not as the run was trained: {' '.join(assignments)}"


def view_of(run: Run, dataset: Dataset, folder: str | None, split: Split) -> TrainingView:
    """A split of the reported data set, or of another one."""
    own = folder is None
    source = (dataset if folder is None else Dataset.open(Path(folder))).aimed(run.experiment.data.target)
    if own and dataset.fingerprint() != run.card.dataset.fingerprint:
        raise InputError(
            "is not the data set that the run was trained on: from which one shall it be?",
            file=dataset.path,
            field="--at-test data",
            expected="data=FOLDER",
        )
    same = source.fingerprint() == dataset.fingerprint()
    if not same:
        refuse_shared_images(dataset, source, split)
    data = run.experiment.data
    cache = build_cache(source, size=data.image_size, ct=data.ct)
    prepared = prepare(source, split, run.experiment, run.tokenizer, cache, need_text=True)
    return split_view(
        source,
        prepared,
        classes=run.card.classes,
        pad_id=int(run.tokenizer.pad_token_id),
        seed=run.experiment.seed,
        origin=None if source.fingerprint() == run.card.dataset.fingerprint else source.card.name,
        open_other=lambda path: view_of(run, dataset, str(path), split),
        split=split,
    )
