"""An address at which no Ray lets us in is reported at once, in one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

import paceline
from paceline.engines.ray_access import quick_start, without_ray_log
from paceline.errors import UsageError
from tests.faults.conftest import arguments
from tests.ports import free_ports
from tests.ray_cluster import RayCluster


def refused(clicks: Path, address: str) -> UsageError:
    began = time.monotonic()
    with pytest.raises(UsageError) as caught:
        paceline.train(data=clicks, engine="ray", address=address)
    assert time.monotonic() - began < 10
    assert caught.value.hint
    return caught.value


def test_nobody_listens(clicks: Path) -> None:
    address = f"127.0.0.1:{free_ports()}"
    assert f"no Ray answers at `{address}`" in refused(clicks, address).message


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.0 400 Bad Request\r\n\r\n"])
def test_something_else_listens(clicks: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connected, _ = server.accept()
            connected.sendall(answer)
            connected.recv(1000)
            connected.close()

        thread = threading.Thread(target=serve)
        thread.start()
        error = refused(clicks, f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "Ray" in error.message


def test_a_silent_one(clicks: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "no Ray answers" in refused(clicks, f"127.0.0.1:{server.getsockname()[1]}").message


NO_TOKEN = {"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": ""}
WRONG = "0" * 64


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": WRONG}, "denies access: the token here is not the cluster's"),
        ({**NO_TOKEN, "RAY_AUTH_MODE": ""}, "denies access: it asks for a token, and there is none here"),
        ({**NO_TOKEN, "RAY_AUTH_MODE": "token"}, "`RAY_AUTH_MODE` is `token`, but there is no token here"),
    ],
    ids=["wrong", "none", "none-but-asked-for"],
)
def test_a_cluster_that_does_not_let_us_in(
    ray_cluster: RayCluster, clicks: Path, tmp_path: Path, environment: dict[str, str], why: str
) -> None:
    """Two lines, and nothing of what Ray prints."""
    changed = {**ray_cluster.environment, **environment, "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "paceline", "train", *arguments(data=clicks, engine="ray"), "--address"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, ray_cluster.address, "--run", str(tmp_path / "run")], check=False, capture_output=True, text=True,
        env={name: value for name, value in changed.items() if value}, timeout=60,
    )  # fmt: skip
    assert time.monotonic() - began < 10
    error, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert error.startswith("error: ")
    assert error.endswith(why)
    assert hint.startswith("hint: ")
    assert "RAY_AUTH_TOKEN_PATH" in hint
    assert WRONG not in done.stderr


def test_a_token_file_that_is_missing_for_a_ray_of_its_own(clicks: Path, tmp_path: Path) -> None:
    """The same two lines, before Ray starts."""
    missing = tmp_path / "token"
    command = [sys.executable, "-m", "paceline", "train", *arguments(data=clicks, engine="ray")]
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "run")], check=False, capture_output=True, text=True, timeout=60,
        env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(missing)},
    )  # fmt: skip
    error, hint = done.stderr.splitlines()
    assert done.returncode == 2
    assert error == f"error: `RAY_AUTH_TOKEN_PATH` is `{missing}`, which is not a token file"
    assert hint.startswith("hint: ")


def test_only_what_ray_logs_is_kept_off_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with without_ray_log():
        os.write(2, b"[2026-01-01 12:00:00,000 W 12 34] gcs_client.cc:210: Failed\n")
        print("a notice of another thread", file=sys.__stderr__)
        os.write(2, b"50 %\r")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "a notice of another thread\n50 %\rlater\n"


def test_a_web_server_is_not_a_cluster_that_denies_access(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: str) -> None:
        raise RuntimeError("Received http2 header with status: 404")

    monkeypatch.setattr("paceline.engines.ray_access.greet", lambda _: True)
    monkeypatch.setattr("ray._raylet.GcsClient", refuse)
    assert "`127.0.0.1:1` is not Ray" in refused(clicks, "127.0.0.1:1").message


def test_a_token_file_that_is_not_there(clicks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    assert "`/nowhere/token`, which is not a token file" in refused(clicks, "127.0.0.1:1").message


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "somewhere", "127.0.0.1:99999"])
def test_text_that_is_not_an_address_is_refused(clicks: Path, address: str) -> None:
    assert "`auto` or HOST:PORT" in refused(clicks, address).message


def test_an_own_ray_asks_for_its_node_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own function would wait for a second if the node has not reported yet."""
    asked: list[str] = []

    class State:
        def _initialize_global_state(self, options: object) -> None:
            asked.append(f"head {options}")

        def node_table(self) -> list[dict[str, str]]:
            asked.append("nodes")
            return [{"NodeID": "new"}] if len(asked) > 3 else []

        def get_node(self, node_id: str) -> str:
            return f"about {node_id}"

    node, services = import_module("ray._private.node").Node, import_module("ray._private.services")
    before = [getattr(node, name) for name in ("start_api_server", "start_log_monitor", "start_monitor")]
    monkeypatch.setattr("ray._private.state.GlobalState", State)
    monkeypatch.setattr(services, "_get_gcs_client_options", lambda address: address)
    own = services.get_node
    with quick_start():
        assert services.get_node("1.2.3.4:5", "new") == "about new"
        assert [getattr(node, name) for name in ("start_api_server", "start_log_monitor", "start_monitor")] != before
    assert asked == ["head 1.2.3.4:5", "nodes", "nodes", "nodes"]
    assert services.get_node is own
    assert [getattr(node, name) for name in ("start_api_server", "start_log_monitor", "start_monitor")] == before
