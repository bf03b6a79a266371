"""The reference pool: normal studies of the training split, one drawn for every study it is compared with.

Source: the paper's Sec. 4.1 and appendices B, C and F.
Deviations: the paper draws from a pool of the test split while it tests. A patient who comes alone has no test split;
here the training pool always serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool
from pydantic import Field
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.config import Config, Count
from radweave.core.errors import InputError
from radweave.core.storage import temporary_folder
from radweave.methods.model import TrainingView
from radweave.nn.connector import ViewTokens, encode_views
from radweave.nn.global_batch import gather_batch
from radweave.nn.heads import are_normal
from radweave.nn.memory.bank import Bank, BankLayout, Column, Owners, patient_code

POOL = "references"


@runtime_checkable
class BuildPool(Protocol):
    """Fills the pool, with tokens or with pixels."""

    def __call__(self, *, pixels: bool) -> Bank: ...


def pool_layout(*row: int | str) -> BankLayout:
    """The bank of references; ``row`` is the shape of what one view is there, left open where it is not known."""
    values = {"values": Column("float", ("views", *row))} if row else {}
    masks = {"view_mask": Column("flag", ("views",)), "view_ids": Column("whole", ("views",))}
    return BankLayout({**values, **masks})


STUDY_DRAW = 0
"""Key of the draw that hangs on the study alone: validation and inference."""


def choose_references(normal: Bool[Tensor, " studies"], size: int | None, contamination: float, seed: int) -> list[int]:
    """Rows of the pool, in the order of the split.

    The pool has ``size`` studies, or as many as there are normal ones; a share ``contamination`` of them, rounded, is
    drawn from the abnormal studies instead. A smaller pool of one seed lies within a larger one.

    Raises:
        InputError: if there is no such study.
    """
    rng = np.random.default_rng([seed, 20_603])
    good, bad = (rng.permutation(torch.nonzero(side).flatten().numpy()) for side in (normal, ~normal))
    total = (len(good) or len(bad)) if size is None else size
    num_bad = min(round(contamination * total), len(bad))
    chosen = [*good[: total - num_bad].tolist(), *bad[:num_bad].tolist()]
    if not chosen:
        raise InputError(
            "no study of the training split is normal, there is nothing to compare with",
            field="model.pool",
            got=f"{len(good)} normal of {len(normal)} studies",
            expected="normal studies, model.pool.contamination above 0, or model.difference=none",
        )
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Reference:
    """References of a batch: the tokens or pixels of a study's views, and which study that is.

    ``there`` (B) is False where the pool holds no study of another patient; ``drawn`` is None there.
    """

    views: ViewTokens
    present: Bool[Tensor, " batch"]
    drawn: tuple[str | None, ...]
    is_prior: tuple[bool, ...]

    @classmethod
    def nobody(cls, like: ViewTokens) -> Reference:
        """No study is compared with another."""
        batch = len(like.tokens)
        views = ViewTokens(like.tokens[:, :0], like.view_mask[:, :0], like.view_ids[:, :0], like.grid)
        return cls(views, like.view_mask.new_zeros(batch), (None,) * batch, (False,) * batch)


class ReferencePool(nn.Module):
    """Draws references. The bank is a file of the run, not part of the weights; until it is set nothing is drawn.

    A draw is a hash of (seed, key, study): of the run's seed, of the step while training, where ``step_key`` gives the
    key, and of the study's id. It does not depend on what else is in the batch or on how a batch is cut. A study never
    gets itself or another study of its patient.
    """

    seed: Tensor

    def __init__(self, config: PoolConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.tensors: dict[str, Tensor] = {}
        self.rows: tuple[dict[str, Any], ...] = ()
        self.owners = Owners((), ())

    def remember(self, bank: Bank) -> None:
        """Take a bank with ``values`` (N, V, ...), ``view_mask`` (N, V) and ``view_ids`` (N, V)."""
        self.tensors, self.rows, self.owners = dict(bank.tensors), bank.rows, bank.owners()

    def draw(self, study_ids: Sequence[str], patient_ids: Sequence[str], key: int) -> list[int | None]:
        """A row of the bank for each study; None where there is none of another patient."""
        seed, drawn = int(self.seed), []
        barred = self.owners.barred(self.owners.of_queries(study_ids, patient_ids), slice(None))
        for study_id, others in zip(study_ids, ~barred, strict=True):
            allowed = others.nonzero().flatten().tolist()
            digest = sha256(f"{seed}/{key}/{study_id}".encode()).digest()
            drawn.append(allowed[int.from_bytes(digest[:8]) % len(allowed)] if allowed else None)
        return drawn

    def _refuse_other_views(self, like: ViewTokens) -> None:
        stored = self.tensors.get("values")
        if stored is None or not stored.is_floating_point() or _shapes(stored) != _shapes(like.tokens):
            raise InputError(
                "the references are of another shape than the study",
                file=f"memories/{POOL}",
                field="values",
                got=None if stored is None else list(_shapes(stored)),
                expected=list(_shapes(like.tokens)),
            )

    def references(self, batch: Batch, like: ViewTokens, key: int) -> Reference:
        """Draw for every study of a batch; values are zero where there is no view, and where there is no reference.

        ``like`` are the values of the batch itself: of their shape is what comes back, but for the number of views.
        """
        drawn = self.draw(batch.study_ids, batch.patient_ids, key)
        present = [number is not None for number in drawn]
        device = like.tokens.device
        if not any(present):
            views = replace(like, tokens=torch.zeros_like(like.tokens))
        else:
            self._refuse_other_views(like)
            rows = torch.tensor([number or 0 for number in drawn])
            values, mask, ids = (self.tensors[name][rows].to(device) for name in ("values", "view_mask", "view_ids"))
            known = torch.tensor(present, device=device)
            shape = (-1,) + (1,) * (values.ndim - 1)
            views = ViewTokens(values.to(like.tokens) * known.view(shape), mask, ids, like.grid)
        names = tuple(None if number is None else str(self.rows[number]["study_id"]) for number in drawn)
        return Reference(views, torch.tensor(present, device=device), names, (False,) * len(batch))


def _shapes(values: Tensor) -> tuple[int, ...]:
    """The shape of one view."""
    return tuple(values.shape[2:])


def step_key() -> int:
    """A key for the draws of this training step, the same on all ranks and when the step comes again.

    The engine seeds every step; the first rank's next number decides, which is that of a single process.
    """
    own = torch.randint(1, 2**31 - 1, (1,))
    return int(gather_batch(own)[0])


def with_priors(reference: Reference, priors: ViewTokens, batch: Batch) -> Reference:
    """The patient's own prior in place of the draw, for the studies that have one."""
    assert batch.priors is not None
    rows = list(batch.prior_of)
    views = max(reference.views.tokens.shape[1], priors.tokens.shape[1])
    merged = [_padded(side, views) for side in (reference.views, priors)]
    tokens, mask, ids = (
        torch.index_copy(getattr(merged[0], name), 0, torch.tensor(rows, device=priors.tokens.device), values)
        for name, values in (
            (name, getattr(merged[1], name).to(getattr(merged[0], name)))
            for name in ("tokens", "view_mask", "view_ids")
        )
    )
    present, drawn, is_prior = reference.present.clone(), list(reference.drawn), list(reference.is_prior)
    for row, study_id in zip(rows, batch.priors.study_ids, strict=True):
        present[row], drawn[row], is_prior[row] = True, study_id, True
    return Reference(ViewTokens(tokens, mask, ids, reference.views.grid), present, tuple(drawn), tuple(is_prior))


def _padded(views: ViewTokens, number: int) -> ViewTokens:
    """With absent views appended up to ``number``."""
    more = number - views.tokens.shape[1]
    if not more:
        return views
    tokens, mask, ids = (
        torch.cat([values, values.new_zeros(len(values), more, *values.shape[2:])], dim=1)
        for values in (views.tokens, views.view_mask, views.view_ids)
    )
    return ViewTokens(tokens, mask, ids, views.grid)


def pixels_of(batch: Batch) -> ViewTokens:
    """The images of a batch in the place of tokens: (B, V, C, H, W), or (B, 1, C, D, H, W).

    Raises:
        InputError: if there are features in their place.
    """
    if batch.volume is not None:
        ones = torch.ones(len(batch), 1, dtype=torch.bool, device=batch.volume.device)
        return ViewTokens(batch.volume[:, None], ones, ones.long() * 0, ())
    if batch.pixel_values is None:
        raise InputError(
            "pixels cannot be subtracted, features were kept instead of them",
            field="data.keep_features",
            got=True,
            expected="data.keep_features=false",
        )
    assert batch.view_mask is not None
    assert batch.view_ids is not None
    return ViewTokens(batch.pixel_values, batch.view_mask, batch.view_ids, ())


def choose_views(training: TrainingView, config: PoolConfig) -> list[TrainingView]:
    """The studies of the pool: of this training split, and with ``domain_mix`` normal ones of the other data set.

    Raises:
        InputError: if references of another domain are asked for and there are none.
    """
    normal = are_normal(training.class_states, training.classes)
    rows = choose_references(normal, config.size, config.contamination, training.seed)
    num_other = round(config.domain_mix * len(rows))
    if not num_other:
        return [_only(training, rows)]
    if config.other is None or training.open_other is None:
        raise InputError(
            "which data set shall the references of another domain come from?",
            field="model.pool.other",
            got=config.other,
            expected="the folder of a data set",
        )
    other = training.open_other(Path(config.other))
    borrowed = choose_references(are_normal(other.class_states, other.classes), num_other, 0.0, training.seed)
    order = np.random.default_rng([training.seed, 20_604]).permutation(rows)
    views = [_only(training, sorted(order[len(borrowed) :].tolist())), _only(other, borrowed)]
    return [view for view in views if len(view)]


def _only(view: TrainingView, rows: Sequence[int]) -> TrainingView:
    """Some of a view's studies."""
    return replace(
        view, studies=tuple(view.studies[row] for row in rows), examples=tuple(view.examples[row] for row in rows)
    )


def with_noise(batch: Batch, noise: float, generator: torch.Generator) -> Batch:
    """Gaussian noise of this deviation on the pixels, which stay in [0, 1]."""

    def noisy(pixels: Tensor | None) -> Tensor | None:
        if pixels is None:
            return None
        return (pixels + noise * torch.randn(pixels.shape, generator=generator)).clamp(0, 1)

    return replace(batch, volume=noisy(batch.volume), pixel_values=noisy(batch.pixel_values))


def build_pool(
    training: TrainingView, encoder: nn.Module, config: PoolConfig, *, pixels: bool, noise: float = 0.0
) -> Bank:
    """The bank of references: tokens of the frozen encoder, or with ``pixels`` the images, and who they are of."""
    generator = torch.Generator().manual_seed(training.seed)
    device = next(encoder.parameters()).device
    chosen = choose_views(training, config)
    values = _OnDisk()
    masks: list[Tensor] = []
    kinds: list[Tensor] = []
    rows: list[dict[str, Any]] = []
    number = max(len(example.rows) for view in chosen for example in view.examples)
    for view in chosen:
        for batch in view.batches(pixels=pixels or noise > 0):
            batch = with_noise(batch, noise, generator) if noise else batch
            part = _padded(pixels_of(batch) if pixels else encode_views(encoder, batch.to(device)), number)
            values.add(part.tokens)
            masks.append(part.view_mask.cpu())
            kinds.append(part.view_ids.cpu())
        normal = are_normal(view.class_states, view.classes).tolist()
        rows += [
            {
                "study_id": view.row_id(example.study_id),
                "patient": patient_code(example.patient_id),
                "normal": is_normal,
            }
            for example, is_normal in zip(view.examples, normal, strict=True)
        ]
    tensors = {"values": values.whole(), "view_mask": torch.cat(masks), "view_ids": torch.cat(kinds)}
    return Bank(tensors, tuple(rows))


class _OnDisk:
    """Rows that come in batches, as one tensor whose memory is a file: all normal scans of a large set fill a disk."""

    def __init__(self) -> None:
        self.path = temporary_folder("references") / "values"
        self.shape: tuple[int, ...] = ()
        self.dtype = torch.float32
        self.rows = 0

    def add(self, values: Tensor) -> None:
        assert self.rows == 0 or values.shape[1:] == self.shape, "all rows are of one shape"
        self.shape, self.dtype, self.rows = tuple(values.shape[1:]), values.dtype, self.rows + len(values)
        with self.path.open("ab") as file:
            file.write(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def whole(self) -> Tensor:
        """All rows. The file has no name any more: its place is free as soon as nobody holds the tensor."""
        size = self.rows * math.prod(self.shape)
        mapped = torch.from_file(str(self.path), shared=False, size=size, dtype=self.dtype)
        self.path.unlink()
        return mapped.view(self.rows, *self.shape)


class PoolConfig(Config):
    """Choice of the reference studies.

    ``size`` limits the pool, null takes all normal studies; ``contamination`` is the share of abnormal studies in it.
    ``domain_mix`` is the share that normal studies of ``other`` take, the training split of another data set's folder.
    With ``use_prior`` a study's own prior, which ``data.priors`` brings, is its reference where it has one. ``redraw``
    draws anew in every step of training; without it each study keeps one reference.
    """

    size: Count | None = None
    contamination: float = Field(default=0.0, ge=0, le=1)
    domain_mix: float = Field(default=0.0, ge=0, le=1)
    other: str | None = None
    use_prior: bool = False
    redraw: bool = True

    def build(self) -> ReferencePool:
        return ReferencePool(self)
