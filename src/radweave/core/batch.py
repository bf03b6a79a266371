"""Batches of studies as report models read them, and what models return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from radweave.core.evidence import DraftEvidence, FindingPlace

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Batch:
    """The input of a report model. Tensors have the batch axis first.

    ``pixel_values`` (B, V, C, H, W) holds radiographs or ``volume`` (B, C, D, H, W) a CT scan; padded views are False
    in ``view_mask`` (B, V); ``view_ids`` (B, V) is 0 unknown, 1 frontal, 2 lateral. ``input_ids`` (B, T) and
    ``labels`` (B, T) hold the target report, right-padded, -100 where no loss is taken; both are None at inference.
    ``label_weights`` (B, T) float32 are the weights of the labels in a loss of the report; None: all count alike.
    ``reports`` are the same reports as text. ``class_labels`` (B, K) holds label states as integers (0 blank,
    1 positive, 2 negative, 3 uncertain, -1 throughout for a study without labels). ``patient_ids`` let a retrieval
    leave out the query's own patient. ``vision_tokens`` (B, V, S, D) over ``vision_grid`` replace the pixels where
    the features of a frozen encoder are cached. ``priors`` holds the earlier studies of those patients that have
    one, with their reports, and ``prior_of`` the row of this batch that each belongs to. ``context_ids`` (B, I)
    holds the clinical context of each study as tokens, where ``context_mask`` (B, I) is True; None for a model
    without context. ``places`` has the place of each class in each study, where a part of the run gives it.
    """

    study_ids: list[str]
    patient_ids: list[str]
    pixel_values: Tensor | None = None
    view_mask: Tensor | None = None
    view_ids: Tensor | None = None
    volume: Tensor | None = None
    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    labels: Tensor | None = None
    label_weights: Tensor | None = None
    class_labels: Tensor | None = None
    reports: list[str] | None = None
    vision_tokens: Tensor | None = None
    vision_grid: tuple[int, ...] | None = None
    priors: Batch | None = None
    prior_of: tuple[int, ...] = ()
    context_ids: Tensor | None = None
    context_mask: Tensor | None = None
    places: list[Mapping[str, FindingPlace]] | None = None

    def __len__(self) -> int:
        return len(self.study_ids)

    def to(self, device: Any) -> Batch:
        """The batch on a device. Copies to a CUDA device go through pinned memory and are asynchronous."""
        return Batch(**{name: _move(getattr(self, name), device) for name in self.__slots__})

    def only(self, rows: Sequence[int]) -> Batch:
        """Some of the studies, in this order, with their priors."""
        position = {row: number for number, row in enumerate(rows)}
        priors = [number for number, row in enumerate(self.prior_of) if row in position]

        def pick(value: Any) -> Any:
            if hasattr(value, "index_select"):
                return value[list(rows)]
            return [value[row] for row in rows] if isinstance(value, list) else value

        values = {name: pick(getattr(self, name)) for name in self.__slots__ if name not in ("priors", "prior_of")}
        return Batch(
            **values,
            priors=None if self.priors is None or not priors else self.priors.only(priors),
            prior_of=tuple(position[self.prior_of[number]] for number in priors),
        )


def _move(value: Any, device: Any) -> Any:
    if isinstance(value, Batch):
        return value.to(device)
    if not hasattr(value, "to"):
        return value
    # The copy and its readers run in order on the device's stream, which keeps the pinned memory until the copy ends.
    if getattr(device, "type", str(device)).startswith("cuda") and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


@dataclass(frozen=True, slots=True)
class Slice:
    """One process's studies of a global batch: ``count`` of ``total``, from index ``first``."""

    first: int
    count: int
    total: int

    @classmethod
    def of(cls, total: int, rank: int, size: int) -> Slice:
        """The slice of process ``rank`` of ``size``: contiguous, sizes differ by one at most.

        A batch with fewer studies than processes is not cut: every process gets all of it.
        """
        if total < size:
            return cls(0, total, total)
        first = rank * total // size
        return cls(first, (rank + 1) * total // size - first, total)

    def weight(self, size: int) -> float:
        """Weight of this slice's loss in the sum over ``size`` processes."""
        return self.count / self.total if self.is_cut else 1 / size

    @property
    def is_cut(self) -> bool:
        return self.count < self.total


@dataclass(slots=True)
class Generation:
    """The output of ``generate``: token ids and named intermediates per study.

    ``token_ids`` holds no prompt, padding or end token. ``intermediates[i]`` is the evidence for study i: JSON values
    or arrays; all evidence that users see comes from here.
    """

    token_ids: list[list[int]]
    intermediates: list[DraftEvidence]


@dataclass(slots=True)
class VisionFeatures:
    """Output of a vision encoder: ``tokens`` (N, S, D) in row-major order of ``grid`` (h, w) or (d, h, w)."""

    tokens: Tensor
    grid: tuple[int, ...]


@runtime_checkable
class VisionEncoder(Protocol):
    """Images (N, C, H, W) or volumes (N, C, D, H, W) to patch tokens."""

    dim: int
    channels: int

    def __call__(self, pixel_values: Tensor) -> VisionFeatures: ...
