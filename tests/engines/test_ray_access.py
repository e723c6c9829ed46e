"""An address at which no Ray lets us in is reported at once, in one line."""

from __future__ import annotations

import socket
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

import paceline
from paceline.engines.ray_access import quick_start
from paceline.errors import UsageError
from tests.faults.conftest import arguments
from tests.faults.running import Running
from tests.ray_cluster import RayCluster


def refused(clicks: Path, address: str) -> UsageError:
    began = time.monotonic()
    with pytest.raises(UsageError) as caught:
        paceline.train(data=clicks, engine="ray", address=address)
    assert time.monotonic() - began < 10
    assert caught.value.hint
    return caught.value


def test_nobody_listens(clicks: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
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


def test_a_cluster_that_does_not_let_us_in(ray_cluster: RayCluster, clicks: Path, tmp_path: Path) -> None:
    other = tmp_path / "token"
    other.write_text("0" * 64)
    flags = arguments(data=clicks, engine="ray", address=ray_cluster.address)
    running = Running(ray_cluster, ["train", *flags], tmp_path / "run")
    running.close()
    environment = {**ray_cluster.environment, "RAY_AUTH_TOKEN_PATH": str(other)}
    ray_cluster.environment, old = environment, ray_cluster.environment
    try:
        began = time.monotonic()
        said = Running(ray_cluster, ["train", *flags], tmp_path / "run").end(2, seconds=20)
    finally:
        ray_cluster.environment = old
    assert "denies access" in said
    assert "RAY_AUTH_TOKEN_PATH" in said
    assert time.monotonic() - began < 10


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
