"""How does this process get into a Ray cluster? By Ray's own module, the cluster's address and its token."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.engines.ray_head import greet
from paceline.errors import ConfigError, UsageError

LONGEST_QUOTE = 120
STDERR = 2
# [2026-01-01 12:00:00,000 W 123 124] gcs_client.cc:210: …
RAY_LOG = re.compile(rb"\[[-\d]+ [\d:,]+ [A-Z] \d+ \d+\] ")
TOKEN_FILE = "~/.ray/auth_token"
GIVE_TOKEN = f"put the cluster's token into {TOKEN_FILE}, or into a file that RAY_AUTH_TOKEN_PATH names"
NO_RAY = "`ray status` shows whether one runs; `ray start --head` starts one; without --address paceline does"
# Ray ends a process that has not reached its head for this long; a run that has lost it ends itself, much sooner.
HEAD_SECONDS = 120
# A node of an own Ray mostly reports to its head within half a second.
NODE_SECONDS, NODE_PAUSE_SECONDS = 5.0, 0.02


def import_ray() -> Any:
    """Ray, or the error that it is missing."""
    _check_token_file()
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_SECONDS))
    # Silence about a coming change of defaults that does not concern this.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.util
    except ImportError:
        raise UsageError("the engine `ray` needs Ray, which is not installed", "pip install 'paceline[ray]'") from None
    # The coordinator reports lost processes; Ray would add a page of text to each.
    worker = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):
        setattr(worker, "print_to_stdstream", lambda *_, **__: None)  # noqa: B010 (private, and maybe gone one day)
    return ray


def check_access(address: str) -> None:
    """Raise if no Ray lets this process in at an address; empty is a Ray of its own, for which tokens must be right."""
    _check_token_file()
    if address and not import_ray().is_initialized():
        _knock(address)


def _check_token_file() -> None:
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token and not content_of(token).strip():
        raise UsageError(
            f"`RAY_AUTH_TOKEN_PATH` is `{token}`, which is not a token file",
            "set it to the token file that the nodes use",
        )


def has_token() -> bool:
    """Whether Ray finds a token: in the environment, or in a file."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or str(Path(TOKEN_FILE).expanduser())
    return bool(os.environ.get("RAY_AUTH_TOKEN", "").strip() or content_of(file).strip())


def lacks_token() -> bool:
    """Whether Ray is told to use a token, and there is none."""
    return os.environ.get("RAY_AUTH_MODE") == "token" and not has_token()


def join(ray: Any, address: str) -> None:
    """Join the cluster at an address, `auto` or HOST:PORT."""
    _knock(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, TimeoutError, ValueError) as error:
        raise UsageError(f"no Ray cluster can be joined at `{address}`: {_first_line(error)}", NO_RAY) from None
    except RuntimeError as error:
        raise UsageError(
            f"the Ray cluster at `{address}` cannot be joined: {_first_line(error)}",
            "install the same Ray and Python here as on the cluster",
        ) from None


def _knock(address: str) -> None:
    """Raise unless the cluster at an address lets us in, with the token that is here."""
    if "RAY_AUTH_MODE" not in os.environ and has_token():
        os.environ["RAY_AUTH_MODE"] = "token"
    if lacks_token():
        # Ray would end this process with its stack.
        raise UsageError("`RAY_AUTH_MODE` is `token`, but there is no token here", GIVE_TOKEN)
    # Ray may have been loaded before the environment was as it is now.
    read_token_again()
    _probe(_find_cluster() if address == "auto" else address)


def _probe(address: str) -> None:
    """Raise unless a Ray that lets us in listens at an address: Ray itself would try for long, then end the process."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"`address` is `{address}`; it is `auto` or HOST:PORT", "--address 10.0.0.1:6379")
    try:
        is_ray = greet(address)
    except OSError as error:
        raise UsageError(f"no Ray answers at `{address}`: {error.strerror or error}", NO_RAY) from None
    if not is_ray:
        raise UsageError(f"what answers at `{address}` is not Ray", NO_RAY)
    client = getattr(importlib.import_module("ray._raylet"), "GcsClient", None)
    try:
        if client is not None:
            with without_ray_log():
                client(address=address)
    except Exception as error:  # noqa: BLE001 (Ray's own kinds are not public)
        if "status: 404" in str(error):  # a web server or proxy, which speaks HTTP/2 as Ray does
            raise UsageError(f"what answers at `{address}` is not Ray: {_first_line(error)}", NO_RAY) from None
        raise UsageError(f"the Ray at `{address}` denies access: {_why_denied(error)}", GIVE_TOKEN) from None


def _why_denied(error: Exception) -> str:
    """Which token is wrong, if it is about tokens; Ray says much more."""
    if type(error).__name__ != "AuthenticationError":
        return _first_line(error)
    if not has_token():
        return "it asks for a token, and there is none here"
    mode = os.environ.get("RAY_AUTH_MODE", "")
    return "the token here is not the cluster's" if mode == "token" else f"`RAY_AUTH_MODE` is `{mode}`, not `token`"


@contextmanager
def without_ray_log() -> Iterator[None]:
    """Keeps what Ray's compiled part logs off the terminal; what others write meanwhile follows."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        terminal = os.dup(STDERR)
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, STDERR)
            os.close(terminal)
            kept.seek(0)
            os.write(STDERR, b"".join(line for line in kept if not RAY_LOG.match(line)))


def _find_cluster() -> str:
    """The address of the cluster that this machine is part of."""
    services = importlib.import_module("ray._private.services")
    with suppress(ConnectionError, TimeoutError, ValueError):
        if found := services.canonicalize_bootstrap_address("auto", None):
            return str(found)
    raise UsageError("this machine is not part of a Ray cluster", NO_RAY)


@contextmanager
def quick_start() -> Iterator[None]:
    """A Ray that starts now has no API server, log monitor or autoscaler. Nobody asks them, and they take a second. Ray
    also asks for its new node, and if that is not there yet, once more after a second: here it asks more often.

    Ray has no settings for this. A version of Ray without these functions starts with whatever it has.
    """
    node, services = importlib.import_module("ray._private.node").Node, importlib.import_module("ray._private.services")
    replaced = [
        (node, "start_api_server", _no_api_server),
        (node, "start_log_monitor", _start_nothing),
        (node, "start_monitor", _start_nothing),
        (services, "get_node", _get_node),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced if hasattr(owner, name)]
    for owner, name, function in replaced:
        if hasattr(owner, name):
            setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def _no_api_server(node: Any, **_: Any) -> None:
    node._webui_url = ""


def _start_nothing(_node: Any) -> None:
    pass


def _get_node(address: str, node_id: str) -> Any:
    """What the head says about a node, as soon as it has reported there; after `NODE_SECONDS`, Ray waits itself."""
    services, states = importlib.import_module("ray._private.services"), importlib.import_module("ray._private.state")
    state = states.GlobalState()
    state._initialize_global_state(services._get_gcs_client_options(address))
    deadline = time.monotonic() + NODE_SECONDS
    while time.monotonic() < deadline and all(node["NodeID"] != node_id for node in state.node_table()):
        time.sleep(NODE_PAUSE_SECONDS)
    return state.get_node(node_id)


def read_token_again() -> None:
    """Let Ray, which remembers them, read its token, and whether there is one, from the environment again."""
    raylet = importlib.import_module("ray._raylet")
    if hasattr(raylet, "AuthenticationTokenLoader"):
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        raylet.Config.initialize("")


def content_of(path: str) -> bytes:
    """What is in a file; nothing if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _first_line(error: BaseException) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= LONGEST_QUOTE else line[:LONGEST_QUOTE].rsplit(" ", 1)[0] + " …"
