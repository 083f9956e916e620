"""From certificate files to what HTTPS needs, checked before anything slow begins."""

from __future__ import annotations

import ssl
from pathlib import Path

from tessera.errors import ConfigError


def tls_context(
    certfile: str | None, keyfile: str | None, ca_certs: str | None, cert_reqs: int
) -> ssl.SSLContext | None:
    """None where no certificate is given. keyfile: None where the certificate's file holds the key as well. ca_certs:
    whose certificates clients may show; cert_reqs: whether they must, as the ssl module counts. Raises ConfigError."""
    if certfile is None:
        for option, given in (("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs), ("--ssl-cert-reqs", cert_reqs)):
            if given:
                raise ConfigError(f"{option} needs a certificate: give --ssl-certfile as well.")
        return None
    if cert_reqs and ca_certs is None:
        raise ConfigError(f"--ssl-cert-reqs {cert_reqs} needs --ssl-ca-certs, to know whose certificates to take.")
    for option, file in (("--ssl-certfile", certfile), ("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
        if file is not None:
            _check_readable(option, file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, certfile, keyfile)
    if ca_certs is not None:
        _load_authorities(context, ca_certs)
    context.verify_mode = ssl.VerifyMode(cert_reqs)
    return context


def _load_chain(context: ssl.SSLContext, certfile: str, keyfile: str | None) -> None:
    key = f"--ssl-certfile '{certfile}'" if keyfile is None else f"--ssl-keyfile '{keyfile}'"

    def refuse() -> str:
        raise ConfigError(f"The key in {key} is encrypted; give it without a pass phrase, readable by this user alone.")

    try:
        context.load_cert_chain(certfile, keyfile, password=refuse)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"The key in {key} is not that of --ssl-certfile '{certfile}'.") from error
        raise ConfigError(
            f"--ssl-certfile '{certfile}' must hold a certificate chain and {key} its key, both as PEM."
        ) from error


def _load_authorities(context: ssl.SSLContext, ca_certs: str) -> None:
    try:
        context.load_verify_locations(ca_certs)
    except ssl.SSLError as error:
        raise ConfigError(f"--ssl-ca-certs '{ca_certs}' must hold certificates as PEM.") from error


def _check_readable(option: str, file: str) -> None:
    try:
        Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} '{file}' cannot be read: {error.strerror}.") from error
