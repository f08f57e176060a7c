import base64
import io
import os
from unittest import mock

import pytest
from PIL import Image
from scripted_server import Scripted

from agentrl_jax.services import screenshots
from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.screenshots import NoScreenshot, Screenshots, from_data_url, kept_screenshot


def picture(kind, side=2):
    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, kind)
    return file.getvalue()


PNG = picture("PNG")


def url(content, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def test_the_bytes_say_the_format(tmp_path):
    for item, kind in enumerate(("png", "jpeg", "webp")):
        content = url(picture(kind), "svg+xml")
        assert from_data_url(content) == (kind, picture(kind))
        Screenshots(tmp_path).episode(item, play=3).take(2, lambda: content)  # noqa: B023
        assert kept_screenshot(tmp_path, 3, item, 2) == url(picture(kind), kind)
        assert kept_screenshot(tmp_path, 1, item, 2) is None


NO_PICTURE, NO_URL = "no PNG, JPEG or WebP", "expected a data URL"
REFUSED = [
    *((text, NO_URL) for text in ("http://example.com/a.png", "data:image/svg+xml,<svg/>")),
    *((url(content), NO_PICTURE) for content in (b"<svg onload='alert(1)'/>", picture("GIF"), PNG[:20])),
    ("data:image/png;base64,%%%%", "no base64"),
    (url(PNG + bytes(500)), "at most 200"),
    (url(picture("PNG", 30)), "a picture of 30 by 30, expected at most 500 pixels"),
]


def test_what_is_no_screenshot(tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "MAX_BYTES", 200)
    monkeypatch.setattr(screenshots, "MAX_PIXELS", 500)
    for text, said in REFUSED:
        with pytest.raises(NoScreenshot, match=said):
            from_data_url(text)
        kept = Screenshots(tmp_path)
        kept.episode(0).take(0, lambda: text)  # noqa: B023
        assert kept.summary().startswith("0 screenshots in")
        assert "; 1 could not be had, most often: " in kept.summary()
    assert not list(tmp_path.iterdir())


def test_there_is_a_limit_for_all_and_a_file_that_was_changed_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "MAX_TOTAL", len(PNG))
    kept = Screenshots(tmp_path)
    for turn in range(3):
        kept.episode(0).take(turn, lambda: url(PNG))
    assert kept.summary().startswith("1 screenshots in ")
    assert "; 2 could not be had" in kept.summary()
    (file,) = tmp_path.rglob("*.png")
    for content in (b"<svg/>", b"", PNG + bytes(screenshots.MAX_BYTES)):
        file.write_bytes(content)
        assert kept_screenshot(tmp_path, 1, 0, 0) is None
    secret = tmp_path / "secret.png"
    secret.write_bytes(PNG)
    for make in (lambda: file.symlink_to(secret), lambda: os.mkfifo(file), file.mkdir):
        file.unlink()
        make()
        assert kept_screenshot(tmp_path, 1, 0, 0) is None


def test_a_finished_episode_is_not_replaced_but_a_failed_one_is(tmp_path):
    kept = Screenshots(tmp_path, items=(0, 1))
    assert kept.episode(2) is None
    failed = kept.episode(0)
    for side, again in ((2, failed), (3, kept.episode(0))):
        again.take(0, lambda: url(picture("PNG", side)))  # noqa: B023
    again.finish()
    assert kept.episode(0) is None
    assert kept.episode(0, play=2) is not None
    assert kept_screenshot(tmp_path, 1, 0, 0) == url(picture("PNG", 3))


def test_a_folder_that_cannot_be_written_and_a_slow_server_are_no_errors(tmp_path, monkeypatch):
    slow, kept = mock.Mock(side_effect=ServiceError("no answer")), Screenshots(tmp_path)
    monkeypatch.setattr(screenshots, "SLOW_SECONDS", 0.0)
    for turn in range(10):
        kept.episode(0).take(turn, slow)
        if turn == 2:  # which begins the count again
            kept.episode(0).take(turn, lambda: url(PNG))
    assert slow.call_count == 3 + screenshots.MAX_SLOW
    assert "10 could not be had, most often: no answer" in kept.summary().replace("1 screenshots", "")
    (tmp_path / "file").touch()
    kept = Screenshots(tmp_path / "file")
    kept.episode(0).take(0, lambda: url(PNG))
    assert "Not a directory" in kept.summary()


def test_after_an_error_nothing_is_written(tmp_path):
    kept = Screenshots(tmp_path / "new")
    episode = kept.episode(0)
    episode.take(0, lambda: url(PNG))
    assert (tmp_path / "new").exists()
    with pytest.raises(KeyboardInterrupt), kept:
        raise KeyboardInterrupt
    episode.take(1, lambda: url(PNG))
    assert not (tmp_path / "new").exists()


def test_the_routes_of_agentgym():
    missing = (404, {"detail": "Not Found"})  # AgentGym's first generation has no such route
    for name, answer, asked in (
        ("babyai", url(PNG), ("/render", {"id": 4})),
        ("webarena", {"text": {"obs_nodes_info": {}}, "image": url(PNG)}, ("/observation_metadata?env_idx=4", None)),
    ):
        server = Scripted((200, answer), (200, {"error": "It has finished."}), (200, {"image": 1}), missing)
        client = ServiceClient(server.url, routes_of(name), seconds=1.0)
        assert (client.screenshot(4), server.seen) == (url(PNG), [asked])
        for _ in range(3):
            with pytest.raises(ServiceError):
                client.screenshot(4)
