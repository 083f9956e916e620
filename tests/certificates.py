"""Certificates for a test, made by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; `identity` is its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self.identity = Identity(folder / f"{name}.pem", folder / f"{name}.key")
        self._openssl(
            *("req", "-x509", "-subj", f"/CN={name}", "-days", "2", "-nodes", *_NEW_KEY),
            *("-addext", "basicConstraints=critical,CA:true", "-addext", "keyUsage=critical,keyCertSign"),
            *("-keyout", self.identity.key, "-out", self.identity.certificate),
        )

    def issue(self, name: str) -> Identity:
        """For the addresses of this machine."""
        made = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        self._openssl(
            *("req", "-x509", "-subj", f"/CN={name}", "-days", "2", "-nodes", *_NEW_KEY),
            *("-CA", self.identity.certificate, "-CAkey", self.identity.key),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:false"),
            *("-keyout", made.key, "-out", made.certificate),
        )
        return made

    def encrypt(self, key: Path, into: Path) -> Path:
        """A copy of a key under a pass phrase."""
        self._openssl("pkcs8", "-topk8", "-in", key, "-out", into, "-passout", "pass:secret")
        return into

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
