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


def stand_in(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Answer as the word in a study's first file says."""
    _serve(pipe, _as_the_file_says)


def with_maps(pipe: Connection, run: str, data: str | None, untrained: bool) -> None:
    """Drafts that have a map."""
    _serve(pipe, _with_a_map)


def _serve(pipe: Connection, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    pipe.send_bytes(json.dumps({"kind": "ready", "modality": "xray"}).encode())
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
    given = {"views": [view] if job["files"] else [], "attention_maps": {"Lung / Opacity": values}}
    return {**drafted(job["id"]), "evidence": given, "model": {"method": "dast"}}
