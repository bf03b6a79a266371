"""The report as PDF pages: status, patient, images, sections, flagged findings, probabilities.

The same report gives the same bytes. Characters that the font lacks, and scripts from right to left, are drawn as a
box; the page states their number.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import reportlab
from PIL import Image as PilImage
from pydicom.uid import EncapsulatedPDFStorage
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, Image, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from radweave.workstation import structured_reports
from radweave.workstation.finished import (
    CAUTION,
    STATE_WORDS,
    FinishedReport,
    Picture,
    addendum_lines,
    document_title,
    model_line,
    spoken_date,
    spoken_name,
    status_line,
)
from radweave.workstation.structured_reports import coded, envelope, file_bytes, reference

_EDGE, _PADDING = 18 * mm, 6
_FOOT, _COUNT_WIDTH = 7.5, 15
"""Font size of the footer, and width of the number of pages."""
WIDTH: Final = A4[0] - 2 * (_EDGE + _PADDING)
PICTURE_HEIGHT: Final = 78 * mm
MOST_PICTURES: Final = 3
_FROM_RIGHT: Final = ("R", "AL")
"""Bidirectional classes of Unicode annex 9 that are not laid out here."""
_PAGES: Final = "pages"
BOX: Final = "\N{WHITE SQUARE}"
_RED, _GREY, _LINE = colors.HexColor("#8a1c1c"), colors.HexColor("#555555"), colors.HexColor("#c8c8c8")


def write_pdf(report: FinishedReport) -> bytes:
    """The report as a PDF file, A4."""
    pen = _Pen(*_fonts())
    story = [*_head(report, pen), *_body(report, pen), *_evidence(report, pen)]
    if pen.missing:
        count = len(pen.missing)
        story.append(pen.line(f"{count} kinds of signs cannot be drawn in this file and are shown as {BOX}.", "small"))
    buffer = io.BytesIO()
    pages = SimpleDocTemplate(
        buffer, pagesize=A4, leftMargin=_EDGE, rightMargin=_EDGE, topMargin=20 * mm, bottomMargin=22 * mm,
        title=document_title(report), author="Radweave", subject=CAUTION, invariant=1, lang="en",
    )  # fmt: skip
    frame = partial(_frame, report=report, pen=pen)
    pages.build(story, onFirstPage=frame, onLaterPages=frame, canvasmaker=_Counted)
    return buffer.getvalue()


@cache
def _fonts() -> tuple[str, str]:
    """Names of a regular and a bold font: DejaVu of matplotlib if installed, else Vera of reportlab."""
    folder, files = Path(reportlab.__file__).parent / "fonts", ("Vera.ttf", "VeraBd.ttf")
    plots = find_spec("matplotlib")
    if plots is not None and plots.origin is not None:
        brought = Path(plots.origin).parent / "mpl-data" / "fonts" / "ttf"
        if (brought / "DejaVuSans.ttf").is_file():
            folder, files = brought, ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
    for name, file in zip(("Report", "ReportBold"), files, strict=True):
        pdfmetrics.registerFont(TTFont(name, str(folder / file)))
    pdfmetrics.registerFontFamily(
        "Report", normal="Report", bold="ReportBold", italic="Report", boldItalic="ReportBold"
    )
    return "Report", "ReportBold"


class _Counted(Canvas):  # type: ignore[misc]  # reportlab has no types
    """A canvas whose pages state their total number, drawn after the last one."""

    def save(self) -> None:
        self.beginForm(_PAGES)
        self.setFillColor(_GREY)
        self.setFont(_fonts()[0], _FOOT)
        self.drawString(A4[0] - _EDGE - _PADDING - _COUNT_WIDTH, 10 * mm, str(self.getPageNumber() - 1))
        self.endForm()
        super().save()


class _Pen:
    """Paragraphs in a few styles; ``missing`` collects characters that cannot be drawn."""

    def __init__(self, regular: str, bold: str) -> None:
        self.missing: set[str] = set()
        self._glyphs = pdfmetrics.getFont(regular).face.charToGlyph
        text = ParagraphStyle("text", fontName=regular, fontSize=10, leading=14)
        self._styles = {
            "text": text,
            "small": ParagraphStyle("small", text, fontSize=8, leading=10.5, textColor=_GREY),
            "cell": ParagraphStyle("cell", text, fontSize=8.5, leading=11),
            "heading": ParagraphStyle(
                "heading", text, fontName=bold, fontSize=11, spaceBefore=8, spaceAfter=2, keepWithNext=1
            ),
            "title": ParagraphStyle("title", text, fontName=bold, fontSize=15, leading=19),
            "status": ParagraphStyle("status", text, fontName=bold, fontSize=9.5, leading=13, textColor=_RED),
        }

    def line(self, text: str, style: str = "text") -> Paragraph:
        """A paragraph of literal text, without markup."""
        return Paragraph("<br/>".join(escape(self.drawable(part)) for part in text.splitlines()), self._styles[style])

    def drawable(self, text: str) -> str:
        """Text with a box for each character that the font lacks, and without invisible ones."""
        shown = []
        for sign in unicodedata.normalize("NFC", text):
            if unicodedata.category(sign) in ("Cc", "Cf", "Cs"):
                continue
            if ord(sign) not in self._glyphs or unicodedata.bidirectional(sign) in _FROM_RIGHT:
                self.missing.add(sign)
                sign = BOX if ord(BOX) in self._glyphs else "?"
            shown.append(sign)
        return "".join(shown)


def _head(report: FinishedReport, pen: _Pen) -> list[Flowable]:
    title = "Chest CT report" if report.modality == "ct" else "Chest radiograph report"
    kind = "" if report.is_final else ": unverified draft" if report.rejected is None else ": rejected draft"
    story: list[Flowable] = [pen.line(f"{title}{kind}", "title")]
    story += [pen.line(status_line(report), "status"), Spacer(1, 3 * mm)]
    if report.sources:
        patient = report.patient
        facts = [
            ("Patient", spoken_name(patient.patient_name)), ("Patient ID", patient.patient_id),
            ("Born", spoken_date(patient.patient_birth_date)), ("Sex", patient.patient_sex),
            ("Study date", spoken_date(patient.study_date)), ("Accession", patient.accession_number),
        ]  # fmt: skip
        if patient.deidentification_method:
            facts.append(("De-identified", patient.deidentification_method))
    else:
        facts = [("Study", report.study_id), ("Patient", "not stated by the images")]
    rows = [(pen.line(name, "small"), pen.line(value or "not stated", "cell")) for name, value in facts]
    pairs = [row + (rows[n + 1] if n + 1 < len(rows) else ("", "")) for n, row in enumerate(rows) if n % 2 == 0]
    table = Table(pairs, colWidths=[22 * mm, WIDTH / 2 - 22 * mm] * 2)
    table.setStyle(TableStyle([("BOX", (0, 0), (-1, -1), 0.5, _LINE), ("VALIGN", (0, 0), (-1, -1), "TOP"), *_tight()]))
    warnings = _list("Warnings", report.warnings, pen)
    return [*story, table, *warnings, Spacer(1, 3 * mm)]


def _tight() -> list[tuple[Any, ...]]:
    return [(f"{side}PADDING", (0, 0), (-1, -1), 2) for side in ("TOP", "BOTTOM")]


def _body(report: FinishedReport, pen: _Pen) -> list[Flowable]:
    story: list[Flowable] = []
    if report.pictures:
        shown = report.pictures[:MOST_PICTURES]
        each = WIDTH / len(shown) - 3 * mm
        cells = [[_picture(picture, each) for picture in shown], [pen.line(item.title, "small") for item in shown]]
        table = Table(cells, colWidths=[WIDTH / len(shown)] * len(shown), hAlign="LEFT")
        table.setStyle(
            TableStyle([("LEFTPADDING", (0, 0), (-1, -1), 0), ("ALIGN", (0, 0), (-1, -1), "LEFT"), *_tight()])
        )
        story.append(table)
        if len(report.pictures) > len(shown):
            story.append(pen.line(f"{len(shown)} of {len(report.pictures)} pictures are shown.", "small"))
    for section in report.sections:
        story += [pen.line(section.title, "heading"), pen.line(section.text)]
    for heading, text in addendum_lines(report):
        story += [pen.line(heading, "heading"), pen.line(text)]
    return story


def _picture(picture: Picture, width: float) -> Image:
    buffer = io.BytesIO()
    PilImage.fromarray(picture.grey).save(buffer, "PNG")
    buffer.seek(0)
    height, wide = picture.grey.shape
    scale = min(width / wide, PICTURE_HEIGHT / height)
    image = Image(buffer, wide * scale, height * scale)
    image.hAlign = "LEFT"
    return image


def _evidence(report: FinishedReport, pen: _Pen) -> list[Flowable]:
    story: list[Flowable] = []
    flagged = [f"{row.name}: {row.flag}" for row in report.findings if row.flag]
    flagged += [f"{sentence.text} ({sentence.why})" for sentence in report.flagged]
    story += _list("To be looked at", flagged, pen)
    rows = [row for row in report.findings if row.probability is not None]
    if rows:
        head = [pen.line(name, "small") for name in ("Finding", "Probability", "Counts from", "In the report")]
        cells = [
            [pen.line(row.name, "cell"), pen.line(f"{row.probability:.2f}", "cell"),
             pen.line(f"{row.threshold:.2f}", "cell"), pen.line(STATE_WORDS[row.state], "cell")]
            for row in rows
        ]  # fmt: skip
        table = Table([head, *cells], colWidths=[WIDTH - 84 * mm, 28 * mm, 28 * mm, 28 * mm], repeatRows=1)
        table.setStyle(TableStyle([("LINEBELOW", (0, 0), (-1, -1), 0.3, _LINE), *_tight()]))
        story += [pen.line("Probabilities that the model gives", "heading"), table]
    return [
        *story,
        Spacer(1, 2 * mm),
        pen.line(f"Written by {model_line(report)}, {report.written:%Y-%m-%d %H:%M}", "small"),
    ]


def _list(heading: str, lines: Iterable[str], pen: _Pen) -> list[Flowable]:
    shown = [pen.line(f"\N{EN DASH} {line}", "cell") for line in lines]
    return [pen.line(heading, "heading"), *shown] if shown else []


def _status(report: FinishedReport) -> str:
    if report.rejected is not None:
        return "REJECTED"
    return ("FINAL WITH ADDENDUM" if report.addenda else "FINAL") if report.is_final else "PRELIMINARY"


def _frame(canvas: Any, pages: Any, *, report: FinishedReport, pen: _Pen) -> None:
    """Draw header and footer: caution, status, notice, patient, page number."""
    regular, bold = _fonts()
    left, right, height = _EDGE + _PADDING, A4[0] - _EDGE - _PADDING, A4[1]
    canvas.saveState()
    canvas.setFillColor(_RED)
    canvas.setFont(bold, 8.5)
    canvas.drawString(left, height - 13 * mm, CAUTION)
    canvas.drawRightString(right, height - 13 * mm, _status(report))
    canvas.setFillColor(_GREY)
    canvas.setFont(regular, _FOOT)
    canvas.drawString(left, 14 * mm, report.notice)
    whose = f"Patient ID {report.patient.patient_id or 'not stated'}" if report.sources else report.study_id
    canvas.drawString(left, 10 * mm, pen.drawable(whose)[:100])
    canvas.drawRightString(right - _COUNT_WIDTH, 10 * mm, f"Page {pages.page} of ")
    canvas.doForm(_PAGES)
    canvas.restoreState()


# DICOM Encapsulated PDF (PS3.3 A.45.1), for viewers that show no SR.

KIND: Final = "pdf-dicom"
SERIES_NUMBER: Final = 9903


def write_encapsulated_pdf(report: FinishedReport) -> bytes:
    """The PDF in a DICOM file.

    Raises:
        InputError: as ``envelope`` does.
    """
    dataset = envelope(report, EncapsulatedPDFStorage, kind=KIND, modality="DOC", number=SERIES_NUMBER)
    dataset.ConversionType = "WSD"
    dataset.AcquisitionDateTime = ""
    dataset.BurnedInAnnotation = "YES"  # the page names the patient
    dataset.RecognizableVisualFeatures = "NO"
    dataset.VerificationFlag = "VERIFIED" if report.is_final else "UNVERIFIED"
    dataset.DocumentTitle = document_title(report)
    dataset.ConceptNameCodeSequence = [coded(structured_reports.REPORT)]
    dataset.MIMETypeOfEncapsulatedDocument = "application/pdf"
    dataset.SourceInstanceSequence = [
        reference(source.sop_class_uid, source.sop_instance_uid) for source in report.sources
    ]
    page = write_pdf(report)
    dataset.EncapsulatedDocumentLength = len(page)
    dataset.EncapsulatedDocument = page + b"\0" * (len(page) % 2)
    return file_bytes(dataset)
