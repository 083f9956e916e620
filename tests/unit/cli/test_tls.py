"""--ssl-*: what is wrong with certificate files is one line before anything slow begins."""

from __future__ import annotations

import ssl
import time

import pytest

from tessera.errors import ConfigError
from tessera.server.certificates import certificates
from tests.certificates import Authority


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good and bad files: server.pem and .key, other.key, both.pem, encrypted.key, text.pem."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority(folder)
    server, other = authority.issue("server"), authority.issue("other")
    assert other.key.exists()
    (folder / "both.pem").write_bytes(server.certificate.read_bytes() + server.key.read_bytes())
    authority.issue_encrypted("encrypted")
    (folder / "text.pem").write_text("not a certificate")
    return folder


def made(folder, cert=None, key=None, ca=None, reqs=0, ciphers=None):
    tls = certificates(*(None if name is None else str(folder / name) for name in (cert, key, ca)), reqs, ciphers)
    return None if tls is None else tls.context


def test_what_is_asked_for(folder):
    assert made(folder) is None
    context = made(folder, "server.pem", "server.key")
    assert context.verify_mode is ssl.CERT_NONE
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made(folder, "both.pem").verify_mode is ssl.CERT_NONE
    for reqs, mode in ((0, ssl.CERT_NONE), (1, ssl.CERT_OPTIONAL), (2, ssl.CERT_REQUIRED)):
        assert made(folder, "server.pem", "server.key", "authority.pem", reqs).verify_mode is mode
    narrowed = made(folder, "both.pem", ciphers="ECDHE-RSA-AES256-GCM-SHA384").get_ciphers()
    assert [one["name"] for one in narrowed if one["protocol"] != "TLSv1.3"] == ["ECDHE-RSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"key": "server.key"}, "--ssl-keyfile requires --ssl-certfile"),
        ({"ca": "authority.pem"}, "--ssl-ca-certs requires --ssl-certfile"),
        ({"reqs": 2}, "--ssl-cert-reqs requires --ssl-certfile"),
        ({"cert": "server.pem", "key": "server.key", "reqs": 1}, "--ssl-cert-reqs 1 requires --ssl-ca-certs"),
        ({"ciphers": "HIGH"}, "--ssl-ciphers requires --ssl-certfile"),
        ({"cert": "both.pem", "ciphers": "ROT13"}, "--ssl-ciphers 'ROT13' names no cipher that OpenSSL has"),
        ({"cert": "none.pem", "key": "server.key"}, "--ssl-certfile .*none.pem' cannot be read: No such file"),
        ({"cert": "server.pem", "key": "none.key"}, "--ssl-keyfile .*none.key' cannot be read: No such file"),
        ({"cert": ".", "key": "server.key"}, "--ssl-certfile .* cannot be read: Is a directory"),
        ({"cert": "server.pem", "key": "other.key"}, "The private key in --ssl-keyfile .*other.key' does not match"),
        (
            {"cert": "server.pem"},
            "--ssl-certfile .* must contain a certificate chain and .* its private key, both as PEM",
        ),
        ({"cert": "text.pem", "key": "server.key"}, "must contain a certificate chain"),
        ({"cert": "server.pem", "key": "text.pem"}, "must contain a certificate chain"),
        ({"cert": "encrypted.pem", "key": "encrypted.key"}, "The private key in --ssl-keyfile .* is encrypted"),
        (
            {"cert": "server.pem", "key": "server.key", "ca": "text.pem", "reqs": 2},
            "--ssl-ca-certs .* must contain certificates as PEM",
        ),
    ],
)
def test_what_does_not_hold_is_one_line(folder, given, what):
    with pytest.raises(ConfigError, match=what) as caught:
        made(folder, **given)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("days", [40.0, -1.0])
@pytest.mark.parametrize("reqs", [0, 1, 2])
def test_when_a_certificate_expires_is_known(tmp_path, days, reqs):
    """Also of one that has, and where clients must show theirs; and after the next one was read."""
    authority = Authority(tmp_path)
    server = authority.issue("server", days)
    files = str(server.certificate), str(server.key), str(authority.identity.certificate)
    tls = certificates(*files, reqs)
    assert tls.expires_at == pytest.approx(time.time() + days * 86400, abs=60)
    authority.issue("server", 90.0)
    tls.read_again()
    assert tls.expires_at == pytest.approx(time.time() + 90 * 86400, abs=60)
