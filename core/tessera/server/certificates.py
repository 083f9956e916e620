"""The server's certificates, checked before anything slow starts, and read again while it runs."""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import ConfigError

_LOG = logging.getLogger(__name__)
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""
_MOST_TURNS = 4
"""Of a handshake, each side after the other."""


@dataclass(frozen=True)
class CertificateFiles:
    """What the flags say of TLS."""

    certfile: str
    # None: the certificate's file has the key too
    keyfile: str | None = None
    # that client certificates are verified with
    ca_certs: str | None = None
    # whether clients need one, as a value of ssl.VerifyMode
    cert_reqs: int = 0
    # an OpenSSL list of those of TLS 1.2; None: Python's
    ciphers: str | None = None


class Certificates:
    """The certificates as their files were last read without an error."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises ConfigError for files that cannot be used."""
        self._files = files
        self.context = _context(files)
        """For connections that are agreed on from now on."""
        self.expires_at = _expires_at(self.context, files.certfile)
        """Seconds since 1970; None if no client can tell."""

    def read_again(self) -> None:
        """Keeps the certificates as they are if their files cannot be used now. The log says what came of it.

        The context is a new one: a failure half-way leaves the old one whole, and no client goes on with a session of
        the old certificate."""
        try:
            context = _context(self._files)
            expires_at = _expires_at(context, self._files.certfile)
        except ConfigError as error:
            _LOG.error("The certificate stays as it was: %s", error.message)
        except OSError as error:  # a file that is exchanged at this moment
            _LOG.error("The certificate stays as it was: %s", error.strerror)
        else:
            self.context, self.expires_at = context, expires_at
            _LOG.info("Read the certificate from '%s'.", self._files.certfile)


def certificates(
    certfile: str | None,
    keyfile: str | None,
    ca_certs: str | None,
    cert_reqs: int,
    ciphers: str | None = None,
) -> Certificates | None:
    """As of CertificateFiles; None without a certificate. Raises ConfigError."""
    if certfile is not None:
        return Certificates(CertificateFiles(certfile, keyfile, ca_certs, cert_reqs, ciphers))
    others = {
        "--ssl-keyfile": keyfile, "--ssl-ca-certs": ca_certs, "--ssl-cert-reqs": cert_reqs, "--ssl-ciphers": ciphers
    }  # fmt: skip
    for option, given in others.items():
        if given:
            raise ConfigError(f"{option} requires --ssl-certfile.")
    return None


def _context(files: CertificateFiles) -> ssl.SSLContext:
    certfile, keyfile, ca_certs = files.certfile, files.keyfile, files.ca_certs
    if files.cert_reqs and ca_certs is None:
        raise ConfigError(
            f"--ssl-cert-reqs {files.cert_reqs} requires --ssl-ca-certs, to verify client certificates with."
        )
    for option, file in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
        if file is not None:
            _check_readable(option, file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ciphers is not None:
        _set_ciphers(context, files.ciphers)
    _load_chain(context, certfile, keyfile)
    if ca_certs is not None:
        _load_authorities(context, ca_certs)
    context.verify_mode = ssl.VerifyMode(files.cert_reqs)
    return context


def _expires_at(context: ssl.SSLContext, certfile: str) -> float | None:
    """Of the certificate that a client gets, by asking as one, in memory: Python's ssl shows no certificate but that of
    the other side."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certfile)  # trusted as it is, whoever signed it, and also if it is old
    client.verify_flags = ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server)
    answers = context.wrap_bio(to_server, to_client, server_side=True)
    with suppress(ssl.SSLError):
        for _ in range(_MOST_TURNS):
            with suppress(ssl.SSLWantReadError):
                asks.do_handshake()
                shown = asks.getpeercert()
                return ssl.cert_time_to_seconds(str(shown["notAfter"])) if shown else None
            with suppress(ssl.SSLWantReadError):
                answers.do_handshake()
    return None


def _load_chain(context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
    key = f"--ssl-certfile '{certfile}'" if keyfile is None else f"--ssl-keyfile '{keyfile}'"

    def refuse() -> str:
        raise ConfigError(
            f"The private key in {key} is encrypted; store it without a passphrase, readable only by this user."
        )

    try:
        context.load_cert_chain(certfile, keyfile, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"The private key in {key} does not match --ssl-certfile '{certfile}'.") from error
        raise ConfigError(
            f"--ssl-certfile '{certfile}' must contain a certificate chain and {key} its private key, both as PEM."
        ) from error


def _set_ciphers(context: ssl.SSLContext, ciphers: str) -> None:
    try:
        context.set_ciphers(ciphers)
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-ciphers '{ciphers}' names no cipher that OpenSSL has here; see `openssl ciphers -s -tls1_2`."
        ) from error


def _load_authorities(context: ssl.SSLContext, ca_certs: str) -> None:
    try:
        context.load_verify_locations(ca_certs)
    except ssl.SSLError as error:
        raise ConfigError(f"--ssl-ca-certs '{ca_certs}' must contain certificates as PEM.") from error


def _check_readable(option: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} '{file}' cannot be read: {error.strerror}.") from error
