"""With TLS nothing is readable on the way, and only the run's certificate is trusted."""

from __future__ import annotations

import builtins
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.wire import handshake
from paceline.wire.connection import connect
from paceline.wire.frames import RefusedError, WireError
from paceline.wire.tls import Tls, client_context, make_tls, server_context
from tests.wire.serving import SECONDS, TOKEN, Echo, is_served, joined, serving, wait_until


def test_both_sides_speak_tls_13_only(run_tls: Tls) -> None:
    for context in (server_context(run_tls), client_context(run_tls)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client_context(run_tls).verify_mode == ssl.CERT_REQUIRED
    assert len(client_context(run_tls).get_ca_certs(binary_form=True)) <= 1


def test_the_certificate_is_valid_for_30_days() -> None:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(make_tls().certificate)
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 30


def test_another_runs_certificate_is_refused_while_others_are_served(run_tls: Tls) -> None:
    with serving(Echo(), run_tls) as server, joined(server, run_tls) as other:
        with pytest.raises(RefusedError, match="this run's certificate"):
            connect(server.address, TOKEN, make_tls())
        wait_until(lambda: server.refused == 1)
        assert is_served(other)


def test_plain_and_tls_do_not_mix(run_tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.2)
    with serving(Echo(), run_tls) as server:
        with pytest.raises(WireError):
            connect(server.address, TOKEN, None)
        wait_until(lambda: server.refused == 1)
    with serving(Echo()) as server:
        with pytest.raises(RefusedError):
            connect(server.address, TOKEN, run_tls)
        wait_until(lambda: server.refused == 1)


def test_older_tls_is_refused(run_tls: Tls) -> None:
    context = client_context(run_tls)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(Echo(), run_tls) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), SECONDS) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain)
        wait_until(lambda: server.refused == 1)


def test_the_key_is_not_printed(run_tls: Tls) -> None:
    assert "KEY" not in f"{run_tls} {run_tls!r}"


def test_the_key_does_not_stay_on_the_disk(run_tls: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server_context(run_tls)
    assert not list(tmp_path.iterdir())


def test_without_cryptography_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_cryptography(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_cryptography)
    with pytest.raises(ConfigError) as caught:
        make_tls()
    assert caught.value.hint == "pip install 'paceline[tls]'"
