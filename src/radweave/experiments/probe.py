"""Exchange probe: what each input of a decoder, and each loss, is worth to the reports of a trained run.

A part that can be exchanged between studies at no cost carries nothing of the study. For every declared input of the
decoder (``ReportModel.inputs``) the reference reports are scored after the study's own, after another study's, without
it, after the batch's mean, and after this input alone; drafts are written after the study's own and after another
study's. An input that has read the image may owe the image what its exchange costs: the features that it is made of
(``ReportModel.input_sources``) are exchanged before they read the image. For every loss of every stage one step is made
on it alone, and the change of what the decoder reads is measured.

    result = probe(restore(Path("runs/dast")), Path("data/iu"))
    print(result.table())
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from radweave.core.batch import Batch
from radweave.core.errors import InputError
from radweave.core.json_files import write_json
from radweave.core.ontology import NO_FINDING
from radweave.core.storage import write_folder, write_text
from radweave.core.study import RESEARCH_ONLY, Split
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import decode
from radweave.engine.prepare import prepare
from radweave.engine.restore import Run, vary
from radweave.labels import LABELER_OF, get_labeler
from radweave.methods.model import (
    DecoderInput,
    InputReader,
    InputSource,
    ReportModel,
    Term,
    Writes,
    WritesByPrefix,
    device_of,
    language_model_of,
    named_parts,
)
from radweave.methods.stage import StageConfig, apply_finetune
from radweave.metrics.clinical import confusion_rows, is_positive, states_of
from radweave.metrics.evaluate import corpus_statistics
from radweave.metrics.statistics import Floats, Statistic, bootstrap, cluster_index, mean_statistic
from radweave.nn.connector import encode_views
from radweave.nn.decoding import DecodingConfig, Prefixes
from radweave.nn.prompt import Slot

Exchange = Literal["another", "none", "mean"]
EXCHANGES: tuple[Exchange, ...] = ("another", "none", "mean")
"""Another study's input, none, the mean of the batch."""
FLOOR = 0.01
"""Nats per token that another study's input must cost at least."""
MOVED = 0.01
"""Change of the decoder's input, relative to its spread between studies, from which a step on a loss counts."""
HEARD = 0.01
"""Share of its stage's gradient from which a loss counts."""
STEP = 0.01
"""Length of the step on a loss, relative to the norm of the weights that it moves."""
BATCH = 16
STEP_STUDIES = 32
"""Studies on which a step on a loss is made and measured."""
IMPLEMENTATION = 3
"""Number of the way of probing; probes of another one are made again."""


# Readers between the inputs and the decoder.


def exchanged(slot: Slot, how: Exchange) -> Slot:
    """The input of every study in place of which stands another study's, nothing, or the batch's mean.

    Args:
        slot: tokens (B, S, H) and mask (B, S); of one study alone another's is its own.
        how: ``another`` rolls the rows by one.
    """
    tokens, mask = slot
    if how == "another":
        return tokens.roll(1, 0), mask.roll(1, 0)
    if how == "none":
        return tokens, torch.zeros_like(mask)
    weight = mask[:, :, None].to(tokens.dtype)
    mean = (tokens * weight).sum(0) / weight.sum(0).clamp(min=1)
    return mean.expand_as(tokens), mask.any(0).expand_as(mask)


@dataclass(frozen=True, slots=True)
class Exchanging:
    """Reader that exchanges one input, or one source. None of a source is zeros, which read the image too."""

    name: str
    how: Exchange
    source: bool = False

    def __call__(self, name: str, slot: Slot) -> Slot:
        if name != self.name:
            return slot
        return (torch.zeros_like(slot[0]), slot[1]) if self.source and self.how == "none" else exchanged(slot, self.how)


@dataclass(frozen=True, slots=True)
class Alone:
    """Reader that leaves one input, the study's own or another study's."""

    name: str
    another: bool = False

    def __call__(self, name: str, slot: Slot) -> Slot:
        if name != self.name:
            return exchanged(slot, "none")
        return exchanged(slot, "another") if self.another else slot


@dataclass(slots=True)
class Recording:
    """Reader that keeps a copy of every input."""

    slots: dict[str, Slot] = field(default_factory=dict)

    def __call__(self, name: str, slot: Slot) -> Slot:
        self.slots[name] = (slot[0].detach().float().cpu(), slot[1].cpu())
        return slot


@dataclass(slots=True)
class Spread:
    """Share of an input's power that differs between studies: sum (t - mean)^2 / sum t^2 over its tokens.

    The mean is that of each position over the studies that have a token there.
    """

    squares: float = 0.0
    total: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    count: Tensor = field(default_factory=lambda: torch.zeros(0, 1, dtype=torch.float64))

    def add(self, slot: Slot) -> None:
        """Count the input of a batch."""
        tokens, weight = slot[0].double(), slot[1][:, :, None].double()
        tokens = tokens * weight
        self.squares += float(tokens.square().sum())
        self.total = _padded_sum(self.total, tokens.sum(0))
        self.count = _padded_sum(self.count, weight.sum(0))

    @property
    def share(self) -> float | None:
        """None where the input never had a token."""
        if not self.squares:
            return None
        common = float((self.total.square() / self.count.clamp(min=1)).sum())
        return max(0.0, 1.0 - common / self.squares)


def _padded_sum(a: Tensor, b: Tensor) -> Tensor:
    """Sum of two tensors (S, W) of different lengths S; one of width 0 adds nothing."""
    if not a.numel():
        return b.clone()
    long, short = (a, b) if len(a) >= len(b) else (b, a)
    out = long.clone()
    out[: len(short)] += short
    return out


# Results.


@dataclass(frozen=True, slots=True)
class Cost:
    """A mean over studies with its 95 % bootstrap interval over patients; None where it is undefined."""

    mean: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, statistic: Statistic, clusters: NDArray[np.int64]) -> Cost:
        interval = bootstrap({"x": statistic}, clusters)["x"]
        return cls(statistic.corpus(), interval.low, interval.high)

    def __str__(self) -> str:
        return self.text("+.4f")

    def text(self, form: str) -> str:
        """Mean and interval, each number in this format."""
        mean = format(self.mean, form)
        return mean if self.low is None or self.high is None else f"{mean} [{self.low:{form}}, {self.high:{form}}]"


@dataclass(frozen=True, slots=True)
class Drafts:
    """Drafts of a split: ``changed`` of them differ from the run's own; changes of scores are after less own."""

    changed: Cost
    f1: float
    f1_change: Cost
    cider: float
    cider_change: Cost

    def cells(self) -> tuple[str, str, str]:
        """Share of drafts that change, findings F1 and CIDEr after, each with its interval."""
        f1, cider = (change.text("+.3f") for change in (self.f1_change, self.cider_change))
        return self.changed.text(".0%"), f"{self.f1:.3f} ({f1})", f"{self.cider:.3f} ({cider})"


@dataclass(frozen=True, slots=True)
class InputResult:
    """An input of the decoder, or the source of the input ``of``. ``costs`` are nats per token, exchanged less own;
    drafts are after another study's.

    ``alone`` is the cost of another study's where all other inputs are withheld: what the decoder reads in the input,
    though others may say it too. ``covered_by`` and ``because`` are what the method declares of that.
    """

    name: str
    part: str
    silent: str
    spread: float | None
    costs: Mapping[Exchange, Cost]
    alone: Cost
    drafts: Drafts | None
    covered_by: tuple[str, ...] = ()
    because: str = ""
    of: str = ""

    @property
    def title(self) -> str:
        """Name in a table: ``changes -> difference`` of a source."""
        return f"{self.name} -> {self.of}" if self.of else self.name

    @property
    def part_name(self) -> str:
        """Name in a list of parts: ``input image``, ``source changes -> difference``."""
        return f"{'source' if self.of else 'input'} {self.title}"

    @property
    def carries(self) -> bool:
        """Another study's costs at least ``FLOOR``, with an interval above 0."""
        return _is_paid(self.costs["another"])

    @property
    def covered(self) -> bool:
        """It carries by itself, yet not beside the other inputs, which say the same."""
        return not self.carries and _is_paid(self.alone)

    @property
    def expected(self) -> str:
        """Inputs that are expected to cover it, and why; empty where none is."""
        return f"expected to be covered by {' and '.join(self.covered_by)}: {self.because}" if self.covered_by else ""

    @property
    def verdict(self) -> str:
        """Word of the tables on it: yes, covered or no, and what is declared."""
        if self.carries or self.covered:
            word = "yes" if self.carries else "covered"
        else:
            word = f"no: {self.silent}" if self.silent else "**no**"
        return f"{word}; {self.expected}" if self.expected else word


def _is_paid(cost: Cost) -> bool:
    return cost.mean >= FLOOR and cost.low is not None and cost.low > 0


@dataclass(frozen=True, slots=True)
class LossResult:
    """A loss of a stage.

    ``gradient`` is its weighted gradient's share of the sum over the stage's losses. After one step on it alone, of
    ``STEP`` of the norm of the weights that it moves, ``moved`` is the root mean square change of the decoder's input
    relative to its spread between studies, and ``nats`` the change of the report's loss. ``decoder``: its gradient
    reaches the decoder's own weights.
    """

    stage: str
    name: str
    silent: str
    gradient: float
    moved: float
    nats: float
    decoder: bool

    @property
    def acts(self) -> bool:
        """A step on it is heard among the losses of its stage, and changes what the decoder reads, or the decoder."""
        return self.gradient >= HEARD and (self.moved >= MOVED or self.decoder)


@dataclass(frozen=True, slots=True)
class Probe:
    """The probe of a run; ``f1`` and ``cider`` are those of its own drafts, by its own decoder, greedily.

    ``weights`` and ``data`` are the SHA-256 of the run's weights and the fingerprint of the data set.
    """

    method: str
    split: Split
    studies: int
    nats: float
    f1: float | None
    cider: float | None
    inputs: tuple[InputResult, ...]
    losses: tuple[LossResult, ...]
    seconds: float
    weights: str
    data: str
    sources: tuple[InputResult, ...] = ()
    at_test: tuple[str, ...] = ()

    @property
    def exchanged(self) -> tuple[InputResult, ...]:
        """Inputs, then sources."""
        return self.inputs + self.sources

    @property
    def silent(self) -> list[str]:
        """Parts that do not act, alone or beside the others, and do not declare why."""
        quiet = [one.part_name for one in self.exchanged if not (one.silent or one.carries or one.covered)]
        return quiet + [f"loss {one.stage}.{one.name}" for one in self.losses if not one.silent and not one.acts]

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON values."""
        import dataclasses

        def value(item: Any) -> Any:
            if dataclasses.is_dataclass(item) and not isinstance(item, type):
                return {name.name: value(getattr(item, name.name)) for name in dataclasses.fields(item)}
            if isinstance(item, Mapping):
                return {key: value(one) for key, one in item.items()}
            return [value(one) for one in item] if isinstance(item, tuple) else item

        own = {"floor": FLOOR, "moved": MOVED, "heard": HEARD, "step": STEP, "silent": self.silent}
        own["covered"] = [one.part_name for one in self.exchanged if one.covered]
        return {**value(self), **own, "implementation": IMPLEMENTATION, "note": RESEARCH_ONLY}

    def table(self) -> str:
        """Two tables in Markdown: a row per input and source, and a row per loss."""
        lines = [f"Not as the run was trained: {' '.join(self.at_test)}", ""] if self.at_test else []
        lines += [
            "| input | spread | another study's, nats/token [95 %] | alone | carries | none | mean "
            "| drafts changed [95 %] | F1 after | CIDEr after |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for one in self.exchanged:
            spread = "" if one.spread is None else f"{one.spread:.3f}"
            drafts = " |  | " if one.drafts is None else " | ".join(one.drafts.cells())
            another, none, mean = (one.costs[how] for how in EXCHANGES)
            costs = f"{another} | {one.alone.mean:+.4f} | {one.verdict} | {none.mean:+.4f} | {mean.mean:+.4f}"
            lines.append(f"| {one.title} | {spread} | {costs} | {drafts} |")
        lines += [
            "",
            "| stage | loss | share of the gradient | decoder's input moves by | report, nats/token | acts |",
            "|---|---|---|---|---|---|",
        ]
        for loss in self.losses:
            acts = "yes" if loss.acts else (f"no: {loss.silent}" if loss.silent else "**no**")
            figures = f"{loss.gradient:.3f} | {loss.moved:.3f} | {loss.nats:+.4f}"
            lines.append(f"| {loss.stage} | {loss.name} | {figures} | {acts} |")
        return "\n".join(lines) + "\n"


def write_page(result: Probe, out: Path, *, overwrite: bool = False) -> Path:
    """Write ``index.html`` with a bar per part, ``probe.json`` and ``probe.md`` into a folder; return the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("radweave", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    widest = max([FLOOR, *(abs(cost.high or cost.mean) for one in result.exchanged for cost in one.costs.values())])
    values = {"probe": result, "notice": RESEARCH_ONLY, "widest": widest, "exchanges": EXCHANGES, "floor": FLOOR}
    page = environment.get_template("probe.html.j2").render(values, moved=MOVED, heard=HEARD, step=STEP)
    with write_folder(out, overwrite=overwrite) as partial:
        write_text(partial / "index.html", page)
        write_text(partial / "probe.md", result.table())
        write_json(partial / "probe.json", result.to_json())
    return out / "index.html"


# The probe.


def probe(
    run: Run,
    data: Path,
    *,
    split: Split = "test",
    studies: int = 100,
    drafts: bool = True,
    at_test: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Probe:
    """Probe a run on at most so many studies of a split, drawn by the run's seed.

    Args:
        run: a restored run; it is unchanged afterwards, but for ``at_test``.
        data: the folder of a data set with reports.
        split: the split that is probed.
        studies: at most so many.
        drafts: write drafts as well.
        at_test: settings of the run that are changed first (``radweave.engine.restore.vary``).
        progress: gets the number of finished steps, and of all.

    Raises:
        InputError: if the method has no decoder, or fewer than two studies have a report.
    """
    model = run.model
    if not model.inputs or not isinstance(model, WritesByPrefix) or not isinstance(language_model_of(model), Writes):
        raise InputError(
            "this method has no decoder that writes after named inputs", file=run.folder, field="method",
            got=run.card.method, expected="a method whose own decoder writes",
        )  # fmt: skip
    dataset = Dataset.open(data)
    experiment = run.experiment
    if at_test:
        vary(run, dataset, at_test)
    cache = build_cache(dataset, size=experiment.data.image_size, ct=experiment.data.ct)
    prepared = prepare(dataset, split, experiment, run.tokenizer, cache, need_text=True)
    order = np.random.default_rng(experiment.seed).permutation(len(prepared.examples))[:studies]
    examples = [prepared.examples[number] for number in order]
    if len(examples) < 2:
        raise InputError("fewer than two studies have a report", file=data, field=f"split {split}", got=len(examples))
    started = time.perf_counter()
    total = 2 + (len(EXCHANGES) + 1 + drafts) * (len(_present(run.model)) + len(_sources(run.model)))
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with torch.inference_mode():
        batches = list(encoded_batches(run.model, examples, int(run.tokenizer.pad_token_id)))
        inputs, sources, nats, own = _inputs(run, batches, examples, drafts=drafts, step=step)
    losses = _losses(run, examples)
    step()
    return Probe(
        method=run.card.method, split=split, studies=len(examples), nats=float(nats.mean()),
        f1=None if own is None else own.f1, cider=None if own is None else own.cider,
        inputs=tuple(inputs), losses=tuple(losses), seconds=time.perf_counter() - started,
        weights=run.card.files["weights.safetensors"], data=dataset.fingerprint(), sources=tuple(sources),
        at_test=tuple(at_test),
    )  # fmt: skip


def encoded_batches(model: ReportModel, examples: Sequence[Example], pad_id: int) -> Iterator[Batch]:
    """Batches whose images are encoded once. A last batch of one study joins the one before: it has no other study."""
    edges = list(range(0, len(examples), BATCH))
    if len(examples) % BATCH == 1 and len(edges) > 1:
        edges.pop()
    for start, end in zip(edges, [*edges[1:], len(examples)], strict=True):
        batch = collate(examples[start:end], pad_id=pad_id).to(device_of(model))
        views = encode_views(model.encoder, batch)
        yield replace(batch, vision_tokens=views.tokens, vision_grid=views.grid)


def _present(model: ReportModel) -> dict[str, DecoderInput]:
    """The inputs that the decoder has under this configuration."""
    return {name: declared for name, declared in model.inputs.items() if name not in model.absent_inputs}


def _sources(model: ReportModel) -> dict[str, InputSource]:
    """The sources of these inputs."""
    return {name: declared for name, declared in model.input_sources.items() if declared.of not in model.absent_inputs}


def _inputs(
    run: Run, batches: Sequence[Batch], examples: Sequence[Example], *, drafts: bool, step: Callable[[], None]
) -> tuple[list[InputResult], list[InputResult], Floats, _Scored | None]:
    """Results of every input and of every source; nats per token of each study, and its own drafts."""
    model = run.model
    clusters = cluster_index([example.patient_id for example in examples])
    inputs, sources = _present(model), _sources(model)
    spreads, source_spreads = ({name: Spread() for name in known} for known in (inputs, sources))
    own_nats = []
    for batch in batches:
        with model.reading_by(read := Recording(), made_of := Recording()):
            own_nats.append(model.report_nats(batch))
        for known, recording in ((spreads, read), (source_spreads, made_of)):
            for name in known.keys() & recording.slots.keys():  # no study of a batch may have a prior
                known[name].add(recording.slots[name])
    nats = torch.cat(own_nats).double().cpu().numpy()
    scored = _Scored.of(run, examples, _texts(run, batches)) if drafts else None
    step()

    def result(name: str, part: str, spread: Spread, *, of: str = "", **declared: Any) -> InputResult:
        """The result of an input, or of a source of the input ``of``."""

        def readers(how: Exchange) -> tuple[InputReader | None, InputReader | None]:
            reader = Exchanging(name, how, source=bool(of))
            return (None, reader) if of else (reader, None)

        costs: dict[Exchange, Cost] = {}
        for how in EXCHANGES:
            costs[how] = Cost.of(mean_statistic(_nats(model, batches, *readers(how)) - nats), clusters)
            step()
        others = (Alone(of), Exchanging(name, "another")) if of else (Alone(name, another=True), None)
        apart = _nats(model, batches, *others) - _nats(model, batches, Alone(of or name))
        alone = Cost.of(mean_statistic(apart), clusters)
        step()
        written = None
        if scored is not None:
            with model.reading_by(*readers("another")):
                texts = _texts(run, batches)
            written = scored.compared(_Scored.of(run, examples, texts), clusters)
            step()
        return InputResult(
            name=name, part=part, spread=spread.share, costs=costs, alone=alone, drafts=written, of=of, **declared
        )

    results = [
        result(
            name, one.part, spreads[name], silent=one.silent, because=one.because,
            covered_by=tuple(other for other in one.covered_by if other in inputs),
        )
        for name, one in inputs.items()
    ]  # fmt: skip
    of_sources = [result(name, one.part, source_spreads[name], of=one.of, silent="") for name, one in sources.items()]
    return results, of_sources, nats, scored


def _nats(
    model: ReportModel, batches: Sequence[Batch], reader: InputReader | None, sources: InputReader | None = None
) -> Floats:
    """Nats per token of each study's report, its inputs read by ``reader``, and their sources by ``sources``."""
    with model.reading_by(reader, sources):
        return torch.cat([model.report_nats(batch) for batch in batches]).double().cpu().numpy()


def _texts(run: Run, batches: Sequence[Batch]) -> list[str]:
    """Drafts of the method's own decoder, greedily, without their evidence."""
    model: Any = run.model
    decoding = DecodingConfig(max_new_tokens=run.experiment.decoding.max_new_tokens)

    def prefixes() -> Iterator[Prefixes]:
        for batch in batches:
            yield model.to_write(batch).prefixes

    written = language_model_of(model).write(prefixes(), decoding)
    return [decode(run.tokenizer, ids) for all_ids, _ in written for ids in all_ids]


@dataclass(frozen=True, slots=True)
class _Scored:
    """Drafts with confusion rows (N, 3 K) of the findings, their micro F1, and CIDEr, also of each study (N,)."""

    texts: list[str]
    rows: NDArray[np.int8]
    f1: float
    ciders: Floats

    @property
    def cider(self) -> float:
        return float(self.ciders.mean())

    @classmethod
    def of(cls, run: Run, examples: Sequence[Example], texts: list[str]) -> _Scored:
        labeler = get_labeler(LABELER_OF[run.experiment.data.modality])
        references = [example.report or "" for example in examples]
        findings = [place for place, name in enumerate(labeler.classes) if name != NO_FINDING]
        states = [is_positive(states_of(some, labeler), "negative")[:, findings] for some in (texts, references)]
        rows = confusion_rows(*states)
        known = [example.study_id for example in examples]
        scores = corpus_statistics(dict(zip(known, texts, strict=True)), dict(zip(known, references, strict=True)))
        return cls(texts, rows, float(_micro_f1(rows.sum(0, dtype=np.float64))), scores["CIDEr"].per_study)

    def compared(self, after: _Scored, clusters: NDArray[np.int64]) -> Drafts:
        """Drafts after an exchange, beside these."""
        both = np.concatenate([after.rows, self.rows], axis=1)
        half = self.rows.shape[1]

        def change(sums: Floats) -> Floats:
            return np.asarray(_micro_f1(sums[..., :half]) - _micro_f1(sums[..., half:]))

        changed = np.array([float(a != b) for a, b in zip(after.texts, self.texts, strict=True)])
        return Drafts(
            changed=Cost.of(mean_statistic(changed), clusters),
            f1=after.f1,
            f1_change=Cost.of(Statistic(both, change, np.full(len(both), np.nan)), clusters),
            cider=after.cider,
            cider_change=Cost.of(mean_statistic(after.ciders - self.ciders), clusters),
        )


def _micro_f1(sums: Floats) -> Floats:
    """F1 of summed confusion rows (..., 3 K); 0 where nothing is positive on either side."""
    tp, fp, fn = (part.sum(axis=-1) for part in np.split(sums, 3, axis=-1))
    return np.asarray(2 * tp / np.maximum(2 * tp + fp + fn, 1))


# Steps on losses.


def _losses(run: Run, examples: Sequence[Example]) -> list[LossResult]:
    """Results of every loss of every stage that trains, on the first studies."""
    model, pad_id = run.model, int(run.tokenizer.pad_token_id)
    some = examples[:STEP_STUDIES]
    batch = collate(some, pad_id=pad_id).to(device_of(model))
    results = []
    for name, stage in run.experiment.named_stages().items():
        weighed = [term for term, weight in stage.losses.items() if weight]
        if not stage.epochs or not stage.trained or not weighed:
            continue
        results += _steps(model, batch, name, stage, weighed)
    return results


def _steps(model: ReportModel, batch: Batch, name: str, stage: StageConfig, weighed: Sequence[str]) -> list[LossResult]:
    """A step on each loss of one stage."""
    with _restored(model):
        apply_finetune(model, stage.finetune)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = {term: _gradient(model, batch, term, trained) for term in weighed}
        writers = (part for part in named_parts(model).values() if isinstance(part, Writes))
        decoders = {id(parameter) for part in writers for parameter in part.parameters()}
        norms = {term: stage.losses[term] * _norm(gradients[term]) for term in weighed}
        with torch.no_grad():
            before, nats = _read(model, batch)
        results = []
        for term in weighed:
            known = model.terms.get(term)
            of_decoder = [slope for own, slope in zip(trained, gradients[term], strict=True) if id(own) in decoders]
            with _restored(model), torch.no_grad():
                _step(trained, gradients[term])
                after, moved_nats = _read(model, batch)
            results.append(
                LossResult(
                    stage=name,
                    name=term,
                    silent=known.silent if isinstance(known, Term) else "",
                    gradient=norms[term] / max(sum(norms.values()), 1e-30),
                    moved=_relative_change(before, after),
                    nats=moved_nats - nats,
                    decoder=any(slope is not None and bool(slope.any()) for slope in of_decoder),
                )
            )
    return results


def _gradient(model: ReportModel, batch: Batch, term: str, trained: Sequence[nn.Parameter]) -> list[Tensor | None]:
    with torch.enable_grad(), _batch_statistics(model):
        torch.manual_seed(0)
        (loss,) = model.loss(batch, (term,)).values()
        if not loss.requires_grad:
            return [None] * len(trained)
        return list(torch.autograd.grad(loss, trained, allow_unused=True))


def _norm(gradient: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradient if one is not None))


def _step(trained: Sequence[nn.Parameter], gradient: Sequence[Tensor | None]) -> None:
    """Move down the gradient by ``STEP`` of the norm of the weights that have one."""
    size = _norm(gradient)
    if not size:
        return
    moved = [(own, slope) for own, slope in zip(trained, gradient, strict=True) if slope is not None and slope.any()]
    length = STEP * _norm([own for own, _ in moved])
    for own, slope in moved:
        own.sub_(slope, alpha=length / size)


def _read(model: ReportModel, batch: Batch) -> tuple[dict[str, Slot], float]:
    """Inputs of the decoder, with the statistics of this batch in every normalisation, and the report's loss.

    Statistics of the batch, since a normalisation that is fitted anew takes out again what a loss has scaled.
    """
    with model.reading_by(recording := Recording()), _batch_statistics(model):
        torch.manual_seed(0)
        nats = float(model.report_nats(batch).mean())
    return recording.slots, nats


def _relative_change(before: Mapping[str, Slot], after: Mapping[str, Slot]) -> float:
    """Root mean square change of all inputs, relative to the deviation of each position between studies.

    A position that a study has only before or only after counts as its distance from the position's mean over studies.
    """
    changed = spread = 0.0
    for name, old in before.items():
        width = max(old[0].shape[1], after[name][0].shape[1])
        (tokens, mask), (moved, present) = _widened(old, width), _widened(after[name], width)
        own = mask[:, :, None].float()
        # (W, D): over the studies (axis 0) that have the position.
        mean = (tokens * own).sum(0) / own.sum(0).clamp(min=1)
        change = torch.where(present[:, :, None], moved, mean) - torch.where(mask[:, :, None], tokens, mean)
        changed += float(change.square().sum())
        spread += float(((tokens - mean) * own).square().sum())
    return (changed / spread) ** 0.5 if spread else 0.0


def _widened(slot: Slot, width: int) -> Slot:
    """Tokens (B, W, D) and mask (B, W) of a slot of L <= W positions; those added are absent."""
    tokens, mask = slot
    missing = width - tokens.shape[1]
    return functional.pad(tokens, (0, 0, 0, missing)), functional.pad(mask, (0, missing))


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Batch normalisation by the batch within the block, without keeping its statistics."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    modes = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracks) in zip(norms, modes, strict=True):
            norm.training, norm.track_running_stats = training, tracks


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers and what may be trained after the block."""
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    trains = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in tensors:
                tensor.copy_(before)
        for parameter, train in trains:
            parameter.requires_grad_(train)
