"""`agentrl view`: a page with the recorded rollouts of a run, to read in a browser."""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from agentrl_jax.errors import UserError

if TYPE_CHECKING:
    from agentrl_jax.viewer.data import RunData
    from agentrl_jax.viewer.export import PageData


FOLLOW_SECONDS = 20.0
"""Time between two looks at a run in an object store."""


@dataclasses.dataclass(frozen=True)
class View:
    """Show what the agent did: every recorded episode of a run, token by token, in one HTML file.

    Without --export the page is written to view.html in the folder of the run, or beside the log, and opened in a
    browser.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, e.g. runs/demo or gs://bucket/runs/demo; it may still go on. Or a recorded evaluation, the
    folder --out of `agentrl eval --api`, or a rollout log of RAGEN, AgentGym-RL or AgentGym."""
    export: Annotated[str, tyro.conf.arg(metavar="FILE.html")] = ""
    """File to write instead; no browser is opened."""
    compare: Annotated[str, tyro.conf.arg(metavar="OTHER")] = ""
    """Folder of a second run, compared with the first on the levels that both played."""
    newest: int = 0
    """Recorded iterations to show, counted from the newest; 0 shows all."""
    live: bool = False
    """Serve the page on this machine until Ctrl-C, with new iterations as they are recorded."""
    port: int = 0
    """Port of --live; 0 takes a free one."""
    boards: bool = True
    """Draw boards, for which the states of the recorded episodes are computed again; --no_boards is faster."""
    browser: bool = True
    """Open the page in a browser; --no_browser only says where it is."""


def run(command: View) -> None:
    """Writes the page or serves it, and says where it is."""
    if command.newest < 0:
        raise UserError(f"--newest is {command.newest}, expected 0 or a number of iterations")
    if not 0 <= command.port < 2**16:
        raise UserError(f"--port is {command.port}, expected a number from 0 to {2**16 - 1}")
    if command.live and command.export:
        raise UserError("--live serves the page and --export writes it; give one of them")
    folder = Path(command.export or command.run).absolute().parent
    if command.export and not folder.is_dir():
        raise UserError(f"--export is {command.export}, but its folder is not there; make it, or name another")
    if _is_log(command.run):
        _show_log(command)
        return
    if _is_log(command.compare):
        raise UserError(f"--compare is {command.compare}, which is no folder of a run; only two runs can be compared")
    from agentrl_jax.runs.remote import is_remote, local_copy
    from agentrl_jax.viewer.data import RunData

    if is_remote(command.run) and not command.export and not command.live:
        raise UserError(f"{command.run}: is in an object store; say with --export FILE.html where to write its page")
    options: dict[str, Any] = {"newest": command.newest, "boards": command.boards, "note": _note}
    places = [command.run, *([command.compare] if command.compare else [])]
    with contextlib.ExitStack() as copies:
        runs = [RunData(copies.enter_context(local_copy(place)), place=place, **options) for place in places]
        if command.live:
            _serve(runs, command)
        else:
            _write(Path(command.export or Path(command.run) / "view.html"), runs, command)


def _note(line: str) -> None:
    print(f"agentrl view: {line}", file=sys.stderr, flush=True)


def _is_log(name: str) -> bool:
    """Whether it is a log of another program, or the folder of an API model's evaluation."""
    from agentrl_jax.viewer.api_folder import is_api_folder

    path = Path(name)
    if name and is_api_folder(name):
        return True
    return path.is_file() or (path.suffix.lower() in (".jsonl", ".json") and not path.is_dir())


def _show_log(command: View) -> None:
    """Writes the page of another program's rollout log, or of an API model's evaluation."""
    folder = Path(command.run).is_dir()
    what = "the evaluation of an API model" if folder else "a rollout log"
    wanted = {"--compare": command.compare, "--live": command.live, "--newest": command.newest}
    for option in (option for option, value in wanted.items() if value):
        raise UserError(f"{command.run}: is {what}, and {option} is for runs; give it alone")
    file = Path(command.export or (Path(command.run) / "view.html" if folder else f"{command.run}.html"))
    if file.resolve() == Path(command.run).resolve():
        raise UserError(f"--export is {command.export}, the log itself; name another file")
    from agentrl_jax.viewer.log_data import LogData

    log = LogData(command.run, note=_note)
    _write(file, [log], command)


def _write(file: Path, data: "Sequence[PageData]", command: View) -> None:
    from agentrl_jax.viewer.export import write_page

    size = write_page(file, data)
    print(f"page: {file} ({size / 1e6:.1f} MB)")
    if not command.export and command.browser:
        _open(file.resolve().as_uri())


def _serve(runs: "list[RunData]", command: View) -> None:
    from agentrl_jax.runs.remote import is_remote
    from agentrl_jax.viewer.live import PageServer

    for run in runs:
        run.refresh()  # refuses a run without rollouts before a browser opens
        if is_remote(run.place):
            threading.Thread(target=_follow, args=(run,), daemon=True).start()
    with PageServer(runs, command.port) as server:
        print(f"page: {server.url} (Ctrl-C ends it)", flush=True)
        if command.browser:
            _open(server.url)
        server.serve_forever()


def _follow(run: "RunData") -> None:
    """Downloads what is new in an object store, again and again."""
    from agentrl_jax.runs.remote import refresh_copy

    while True:
        time.sleep(FOLLOW_SECONDS)
        try:
            refresh_copy(run.place, run.source)
        except UserError as error:
            _note(str(error))


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print("agentrl view: no browser could be opened; open the page yourself", file=sys.stderr)
