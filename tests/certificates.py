"""Certificates for a test, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; `identity` is its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _common_name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.identity = self._write(name, self._key, authority=True)

    def issue(self, name: str, days: float = 1.0) -> Identity:
        """For the addresses of this machine. days: until it expires; negative for one that has."""
        return self._write(name, ec.generate_private_key(ec.SECP256R1()), authority=False, days=days)

    def issue_encrypted(self, name: str) -> Identity:
        """Its key is under a pass phrase."""
        return self._write(
            name,
            ec.generate_private_key(ec.SECP256R1()),
            authority=False,
            encryption=BestAvailableEncryption(b"secret"),
        )

    def _write(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        authority: bool,
        days: float = 1.0,
        encryption: KeySerializationEncryption | None = None,
    ) -> Identity:
        now = datetime.now(UTC)
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        certificate = (
            x509.CertificateBuilder(self._name, _common_name(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        made = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        made.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))
        return made


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
