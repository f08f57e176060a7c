"""What a reader has chosen stays chosen: episodes, filters, links and keys. In Chromium."""

import pytest
from chromium import assert_turn, expect, needs_chromium, opened, press, soon, status, title
from page_runs import write_run

from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.export import write_page

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def url(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("page")
    write_page(folder / "page.html", [RunData(write_run(folder / "run", records), boards=False)])
    return (folder / "page.html").as_uri()


def test_a_search_stays_at_the_episode_if_it_has_the_text(browser, url):
    with opened(browser, f"{url}#i=36&r=2") as page:
        for text, found in (("frozen", 24), ("no such text anywhere", 0), ("frozen", 24)):
            page.fill("[type=search]", text)
            page.wait_for_timeout(300)  # until then nothing is searched
            soon(lambda found=found: status(page), f"{found} of 24 episodes")
        soon(lambda: title(page), (36, 2))


def test_a_link_in_an_open_page_is_followed(browser, url):
    with opened(browser, url) as page:
        page.evaluate("location.hash = 'i=1&r=3&c=entropy'")
        soon(lambda: title(page), (1, 3))
        expect(page.locator("[role=radio][aria-checked=true]")).to_have_text("Entropy")
        press(page, "j")
        soon(lambda: title(page), (1, 4))
        page.evaluate("location.hash = 'i=7&r=99'")  # there is none
        press(page, "j")
        soon(lambda: title(page), (1, 5))


def test_keys_act_after_a_checkbox_or_the_slider_and_not_behind_the_help(browser, url, records):
    row = int(records[2].num_turns[:-1].argmax())
    with opened(browser, f"{url}#i=36&r={row}") as page:
        soon(lambda: title(page), (36, row))
        page.click("text=Help")
        press(page, "j", "ArrowRight", "/")
        assert page.evaluate("document.activeElement.closest('dialog') !== null")
        press(page, "Escape")
        assert title(page) == (36, row)
        assert_turn(page, 0)
        page.focus("input[type=range]")
        press(page, "ArrowRight")  # moves the slider, and by one only
        assert_turn(page, 1)
        press(page, "j")
        soon(lambda: title(page), (36, row + 1))
        page.click("summary")
        page.click("label:has(.failed) input")
        press(page, "k")
        soon(lambda: title(page), (36, row))
        press(page, "/")
        page.keyboard.type("jjk")
        assert page.input_value("[type=search]") == "jjk"
        assert title(page) == (36, row)
