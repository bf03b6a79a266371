"""What tests of the way to and from archives share: a plan as a file, images of a patient, an archive in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydicom import dcmread
from pynetdicom import AE, AllStoragePresentationContexts, evt

from tests.image_files import chest, write_dicom


def plan_file(path: Path, **plan: Any) -> Path:
    path.write_text(yaml.safe_dump(plan))
    return path


def image(path: Path, **tags: Any) -> Path:
    """A radiograph; ``IMAGE`` in it makes the worker without a model draft."""
    return write_dicom(path, chest(32, 24), **tags)


class Archive:
    """Keeps the instances it gets: SOP Instance UID -> how often it came, and the bytes."""

    def __init__(self) -> None:
        self.came: dict[str, int] = {}
        self.data: dict[str, bytes] = {}
        self.status = 0x0000
        self.port = 0

    def store(self, event: evt.Event) -> int:
        if self.status == 0x0000:
            data = event.encoded_dataset()
            name = str(dcmread(io.BytesIO(data)).SOPInstanceUID)
            self.came[name] = self.came.get(name, 0) + 1
            self.data[name] = data
        return self.status


@contextmanager
def listening(archive: Archive, port: int = 0, **more: Any) -> Iterator[Archive]:
    """The archive on a port of its own (or on one that it had before)."""
    entity = AE(ae_title="ARCHIVE")
    for context in AllStoragePresentationContexts:
        entity.add_supported_context(str(context.abstract_syntax))
    server = entity.start_server(
        ("127.0.0.1", port), block=False, evt_handlers=[(evt.EVT_C_STORE, archive.store)], **more
    )
    archive.port = server.server_address[1]
    try:
        yield archive
    finally:
        server.shutdown()


def push(port: int, *files: Path, calling: str = "SCANNER", called: str = "RADWEAVE", tls: Any = None) -> list[Any]:
    """Send files by C-STORE; the statuses, or "refused" where there was no association."""
    entity = AE(ae_title=calling)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = 60
    datasets = [dcmread(file) for file in files]
    for sop_class in {dataset.SOPClassUID for dataset in datasets}:
        entity.add_requested_context(sop_class, "1.2.840.10008.1.2.1")
    association = entity.associate("127.0.0.1", port, ae_title=called, tls_args=tls)
    if not association.is_established:
        return ["refused"]
    result = []
    for dataset in datasets:
        try:
            result.append(association.send_c_store(dataset).get("Status", "cut"))
        except (RuntimeError, ValueError):
            result.append("cut")
    association.release()
    return result


def studies(client: Any) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = client.get("/api/v1/studies").json()["studies"]
    return result


def figure(client: Any, name: str) -> int:
    rows = [line.split() for line in client.get("/metrics").text.splitlines() if line.startswith(f"radweave_{name}_")]
    return int(float(rows[0][1])) if rows else 0
