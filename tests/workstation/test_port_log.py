"""What strangers send to the port: nothing of it is printed, the log stays short, and no thread waits for them."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.workstation.load import free_port

NAME = b"Doe^Jane^19600412"
SERVER = """
import sys, threading
from pathlib import Path
from radweave.workstation.hospital_plan import Receive
from radweave.workstation.receiver import Receiver
from radweave.workstation.events import silence_loggers
from radweave.workstation.hospital import _QUOTING
silence_loggers(*_QUOTING)
plan = Receive(ae_title="RADWEAVE", port=int(sys.argv[1]), peers={"SCANNER": "127.0.0.1"})
receiver = Receiver(plan, Path(sys.argv[2]), lambda name: None)
receiver.start()
print("ready", flush=True)
for line in sys.stdin:
    print(threading.active_count(), flush=True)
receiver.stop()
"""
VERIFICATION, IMPLICIT, IMAGE = b"1.2.840.10008.1.1", b"1.2.840.10008.1.2", b"1.2.840.10008.5.1.4.1.1.1"


def item(kind: int, body: bytes) -> bytes:
    return struct.pack(">BBH", kind, 0, len(body)) + body


def context(abstract: bytes | None, number: int = 1) -> bytes:
    inner = b"" if abstract is None else item(0x30, abstract)
    return item(0x20, bytes([number, 0, 0, 0]) + inner + item(0x40, IMPLICIT))


def request(*contexts: bytes, called: bytes = b"RADWEAVE", calling: bytes = b"SCANNER", more: bytes = b"") -> bytes:
    """A request for an association (PS3.8 Table 9-11)."""
    user = item(0x50, item(0x51, struct.pack(">L", 16384)) + item(0x52, b"1.2.3.4") + more)
    body = struct.pack(">HH", 1, 0) + called.ljust(16)[:16] + calling.ljust(16)[:16] + bytes(32)
    body += item(0x10, b"1.2.840.10008.3.1.1.1") + b"".join(contexts) + user
    return struct.pack(">BBL", 1, 0, len(body)) + body


def element(number: int, value: bytes) -> bytes:
    value += b"\0" * (len(value) % 2)
    return struct.pack("<HHL", 0, number, len(value)) + value


def message(*elements: bytes) -> bytes:
    """A command as one P-DATA-TF (PS3.8 9.3.5)."""
    body = b"".join(elements)
    body = element(0, struct.pack("<L", len(body))) + body
    value = struct.pack(">LBB", len(body) + 2, 1, 3) + body
    return struct.pack(">BBL", 4, 0, len(value)) + value


def number(value: int) -> bytes:
    return struct.pack("<H", value)


ACCEPTED = request(context(VERIFICATION), context(IMAGE, 3))
ECHO = message(element(2, VERIFICATION), element(0x100, number(0x30)), element(0x110, number(1)),
               element(0x800, number(0x101)))  # fmt: skip
STORE = message(element(2, NAME), element(0x100, number(1)), element(0x110, number(1)), element(0x700, number(0)),
                element(0x800, number(0x101)), element(0x1000, NAME))  # fmt: skip
KINDS = (
    [request(context(VERIFICATION), calling=NAME)], [request(context(VERIFICATION), called=NAME)],
    [request(context(NAME))], [request(*(context(NAME * 30, n) for n in range(1, 60, 2)))],
    [request(context(None))], [request()], [request(item(0x99, NAME))],
    [request(context(VERIFICATION), more=item(0x55, NAME))], [request(context(VERIFICATION), more=item(0x54, NAME))],
    [struct.pack(">BBL", 1, 0, 120) + NAME * 7 + b"\xff"], [b"\x09" + NAME], [request()[:20]], [b""],
    [ACCEPTED, ECHO * 50], [ACCEPTED, STORE], [ACCEPTED, message(NAME)], [ACCEPTED, ACCEPTED],
    [ACCEPTED, b"\3\0\0\0\0\4\0\1\1\7"],
)  # fmt: skip


def send(port: int, parts: list[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as connection, suppress(OSError):
        connection.settimeout(0.5)
        for part in parts:
            connection.sendall(part)
            if part[:1] in (b"\1", b"\4"):
                connection.recv(4096)


def memory_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def test_unknown_peers_cause_no_log_memory_or_threads(tmp_path: Path) -> None:
    port, rounds = free_port(), 8
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), str(tmp_path / "incoming")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ,
        )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        sizes, lengths = [], []
        for _ in range(rounds):
            for parts in KINDS:
                send(port, parts)
            sizes.append(memory_kb(server.pid))
            lengths.append((tmp_path / "log").stat().st_size)
        end = time.monotonic() + 60
        while True:
            server.stdin.write(b"\n")
            server.stdin.flush()
            threads = int(server.stdout.readline())
            if threads <= 6 or time.monotonic() > end:
                break
            time.sleep(0.2)
    finally:
        server.stdin.close()
        server.wait(timeout=20)
    text = (tmp_path / "log").read_bytes()
    assert b"Jane" not in text
    assert b"Traceback" not in text
    assert b"Warning" not in text
    assert text.count(b"\n") == text.count(b'{"time"')
    # Each place in code writes a line a minute; there are some 30 of them, of 120 bytes.
    assert lengths[-1] < 8_000
    # 4 MiB: what the allocator keeps of 126 requests; the warnings alone were more.
    assert sizes[-1] - sizes[0] < 4 << 10
    assert threads <= 6
