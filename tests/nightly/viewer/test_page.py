"""The page from its sources, its size for a long run, and a client that reads it slowly."""

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import page_runs
import pytest

import agentrl_jax.viewer
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations
from agentrl_jax.viewer import export, live
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.live import PageServer

WEB = Path(agentrl_jax.viewer.__file__).parent / "web"


@pytest.mark.skipif(
    not (shutil.which("npm") and (WEB / "node_modules").is_dir()),
    reason="needs Node, and `npm ci` in agentrl_jax/viewer/web",
)
def test_page_is_what_its_sources_build(tmp_path):
    subprocess.run(["npx", "tsc", "--noEmit"], cwd=WEB, check=True, timeout=300)
    subprocess.run(["npx", "vite", "build", "--outDir", str(tmp_path)], cwd=WEB, check=True, timeout=300)
    assert (tmp_path / "page.html").read_bytes() == (WEB.parent / "page.html").read_bytes()


def test_a_thousand_long_trajectories_stay_below_15_megabytes(tmp_path):
    folder = page_runs.write_long_run(tmp_path / "run")
    files = [read_record(record_path(folder, iteration)) for iteration in recorded_iterations(folder)]
    assert sum(len(record.task) for record in files) == 1000
    assert {int(total) for record in files for total in record.length.sum(1)} == {2000}
    size = export.write_page(tmp_path / "page.html", [RunData(folder, boards=False)])
    assert size == (tmp_path / "page.html").stat().st_size < 15e6


def test_a_slow_client_gets_the_whole_page(monkeypatch):

    class Large(PageServer):
        def html(self):
            return "x" * 2**23

    monkeypatch.setattr(live._Handler, "timeout", 1)
    with Large([]) as server, socket.socket() as client:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        client.connect(("127.0.0.1", server.server_port))
        client.sendall(f"GET / HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        began, found = time.monotonic(), bytearray()
        while part := client.recv(2**15):
            found += part
            time.sleep(0.01)
        thread.join()
    assert time.monotonic() - began > 2
    assert found.endswith(b"\r\n\r\n" + b"x" * 2**23)
