"""The predictor: image files in, report and evidence out. The network itself stays elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch
from numpy.typing import NDArray
from PIL import Image

from radweave.core.config import override
from radweave.core.errors import InputError, printable
from radweave.core.evidence import BY_OWN_DECODER, BY_UTILITY, DecoderEvidence, DraftEvidence, OodEvidence, ViewEvidence
from radweave.core.study import Modality, Report, View
from radweave.data.ct import NO_SCANS, CtPreprocessing
from radweave.data.loader import VIEW_KINDS, Example, view_id
from radweave.data.ood import Judgement, OutOfDistribution, Verdict
from radweave.data.targets import NO_CONTEXT, ContextSections
from radweave.data.tokenizer import encode
from radweave.engine.drafts import Drafter
from radweave.engine.expected_utility import Drafting, lacking
from radweave.engine.place import PlacePart
from radweave.inference.pictures import (
    Picture,
    UnlikeError,
    covered_by_map,
    model_input,
    read_pictures,
    refuse_doubtful,
    refuse_mixture,
    settle_views,
    stated_view,
    view_of,
    views_for,
)
from radweave.io.images import radiograph_from_array, radiograph_from_picture
from radweave.methods.model import ReportModel, Served, device_of
from radweave.nn.decoding import DecodingConfig, decoding_options, sets_kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from radweave.engine.restore import Run

# Images as a caller of Python has them: paths, PIL images, arrays, one or several views.


ViewInput = Path | str | Image.Image | NDArray[Any]
"""One view: a path, a PIL image, or an array (H, W) or (H, W, channels) of uint8, uint16, or floats from 0 to 1."""
Images = ViewInput | Sequence[ViewInput]

_EXPECTED = "a path, a PIL image or an array, or a list of them"


def read_given(images: Images, ct: CtPreprocessing) -> tuple[list[Path], list[Picture]]:
    """Read the views of one study; return what each is called, and the views.

    An image in memory is white where it is dense, as viewers show it, and says no view; it is called by its place.

    Raises:
        InputError: for what is no image, an image that cannot be used, or one in memory where a CT scan is read.
    """
    views = list(images) if isinstance(images, (list, tuple)) else [images]
    if not views:
        raise InputError("no image given", field="images")
    names, pictures = [], []
    for number, view in enumerate(views, start=1):
        names.append(Path(view) if _is_path(view) else Path(f"image {number}"))
        if not _is_path(view):
            pictures.append(_in_memory(view, names[-1], ct))
    if not pictures:
        return names, read_pictures(names, ct)
    read = iter(pictures)
    return names, [
        read_pictures([name], ct)[0] if _is_path(view) else next(read) for name, view in zip(names, views, strict=True)
    ]


def _is_path(view: object) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(view, (str, os.PathLike))


def _in_memory(view: Any, name: Path, ct: CtPreprocessing) -> Picture:
    is_picture = isinstance(view, Image.Image)
    if not is_picture and not hasattr(view, "__array__"):
        raise InputError("not an image", field="images", got=type(view).__name__, expected=_EXPECTED)
    if ct.size is not None:
        raise InputError(
            "this run reads CT scans, whose spacing an image in memory does not say", field="images",
            got=type(view).__name__, expected="the path of a NIfTI, NRRD or MetaImage file, or of a DICOM series",
        )  # fmt: skip
    return radiograph_from_picture(view, name) if is_picture else radiograph_from_array(view, name)


# Out-of-distribution detection: statements and refusals by the likeness of a study's images to the training images.


EVIDENCE: Final = "familiarity"
"""The key in a report's evidence."""
PHANTOMS_ONLY: Final = "trained on synthetic phantom images only: a demonstration, not for real images"
_UNLIKE = "does not look like the images that this run was trained on"


def judge(test: OutOfDistribution | None, example: Example) -> list[Judgement]:
    """A judgement for each view, in the model's order; none where the run has no test, or one that judges nothing."""
    if test is None or test.reason is not None:
        return []
    return [test.judge(view) for view in example.pixels]


def evidence_of(test: OutOfDistribution, judgements: Sequence[Judgement]) -> OodEvidence:
    """Scores with their thresholds, or the reason for none."""
    if test.reason is not None:
        return {"not judged": test.reason}
    doubt, refuse = test.thresholds
    return {
        "scores": [judgement.score for judgement in judgements],
        "verdicts": [judgement.verdict.value for judgement in judgements],
        "typical": 0.0,
        "doubted below": round(doubt, 3),
        "refused below": round(refuse, 3),
        "refused wrongly": error_of(test),
    }


def error_of(test: OutOfDistribution) -> str:
    """Rate at which a test refuses images of its run's own kind; empty if it was never measured."""
    error, images = test.facts.get("wrongly_refused"), test.facts.get("held_out")
    if not isinstance(error, dict):
        return ""
    low, high = (100 * float(error[name]) for name in ("low", "high"))
    return f"{low:.1f} to {high:.1f} % of the images of its own kind (95 % interval, {images} training images unseen)"


def untested(test: OutOfDistribution | None) -> str | None:
    """A warning where a run cannot tell images of another kind."""
    if test is not None and test.reason is None:
        return None
    why = "the run is older than the test" if test is None else test.reason
    return f"NOT TESTED whether images look like those of training ({why}): a hand would be drafted on as a chest is"


def is_unlike(evidence: DraftEvidence) -> bool:
    """Tell from a report's evidence if one of its views would be refused as a file."""
    return Verdict.REFUSED.value in evidence.get(EVIDENCE, OodEvidence()).get("verdicts", ())


def warnings_of(
    test: OutOfDistribution | None, judgements: Sequence[Judgement], names: Sequence[str]
) -> tuple[str, ...]:
    """A warning for each view out of distribution, with its name."""
    if test is None:
        return ()
    return tuple(
        f"{name}: {_statement(test, judgement)}"
        for name, judgement in zip(names, judgements, strict=False)
        if judgement.verdict is not Verdict.IN_DISTRIBUTION
    )


def _statement(test: OutOfDistribution, judgement: Judgement) -> str:
    doubt, refuse = test.thresholds
    strength = "" if judgement.verdict is Verdict.REFUSED else " quite"
    text = _UNLIKE.replace("not look", f"not look{strength}")
    limit = f"refused below {refuse:.1f}" if judgement.verdict is Verdict.REFUSED else f"doubted below {doubt:.1f}"
    error = error_of(test)
    wrongly = f"; the test refuses {error} wrongly" if error and judgement.verdict is Verdict.REFUSED else ""
    return f"{text} (score {judgement.score:.1f}, {limit}{wrongly})"


# The decoder of drafts: by default expected utility, where the run is calibrated.


def decides(decoding: DecodingConfig, chosen: Sequence[str], unable: str | None) -> tuple[str, str]:
    """The decoder of drafts, and the reason for the own one where nobody chose it.

    A calibrated run drafts by expected utility. ``chosen`` options (key=value) win, so does a run whose drafts are
    scored as written; ``unable`` is the reason why a run cannot.
    """
    if decoding.kind == "expected_utility":
        return BY_UTILITY, ""
    if sets_kind(chosen):
        return BY_OWN_DECODER, ""
    if decoding.is_as_written:
        return BY_OWN_DECODER, "the run's drafts are scored as the method wrote them"
    return (BY_UTILITY, "") if unable is None else (BY_OWN_DECODER, unable)


def default_decoding(run: Run, options: Sequence[str]) -> tuple[DecodingConfig, str]:
    """Options of decoding of a run's drafts by ``decides``, and its reason.

    Raises:
        InputError: for an option that does not exist.
    """
    assert run.drafting is not None, "a restored run has it"
    decoding = override(run.experiment.decoding, options)
    unable = lacking(run.drafting.folder, run.drafting.calibration)
    if isinstance(run.model, Served):
        unable = "each report that an endpoint draws is a request"
    drafts, reason = decides(decoding, [*decoding_options(run.card.overrides), *options], unable)
    return decoding.model_copy(update={"kind": "expected_utility"}) if drafts == BY_UTILITY else decoding, reason


UNTRAINED = "the weights of this run were never trained: its text would be noise; give --untrained to see it anyway"


@dataclass(frozen=True, slots=True)
class Predictor:
    """A restored model with what turns files into its input and its output into text.

    ``ct`` has a size where the model reads CT scans; else it reads radiographs in squares of ``image_size`` pixels.
    ``decoding`` holds the run's decoding options. ``warnings`` are added to every report. ``refusal`` is set for a
    run that must not report (its weights were never trained): asking it raises. ``ood`` tells whether images
    look like those the run was trained on. ``known_views`` are the kinds of views (see ``Batch.view_ids``) that the
    training split stated; only those are guessed for files that state none. ``drafting`` is what drafts by expected
    utility, ``place`` what says where findings lie. ``target`` is the text that the run learned to write;
    ``context_sections`` are those that its model reads, in at most ``max_context_tokens`` tokens. ``options`` are the
    decoding options that were set, ``own_because`` the reason for the own decoder where nobody chose one.
    """

    model: ReportModel
    tokenizer: PreTrainedTokenizerBase
    image_size: int
    max_views: int
    decoding: DecodingConfig
    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    ct: CtPreprocessing = NO_SCANS
    ood: OutOfDistribution | None = None
    known_views: tuple[int, ...] = ()
    drafting: Drafting | None = None
    target: str = "findings"
    context_sections: ContextSections = field(default_factory=ContextSections)
    max_context_tokens: int = 0
    place: PlacePart | None = None
    options: tuple[str, ...] = ()
    own_because: str = ""

    @classmethod
    def of(cls, run: Run, *, untrained: bool = False, decoding: Sequence[str] = ()) -> Predictor:
        """The predictor of a run with the options of ``default_decoding``.

        Raises:
            InputError: for a decoding option that does not exist.
        """
        warnings = []
        if not run.card.is_trained:
            warnings.append("UNTRAINED WEIGHTS: this text is noise")
        if run.card.dataset.is_synthetic:
            warnings.append(PHANTOMS_ONLY)
        if run.card.without:
            lost = "; ".join(run.card.without)
            warnings.append(f"exported without training reports, it does not draft as its run does: {lost}")
        warnings += run.card.cautions
        if (text := untested(run.ood)) is not None:
            warnings.append(text)
        data = run.experiment.data
        options, own_because = default_decoding(run, decoding)
        return cls(
            model=run.model,
            tokenizer=run.tokenizer,
            image_size=data.image_size,
            ct=data.ct,
            max_views=data.max_views,
            decoding=options,
            options=tuple(decoding),
            own_because=own_because,
            warnings=tuple(warnings),
            refusal=None if run.card.is_trained or untrained else UNTRAINED,
            ood=run.ood,
            drafting=run.drafting,
            place=run.place,
            target=run.card.dataset.target,
            context_sections=ContextSections(data.input_sections),
            max_context_tokens=data.input_tokens,
            known_views=tuple(kind for kind, name in enumerate(VIEW_KINDS) if run.card.views.get(name)),
        )

    @property
    def modality(self) -> Modality:
        """Modality that the model reads."""
        return "xray" if self.ct.size is None else "ct"

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return device_of(self.model)

    @property
    def decoder(self) -> DecoderEvidence:
        """The decoder of drafts, the reason for the own one where nobody chose it, and the options that were set."""
        shown: DecoderEvidence = {"kind": BY_UTILITY if self.decoding.kind == "expected_utility" else BY_OWN_DECODER}
        if self.own_because:
            shown["reason"] = self.own_because
        if self.options:
            shown["set"] = list(self.options)
        return shown

    @property
    def drafts(self) -> str:
        """A line on what drafts."""
        shown = self.decoder
        reason = f" ({shown['reason']})" if "reason" in shown else ""
        return f"drafts: {shown['kind']}{reason}" + (f"; set: {' '.join(shown['set'])}" if "set" in shown else "")

    @property
    def _use(self) -> str:
        """A sentence on what it reads, where it runs and how it is called."""
        squares = f"radiographs in squares of {self.image_size} pixels, up to {self.max_views} views of a study"
        reads = squares if self.ct.size is None else f"a CT scan of {' x '.join(map(str, self.ct.size))} voxels"
        drafts = f"{self.drafts[0].upper()}{self.drafts[1:]}"
        return f'Reads {reads}. {drafts}. Runs on {self.device}. Use: predictor.report("chest.dcm")'

    @property
    def _cautions(self) -> tuple[str, ...]:
        return (*(() if self.refusal is None else (self.refusal,)), *self.warnings)

    def __repr__(self) -> str:
        """A line on its use, and one for each warning."""
        return "\n".join((f"Predictor of {type(self.model).__name__}. {self._use}", *self._cautions))

    def _repr_html_(self) -> str:
        """HTML for notebooks: modality, device, and the warnings of every report."""
        from radweave.core.study import html_box, html_paragraph

        return html_box("Predictor", html_paragraph(self._use), warnings=self._cautions)

    def report(
        self,
        images: Images,
        *,
        study_id: str = "study",
        force: bool = False,
        views: View | str | Sequence[View | str] = (),
        indication: str | None = None,
        technique: str | None = None,
        findings: str | None = None,
    ) -> Report:
        """Write the draft of one study from its views, or its CT scan.

        A view is the path of a PNG, JPEG or DICOM file, a PIL image, or an array (H, W) or (H, W, channels) of uint8,
        uint16, or floats from 0 to 1, white where it is dense; several views are a list. A scan is the path of a
        NIfTI, NRRD or MetaImage file or of the folder of a DICOM series.

        ``views`` states which view the images are ("frontal", "lateral", "pa", "ap"): one for all, or one for each.
        Without, it is what the file says, or else what a rule sees; a warning then says so.

        ``indication``, ``technique`` and ``findings`` are context for a run that was trained with them
        (``data.input_sections``), without what names the patient; a warning says where the run does not read one.

        ``force`` lets an image through whose integrity is doubtful, or that is unlike those the run was trained on; the
        report then says so.

        Raises:
            InputError: for what is no image, a file that cannot be used, images of more than one patient or study, no
                image at all, a section that is no text, or a run whose weights were never trained.
        """
        context = {"indication": indication, "technique": technique, "findings": findings}
        names_of_views = [views] if isinstance(views, str) else views
        stated = [view if isinstance(view, View) else stated_view(view) for view in names_of_views]
        names, pictures = read_given(images, self.ct)
        each = views_for(stated, len(names))
        settled, warnings = self.settle(names, pictures, force=force, stated=each)
        return self.report_on(settled, study_id=study_id, warnings=warnings, force=force, context=context)

    def report_on(
        self,
        views: Sequence[tuple[Path, Picture]],
        *,
        study_id: str,
        warnings: Sequence[str] = (),
        force: bool = False,
        context: Mapping[str, str | None] = NO_CONTEXT,
    ) -> Report:
        """Write the draft of the views that ``read_views`` gave, with its warnings; ``context`` has sections by name.

        Raises:
            InputError: if a view is unlike those the run was trained on and not ``force``, the run's weights were never
                trained, or an endpoint gave no draft.
        """
        unread = self.unread(context)
        example = self.example(views, study_id, force=force, context=context)
        report = next(iter(self.reports([example], names={study_id: [printable(path.name) for path, _ in views]})))
        if (reason := report.evidence.get("served", {}).get("failed")) is not None:
            raise InputError(f"no draft: {reason}", field="model.endpoint")
        # Evidence about views, such as maps, stands in their order, which need not be the order of the files given.
        shown: list[ViewEvidence] = [
            {"file": printable(path.name), "view": view_of(picture).value} for path, picture in views
        ]
        return replace(
            report, evidence={**report.evidence, "views": shown}, warnings=(*report.warnings, *warnings, *unread)
        )

    def unread(self, context: Mapping[str, str | None]) -> list[str]:
        """A warning for each section that is given and that the run was not trained to read."""
        return [
            f"the {name} is not looked at: the run was trained without (data.input_sections)"
            for name, text in context.items()
            if text and name not in self.context_sections.sections
        ]

    def example(
        self,
        views: Sequence[tuple[Path, Picture]],
        study_id: str,
        *,
        force: bool = False,
        context: Mapping[str, str | None] = NO_CONTEXT,
    ) -> Example:
        """Input of the model from the views of ``read_views`` and the sections of its context.

        Raises:
            InputError: if a view is unlike those the run was trained on and not ``force``, or a section is no text.
        """
        text = self.context_sections.of_texts(context, study_id, [path for path, _ in views])
        example = Example(
            study_id=study_id,
            patient_id=study_id,
            source=model_input([picture for _, picture in views], image_size=self.image_size, ct=self.ct),
            rows=tuple(range(len(views))),
            view_ids=tuple(view_id(view_of(picture)) for _, picture in views),
            context_ids=None if text is None else tuple(encode(self.tokenizer, text)[: self.max_context_tokens]),
            window=lambda view: covered_by_map(views[view][1], image_size=self.image_size, ct=self.ct),
        )
        if not force:
            self.refuse_outliers(example, [path for path, _ in views])
        return example

    def refuse_outliers(self, example: Example, names: Sequence[Any]) -> None:
        """Refuse images unlike those of training: a draft about a hand would look like any other draft.

        Raises:
            UnlikeError: naming the first view that is too far from the run's training images.
        """
        for name, judgement in zip(names, judge(self.ood, example), strict=False):
            if judgement.verdict is Verdict.REFUSED:
                assert self.ood is not None
                why = f"; it was {PHANTOMS_ONLY}" if PHANTOMS_ONLY in self.warnings else ""
                advice = "give --force (force=True) to report on it anyway"
                raise UnlikeError(f"{_statement(self.ood, judgement)}{why}; {advice}", file=name)

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
        return self.settle(images, read_pictures(images, self.ct), force=force, stated=each)

    def settle(
        self, images: Sequence[Path], pictures: Sequence[Picture], *, force: bool, stated: Sequence[View | None]
    ) -> tuple[list[tuple[Path, Picture]], tuple[str, ...]]:
        """As ``read_views``, for files that were read; ``stated`` has the view of each, or None.

        Raises:
            InputError: for images of more than one patient or study, or a doubtful one and not ``force``.
        """
        refuse_mixture(pictures, images)
        if not force:
            refuse_doubtful(pictures, images)
        pictures, warnings = settle_views(pictures, images, stated, self.known_views)
        pairs = list(zip(images, pictures, strict=True))
        warnings += [f"{printable(path.name)}: {text}" for path, item in pairs for text in item.warnings]
        if len(images) > self.max_views:
            warnings.append(f"{printable(images[0].name)} and others: {len(images)} views given, the model reads "
                            f"{self.max_views}")  # fmt: skip
        pairs.sort(key=lambda pair: {1: 0, 2: 1, 0: 2}[view_id(view_of(pair[1]))])
        return pairs[: self.max_views], tuple(warnings)

    def reports(
        self,
        examples: Iterable[Example],
        *,
        batch_size: int = 16,
        names: Mapping[str, Sequence[str]] | None = None,
    ) -> Iterator[Report]:
        """Write reports in batches, in the order given.

        ``names`` says what a study's views are called in warnings: study id -> a name for each view.

        Raises:
            InputError: if the run's weights were never trained.
        """
        if self.refusal is not None:
            raise InputError(self.refusal)
        drafter = Drafter(
            self.model, self.tokenizer, self.decoding, self.modality, self.drafting, self.target, self.place
        )
        for draft in drafter.drafts(examples, batch_size=batch_size):
            example, evidence = draft.example, draft.evidence
            evidence = {**evidence, "decoder": self.decoder}
            judgements = judge(self.ood, example)
            if self.ood is not None:
                evidence = {**evidence, EVIDENCE: evidence_of(self.ood, judgements)}
            called = (names or {}).get(example.study_id) or [f"view {n + 1}" for n in range(len(example.rows))]
            unlike = warnings_of(self.ood, judgements, called)
            warnings = (*self.warnings, *unlike, *draft.warnings)
            yield Report(draft.text, example.study_id, evidence, warnings, target=self.target)
