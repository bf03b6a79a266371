"""A trained run as one folder to hand on: it opens with ``radweave.load`` where there is neither data nor checkpoint.

OUT/run.json              what made it, and the SHA-256 of every other file
OUT/README.md             model card        OUT/LICENSES.md  what the licences of its parts ask for
OUT/preprocessing.json    the numbers another program needs to prepare images as this model wants them
OUT/config.yaml  weights.safetensors  tokenizer/  parts/  memories/  familiarity/  drafting/
OUT/licences/             licence files of the checkpoints it started from

Left behind: checkpoints, training curves, local paths, and the ids of studies and patients. Rows of a memory keep their
texts and get new names (``case-1``), the same for one study in all memories; their patients get numbers. Salted hashes
of the ids stay, so that an export refuses the study's own report as its run does (``HashedNames``). Words of the
reports stay too: in those texts, in the reports to draft from (``drafting/``, which can be left out), and in the
tokenizer's vocabulary.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from radweave.base.config import from_yaml, to_yaml
from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file, sha256_json
from radweave.base.json_files import write_json
from radweave.base.replacing import FolderKind
from radweave.base.storage import remove_leftovers, write_folder, write_text
from radweave.base.study import Record
from radweave.contract.experiment import Experiment
from radweave.data.transforms import PREPROCESSING_VERSION
from radweave.drafting.store import BANK as DRAFTING_BANK
from radweave.export.model_card import licence_notes, model_card
from radweave.generate.predictor import UNTRAINED
from radweave.memory.bank import load_bank, save_bank
from radweave.methods import load_method
from radweave.runs.drafting import FOLDER as DRAFTING
from radweave.runs.folder import RunCard, StageFigures, read_card, write_card
from radweave.runs.licences import leaves, licences_of, weight_sources
from radweave.runs.place import named_files
from radweave.runs.restore import restore

AS_THEY_ARE = ("weights.safetensors", "tokenizer/", "parts/", "familiarity/", "licences/")


def _files_of_export(folder: Path) -> list[str] | None:
    """The files that an export's card names; None for a run, which has no numbers for other programs."""
    files = named_files(folder)
    return files if "preprocessing.json" in files else None


_OUTPUT = FolderKind("an export", "run.json", _files_of_export)


class Preprocessing(Record):
    """``preprocessing.json``: from a decoded radiograph, grey values in [0, 1], to the model's input.

    The image is scaled to fit a square of ``image_size`` pixels (bilinear, aspect ratio kept, black beside), rounded to
    ``levels`` grey values and divided by ``levels - 1``. For scans ``ct`` says how they are resampled, cropped,
    windowed (HU) and sized, in this order; the window is then rounded to ``levels`` and divided alike. ``thresholds``
    are the numbers in the model's configuration that turn a probability into a yes.
    """

    version: int
    modality: str
    image_size: int
    max_views: int
    levels: int = 256
    ct: dict[str, Any] | None = None
    label_set: str
    classes: tuple[str, ...]
    thresholds: dict[str, float]


def export(run: Path, out: Path, *, overwrite: bool = False, bank: bool = True) -> Path:
    """Write a trained run as one self-contained folder, whole or not at all.

    The folder is opened once before it gets its name, so that what is there can be loaded.

    Without ``bank`` the training reports that a run drafts from stay behind; it then drafts with its method's own
    decoder alone.

    Raises:
        InputError: if the run is unfinished, untrained or damaged, or ``out`` exists; or if it reads training studies
            to work at all and ``bank`` is not set.
    """
    _refuse_overlap(run, out)
    card = read_card(run)
    if not card.is_trained:
        raise InputError(UNTRAINED.split(":")[0], file=run)
    if not bank:
        _refuse_memories(run, card)
    # One that was moved away by an export that was killed has its name again before anything is refused or replaced.
    remove_leftovers(out.parent)
    with write_folder(out, overwrite=overwrite, ours=_OUTPUT) as partial:
        _fill(run, card, partial, bank=bank)
        restore(partial)
    return out


def training_reports(folder: Path) -> int:
    """How many training reports an export has to draft from; 0 without."""
    place = folder / DRAFTING / DRAFTING_BANK
    return len(load_bank(place)) if place.is_dir() else 0


def _refuse_overlap(run: Path, out: Path) -> None:
    ours, theirs = run.resolve(), out.resolve()
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise InputError("an export cannot lie in its run folder, or around it", file=out)


def _refuse_memories(run: Path, card: RunCard) -> None:
    held = _banks(card, "memories")
    if held:
        raise InputError(
            f"the method reads its memory of training studies ({', '.join(held)}): it cannot be exported without",
            file=run,
            field="--no-bank",
        )


def _banks(card: RunCard, place: str) -> list[str]:
    return sorted({name.split("/")[1] for name in card.files if name.startswith(f"{place}/")})


def _fill(run: Path, card: RunCard, folder: Path, *, bank: bool) -> None:
    for name in card.files:
        if name.startswith(AS_THEY_ARE):
            _copy(run / name, folder / name, card.files[name])
    rows = _copy_banks(run, card, folder, bank=bank)
    experiment = from_yaml(type(load_method(card.method).PRESETS["tiny"]()), run / "config.yaml")
    public = _without_local_paths(experiment)
    if not bank:
        likelihood = public.decoding.model_copy(update={"kind": "likelihood"})
        public = public.model_copy(update={"decoding": likelihood})
    write_text(folder / "config.yaml", to_yaml(public))
    write_json(folder / "preprocessing.json", preprocessing(experiment, card).model_dump(mode="json"))
    write_text(folder / "LICENSES.md", licence_notes(card, weight_sources(public), licences_of(card.files), rows))
    write_text(folder / "README.md", model_card(card, public, rows, _sizes(folder)))
    files = {path.relative_to(folder).as_posix(): sha256_file(path) for path in _files(folder)}
    values = {name: getattr(card, name) for name in type(card).model_fields}
    write_card(folder, RunCard(**{**values, "files": files, "overrides": (), "validation": _best(card)}))


def preprocessing(experiment: Experiment, card: RunCard) -> Preprocessing:
    """The numbers of a run."""
    return Preprocessing(
        version=PREPROCESSING_VERSION,
        modality=card.dataset.modality,
        image_size=experiment.data.image_size,
        max_views=experiment.data.max_views,
        ct=experiment.data.ct.model_dump(mode="json") if experiment.data.modality == "ct" else None,
        label_set=experiment.data.label_set,
        classes=card.classes,
        thresholds={
            path: value
            for path, value in leaves(experiment.model.model_dump(mode="json"), "model")
            if "threshold" in path.rsplit(".", 1)[-1] and isinstance(value, (int, float))
        },
    )


def _copy(source: Path, target: Path, expected: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    if sha256_file(target) != expected:
        raise InputError("file changed while it was copied", file=source)


def _copy_banks(run: Path, card: RunCard, target: Path, *, bank: bool) -> dict[str, int]:
    """Copy memories and what the run drafts from; names of rows are left behind. Returns the rows of each bank."""
    # The same for every export of a run, so that an export can be made again byte for byte.
    salt = sha256_json(["radweave export", card.files])[:32]
    cases: dict[str, str] = {}
    patients: dict[str, str] = {}
    places = {name: f"memories/{name}" for name in _banks(card, "memories")}
    if bank and _banks(card, DRAFTING):
        # The rest of that folder names rows by number.
        for name in card.files:
            if name.startswith(f"{DRAFTING}/") and not name.startswith(f"{DRAFTING}/{DRAFTING_BANK}/"):
                _copy(run / name, target / name, card.files[name])
        places["reports to draft from"] = f"{DRAFTING}/{DRAFTING_BANK}"
    counts = {}
    for name, place in places.items():
        found = load_bank(run / place).renamed(salt, cases, patients)
        save_bank(found, target / place)
        counts[name] = len(found)
    return counts


def _without_local_paths(experiment: Experiment) -> Experiment:
    """The experiment with local checkpoint folders cut down to their names."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: Path(item).name if key == "path" and isinstance(item, str) and _is_local(item) else cut(item)
                for key, item in value.items()
            }
        return [cut(item) for item in value] if isinstance(value, list) else value

    return type(experiment).model_validate(cut(experiment.model_dump(mode="json")))


def _is_local(path: str) -> bool:
    return Path(path).is_absolute() or path.startswith((".", "~")) or Path(path).exists()


def _best(card: RunCard) -> dict[str, StageFigures]:
    """The validation figures of the weights that are handed on, not the whole curve."""
    return {
        stage: StageFigures(best_step=figures.best_step, epochs=figures.at_best())
        for stage, figures in card.validation.items()
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}
