"""What is kept of a server's screenshots: pictures of known formats, of limited size."""

import base64

import pytest
from test_client import Scripted

from agentrl_jax.services import screenshots
from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.protocol import ROUTES
from agentrl_jax.services.screenshots import NoScreenshot, Screenshots, from_data_url, kept_screenshot

PNG, JPEG, WEBP = b"\x89PNG\r\n\x1a\n...", b"\xff\xd8\xff...", b"RIFF....WEBP..."


def url(content, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(("content", "kind"), [(PNG, "png"), (JPEG, "jpeg"), (WEBP, "webp")])
def test_the_bytes_say_the_format(tmp_path, content, kind):
    """Whatever the address calls it, it comes back as it was sent."""
    assert from_data_url(url(content, "svg+xml")) == (kind, content)
    Screenshots(tmp_path).take(7, 2, lambda: url(content), play=3)
    assert kept_screenshot(tmp_path, 3, 7, 2) == url(content, kind)
    assert kept_screenshot(tmp_path, 1, 7, 2) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a data URL of a picture in base64; found ''"),
        ("http://example.com/a.png", "expected a data URL"),
        ("data:image/svg+xml,<svg/>", "expected a data URL"),
        (url(b"<svg onload='alert(1)'/>", "svg+xml"), "no PNG, JPEG or WebP"),
        (url(b"RIFF....WAVE"), "no PNG, JPEG or WebP"),
        (url(b""), "no PNG, JPEG or WebP"),
        ("data:image/png;base64,%%%%", "no base64"),
        (url(PNG + bytes(200)), "expected at most 100"),
    ],
)
def test_what_is_no_screenshot(tmp_path, monkeypatch, text, said):
    monkeypatch.setattr(screenshots, "MAX_BYTES", 100)
    with pytest.raises(NoScreenshot, match=said):
        from_data_url(text)
    kept = Screenshots(tmp_path)
    kept.take(0, 0, lambda: text)
    assert "0 screenshots in" in kept.summary()
    assert "; 1 could not be had, most often: " in kept.summary()
    assert not list(tmp_path.iterdir())


def test_there_is_a_limit_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(screenshots, "MAX_TOTAL", 3 * len(PNG))
    kept = Screenshots(tmp_path)
    for turn in range(5):
        kept.take(0, turn, lambda: url(PNG))
    assert kept.summary().startswith("3 screenshots in ")
    assert "; 2 could not be had, most often: more than 0 MiB" in kept.summary()


def test_a_file_that_was_changed_is_not_shown(tmp_path):
    Screenshots(tmp_path).take(0, 0, lambda: url(PNG))
    (file,) = tmp_path.rglob("*.png")
    for content in (b"<svg/>", b"", PNG + bytes(screenshots.MAX_BYTES)):
        file.write_bytes(content)
        assert kept_screenshot(tmp_path, 1, 0, 0) is None
    file.unlink()
    file.mkdir()
    assert kept_screenshot(tmp_path, 1, 0, 0) is None


@pytest.mark.parametrize(
    ("name", "answer", "asked"),
    [
        ("babyai", url(PNG), ("/render", {"id": 4})),
        ("webarena", {"text": {"obs_nodes_info": {}}, "image": url(PNG)}, ("/observation_metadata?env_idx=4", None)),
    ],
)
def test_the_routes_of_agentgym(name, answer, asked):
    server = Scripted((200, answer), (200, {"error": "The task with environment 4 has finished."}), (200, {"image": 1}))
    client = ServiceClient(server.url, ROUTES[name], seconds=1.0)
    assert client.screenshot(4) == url(PNG)
    assert server.seen == [asked]
    for _ in range(2):
        with pytest.raises(ServiceError):
            client.screenshot(4)
    client.close()


def test_a_server_without_them_is_no_error(tmp_path):
    """Those of AgentGym's first generation have no such route."""
    server = Scripted((404, {"detail": "Not Found"}))
    client, kept = ServiceClient(server.url, ROUTES["babyai"], seconds=1.0), Screenshots(tmp_path)
    kept.take(0, 0, lambda: client.screenshot(1))
    assert "0 screenshots in" in kept.summary()
    assert "status 404" in kept.summary()
    client.close()
