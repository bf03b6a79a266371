"""An object is answered with success only when it lies on the disk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radweave.workstation import receiver as module
from radweave.workstation.hospital_plan import Receive
from radweave.workstation.receiver import Receiver

PLAN = Receive(ae_title="RADWEAVE", port=11112, peers={"SCANNER": "127.0.0.1"})


@dataclass(frozen=True, eq=False)
class Association:
    requestor: SimpleNamespace


def event(title: str = "SCANNER", address: str = "127.0.0.1") -> Any:
    requestor = SimpleNamespace(ae_title=title, address=address)
    request = SimpleNamespace(AffectedSOPInstanceUID="1.2.3")
    return SimpleNamespace(assoc=Association(requestor), request=request, encoded_dataset=lambda: b"object")


class Received(Receiver):
    """A receiver that does not listen, and the figures that it gives."""

    def __init__(self, folder: Path, plan: Receive = PLAN) -> None:
        self.counted: list[str] = []
        super().__init__(plan, folder, self.counted.append)

    def answer(self, sent: Any) -> int:
        return self._store(sent)


def test_success_means_that_the_object_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = Received(tmp_path)
    assert receiver.answer(event()) == 0x0000
    assert [file.read_bytes() for file in tmp_path.rglob("*.dcm")] == [b"object"]

    def full(path: Path) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "write_aside", full)
    assert receiver.answer(event()) == 0x0110
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1 << 29))
    assert receiver.answer(event()) == 0xA700
    assert receiver.counted == ["objects_received", "objects_refused", "objects_refused"]


@pytest.mark.parametrize("sent", [event("STRANGER"), event(address="192.0.2.7"), event(address="nowhere")])
def test_an_object_of_an_unknown_peer_is_not_stored(sent: Any, tmp_path: Path) -> None:
    assert Received(tmp_path).answer(sent) == 0x0124
    assert not list(tmp_path.rglob("*.dcm"))


@pytest.mark.parametrize(
    ("stated", "comes_from", "status"),
    [
        ("127.0.0.1", "::ffff:127.0.0.1", 0x0000),
        ("::ffff:127.0.0.1", "127.0.0.1", 0x0000),
        ("127.0.0.1", "::ffff:127.0.0.2", 0x0124),
        ("::1", "0:0:0:0:0:0:0:1", 0x0000),
        ("::1", "127.0.0.1", 0x0124),
    ],
)
def test_addresses_are_compared_in_normal_form(stated: str, comes_from: str, status: int, tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"peers": {"SCANNER": stated}})
    assert Received(tmp_path, plan).answer(event(address=comes_from)) == status
