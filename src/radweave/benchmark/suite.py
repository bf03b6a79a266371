"""What is compared on what: the sets of the suite, and for each a table with one row per method.

A method is a row of an ablation table (``radweave.ablate`` does the training), in its own preset and without switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radweave.ablate import AblationRequest
from radweave.ablate.plan import overrides_for
from radweave.base.errors import InputError
from radweave.base.study import Modality
from radweave.contract.tables import Paper, Row, Table
from radweave.data.dataset import Dataset
from radweave.methods import load_method, method_names, resolve
from radweave.phantom.study import PhantomOptions

REFERENCE = "baseline"
JOINING = "weave"
"""The method that joins what the others see. Where it takes part, every other system is tested against it too; of data
with priors, which only this one looks at, it reports a second time without them."""
UNTOLD = f"{JOINING}, told no prior"
UTILITY = "kind=expected_utility"
"""The option of decoding by which drafts are chosen instead of written: docs/drafting.md."""
METRICS = (
    *("BLEU_1", "BLEU_2", "BLEU_3", "BLEU_4", "METEOR", "ROUGE_L", "CIDEr"),
    *("CE_P", "CE_R", "CE_F1", "CE_F1_macro", "CE_F1_example"),
)


@dataclass(frozen=True, slots=True)
class SetKind:
    """A place in the suite. ``phantom`` says how its data are drawn where none are given; None: they must be given.

    ``compatible`` is the scoring protocol that the papers on such data used.
    """

    title: str
    modality: Modality
    compatible: str
    studies: int = 0
    phantom: PhantomOptions | None = None


SETS: Mapping[str, SetKind] = {
    "xray": SetKind(
        "phantom radiographs",
        "xray",
        "r2gen_iu_60",
        2300,
        PhantomOptions(prevalence="balanced", image_size=192),
    ),
    "ct": SetKind(
        "phantom CT",
        "ct",
        "hf",
        1000,
        PhantomOptions(prevalence="balanced", volume_size=64, slices=32, masks=True),
    ),
    "iu": SetKind("IU X-Ray", "xray", "r2gen_iu_60"),
}
"""The suite. Phantoms are drawn with seed 0; the same options give the same files."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of ``radweave bench``.

    ``data`` are dataset folders by set; a phantom set without one is drawn into ``out``. ``sets`` are those that are
    run, ``methods`` none for all. ``overrides`` are key=value, METHOD:key=value, SET:key=value or
    SET:METHOD:key=value; ``precision`` is that of every stage that trains. ``studies`` draws phantoms of another size.
    ``headline_seeds`` go to the sets of ``headline_sets`` and there to ``headline_methods``, none for all. With
    ``utility`` every run also drafts by expected utility, as a row of its own. With ``pace`` a short run measures what
    runs that were taken over leave open. ``pages`` is where the pages go, if not to
    ``out``/results.
    """

    out: Path
    data: Mapping[str, Path] = field(default_factory=dict)
    sets: tuple[str, ...] = ("xray", "ct")
    methods: tuple[str, ...] = ()
    preset: str = "tiny"
    seeds: int = 3
    headline_seeds: int | None = None
    headline_sets: tuple[str, ...] = ("xray",)
    headline_methods: tuple[str, ...] = ()
    jobs: int = 1
    overrides: tuple[str, ...] = ()
    precision: str | None = None
    studies: Mapping[str, int] = field(default_factory=dict)
    reuse: tuple[Path, ...] = ()
    pages: Path | None = None
    meteor: bool = False
    train: bool = True
    utility: bool = True
    pace: bool = True


@dataclass(frozen=True, slots=True)
class SuiteSet:
    """One set as it is run. ``unable`` are the methods that have no configuration for its images, with the reason."""

    name: str
    kind: SetKind
    request: AblationRequest
    table: Table
    unable: Mapping[str, str]


def checked_methods(methods: Sequence[str], field: str = "--methods") -> tuple[str, ...]:
    """The methods that option ``field`` asks for, or all; the reference first.

    Raises:
        InputError: for a name that is no method.
    """
    known = method_names()
    for name in methods:
        if name not in known:
            raise InputError("no such method", field=field, got=name, expected=", ".join(known))
    chosen = dict.fromkeys((REFERENCE, *(methods or known)))
    return tuple(chosen)


def check_sets(request: BenchRequest) -> None:
    """Refuse sets that are not there or have no data.

    Raises:
        InputError: naming the option.
    """
    for name in (*request.sets, *request.headline_sets):
        if name not in SETS:
            raise InputError("no such set", field="--sets", got=name, expected=", ".join(SETS))
    if not request.sets:
        raise InputError("nothing to run", field="--sets", expected=", ".join(SETS))
    for name in request.sets:
        if SETS[name].phantom is None and name not in request.data:
            raise InputError("this set has no synthetic stand-in; its data must be given", field=f"--{name}")


def plan_set(request: BenchRequest, name: str, dataset: Path) -> SuiteSet:
    """The ablation request and the table of one set.

    Raises:
        InputError: if no method can be run on it.
    """
    kind = SETS[name]
    overrides = [*_precisions(request, kind.modality), *overrides_of(name, request.overrides)]
    rows, unable = [], {}
    with_priors = any(study.prior is not None for study in Dataset.open(dataset).studies("test"))
    headline = checked_methods(request.headline_methods, "--headline-methods")
    for method in checked_methods(request.methods):
        preset = preset_for(method, request.preset, kind.modality, overrides)
        if preset is None:
            unable[method] = f"no preset '{request.preset}' of it reads {kind.modality}"
        else:
            rows.append(Row(method, method=method, preset=preset, headline=method in headline, paper=printed(method)))
            if request.utility and resolve(method, preset, ()).decoding.kind != "expected_utility":
                label = f"{method}, by utility"
                rows.append(Row(label, run_of=method, decoding=(UTILITY,), headline=method in headline))
            if method == JOINING and with_priors:
                rows.append(Row(UNTOLD, run_of=method, at_test=("priors=false",), headline=method in headline))
    if not rows:
        raise InputError(f"no method can be run on this set: {unable}", field=f"--{name}")
    reference = REFERENCE if REFERENCE not in unable else rows[0].label
    table = Table(
        title=f"Methods on {kind.title}",
        rows=tuple(rows),
        reference=reference,
        metrics=METRICS,
        note="every method in its own preset; what was equal and what was not is in the table of budgets",
    )
    ablation = AblationRequest(
        method=reference,
        dataset=dataset,
        table="bench",
        out=request.out / name,
        preset=request.preset,
        seeds=request.seeds,
        headline_seeds=request.headline_seeds if name in request.headline_sets else None,
        jobs=request.jobs,
        overrides=tuple(overrides),
        meteor=request.meteor,
        own_processes=True,
        reuse=request.reuse,
    )
    return SuiteSet(name, kind, ablation, table, unable)


def _precisions(request: BenchRequest, modality: Modality) -> list[str]:
    """``precision`` as overrides: for each method, of those stages of its preset that train."""
    if request.precision is None:
        return []
    return [
        f"{method}:stages.{name}.precision={request.precision}"
        for method in checked_methods(request.methods)
        if (preset := preset_for(method, request.preset, modality, ()))
        for name, stage in resolve(method, preset, ()).named_stages().items()
        if stage.epochs > 0
    ]


def overrides_of(name: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that hold for a set: those for all, and those that begin with its name and a colon."""
    kept = []
    for override in overrides:
        first, colon, rest = override.partition(":")
        if colon and first in SETS:
            kept += [rest] if first == name else []
        else:
            kept.append(override)
    return kept


def preset_for(method: str, preset: str, modality: Modality, overrides: Sequence[str]) -> str | None:
    """The preset of a method that reads such images: ``preset`` itself, or the one for them ("tiny-ct"); else None."""
    presets = load_method(method).PRESETS
    for name in (preset, f"{preset}-{modality}"):
        if name not in presets:
            continue
        try:
            experiment = resolve(method, name, overrides_for(method, overrides))
        except InputError:
            # The ablation says what is wrong with it, in the table.
            experiment = presets[name]()
        if experiment.data.modality == modality:
            return name
    return None


def printed(method: str) -> Paper:
    """What papers print for the whole method: rows of any method's tables that train it without a switch."""
    found: dict[str, dict[str, float]] = {}
    for owner in method_names():
        for table in getattr(load_method(owner), "TABLES", {}).values():
            for row in table.rows:
                whole = row.ablation in (None, "full") and not (row.overrides or row.needs or row.printed or row.run_of)
                if whole and (row.method or owner) == method:
                    for source, values in row.paper.items():
                        # The first table's number stands: later ones, read off a figure, are rounded.
                        found[source] = {**values, **found.get(source, {})}
    return found
