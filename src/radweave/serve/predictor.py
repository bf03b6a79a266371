"""The predictor: image files in, report and evidence out. The network itself stays elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from radweave.contract.model import ReportModel
from radweave.data.ct import NO_SCANS, CtPreprocessing
from radweave.data.familiarity import Familiarity
from radweave.data.loader import Example, collate, view_id
from radweave.data.tokenizer import decode
from radweave.errors import InputError, printable
from radweave.nn.decoding import DecodingConfig
from radweave.serve.comparisons import take_out_comparisons
from radweave.serve.evidence import json_value
from radweave.serve.familiar import EVIDENCE, evidence_of, judge, refuse_strangers, warnings_of
from radweave.serve.pictures import Picture, model_input, read_pictures, refuse_doubtful, refuse_mixture, view_of
from radweave.serve.views import settle_views, stated_view, views_for
from radweave.types import Modality, Report, View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Predictor:
    """A restored model with what turns files into its input and its output into text.

    ``ct`` has a size where the model reads CT scans; else it reads radiographs in squares of ``image_size`` pixels.
    ``decoding`` holds the run's decoding options. ``warnings`` are added to every report. ``refusal`` is set for a
    run that must not report (its weights were never trained): asking it raises. ``familiarity`` tells whether images
    look like those the run was trained on. ``known_views`` are the kinds of views (see ``Batch.view_ids``) that the
    training split stated; only those are guessed for files that state none.
    """

    model: ReportModel
    tokenizer: PreTrainedTokenizerBase
    image_size: int
    max_views: int
    decoding: DecodingConfig
    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    ct: CtPreprocessing = NO_SCANS
    familiarity: Familiarity | None = None
    known_views: tuple[int, ...] = ()

    @property
    def modality(self) -> Modality:
        """What the model reads."""
        return "xray" if self.ct.size is None else "ct"

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def report(
        self,
        images: Sequence[Path | str],
        *,
        study_id: str = "study",
        force: bool = False,
        views: Sequence[View | str] = (),
    ) -> Report:
        """Write the draft of one study from its views (PNG, JPEG or DICOM files), or its CT scan.

        A scan is a NIfTI, NRRD or MetaImage file or the folder of a DICOM series.

        ``views`` states which view the images are ("frontal", "lateral", "pa", "ap"): one for all, or one for each.
        Without, it is what the file says, or else what a rule sees; a warning then says so.

        ``force`` lets an image through whose integrity is doubtful, or that is unlike those the run was trained on; the
        report then says so.

        Raises:
            InputError: for a file that cannot be used, images of more than one patient or study, no image at all, or
                a run whose weights were never trained.
        """
        stated = [view if isinstance(view, View) else stated_view(view) for view in views]
        seen, warnings = self.read_views([Path(image) for image in images], force=force, stated=stated)
        return self.report_on(seen, study_id=study_id, warnings=warnings, force=force)

    def report_on(
        self, views: Sequence[tuple[Path, Picture]], *, study_id: str, warnings: Sequence[str] = (), force: bool = False
    ) -> Report:
        """Write the draft of the views that ``read_views`` gave, with its warnings.

        Raises:
            InputError: if a view is unlike those the run was trained on and not ``force``, or the run's weights were
                never trained.
        """
        example = self._example(views, study_id)
        self._admit(example, [path for path, _ in views], force=force)
        report = next(iter(self.reports([example], names={study_id: [printable(path.name) for path, _ in views]})))
        # Evidence about views, such as maps, stands in their order, which need not be the order of the files given.
        seen = [{"file": printable(path.name), "view": view_of(picture).value} for path, picture in views]
        return Report(report.text, study_id, {**report.evidence, "views": seen}, (*report.warnings, *warnings))

    def read_study(
        self, images: Sequence[Path], study_id: str, *, force: bool = False
    ) -> tuple[Example, tuple[str, ...]]:
        """Read the views of one study; return them with the warnings of the reader.

        Raises:
            InputError: as ``report`` does.
        """
        views, warnings = self.read_views(images, force=force)
        example = self._example(views, study_id)
        self._admit(example, [path for path, _ in views], force=force)
        return example, warnings

    def _admit(self, example: Example, files: Sequence[Path], *, force: bool) -> None:
        if not force:
            refuse_strangers(self.familiarity, example, files)

    def read_views(
        self, images: Sequence[Path], *, force: bool = False, stated: Sequence[View] = ()
    ) -> tuple[list[tuple[Path, Picture]], tuple[str, ...]]:
        """Read files; return the views that the model will see, in its order, with the warnings of the reader.

        Raises:
            InputError: as ``report`` does.
        """
        if not images:
            raise InputError("no image given", field="images")
        each = views_for(stated, len(images))
        pictures = read_pictures(images, self.ct)
        refuse_mixture(pictures, images)
        if not force:
            refuse_doubtful(pictures, images)
        pictures, warnings = settle_views(pictures, images, each, self.known_views)
        pairs = list(zip(images, pictures, strict=True))
        warnings += [f"{printable(path.name)}: {text}" for path, item in pairs for text in item.warnings]
        if len(images) > self.max_views:
            warnings.append(f"{printable(images[0].name)} and others: {len(images)} views given, the model reads "
                            f"{self.max_views}")  # fmt: skip
        pairs.sort(key=lambda pair: {1: 0, 2: 1, 0: 2}[view_id(view_of(pair[1]))])
        return pairs[: self.max_views], tuple(warnings)

    def _example(self, views: Sequence[tuple[Path, Picture]], study_id: str) -> Example:
        return Example(
            study_id=study_id,
            patient_id=study_id,
            source=model_input([picture for _, picture in views], image_size=self.image_size, ct=self.ct),
            rows=tuple(range(len(views))),
            view_ids=tuple(view_id(view_of(picture)) for _, picture in views),
        )

    def reports(
        self,
        examples: Iterable[Example],
        *,
        batch_size: int = 16,
        progress: Callable[[int], None] | None = None,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Iterator[Report]:
        """Write reports in batches, in the order given.

        ``names`` says what a study's views are called in warnings: study id -> a name for each view.

        Raises:
            InputError: if the run's weights were never trained.
        """
        if self.refusal is not None:
            raise InputError(self.refusal)
        stream = iter(examples)
        done = 0
        while chunk := list(islice(stream, batch_size)):
            batch = collate(chunk, pad_id=int(self.tokenizer.pad_token_id)).to(self.device)
            with torch.inference_mode():
                generation = self.model.generate(batch, self.decoding)
            done += len(chunk)
            if progress is not None:
                progress(done)
            for example, ids, values in zip(chunk, generation.token_ids, generation.intermediates, strict=True):
                evidence = self._evidence(ids, values)
                judgements = judge(self.familiarity, example)
                if self.familiarity is not None:
                    evidence[EVIDENCE] = evidence_of(self.familiarity, judgements)
                called = (names or {}).get(example.study_id) or [f"view {n + 1}" for n in range(len(example.rows))]
                unlike = warnings_of(self.familiarity, judgements, called)
                text, evidence, compared = self._unprompted(decode(self.tokenizer, ids), evidence, example)
                yield Report(text, example.study_id, evidence, (*self.warnings, *unlike, *compared))

    def _unprompted(
        self, text: str, evidence: dict[str, Any], example: Example
    ) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """Without a prior there is nothing to compare with: the comparisons of the draft are taken out."""
        if example.prior is not None or self.decoding.unprompted_comparisons == "keep":
            return text, evidence, ()
        return take_out_comparisons(text, evidence, self.modality)

    def _evidence(self, ids: list[int], values: dict[str, Any]) -> dict[str, Any]:
        """Intermediates as JSON values; token log-probabilities become a confidence per sentence."""
        evidence = {name: json_value(value) for name, value in values.items() if name != "token_log_probs"}
        if "token_log_probs" in values:
            evidence["sentences"] = self._sentences(ids, values["token_log_probs"])
        return evidence

    def _sentences(self, ids: list[int], log_probs: list[float]) -> list[dict[str, Any]]:
        sentences: list[dict[str, Any]] = []
        start = 0
        for end in range(1, len(ids) + 1):
            if end == len(ids) or self._ends_sentence(ids, end):
                mean = sum(log_probs[start:end]) / (end - start)
                text = decode(self.tokenizer, ids[start:end])
                if text:
                    sentences.append({"text": text, "confidence": round(math.exp(min(0.0, mean)), 4)})
                start = end
        return sentences

    def _ends_sentence(self, ids: list[int], end: int) -> bool:
        """Whether a full stop and then a space come at ``end``; a token by itself does not show its space."""
        if not decode(self.tokenizer, ids[end - 1 : end]).endswith("."):
            return False
        before, after = (
            str(self.tokenizer.decode(ids[:stop], clean_up_tokenization_spaces=False)) for stop in (end, end + 1)
        )
        return after[len(before) :].startswith(" ")
