"""`agentrl view` before it computes anything."""

import errno
import os

import pytest

from agentrl_jax.cli import view
from agentrl_jax.errors import UserError


@pytest.fixture
def read_only(tmp_path, monkeypatch):
    """A run in a folder that cannot be written; its data must not be opened."""

    def opened(*_):
        raise AssertionError("computed")

    def try_writing(folder):
        if os.fspath(folder) == str(tmp_path / "run"):
            raise OSError(errno.EROFS, "Read-only file system", str(folder))

    monkeypatch.setattr(view, "_opened", opened)
    monkeypatch.setattr(view, "try_writing", try_writing)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("export", ["", "run/page.html"])
def test_a_page_that_could_not_be_written_is_refused_first(read_only, export):
    with pytest.raises(UserError) as refused:
        view.run(view.View(str(read_only), export=export and str(read_only.parent / export)))
    assert refused.value.key == "--export"
    assert "Read-only file system" in str(refused.value)


@pytest.mark.parametrize("options", [{"live": True}, {"export": "page.html"}])
def test_a_page_that_is_written_elsewhere_needs_no_such_folder(read_only, options, monkeypatch):
    monkeypatch.chdir(read_only.parent)
    with pytest.raises(AssertionError, match="computed"):
        view.run(view.View(str(read_only), **options))
