"""A trained run as one folder to hand on: it opens with ``radweave.load`` where there is neither data nor checkpoint.

OUT/run.json              the card of the run, and the SHA-256 of every other file
OUT/README.md             model card        OUT/LICENSES.md  licences of data and weights
OUT/preprocessing.json    the parameters of image preparation, for other programs
OUT/config.yaml  weights.safetensors  tokenizer/  parts/  memories/  familiarity/  drafting/
OUT/licences/             licence files of the checkpoints it started from

Left behind: checkpoints, training curves, local paths, and the ids of studies and patients. Rows of a memory keep their
texts and get new names (``case-1``), the same for one study in all memories; their patients get numbers. Salted hashes
of the ids stay, so that a training study still does not recall its own report (``HashedNames``). Words of the
reports stay too: in those texts, in the reports to draft from (``drafting/``, which can be left out), and in the
tokenizer's vocabulary.

A published model of images and texts is also written as what it was: a whole checkpoint, or adapters.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined

from radweave.core.config import override, to_yaml
from radweave.core.errors import InputError
from radweave.core.escaping import Markdown, code, escaped
from radweave.core.json_files import read_json_object, write_json
from radweave.core.replacing import FolderKind
from radweave.core.storage import remove_leftovers, sha256_file, sha256_json, write_folder, write_text
from radweave.core.study import RESEARCH_ONLY, Record
from radweave.data.square import PREPROCESSING_VERSION
from radweave.data.tokenizer import load_tokenizer
from radweave.drafting.calibration import load_calibration, save_calibration
from radweave.drafting.store import BANK as DRAFTING_BANK
from radweave.engine.expected_utility import FOLDER as DRAFTING
from radweave.engine.expected_utility import lacking
from radweave.engine.restore import read_experiment, restore, rows_of_memories
from radweave.engine.run_directory import named_files
from radweave.engine.run_folder import (
    RunCard,
    StageFigures,
    leaves,
    licences_of,
    read_card,
    read_card_alone,
    weight_sources,
    write_card,
)
from radweave.inference.predictor import UNTRAINED, decides
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.model import Published
from radweave.metrics.result import FORMAT
from radweave.metrics.result_tables import floor_table, language_table
from radweave.metrics.tables import TextTable, markdown_tables
from radweave.nn.decoding import decoding_options, sets_kind
from radweave.nn.memory.bank import Bank, load_bank, save_bank

# The test scores of a model card: the output of ``radweave evaluate --out``, with intervals and floors.


def scores_page(path: Path) -> str:
    """Scores with intervals, floors and warnings, as Markdown.

    Raises:
        InputError: if the file is not the result of one evaluation.
    """
    result: Mapping[str, Any] = read_json_object(path)
    if result.get("format") != FORMAT:
        expected = "evaluation.json of 'radweave evaluate PREDICTIONS --out DIR', for one run"
        raise InputError("not the scores of a run", file=path, got=result.get("format"), expected=expected)
    try:
        tables = [language_table({"": result}), *([floor_table(result)] if result["floors"] else [])]
        if result["warnings"]:
            tables.append(TextTable("Mind", notes=tuple(str(sentence) for sentence in result["warnings"])))
        return markdown_tables(tables)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError("not the scores of a run: parts of it are missing or changed", file=path) from None


# The two pages of an exported model: model card and licences.


def model_card(
    card: RunCard,
    experiment: Experiment,
    memories: Mapping[str, int],
    files: Mapping[str, int],
    holds: str,
    measured: str = "",
    published: Mapping[str, str] | None = None,
    drafts: str = "",
) -> str:
    """The README of an exported model.

    Args:
        card: the run's card.
        experiment: the run's experiment.
        memories: rows of each memory.
        files: bytes of each file.
        holds: a sentence on the training data in the export.
        measured: test scores with floors as Markdown, if there are any.
        published: of a model for other programs its form, base and prompt.
        drafts: what drafts, of an export for Radweave.
    """
    decoding = experiment.decoding
    changed = decoding.model_dump(exclude_defaults=True)
    return _page(
        "model_card.md.j2",
        card=card,
        notice=RESEARCH_ONLY,
        synthetic=card.dataset.is_synthetic,
        best={stage: _best_figures(figures) for stage, figures in card.validation.items()},
        data=experiment.data,
        decoding=", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy search",
        options=decoding_options(card.overrides),
        drafts=drafts,
        memories=memories,
        files=files,
        holds=holds,
        measured=Markdown(measured),
        published=published or {},
    )


def licence_notes(
    card: RunCard, sources: Mapping[str, str], licences: Mapping[str, list[str]], memories: Mapping[str, int]
) -> str:
    """The page on licences of data and weights.

    Args:
        card: the run's card.
        sources: part -> name of the checkpoint it started from.
        licences: part -> licence files that were found beside it.
        memories: rows of each memory.
    """
    by_part = {part: licences.get(part, []) for part in sources}
    return _page(
        "licenses.md.j2",
        dataset=card.dataset.name,
        sources=sources,
        licences=by_part,
        memories=memories,
        start=card.starts_from,
    )


def _best_figures(figures: StageFigures) -> dict[str, Any] | None:
    rows = figures.at_best()
    if not rows:
        return None
    shown = {name: value for name, value in rows[-1].items() if name not in ("epoch", "step") and value is not None}
    text = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
    return {"step": figures.best_step, "figures": text}


def _shown(value: object) -> object:
    """Every value on a page comes from a run folder, which may be somebody else's."""
    return value if isinstance(value, (Markdown, Undefined)) else escaped(str(value))


def _page(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("radweave", "templates"),
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code
    return environment.get_template(template).render(**values).strip() + "\n"


AS_THEY_ARE = ("weights.safetensors", "calibration.json", "tokenizer/", "parts/", "familiarity/", "place/", "licences/")


def _files_of_export(folder: Path) -> list[str] | None:
    """The files named in the card of an export; None for a run, which has no ``preprocessing.json``."""
    files = named_files(folder)
    return files if "preprocessing.json" in files else None


_OUTPUT = FolderKind("an export", "run.json", _files_of_export)


class Preprocessing(Record):
    """``preprocessing.json``: from a decoded radiograph, grey values in [0, 1], to the model's input.

    The image is scaled to fit a square of ``image_size`` pixels (bilinear, aspect ratio kept, black beside), rounded to
    ``levels`` grey values and divided by ``levels - 1``. For scans ``ct`` says how they are resampled, cropped,
    windowed (HU) and sized, in this order; the window is then rounded to ``levels`` and divided alike. ``thresholds``
    are the probabilities in the model's configuration from which a finding counts as present.
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


def export(
    run: Path,
    out: Path,
    *,
    overwrite: bool = False,
    bank: bool = True,
    scores: Path | None = None,
    decoding: Sequence[str] = (),
) -> Path:
    """Write a trained run as one self-contained folder, whole or not at all.

    The folder is loaded once before it is renamed, so that every export can be loaded.

    Without ``bank`` no data of single training studies is exported: neither the reports to draft from, nor the
    method's memories, nor the parts of the model that read them. Card, model card and every draft name the missing
    parts. ``scores`` is the ``evaluation.json`` of the test predictions, for the model card. ``decoding`` are options
    (key=value) that the export drafts with; they stand in its ``run.json`` and model card.

    Raises:
        InputError: if the run is unfinished, untrained or damaged, ``scores`` is no evaluation, or ``out`` exists; or
            without ``bank`` for a method that needs its memory.
    """
    _refuse_overlap(run, out)
    card = read_card(run)
    if not card.is_trained:
        raise InputError(UNTRAINED.split(":")[0], file=run)
    measured = "" if scores is None else scores_page(scores)
    content = _content(run, card, bank=bank, options=decoding)
    # A killed export may have moved the old folder away: it gets its name back before anything is refused or replaced.
    remove_leftovers(out.parent)
    with write_folder(out, overwrite=overwrite, kind=_OUTPUT) as partial:
        _fill(run, card, partial, content, measured, decoding)
        restore(partial)
    return out


Form = Literal["merged", "adapters"]
"""A whole checkpoint with the adapters in its weights, or the adapters alone."""
CHECKPOINT_CARD: Final = "radweave.json"


def _files_of_checkpoint(folder: Path) -> list[str] | None:
    card = read_json_object(folder / CHECKPOINT_CARD)
    return list(card["files"]) if card.get("format") == _CHECKPOINT_FORMAT and "files" in card else None


_CHECKPOINT_FORMAT: Final = "radweave-checkpoint"
_CHECKPOINT: Final = FolderKind("an exported checkpoint", CHECKPOINT_CARD, _files_of_checkpoint)


def export_checkpoint(run: Path, out: Path, form: Form, *, overwrite: bool = False, scores: Path | None = None) -> Path:
    """Write the published model of a run for transformers, peft and servers of them, whole or not at all.

    Adapters lie in ``adapter_config.json`` and ``adapter_model.safetensors``, for the base weights that the run started
    from. A merged checkpoint holds all weights and the processor. Heads, calibration and reports to draft from stay
    behind.

    Raises:
        InputError: if the run is unfinished or damaged, is of another method, has more than adapters, ``scores`` is no
            evaluation, or ``out`` exists.
    """
    _refuse_overlap(run, out)
    measured = "" if scores is None else scores_page(scores)
    restored = restore(run, device=torch.device("cpu"))
    card, model, public = restored.card, restored.model, _without_local_paths(restored.experiment)
    if not isinstance(model, Published):
        raise InputError(
            "the run holds no published model of images and texts; 'radweave export' without --as writes it",
            file=run,
            field="--as",
            got=form,
        )
    base = str(getattr(public.model, "path", None) or "")
    whole = _trained_whole(card, restored.experiment)
    if form == "adapters" and not base:
        raise InputError("the run started from nothing: adapters have no base", file=run, expected="--as merged")
    if form == "adapters" and card.warm_start is not None:
        raise InputError(
            "the run started from another run's weights, not from a checkpoint's", file=run, expected="--as merged"
        )
    remove_leftovers(out.parent)
    with write_folder(out, overwrite=overwrite, kind=_CHECKPOINT) as partial:
        if form == "merged":
            model.save_merged(partial)
        else:
            model.save_adapters(partial, base=base, whole=whole)
        licences = [name for name in card.files if name.startswith("licences/")]
        for name in licences:
            _copy(run / name, partial / name, card.files[name])
        facts = {"form": form, "base": base, "prompt": str(getattr(public.model, "prompt", ""))}
        write_json(partial / "preprocessing.json", preprocessing(public, card).model_dump(mode="json"))
        write_text(partial / "LICENSES.md", licence_notes(card, weight_sources(public), licences_of(card.files), {}))
        page = model_card(card, public, {}, _sizes(partial), _NO_REPORT, measured, facts)
        write_text(partial / "README.md", page)
        files = {path.relative_to(partial).as_posix(): sha256_file(path) for path in _files(partial)}
        versions = {"method": card.method, "versions": card.versions}
        write_json(partial / CHECKPOINT_CARD, {"format": _CHECKPOINT_FORMAT, **facts, **versions, "files": files})
    return out


_NO_REPORT: Final = "it holds no report"


def _trained_whole(card: RunCard, experiment: Experiment) -> set[str]:
    """The parts of which more than adapters trained."""
    trained = [stage for name, stage in experiment.named_stages().items() if card.trained_steps[name]]
    return {part for stage in trained for part, how in stage.trained.items() if how != "lora"}


@dataclass(frozen=True, slots=True)
class TrainingContent:
    """Training data in an export: the number of ``reports`` with their words, and of ``studies`` in any form."""

    dataset: str
    reports: int
    studies: int
    without: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Statement for users who pass the export on."""
        if not self.studies:
            return f"it holds no report of {self.dataset}, but for words of them in its tokenizer"
        of = f"{self.reports} training reports" if self.reports else f"features of {self.studies} training studies"
        return f"it holds {of} of {self.dataset}: data of its patients, to be passed on on its terms only"


def training_content(folder: Path) -> TrainingContent:
    """Training data in an export."""
    card = read_card_alone(folder)
    drafting = folder / DRAFTING / DRAFTING_BANK
    banks = [load_bank(drafting if name == DRAFTING else folder / "memories" / name) for name in card.memories]
    return _training_content(banks, card)


def _training_content(banks: Sequence[Bank], card: RunCard) -> TrainingContent:
    rows = [row for bank in banks for row in bank.rows]
    reports = {row["study_id"] for row in rows if row.get("text")}
    return TrainingContent(card.dataset.name, len(reports), len({row["study_id"] for row in rows}), card.without)


def _refuse_overlap(run: Path, out: Path) -> None:
    source, target = run.resolve(), out.resolve()
    if source.is_relative_to(target) or target.is_relative_to(source):
        raise InputError("an export cannot lie in its run folder, or around it", file=out)


@dataclass(frozen=True, slots=True)
class ExportContent:
    """The experiment of an export; ``lost`` names the losses without its banks."""

    experiment: Experiment
    bank: bool
    lost: tuple[str, ...] = ()
    heads_hold: bool = True


def _content(run: Path, card: RunCard, *, bank: bool, options: Sequence[str]) -> ExportContent:
    experiment = read_experiment(run, card)
    experiment = experiment.model_copy(update={"decoding": override(experiment.decoding, options)})
    if bank:
        return ExportContent(experiment, bank=True, lost=card.without)
    if experiment.decoding.kind == "expected_utility" and sets_kind(options):
        raise InputError("drafts from training reports, which --no-bank leaves out", field="--set", got=list(options))
    try:
        bare = experiment.model.without_memories()
    except InputError as error:
        raise InputError(error.reason, file=run, field=error.field) from None
    lost = [*card.without, *bare.lost]
    if experiment.decoding.kind == "expected_utility":
        lost.append("drafts are not chosen among training reports; the method's own decoder writes them")
    decoding = experiment.decoding.model_copy(update={"kind": "likelihood"})
    experiment = experiment.model_copy(update={"model": bare.config, "decoding": decoding})
    return ExportContent(experiment, bank=False, lost=tuple(dict.fromkeys(lost)), heads_hold=bare.heads_hold)


def _banks(card: RunCard, place: str) -> list[str]:
    return sorted({name.split("/")[1] for name in card.files if name.startswith(f"{place}/")})


def _fill(
    run: Path, card: RunCard, folder: Path, content: ExportContent, measured: str, options: Sequence[str]
) -> None:
    for name in card.files:
        if name.startswith(AS_THEY_ARE):
            _copy(run / name, folder / name, card.files[name])
    banks = _copy_banks(run, card, folder) if content.bank else {}
    if not content.bank:
        _leave_behind(folder, card, content)
    public = _without_local_paths(content.experiment)
    rows = {name: len(bank) for name, bank in banks.items()}
    write_text(folder / "config.yaml", to_yaml(public))
    write_json(folder / "preprocessing.json", preprocessing(public, card).model_dump(mode="json"))
    write_text(folder / "LICENSES.md", licence_notes(card, weight_sources(public), licences_of(card.files), rows))
    # Other overrides of the run may name folders of this machine.
    chosen = [option for option in decoding_options(card.overrides) if content.bank and sets_kind([option])]
    chosen += options
    overrides = tuple(f"decoding.{option}" for option in chosen)
    card = card.model_copy(update={"without": content.lost, "overrides": overrides})
    drafts, reason = decides(public.decoding, chosen, lacking(folder / DRAFTING, load_calibration(run, card.classes)))
    drafts += f" ({reason})" if reason else ""
    holds = _training_content(list(banks.values()), card).sentence
    page = model_card(card, public, rows, _sizes(folder), holds, measured, drafts=drafts)
    write_text(folder / "README.md", page)
    files = {path.relative_to(folder).as_posix(): sha256_file(path) for path in _files(folder)}
    values = {name: getattr(card, name) for name in type(card).model_fields}
    changed = {"files": files, "memories": rows_of_memories(folder), "validation": _best(card)}
    write_card(folder, RunCard(**{**values, **changed}))


def _leave_behind(folder: Path, card: RunCard, content: ExportContent) -> None:
    """Drop the weights of missing parts, and mark a calibration that no longer holds."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tokenizer = load_tokenizer(folder / "tokenizer")
    data = content.experiment.data
    context = BuildContext(
        tokenizer, data.image_size, card.classes, parts=folder / "parts", volume_size=data.ct.size, priors=data.priors
    )
    with torch.device("meta"):
        left = set(content.experiment.model.build(context).state_dict())
    path = folder / "weights.safetensors"
    with safe_open(str(path), "pt") as file:
        metadata = file.metadata()
    tensors = {name: value for name, value in load_file(str(path)).items() if name in left}
    save_file(tensors, str(path), metadata=metadata)
    if not content.heads_hold:
        calibration = load_calibration(folder, card.classes)
        save_calibration(calibration.model_copy(update={"holds": False}), folder)


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


def _copy_banks(run: Path, card: RunCard, target: Path) -> dict[str, Bank]:
    """Copy memories and what the run drafts from; names of rows are left behind. Returns each bank."""
    # The same for every export of a run, so that an export can be made again byte for byte.
    salt = sha256_json(["radweave export", card.files])[:32]
    cases: dict[str, str] = {}
    patients: dict[str, str] = {}
    places = {name: f"memories/{name}" for name in _banks(card, "memories")}
    if _banks(card, DRAFTING):
        # The rest of that folder names rows by number.
        for name in card.files:
            if name.startswith(f"{DRAFTING}/") and not name.startswith(f"{DRAFTING}/{DRAFTING_BANK}/"):
                _copy(run / name, target / name, card.files[name])
        places["reports to draft from"] = f"{DRAFTING}/{DRAFTING_BANK}"
    copied = {}
    for name, place in places.items():
        bank = load_bank(run / place).renamed(salt, cases, patients)
        save_bank(bank, target / place)
        copied[name] = bank
    return copied


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
    """The validation figures of the exported weights, without the rest of the curve."""
    return {
        stage: StageFigures(best_step=figures.best_step, epochs=figures.at_best())
        for stage, figures in card.validation.items()
    }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in _files(folder)}
