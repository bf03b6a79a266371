"""Inference processes without a model, which start at once: what a file holds says what becomes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PNG = b"\x89PNG\r\n\x1a\n"
IMAGE, CRASH, HANG, REFUSE = PNG + b"an image", PNG + b"crash", PNG + b"hang", PNG + b"refuse"
RECALLED = "The heart is large. The lungs are clear."
SENTENCES = (("The heart is normal.", False), ("There is an opacity on the left.", True))


def drafted(study: str) -> dict[str, Any]:
    """What a worker answers."""
    rows = [
        {"text": text, "origin": {"kind": "generated"}, "confidence": 0.9, "probability": 0.5, "verdict": "said",
         "flagged": flagged}
        for text, flagged in SENTENCES
    ]  # fmt: skip
    return {
        "kind": "drafted", "id": study, "text": " ".join(text for text, _ in SENTENCES), "sentences": rows,
        "findings": [],
        "evidence": {"views": [], "recalled": [{"kind": "report", "study_id": "t1", "text": RECALLED}]},
        "warnings": [], "model": {"method": "none"},
    }  # fmt: skip


def fake_worker(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Answer as the word in a study's first file says."""
    _serve(pipe, _as_the_file_says)


def worker_with_maps(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Drafts that have a map."""
    _serve(pipe, _with_a_map)


PLACED = (
    ("There is an opacity in the left upper lung.", "Lung Opacity", "left upper zone", 0.8, False),
    ("There is a right effusion.", "Pleural Effusion", "right pleura", None, False),
    ("There is atelectasis at the left base.", "Atelectasis", "left lower zone", 0.1, True),
)
"""Sentences with their finding, its place, the probability of the place, and True for one that is flagged by it.

The flagged one leaves its finding open; of the one that is not checked a box is left out.
"""
BOXES = {
    "xray": [[(0, [0.5, 0.25, 0.75, 0.5]), (1, [0.125, 0.25, 0.5, 0.5])], [], [(0, [0.625, 0.625, 0.875, 0.875])]],
    "ct": [[(0, [0.5, 0.25, 0.625, 0.75, 0.5, 0.875])], [], [(0, [0.125, 0.5, 0.5, 0.25, 0.75, 0.75])]],
}
"""Modality -> boxes of each sentence, with the image of each."""


def placing_worker(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Drafts on radiographs with places."""
    _serve(pipe, lambda job: drafted_with_places(job, "xray"))


def placing_scan_worker(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Drafts on scans with places."""
    _serve(pipe, lambda job: drafted_with_places(job, "ct"), "ct")


def drafted_with_places(job: dict[str, Any], modality: str) -> dict[str, Any]:
    """Boxes on images that the study has."""
    draft = drafted(job["id"])
    draft["sentences"] = [{**row, "details": {"claims": [], "places": []}} for row in draft["sentences"]]
    for (text, finding, named, probability, improbable), boxes in zip(PLACED, BOXES[modality], strict=True):
        place = {
            "finding": finding, "sides": [named.split()[0]], "zones": [named.split()[1]], "named": named,
            "probability": probability, "probabilities": {}, "improbable": improbable,
            "uncertain": improbable, "too_large": int(probability is None),
            "boxes": [{"image": image, "box": box} for image, box in boxes if image < len(job["files"])],
        }  # fmt: skip
        details = {"claims": [], "prior": [], "places": [place]}
        verdict = "its place is improbable" if improbable else "checked in part"
        row = {**draft["sentences"][0], "text": text, "details": details, "verdict": verdict, "flagged": improbable}
        draft["sentences"].append(row)
    draft["text"] = " ".join(row["text"] for row in draft["sentences"])
    finding = {"threshold": 0.5, "probability": 0.9, "calibrated": True, "experience": None, "said": "positive"}
    draft["findings"] = [{**finding, "name": name, "flag": None, "recalled": []} for _, name, *_ in PLACED]
    return draft


def comparing_worker(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """A toy method that takes a prior: what changed is how bright the two images are."""
    _serve(pipe, _compared)


def _compared(job: dict[str, Any]) -> dict[str, Any]:
    bright = [_brightness(files) for files in (job["files"], (job["prior"] or {}).get("files"))]
    text = "There is an opacity."
    if bright[1] is not None and bright[0] is not None:
        change = "unchanged" if bright[0] == bright[1] else "larger" if bright[0] > bright[1] else "smaller"
        text = f"The opacity is {change} since the prior of {job['prior']['days']} days ago."
    row = drafted(job["id"])["sentences"][0]
    return {**drafted(job["id"]), "text": text, "sentences": [{**row, "text": text}]}


def _brightness(files: list[str] | None) -> int | None:
    """The sum of the stored values that lie last in the file, where an image of 24 by 32 pixels lies."""
    return sum(Path(files[0]).read_bytes()[-2 * 24 * 32 + 1 :: 2]) if files else None


def _serve(pipe: Connection, answer: Callable[[dict[str, Any]], dict[str, Any]], modality: str = "xray") -> None:
    pipe.send_bytes(json.dumps({"kind": "ready", "modality": modality}).encode())
    while True:
        try:
            jobs = json.loads(pipe.recv_bytes())
        except EOFError:
            return
        for job in jobs:
            pipe.send_bytes(json.dumps(answer(job)).encode())
        pipe.send_bytes(json.dumps({"kind": "done"}).encode())


def _as_the_file_says(job: dict[str, Any]) -> dict[str, Any]:
    content = Path(job["files"][0]).read_bytes()
    if b"crash" in content:
        raise SystemExit(1)
    if b"hang" in content:
        time.sleep(60)
    if b"refuse" in content:
        return {"kind": "refused", "id": job["id"], "reason": f"{Path(job['files'][0]).name}: is no image"}
    return drafted(job["id"])


def _with_a_map(job: dict[str, Any]) -> dict[str, Any]:
    is_scan = any(Path(file).is_dir() for file in job["files"])
    covers = [[0, 1]] * 3 if is_scan else [[-0.1, 1.2], [0, 1]]
    view = {"file": "file00000.dcm", "image": 0, "view": "AP", "covers": covers}
    values = [[[[0.5, 1.0]]]] if is_scan else [[[0.5, 1.0]]]
    inputs = {"views": [view] if job["files"] else [], "attention_maps": {"Lung / Opacity": values}}
    return {**drafted(job["id"]), "evidence": inputs, "model": {"method": "dast"}}


REFUSALS = {b"unlike": "unfamiliar", b"knee": "body part", b"doubt": "integrity", b"mixed": "mixture"}
"""A word in a file -> the kind of its refusal."""


def refusing_worker(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Refuse as the word in a file says, unless that was set aside; the sentence tells what the worker was given."""
    _serve(pipe, _refused_unless_set_aside)


def _refused_unless_set_aside(job: dict[str, Any]) -> dict[str, Any]:
    content = b"".join(Path(file).read_bytes() for file in job["files"])
    kind = next((kind for word, kind in REFUSALS.items() if word in content), None)
    if kind in (None, job["anyway"]):
        return {**drafted(job["id"]), "warnings": ["one of the model's"]}
    reason = f"{Path(job['files'][0]).name}: not what it should be"
    return {"kind": "refused", "id": job["id"], "reason": reason, "refusal": kind}
