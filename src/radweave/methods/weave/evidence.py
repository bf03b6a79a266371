"""What all sources say of studies: of new ones when a draft is made, of training studies to fit the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radweave.base.batch import Batch
from radweave.contract.model import device_of
from radweave.drafting.smoothers import Floats, Mask
from radweave.memory.bank import Bank, report_rows
from radweave.methods.weave.beside import Before
from radweave.methods.weave.members import asked_members, mean_of_asked, voices
from radweave.methods.weave.recall import KernelSource, Memory
from radweave.methods.weave.stack import Kind, OutOfFold
from radweave.nn.supervision import POSITIVE, UNLABELED
from radweave.nn.views import ViewTokens, encode_views, mean_and_largest
from radweave.sources.alike import fit_alike
from radweave.sources.since_prior import Change, only_of_one_patient

if TYPE_CHECKING:
    from radweave.contract.view import TrainingView
    from radweave.methods.weave.model import WeaveModel

LEARNED = ("dense", "tokens", "difference")
REMEMBERED = ("kernels", "recall", "cases")
SOURCES = (*LEARNED, *REMEMBERED)
"""In the order in which they stand in a stack."""
KINDS: dict[str, Kind] = {name: "log_odds" if name in LEARNED else "smoothed" for name in SOURCES}


@dataclass(frozen=True, slots=True)
class Said:
    """What the sources of a stack say of one study: scores (S, C), and weights (J,) over the training reports.

    ``before`` is its prior, which is compared by the vectors (K, V) of the members that are ``asked`` (K,).
    """

    scores: Floats
    weights: Floats
    vectors: Floats
    asked: Mask
    before: Before | None


@torch.no_grad()
def learned_scores(model: WeaveModel, views: ViewTokens, asked: Tensor) -> list[Floats]:
    """Log-odds (B, C) of each source that learned, as the members that are asked (B, K) see the studies."""
    said = []
    for name in LEARNED:
        source = getattr(model, name)
        if source.speaks:
            each = [source.logits(number, model.encoder.of(number, views)) for number in range(len(model.encoder))]
            counted = voices(asked, model.folds.number).to(each[0])
            said.append(mean_of_asked(torch.stack(each), counted).double().cpu().numpy())
    return said


@torch.no_grad()
def vectors_of(model: WeaveModel, views: ViewTokens) -> Floats:
    """The vectors (B, K, D) by which studies are remembered: mean and largest token of each member."""
    encoder = model.encoder
    seen = [encoder.of(number, views) for number in range(len(encoder))]
    vectors = torch.stack([mean_and_largest(one.tokens, one.view_mask) for one in seen], dim=1)
    return np.asarray(vectors.double().cpu().numpy())


@torch.no_grad()
def say(model: WeaveModel, memory: Memory, batch: Batch) -> Iterator[Said]:
    """What the sources say of each study, one after the other: alone and in any batch the same."""
    own = memory.owners.of_queries(batch.study_ids, batch.patient_ids)
    barred = np.asarray(memory.owners.barred(own, slice(0, len(memory.rows))).numpy())
    asked = asked_members(barred, torch.from_numpy(memory.folds), len(model.encoder))
    for row in range(len(batch)):
        alone = batch.only([row])
        views = encode_views(model.encoder, alone)
        scores = [said[0] for said in learned_scores(model, views, asked[row : row + 1])]
        shares: dict[str, Floats] = {}
        if memory.alike is not None and isinstance(model.kernels, KernelSource):
            (seen,) = memory.alike.testify(model.kernels.looks, alone, barred[row : row + 1])
            scores.append(seen.scores)
            shares["kernels"] = seen.weights
        vectors, members = vectors_of(model, views)[0], asked[row].numpy()
        _remember(model, memory, vectors, members, barred[row], scores, shares)
        weights = model.wording.mixed(shares, barred[row])
        before = look_before(model, alone, asked[row : row + 1])
        yield Said(stacked(scores, len(model.classes)), weights, vectors, members, before)


@torch.no_grad()
def look_before(model: WeaveModel, batch: Batch, asked: Tensor, first: int = 0) -> Before | None:
    """The priors of a batch, as the members that are asked of its studies (B, K) see them; None where there are none.

    ``first`` is added to the numbers of the rows.

    Raises:
        InputError: if a prior is of another patient.
    """
    if not isinstance(model.change, Change) or batch.priors is None:
        return None
    rows = list(batch.prior_of)
    only_of_one_patient([batch.patient_ids[row] for row in rows], batch.priors.patient_ids)
    views = encode_views(model.encoder, batch.priors)
    learned = learned_scores(model, views, asked[rows])
    classes = len(model.classes)
    scores = np.array(learned).reshape(len(learned), len(rows), classes).swapaxes(0, 1)
    states = batch.priors.class_labels
    reported = np.full((len(rows), classes), -1, dtype=np.int64)
    if states is not None:
        known = states.cpu().numpy()
        reported = np.where(known == UNLABELED, -1, (known == POSITIVE).astype(np.int64))
    return Before(np.array(rows, dtype=np.int64) + first, scores, vectors_of(model, views), reported)


def stacked(scores: Sequence[Floats], classes: int) -> Floats:
    """Scores (S, C) of sources, of which there may be none."""
    return np.array(scores).reshape(len(scores), classes)


def _remember(
    model: WeaveModel,
    memory: Memory,
    vectors: Floats,
    asked: Mask,
    barred: Mask,
    scores: list[Floats],
    shares: dict[str, Floats],
) -> None:
    """Add what the memory of the members' vectors says."""
    nothing = np.zeros(len(model.classes))
    counted = voices(torch.from_numpy(asked)[None], model.folds.number)[0].numpy()
    if model.recall.is_there:
        recalled = memory.recalled(vectors, counted, barred)
        if recalled is not None:
            shares["recall"] = recalled.weights
        if model.recall.speaks:
            scores.append(nothing if recalled is None else recalled.scores)
    if model.cases.is_there:
        compared = memory.compared(vectors, counted, barred)
        scores.append(nothing if compared is None else compared)


@dataclass(frozen=True, slots=True)
class Gathered:
    """The bank of training studies, and what all sources say of each, out of fold; vectors (J, K, V), and priors."""

    bank: Bank
    seen: OutOfFold
    weights: list[Floats]
    vectors: Floats
    before: Before | None


@torch.no_grad()
def gather(model: WeaveModel, training: TrainingView) -> Gathered:
    """Ask every source of every training study, each of those that never saw it, and keep what sources remember."""
    folds = model.folds.of(example.patient_id for example in training.examples)
    labels = (training.class_states == POSITIVE).double().numpy()
    tensors: dict[str, Tensor] = {
        "folds": folds[:, None],
        "labels": torch.from_numpy(labels.astype(np.uint8)),
    }
    learned, vectors, rows, before, asked_of_each = _look(model, training, folds)
    fitted = None
    if isinstance(model.kernels, KernelSource):
        fitted = fit_alike(model.kernels.looks, training)
        tensors |= fitted.tensors
    if model.recall.is_there or model.cases.is_there:
        tensors["vectors"] = torch.from_numpy(vectors).float()
    bank = Bank(tensors, tuple(rows))
    memory = model.read(bank)
    patients = memory.owners.patient_of_row.numpy()
    all_scores, each_source = [], []
    for row in range(len(rows)):
        barred, asked = patients == patients[row], asked_of_each[row]
        scores, shares = [said[row] for said in learned], dict[str, Floats]()
        if fitted is not None:
            scores.append(fitted.left_out[row].scores)
            shares["kernels"] = fitted.left_out[row].weights
        _remember(model, memory, vectors[row], asked, barred, scores, shares)
        all_scores.append(stacked(scores, len(model.classes)))
        each_source.append(shares)
    # A member whose fold holds all patients but one remembers too few for that one to be worded by.
    in_all = [name for name in each_source[0] if all(name in shares for shares in each_source)]
    worded = {name: np.stack([shares[name] for shares in each_source]) for name in in_all}
    model.wording.fit(worded, [str(row["text"]) for row in rows], patients)
    weights = [model.wording.mixed(shares, patients == own) for shares, own in zip(each_source, patients, strict=True)]
    seen = OutOfFold(
        scores=np.stack(all_scores),
        labels=labels,
        folds=memory.folds,
        withheld=withheld_of(asked_of_each),
        patients=[str(row["patient"]) for row in rows],
        split=training.split,
    )
    return Gathered(bank, seen, weights, vectors, before)


def own_members(folds: Tensor, number: int) -> Tensor:
    """The members (J, K) that are asked of each training study: the one that lacked its fold."""
    return folds[:, None] == torch.arange(number)


def withheld_of(asked: Mask) -> NDArray[np.int64]:
    """The fold (J,) that the members lacked which were asked (J, K) of each study; each of one alone."""
    assert (asked.sum(axis=1) == 1).all(), "a training study is asked of one member"
    return np.asarray(asked.argmax(axis=1))


def _look(
    model: WeaveModel, training: TrainingView, folds: Tensor
) -> tuple[list[Floats], Floats, list[dict[str, Any]], Before | None, Mask]:
    """Scores (J, C) of each source that learned, by the member that lacked it; vectors (J, K, V); rows; priors; and
    the members (J, K) that were asked.
    """
    learned: list[list[Floats]] = []
    vectors: list[Floats] = []
    rows: list[dict[str, Any]] = []
    before: list[Before] = []
    asked: list[Tensor] = []
    device = device_of(model.encoder)
    for batch in training.batches():
        there = batch.to(device)
        views = encode_views(model.encoder, there)
        own = own_members(folds[len(rows) : len(rows) + len(batch)], len(model.encoder))
        asked.append(own)
        learned.append(learned_scores(model, views, own))
        vectors.append(vectors_of(model, views))
        found = look_before(model, there, own, len(rows))
        before += [] if found is None else [found]
        rows += report_rows(batch)
    scores = [np.concatenate(each) for each in zip(*learned, strict=True)]
    return scores, np.concatenate(vectors), rows, Before.of(before), torch.cat(asked).numpy()


def shown_sources(
    names: Sequence[str], classes: Sequence[str], log_odds: Floats, weights: Floats
) -> dict[str, dict[str, dict[str, float]]]:
    """Per class what each source says by itself, as a probability, and its weight in the stack."""
    said = 1 / (1 + np.exp(-log_odds))
    return {
        name: {
            source: {"probability": float(said[s, c]), "weight": float(weights[s, c])} for s, source in enumerate(names)
        }
        for c, name in enumerate(classes)
    }
