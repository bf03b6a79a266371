"""Many associations with the receiver, good and bad, and what it has of memory, threads and open files after them.

python bench/associations.py [--count 10000] [--threads 8] [--rounds 2]

Each in turn: a good one (associate, release), one to a wrong AE title, one from an unknown, one that is cut after the
first PDU, one cut within it, one that says half of it and stays, and every hundredth sends an image. The receiver runs
in a process of its own, whose figures are read from /proc (Linux): resident memory, threads, open files, before, after
each round and a rest of 35 s. What grows with the number of associations grows in the second round too.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, generate_uid
from pynetdicom import AE, build_context
from pynetdicom.pdu import A_ASSOCIATE_RQ
from pynetdicom.pdu_primitives import A_ASSOCIATE, ImplementationClassUIDNotification, MaximumLengthNotification

KINDS = ("good", "wrong called", "unknown caller", "cut after the first PDU", "cut within it", "half, and stays")
STAYING: deque[socket.socket] = deque()
STAY = 200
"""Connections that say half of a request are kept open, the newest of them."""
RELEASE = bytes([5, 0, 0, 0, 0, 4, 0, 0, 0, 0])
ANSWERS = {2: "accepted", 3: "rejected", 6: "released", 7: "aborted"}
TIMEOUT_S = 60


def request(called: str, calling: str) -> bytes:
    """An A-ASSOCIATE-RQ that asks for verification."""
    primitive, context = A_ASSOCIATE(), build_context("1.2.840.10008.1.1")
    context.context_id = 1
    primitive.application_context_name = "1.2.840.10008.3.1.1.1"
    primitive.called_ae_title, primitive.calling_ae_title = called, calling
    primitive.presentation_context_definition_list = [context]
    longest, ours = MaximumLengthNotification(), ImplementationClassUIDNotification()
    longest.maximum_length_received, ours.implementation_class_uid = 16382, "1.2.3"
    primitive.user_information = [longest, ours]
    pdu = A_ASSOCIATE_RQ()
    pdu.from_primitive(primitive)
    return bytes(pdu.encode())


def answer(connection: socket.socket) -> str:
    """What kind of PDU comes back."""
    head = b""
    while len(head) < 6:
        part = connection.recv(6 - len(head))
        if not part:
            return "closed"
        head += part
    left = int.from_bytes(head[2:], "big")
    while left:
        part = connection.recv(left)
        if not part:
            return "closed"
        left -= len(part)
    return ANSWERS.get(head[0], "other")


def one(number: int, port: int) -> str:
    """One association; its kind and what became of it."""
    if number % 100 == 99:
        return f"image: {store(port)}"
    kind = KINDS[number % len(KINDS)]
    data = request(
        "OTHER" if kind == "wrong called" else "RADWEAVE", "NOBODY" if kind == "unknown caller" else "SCANNER"
    )
    half = data[: len(data) // 2]
    try:
        if kind.endswith("stays"):
            STAYING.append(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S))
            STAYING[-1].sendall(half)
            if len(STAYING) > STAY:
                STAYING.popleft().close()
            return f"{kind}: sent"
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
            connection.sendall(half if kind == "cut within it" else data)
            if kind.startswith("cut"):
                return f"{kind}: sent"
            said = answer(connection)
            if said == "accepted":
                connection.sendall(RELEASE)
                said = answer(connection)
            return f"{kind}: {said}"
    except OSError as error:
        return f"{kind}: {type(error).__name__}"


def store(port: int) -> str:
    """Send an image of 1 MB."""
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image.SOPClassUID, image.SOPInstanceUID = ComputedRadiographyImageStorage, generate_uid()
    image.PatientID = image.StudyInstanceUID = "1.2.3"
    image.Rows = image.Columns = 720
    image.add_new("PixelData", "OW", np.zeros((720, 720), np.uint16).tobytes())
    entity = AE("SCANNER")
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_S
    entity.add_requested_context(ComputedRadiographyImageStorage, ExplicitVRLittleEndian)
    association = entity.associate("127.0.0.1", port, ae_title="RADWEAVE")
    if not association.is_established:
        return "rejected"
    try:
        return f"status 0x{association.send_c_store(image).get('Status', 0xFFFF):04X}"
    finally:
        association.release()


def figures(process: int) -> dict[str, int]:
    """Resident memory in KiB, threads and open files of a process."""
    rows = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        "memory KiB": int(rows["VmRSS"].split()[0]), "threads": int(rows["Threads"]),
        "open files": len(os.listdir(f"/proc/{process}/fd")),
    }  # fmt: skip


def serve(folder: Path) -> None:
    """The receiver, until standard input ends; its port is the first line of its output, its counts the last."""
    from radweave.workstation.hospital_plan import Receive
    from radweave.workstation.receiver import Receiver

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    counts: Counter[str] = Counter()
    lock = threading.Lock()

    def count(name: str) -> None:
        with lock:
            counts[name] += 1

    plan = Receive(ae_title="RADWEAVE", port=port, peers={"SCANNER": "127.0.0.1"}, associations=64)
    receiver: Any = Receiver(plan, folder, count)
    receiver.start()
    print(port, flush=True)
    sys.stdin.read()
    receiver.stop()
    print(dict(sorted(counts.items())), flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=10_000)
    asked.add_argument("--threads", type=int, default=8)
    asked.add_argument("--rounds", type=int, default=1)
    asked.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = asked.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", str(Path(folder) / "incoming")]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        for number in range(50):  # what is loaded once is loaded
            one(number, port)
        time.sleep(2)
        rows = {"before": figures(child.pid)}
        became: Counter[str] = Counter()
        start = time.perf_counter()
        for number in range(1, options.rounds + 1):
            with ThreadPoolExecutor(options.threads) as pool:
                became.update(pool.map(lambda number: one(number, port), range(options.count)))
            rows[f"after {number}"] = figures(child.pid)
            time.sleep(35)  # longer than a connection that says nothing is kept
            rows[f"and a rest {number}"] = figures(child.pid)
        seconds = time.perf_counter() - start - 35 * options.rounds
        last = one(0, port)
        child.stdin.close()
        said = child.stdout.read().strip()
        files = len(list(Path(folder).rglob("*.dcm")))
        child.wait()
    for kind, number in sorted(became.items()):
        print(f"{number:7d} {kind}")
    asked_for = f"{options.rounds} x {options.count} associations in {seconds:.0f} s"
    print(f"{asked_for}, {options.threads} at once; one more afterwards: {last}")
    for name, row in rows.items():
        print(f"{name:>13}: " + ", ".join(f"{value} {what}" for what, value in row.items()))
    print(f"the receiver counted {said}; {files} images lie on the disk")


if __name__ == "__main__":
    main()
