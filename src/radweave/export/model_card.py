"""The two pages that go with an exported model: what it is, and what its licences ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined

from radweave.base.markdown import Markdown, code, escaped
from radweave.base.study import RESEARCH_ONLY
from radweave.contract.experiment import Experiment
from radweave.runs.folder import RunCard, StageFigures


def model_card(
    card: RunCard,
    experiment: Experiment,
    memories: Mapping[str, int],
    files: Mapping[str, int],
    holds: str,
    measured: str = "",
) -> str:
    """The README of an exported model.

    Args:
        card: the run's card.
        experiment: the run's experiment.
        memories: rows of each memory.
        files: bytes of each file.
        holds: what it holds of training studies, in words.
        measured: test scores with floors as Markdown, if there are any.
    """
    decoding = experiment.decoding
    changed = decoding.model_dump(exclude_defaults=True)
    return _page(
        "model_card.md.j2",
        card=card,
        notice=RESEARCH_ONLY,
        synthetic=card.dataset.name.startswith("phantom"),
        best={stage: _best_figures(figures) for stage, figures in card.validation.items()},
        data=experiment.data,
        decoding=", ".join(f"{name} {value}" for name, value in changed.items()) or "greedy search",
        memories=memories,
        files=files,
        holds=holds,
        measured=Markdown(measured),
    )


def licence_notes(
    card: RunCard, sources: Mapping[str, str], licences: Mapping[str, list[str]], memories: Mapping[str, int]
) -> str:
    """What is known of the licences of data and weights.

    Args:
        card: the run's card.
        sources: part -> name of the checkpoint it started from.
        licences: part -> licence files that were found beside it.
        memories: rows of each memory.
    """
    found = {part: licences.get(part, []) for part in sources}
    return _page("licenses.md.j2", dataset=card.dataset.name, sources=sources, licences=found, memories=memories)


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
