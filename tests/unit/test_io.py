import pytest

from agentrl_jax.io import atomic_write


def test_an_error_leaves_the_old_file_alone(tmp_path):
    file = tmp_path / "page.html"
    with atomic_write(file) as stream:
        stream.write("old")
    with pytest.raises(TypeError), atomic_write(file) as stream:
        stream.write(b"bytes are no text")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "old")]


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "page.html").mkdir()
    with pytest.raises(IsADirectoryError), atomic_write(tmp_path / "page.html", binary=True) as stream:
        stream.write(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
