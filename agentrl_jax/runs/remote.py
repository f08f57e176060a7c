"""Run folders in object stores (gs://, s3:// and the like, through `epath`), which cannot append to files.

Records are written to a local folder, whose changed files are uploaded before each checkpoint and at the end. Orbax
writes checkpoints to the store itself.
"""

import secrets
import tempfile
from pathlib import Path

from etils import epath

from agentrl_jax.errors import UserError
from agentrl_jax.io import files_under

CHECKPOINTS, LOCK = "checkpoints", ".lock"


def is_remote(path: str) -> bool:
    """Whether a path is in an object store."""
    return "://" in path


class Mirror:
    """A local copy, in the folder `local`, of a run folder in an object store, without its checkpoints."""

    def __init__(self, remote: str):
        """Downloads what the store has, and takes the folder over from any other run.

        Raises:
            UserError: the store cannot be used.
        """
        self.remote = epath.Path(remote)
        self._temporary = tempfile.TemporaryDirectory(prefix="agentrl-run-")
        self.local = Path(self._temporary.name)
        self._token = secrets.token_hex(8)
        self._uploaded: dict[str, tuple[int, int]] = {}
        try:
            if self.remote.exists():
                self._download()
            (self.remote / LOCK).write_text(self._token)
        except Exception as error:  # each store has its own errors
            raise UserError(f"{remote}: cannot be used as run folder ({error}); change --run_dir") from error

    def upload(self) -> None:
        """Uploads the files that have changed, and deletes uploaded ones that are gone.

        Raises:
            UserError: another run has taken the folder over.
        """
        if (self.remote / LOCK).read_text() != self._token:
            raise UserError(
                f"{self.remote}: another run is writing to it, and this one ends; use another --run_dir for one of them"
            )
        gone = set(self._uploaded)
        for file in files_under(self.local):
            name, state = file.relative_to(self.local).as_posix(), (file.stat().st_mtime_ns, file.stat().st_size)
            gone.discard(name)
            if name != LOCK and self._uploaded.get(name) != state:
                target = self.remote / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
                self._uploaded[name] = state
        for name in gone:
            (self.remote / name).unlink(missing_ok=True)
            del self._uploaded[name]

    def close(self) -> None:
        """Uploads a last time and removes the local copy."""
        try:
            self.upload()
        finally:
            self._temporary.cleanup()

    def _download(self) -> None:
        for entry in self.remote.iterdir():
            if entry.name in (CHECKPOINTS, LOCK):
                continue
            for file in files_under(entry) if entry.is_dir() else [entry]:
                target = self.local / file.relative_to(self.remote).as_posix()
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
