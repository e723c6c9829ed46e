"""How does a run keep others on the network from reading what it sends?

By TLS 1.3 with one self-signed certificate per run: both sides have it from the run's start, and trust no other.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

from paceline.errors import ConfigError

VALID_DAYS = 30


class Tls(NamedTuple):
    """A run's certificate and its private key, in PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Without the key: what is printed ends up in logs."""
        return "Tls(...)"


def make_tls() -> Tls:
    """A new self-signed certificate for one run, valid from an hour ago. It names no hosts: nobody checks them."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "TLS needs the package `cryptography`, which is not installed", "pip install 'paceline[tls]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "paceline run")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    return Tls(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def server_context(tls: Tls) -> ssl.SSLContext:
    """How a server of the run speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No connection is ever resumed.
    context.num_tickets = 0
    # The standard library reads keys from files only; only this user can read the folder, and it is removed at once.
    with tempfile.TemporaryDirectory(prefix="paceline-tls-") as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_bytes(tls.certificate)
        key.write_bytes(tls.key)
        context.load_cert_chain(certificate, key)
    return context


def client_context(tls: Tls) -> ssl.SSLContext:
    """How a client of the run speaks TLS: with a server that has the run's certificate, whatever its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=tls.certificate.decode("ascii"))
    return context
