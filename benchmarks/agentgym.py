"""AgentGym's code against this project's, over HTTP: its unmodified clients on our servers, our client on its server.

    python benchmarks/agentgym.py CHECKOUT [--episodes 40]

CHECKOUT is a clone of AgentGym (github.com/WooooDyy/AgentGym), which is run from there unchanged. Packages that it
imports besides its clients (torch, transformers, openai) are replaced by empty modules if they are not installed. A
scripted policy plays every episode; answers of our servers are compared with those of the same environment in this
process.
"""

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.environments.textcraft.recipes import item_id, load_book
from agentrl_jax.services.environments.textcraft.scripted import Oracle
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import routes_of

CLIENTS = {
    "textcraft": ("TextCraftEnvClient", ""),
    "sciworld": ("SciworldEnvClient", ""),
    "babyai": ("BabyAIEnvClient", ""),
    "maze": ("MazeEnvClient", "/maze"),
    "wordle": ("WordleEnvClient", "/wordle"),
}
"""AgentGym's classes, and the suffix of their addresses."""


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports an empty module for packages that are not used."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "openai"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return mock.MagicMock(__spec__=spec, __path__=[], __name__=spec.name)

    def exec_module(self, module):
        pass


def their_client_on_our_server(name: str, episodes: int, folder: Path) -> str:
    """Plays episodes through AgentGym's client and returns a line about the results."""
    service = get_service(name)
    envs = importlib.import_module("agentenv.envs")
    kind, ending = CLIENTS[name]
    server = ServiceProcess(name, folder / f"{name}.log", max_instances=8, token="")
    solved = turns = different = 0
    try:
        client = getattr(envs, kind)(env_server_base=server.url() + ending, data_len=1)
        chosen = (
            service.panel().items if service.panel else [item * 7 % min(service.items, 500) for item in range(episodes)]
        )
        for item in chosen[:episodes]:
            mine = service.make(False)
            client.reset(item)
            player, answer, text = service.oracle(item), mine.reset(item), client.observe()
            different += name != "wordle" and answer.observation not in text  # its client shows another first text
            for _ in range(service.turns):
                action = player.act(answer.observation)
                step, answer = client.step(react_response(action)), mine.step(action)
                turns += 1
                different += (step.state, step.done) != (answer.observation, answer.done)
                if step.done:
                    break
            solved += service.solved(answer)
            mine.close()
        if hasattr(client, "close"):
            client.close()
    finally:
        server.close()
    return f"their client, our {name}: {episodes} episodes, {turns} turns, {solved} solved, {different} answers differ"


def our_client_on_their_server(checkout: Path, episodes: int, folder: Path) -> str:
    """Plays TextCraft on AgentGym's server; goals are matched by their text, because it numbers them differently."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "uvicorn", "agentenv_textcraft.server:app", "--port", str(port)]
    with open(folder / "theirs.log", "w") as log:
        server = subprocess.Popen(words, cwd=checkout / "agentenv-textcraft", stdout=log, stderr=log)
    book, solved, turns, refused = load_book(), 0, 0, 0
    try:
        client = ServiceClient(f"http://127.0.0.1:{port}", routes_of("textcraft"), seconds=60)
        end = time.monotonic() + 60
        while not client.healthy():
            if time.monotonic() > end:
                raise RuntimeError((folder / "theirs.log").read_text()[-500:])
            time.sleep(0.2)
        for item in range(episodes):
            handle = client.create()
            answer = client.reset(handle, item * 7)
            goal = item_id(re.search(r"Goal: craft (.*)\.$", answer.observation)[1])
            for action in Oracle(book, book.goals.index(goal)).actions:
                answer = client.step(handle, action)
                turns += 1
                refused += answer.observation.startswith("Could not")
            solved += answer.done and answer.reward == 1
            client.shut(handle)
    finally:
        server.terminate()
        server.wait()
    return (
        f"our client, their textcraft: {episodes} episodes, {turns} turns, {solved} solved, {refused} actions refused"
    )


def main() -> None:
    """Prints a line per pair of client and server."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--only", nargs="+", default=[*CLIENTS], choices=[*CLIENTS])
    given = parser.parse_args()
    sys.path.insert(0, str(given.checkout / "agentenv"))
    sys.meta_path.append(_Empty())
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            count = min(given.episodes, 5) if name == "sciworld" else given.episodes
            with contextlib.redirect_stdout(io.StringIO()):  # AgentGym's client prints every answer
                line = their_client_on_our_server(name, count, Path(folder))
            print(line, flush=True)
        print(our_client_on_their_server(given.checkout.absolute(), given.episodes, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
