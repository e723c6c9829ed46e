"""What some tests need and a machine may lack. Every skipped test of the suite is skipped by one of these marks.

pytest prints the reasons at the end of a run (`-rs`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile

import pytest

from tests.reports.browser import CHROMIUM


def _has_ipv6() -> bool:
    """Whether a server can listen on the IPv6 loopback address."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _can_mount() -> bool:
    """Whether this user may mount a file system; tried once, in a folder that is removed again."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
        except OSError:
            return False
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return mounted.returncode == 0


needs_mount = pytest.mark.skipif(not _can_mount(), reason="needs to mount a small disk, which root on Linux may")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux (/proc, TCP_INFO, SO_RCVLOWAT)")
needs_memfd = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create, which Linux has")
needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6 on the loopback interface")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: install the package `chromium`")

# Counted only when such a test is about to run: importing PyTorch takes seconds.
GPUS = "__import__('torch').cuda.device_count()"
needs_gpu = pytest.mark.skipif(f"{GPUS} == 0", reason="needs an NVIDIA GPU")
needs_no_gpu = pytest.mark.skipif(f"{GPUS} > 0", reason="tests the error on a machine without a GPU")
needs_one_gpu = pytest.mark.skipif(f"{GPUS} != 1", reason="tests the error on a machine with only one GPU")
