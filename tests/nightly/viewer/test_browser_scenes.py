"""Scenes of services in a browser: lists, boards and their sliders."""

import pytest
from chromium import assert_readable, assert_turn, expect, needs_chromium, press, shown, soon

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.catalog import get_service
from agentrl_jax.viewer.data import RunData

pytestmark = needs_chromium


def entries(page, title):
    place = page.locator(".listed", has=page.locator(f"h4:text-is('{title}')"))
    return [" ".join(text.split()) for text in place.locator("li").all_inner_texts()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_inventory_follows_the_slider(browser, tmp_path, scheme):
    evaluate_scripted("textcraft", "oracle", items="300", turns=30, seed=1, record=tmp_path / "textcraft")
    with shown(browser, tmp_path, RunData(tmp_path / "textcraft"), scheme=scheme) as page:
        soon(lambda: entries(page, "Inventory"), ["nothing yet"])
        assert len(entries(page, "Commands")) > 1
        _, count, thing = get_service("textcraft").oracle(300).actions[0].split(" ", 2)
        page.click("[aria-label='Next step']")
        soon(lambda: entries(page, "Inventory"), [f"{thing} {count}"])
        expect(page.locator(".stage h3")).to_contain_text(f"Turn 1, after get {count} {thing}")
        press(page, "ArrowRight")
        assert_turn(page, 1)
        assert entries(page, "Inventory") == [f"{thing} {count}"]  # before the second response
        press(page, "ArrowLeft")
        soon(lambda: entries(page, "Inventory"), ["nothing yet"])
        assert_readable(page)


def test_a_screenshot_is_shown(browser, tmp_path):
    folder = tmp_path / "babyai"
    evaluate_scripted("babyai", "oracle", items="115", record=folder, screenshots=True)
    with shown(browser, tmp_path, RunData(folder)) as page:
        image = page.locator(".stage img.screenshot")
        expect(image).to_have_attribute("alt", "Start: screenshot")
        soon(lambda: image.evaluate("image => image.naturalWidth > 100"), True)
        start = image.get_attribute("src")
        page.click("[aria-label='Next step']")
        soon(lambda: image.get_attribute("src") != start, True)
        expect(page.locator(".stage h3")).to_contain_text("Turn 1, after pickup purple ball 1")
