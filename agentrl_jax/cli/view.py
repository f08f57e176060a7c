"""`agentrl view`: a page with the recorded rollouts of a run, to read in a browser."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from agentrl_jax.errors import UserError

if TYPE_CHECKING:
    from agentrl_jax.viewer.data import RunData


@dataclasses.dataclass(frozen=True)
class View:
    """Show what the agent did: every recorded episode of a run, token by token, in one HTML file.

    Without --export the page is written to view.html in the folder of the run and opened in a browser.
    """

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, e.g. runs/demo; it may still go on."""
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
    from agentrl_jax.viewer.data import RunData

    def note(line: str) -> None:
        print(f"agentrl view: {line}", file=sys.stderr, flush=True)

    folders = [command.run, *([command.compare] if command.compare else [])]
    runs = [RunData(folder, newest=command.newest, boards=command.boards, note=note) for folder in folders]
    if command.live:
        _serve(runs, command)
        return
    from agentrl_jax.viewer.export import write_page

    file = Path(command.export or Path(command.run) / "view.html")
    size = write_page(file, runs)
    print(f"page: {file} ({size / 1e6:.1f} MB)")
    if not command.export and command.browser:
        _open(file.resolve().as_uri())


def _serve(runs: "list[RunData]", command: View) -> None:
    from agentrl_jax.viewer.live import PageServer

    for run in runs:
        run.refresh()  # refuses a run without rollouts before a browser opens
    with PageServer(runs, command.port) as server:
        print(f"page: {server.url} (Ctrl-C ends it)", flush=True)
        if command.browser:
            _open(server.url)
        server.serve_forever()


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print("agentrl view: no browser could be opened; open the page yourself", file=sys.stderr)
