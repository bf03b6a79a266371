"""Certificates for tests of TLS: right ones, and such as a server must refuse."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM, PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8


def certificate(folder: Path, name: str = "server", *, from_days: int = -1, to_days: int = 1) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=from_days))
        .not_valid_after(now + timedelta(days=to_days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(built.public_bytes(PEM))
    files[1].write_bytes(key.private_bytes(PEM, PKCS8, serialization.NoEncryption()))
    return files


def encrypted(key: Path, to: Path) -> Path:
    """A key that asks for a password."""
    result = serialization.load_pem_private_key(key.read_bytes(), None)
    to.write_bytes(result.private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"password")))
    return to
