"""The page from its sources, its size for a long run, a client that reads it slowly, and boards of shared noise."""

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import page_runs
import pytest
from scripted_run import LAKE_SYMBOLS, MOVES, ScriptedRun, board, load, states_read

from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations
from agentrl_jax.viewer import export, live, scenes
from agentrl_jax.viewer.data import RunData

WEB = Path(export.__file__).parent / "web"


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

    class Large(live.PageServer):
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


SHARED = """
rollout: {group_size: 3, shared_noise: true}
tasks: [{env: FrozenLake, groups: 4}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 6}
"""


def test_noise_that_a_group_shares_and_several_dispatches(caplog, monkeypatch):
    config = load(SHARED)
    record = ScriptedRun(config, {"FrozenLake": MOVES}).record(iteration=1)
    found = scenes.run_scenes("runs/x", config, record)
    assert all(found)
    monkeypatch.setattr(scenes, "_ROWS", 5)
    assert scenes.run_scenes("runs/x", config, record) == found
    assert caplog.records == []
    for row, of_episode in enumerate(found):
        for read, scene in states_read(record, row, of_episode):
            assert board(scene, LAKE_SYMBOLS) in read
