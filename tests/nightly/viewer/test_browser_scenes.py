"""Scenes of services in a browser: lists, boards and their sliders."""

import json

import api_folders
import pytest
from chromium import CONTRASTS, expect, needs_chromium, opened, soon

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.catalog import get_service
from agentrl_jax.viewer import export
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.log_data import LogData

pytestmark = needs_chromium

SCRIPT = "<img src=x onerror=alert(1)>"


def write(file, data):
    file.write_text(export.page([data]), encoding="utf-8")
    return file.as_uri()


def entries(page, title):
    """The entries of a list, each as its words."""
    place = page.locator(".listed", has=page.locator(f"h4:text-is('{title}')"))
    return [" ".join(text.split()) for text in place.locator("li").all_inner_texts()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_inventory_follows_the_slider(browser, tmp_path, scheme):
    evaluate_scripted("textcraft", "oracle", items="300", turns=30, seed=1, record=tmp_path / "textcraft")
    with opened(browser, write(tmp_path / "page.html", RunData(tmp_path / "textcraft")), scheme=scheme) as page:
        soon(lambda: entries(page, "Inventory"), ["nothing yet"])
        assert len(entries(page, "Commands")) > 1
        _, count, thing = get_service("textcraft").oracle(300).actions[0].split(" ", 2)
        page.click("[aria-label='Next step']")
        soon(lambda: entries(page, "Inventory"), [f"{thing} {count}"])
        expect(page.locator(".stage h3")).to_contain_text(f"Turn 1, after get {count} {thing}")
        page.keyboard.press("ArrowRight")
        expect(page.locator("[aria-current=step][data-turn='1']")).to_have_count(1)
        assert entries(page, "Inventory") == [f"{thing} {count}"]  # before the second response
        page.keyboard.press("ArrowLeft")
        soon(lambda: entries(page, "Inventory"), ["nothing yet"])
        assert min(contrast for contrast, _ in page.evaluate(CONTRASTS)) >= 4.5


def test_the_maze_of_an_api_model_is_drawn(browser, tmp_path):
    with opened(browser, write(tmp_path / "page.html", LogData(api_folders.write_folder(tmp_path / "out")))) as page:
        board = page.locator(".stage svg.board")
        at = lambda: next(part for part in board.get_attribute("aria-label").split("; ") if "player" in part)  # noqa: E731
        start = at()
        page.keyboard.press("ArrowRight")
        soon(lambda: at() != start, True)
        expect(page.locator("[aria-current=step][data-turn='1']")).to_have_count(1)
        page.click("[aria-label='Previous step']")
        soon(at, start)
        expect(page.locator("aside.right .metadata")).to_have_count(1)


def test_documents_open_and_stay_text(browser, tmp_path):
    found = f'<information>Doc 1(Title: "{SCRIPT}") {SCRIPT} {"word " * 40}\nDoc 2(Title: "B") short</information>'
    said = [
        ("user", f"Answer.\n\n Question: who? {SCRIPT}"),
        ("assistant", f"<think>x</think><search>{SCRIPT}</search>"),
        ("user", found),
        ("assistant", "<answer>me</answer>"),
    ]
    row = {
        "conversations": [{"role": role, "content": text} for role, text in said],
        "item_id": "searchqa_5",
        "reward": 0,
    }
    (tmp_path / "log.json").write_text(json.dumps([row]))
    with opened(browser, write(tmp_path / "page.html", LogData(tmp_path / "log.json"))) as page:
        soon(lambda: entries(page, "Question"), [f"who? {SCRIPT}"])
        assert entries(page, "Searches") == ["none yet"]
        page.keyboard.press("ArrowRight")
        soon(lambda: entries(page, "Searches"), [SCRIPT])
        assert entries(page, "Documents") == [f'"{SCRIPT}"', '"B" short']
        page.click(".listed summary")
        soon(lambda: entries(page, "Documents")[0], f'"{SCRIPT}" {SCRIPT} {"word " * 40}'.strip())


def test_a_screenshot_is_shown(browser, tmp_path):
    """The policy of the page lets it in, and it follows the slider."""
    folder = tmp_path / "babyai"
    evaluate_scripted("babyai", "oracle", items="115", record=folder, screenshots=True)
    with opened(browser, write(tmp_path / "page.html", RunData(folder))) as page:
        image = page.locator(".stage img.screenshot")
        expect(image).to_have_attribute("alt", "Start: screenshot")
        soon(lambda: image.evaluate("image => image.naturalWidth > 100"), True)
        start = image.get_attribute("src")
        page.click("[aria-label='Next step']")
        soon(lambda: image.get_attribute("src") != start, True)
        expect(page.locator(".stage h3")).to_contain_text("Turn 1, after pickup purple ball 1")
