"""What a reader has chosen stays chosen: episodes, filters, links and keys. In Chromium."""

import pytest
from chromium import count, expect, needs_chromium, opened, served, soon, title
from page_runs import make_record, write_run

from agentrl_jax.runs.rollout_records import write_record
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.export import write_page
from agentrl_jax.viewer.live import PageServer

pytestmark = needs_chromium

ITERATIONS = (1, 10, 36)


@pytest.fixture(scope="module")
def records():
    return [make_record(i) for i in ITERATIONS]


@pytest.fixture(scope="module")
def url(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("page")
    write_page(folder / "page.html", [RunData(write_run(folder / "run", records), boards=False)])
    return (folder / "page.html").as_uri()


def status(page):
    return page.text_content(".listhead [role=status]")


def test_a_click_on_the_trend_keeps_the_other_filters(browser, url, records):
    with opened(browser, url) as page:
        page.click("summary")
        page.fill("[aria-label='Highest turns']", "2")
        page.click(".chart .u-over >> nth=0", position={"x": 2, "y": 40})
        expect(page.locator("[aria-label=Iteration]")).to_have_value("1")
        assert page.input_value("[aria-label='Highest turns']") == "2"
        short = (records[0].num_turns <= 2).sum()
        assert 0 < short < 8
        soon(lambda: count(page), short)


def test_a_search_stays_at_the_episode_if_it_has_the_text(browser, url):
    with opened(browser, f"{url}#i=36&r=2") as page:
        soon(lambda: title(page), (36, 2))
        page.fill("[type=search]", "frozen")
        page.wait_for_timeout(300)  # until then nothing is searched
        soon(lambda: status(page), "24 of 24 episodes")
        assert title(page) == (36, 2)
        page.fill("[type=search]", "no such text anywhere")
        soon(lambda: status(page), "0 of 24 episodes")
        page.fill("[type=search]", "frozen")
        soon(lambda: status(page), "24 of 24 episodes")
        soon(lambda: title(page), (36, 2))


def test_a_live_page_stays_at_the_episode_while_it_is_searched(browser, tmp_path, records):
    folder = write_run(tmp_path / "run", records[:2])
    with served(browser, PageServer([RunData(folder, boards=False)])) as page:
        page.click(".entry >> nth=6")
        soon(lambda: title(page), (1, 6))
        page.fill("[type=search]", "frozen")
        page.keyboard.press("Escape")
        page.click(".entry >> nth=11")
        soon(lambda: title(page), (10, 3))
        page.select_option("[aria-label=Order]", "longest")
        write_record(folder, make_record(5))
        page.click("text=New records: load")
        page.wait_for_timeout(300)
        soon(lambda: status(page), "24 of 24 episodes")
        assert title(page) == (10, 3)


def test_a_link_in_an_open_page_is_followed(browser, url):
    with opened(browser, url) as page:
        soon(lambda: title(page), (36, 0))
        page.evaluate("location.hash = 'i=1&r=3&c=entropy'")
        soon(lambda: title(page), (1, 3))
        expect(page.locator("[role=radio][aria-checked=true]")).to_have_text("Entropy")
        page.keyboard.press("j")
        soon(lambda: title(page), (1, 4))
        page.evaluate("location.hash = 'i=7&r=99'")  # there is none
        page.keyboard.press("j")
        soon(lambda: title(page), (1, 5))


def test_keys_act_after_a_checkbox_or_the_slider_and_not_behind_the_help(browser, url, records):
    row = int(records[2].num_turns[:-1].argmax())
    assert records[2].num_turns[row] > 2
    with opened(browser, f"{url}#i=36&r={row}") as page:
        soon(lambda: title(page), (36, row))
        page.click("text=Help")
        for key in ("j", "ArrowRight", "/"):
            page.keyboard.press(key)
        assert page.evaluate("document.activeElement.closest('dialog') !== null")
        expect(page.locator("dialog .keys")).to_contain_text("search the text of all episodes")
        page.keyboard.press("Escape")
        current = page.locator("[aria-current=step]")
        assert title(page) == (36, row)
        expect(current).to_have_attribute("data-turn", "0")
        page.focus("input[type=range]")
        page.keyboard.press("ArrowRight")  # moves the slider, and by one only
        expect(current).to_have_attribute("data-turn", "1")
        page.keyboard.press("j")
        soon(lambda: title(page), (36, row + 1))
        page.click("summary")
        page.click("label:has(.failed) input")
        page.keyboard.press("k")
        soon(lambda: title(page), (36, row))
        page.keyboard.press("/")
        page.keyboard.type("jjk")
        assert page.input_value("[type=search]") == "jjk"
        assert title(page) == (36, row)
