"""Logs, evaluations of API models and scenes of services on the page, in Chromium, alone and beside a run."""

import json
import re

import api_folders
import chromium
import page_runs
import pytest
from chromium import assert_readable, assert_turn, expect, heading, press, shown, soon, status

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.catalog import get_service
from agentrl_jax.viewer import log_data
from agentrl_jax.viewer.data import RunData

pytestmark = chromium.needs_chromium


def test_log_of_another_program(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(log_data, "BLOCK_CHARACTERS", 4000)
    file, episodes = page_runs.write_log(tmp_path / "<b>log<!--.jsonl"), page_runs.LOG_EPISODES
    chosen = lambda: int(re.findall(r"\d+", page.text_content(".episode h2"))[0])  # noqa: E731
    with shown(browser, tmp_path, log_data.LogData(file)) as page:
        soon(lambda: page.text_content("h1"), "<b>log<!--.jsonl")
        soon(lambda: page.text_content(".response .text"), page_runs.HOSTILE_LOG.replace("\u202e", "⟨U+202E⟩"))
        titles = page.locator(".conversation h3").all_text_contents()
        assert [title.split()[0].rstrip(",") for title in titles] == ["System", "User", "Assistant", "User"]
        cells = page.locator(".metadata tr").all_text_contents()
        assert {"custom_idtraj_0", "env_id0", "note<b>0</b>", "CoordSokoban/success1.0"} <= set(cells)
        expect(page.locator("header.top").first).to_contain_text("no tokens")
        absent = ".trend, .token, .command, .stage, [role=radio], [aria-label=Iteration], .inspector"
        expect(page.locator(absent)).to_have_count(0)
        page.evaluate("location.hash = 'e=line 2'")
        soon(chosen, 2)
        press(page, "j")
        soon(chosen, 3)
        expect(page.locator(".episode .outcome").first).to_have_text(re.compile("unknown$"))
        soon(lambda: page.text_content(".episode >> text=return"), "return –")
        for turn in (0, 1, 2, 2):
            assert_turn(page, turn)
            press(page, "ArrowRight")
        chromium.reload(page)
        soon(chosen, 3)
        page.click("summary")
        soon(page.locator(".outcomes label").all_text_contents, ["✓ solved", "✗ unsolved", "? unknown"])
        page.uncheck("label:has(.solved) input")
        page.uncheck("label:has(.unsolved) input")
        soon(lambda: status(page), f"{episodes // 3} of {episodes} episodes")
        page.fill("[aria-label='Lowest return']", "0")
        soon(lambda: status(page), f"0 of {episodes} episodes")
        page.click("text=Clear filters")
        unknown = [i + 1 for i in range(episodes) if i % 3 == 2]
        for order, first, last in (("best", 23, unknown[-1]), ("worst", 1, unknown[-1]), ("longest", 12, 9)):
            page.select_option("[aria-label=Order]", order)
            page.focus(".list")
            press(page, "Home")
            soon(chosen, first)
            press(page, "End")
            soon(chosen, last)
        page.fill("[type=search]", "DOWN 1 of 17")
        soon(lambda: status(page), f"1 of {episodes} episodes")
        soon(chosen, 18)
        assert page.evaluate(chromium.UNNAMED) == []
        assert_readable(page)


HIDDEN = (0x34F, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180F, 0x202E, 0x3164, 0xFE0F, 0xFFA0, 0xE0041, 0xE0100)
"""Some of the characters that nobody sees, or that turn around a text."""


def test_long_logs_are_drawn_in_parts_and_invisible_characters_are_spelled_out(browser, tmp_path):
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i}"} for i in range(2001)]
    hidden = "a" + "".join(map(chr, HIDDEN)) + "é\tb 𝒜"
    rows = [{"item_id": 1, "conversations": messages}, {"item_id": 2, "conversations": []}]
    rows.append({"item_id": "x" * 100_000, "conversations": [{"role": "tool", "content": "a" * 100_000}]})
    rows.append({"item_id": 4, "conversations": [{"role": "assistant", "content": hidden}]})
    (tmp_path / "log.json").write_text(json.dumps(rows))
    with shown(browser, tmp_path, log_data.LogData(tmp_path / "log.json")) as page:
        drawn, text = page.locator(".conversation .text"), lambda place: page.text_content(place)
        soon(drawn.count, 400)
        press(page, *["ArrowRight"] * 201)
        assert_turn(page, 201)
        soon(drawn.count, 404)
        page.click(".conversation > .more")
        soon(drawn.count, 804)
        press(page, "j")
        soon(lambda: text(".conversation .text"), "This episode has no messages.")
        press(page, "ArrowRight", "j")
        for place in (".conversation .text", ".metadata td .text"):
            soon(lambda place=place: len(text(place)), 40_000)
        page.click(".metadata td .more")
        soon(lambda: len(text(".metadata td .text")), 80_000)
        press(page, "j")
        spelled = "".join(f"⟨U+{code:04X}⟩" for code in HIDDEN)
        soon(lambda: text(".response .text"), f"a{spelled}é\tb 𝒜")


def test_api_model(browser, tmp_path):
    with shown(browser, tmp_path, log_data.LogData(api_folders.write_folder(tmp_path / "out"))) as page:
        expect(page.locator(".left").first).to_contain_text("2 answered, 1 cut, 1 refused, 1 unfinished")
        soon(lambda: heading(page), "Item 0 · sample 1")
        soon(lambda: page.text_content(".reasoning .text"), f"I think {api_folders.SCRIPT}")
        page.click("summary")
        marks = ["✓ solved", "✗ unsolved", "… cut", "! refused", "… unfinished"]
        soon(page.locator(".outcomes label").all_text_contents, marks)
        returns = page.locator(".entry .number").all_text_contents
        soon(returns, ["1", "–", "–", "–", "0"])
        page.select_option("[aria-label=Order]", "worst")
        soon(returns, ["0", "1", "–", "–", "–"])
        page.select_option("[aria-label=Order]", "recorded")
        page.fill("[aria-label='Highest return']", "0")
        soon(lambda: status(page), "1 of 5 episodes")
        page.click("text=Clear filters")
        page.click(".entry >> nth=4")
        soon(lambda: heading(page), "Item 4 · sample 1")
        said = f"{api_folders.SCRIPT}\nAction: half ? of a pair, ⟨U+0007⟩ and ⟨U+202E⟩"
        soon(lambda: page.text_content(".response .text"), said)
        tokens = page.locator("[data-turn='1'] .token")
        soon(tokens.all_text_contents, [text for text, _ in api_folders.LOGPROBS])
        assert tokens.last.get_attribute("class") > tokens.first.get_attribute("class")
        numbers = page.locator(".inspector dd").all_text_contents
        tokens.last.hover()
        soon(numbers, ["−4", "1.83 %"])
        page.locator("[data-turn='1'] .response h3").click()
        press(page, "Tab")  # the keys alone reach every token
        soon(numbers, ["−0.25", "77.88 %"])
        press(page, "ArrowRight")
        soon(numbers, ["−4", "1.83 %"])
        press(page, "Escape")
        assert page.evaluate("document.activeElement.className") == "conversation"


def test_api_models_are_compared(browser, tmp_path):
    one, two = (api_folders.write_folder(tmp_path / name) for name in ("one", "two"))
    failed = {"item": api_folders.SOLVED, "solved": False, "score": 0.0}
    page_runs.rewrite_lines(
        two / "episodes.jsonl", lambda rows: [row | failed if row["item"] == failed["item"] else row for row in rows]
    )
    with shown(browser, tmp_path, log_data.LogData(one), log_data.LogData(two)) as page:
        expected = "4 levels have recorded evaluation episodes in both runs (5 in one, 5 in two)"
        expect(page.locator(".note").first).to_contain_text(expected)
        rates = [entry.split("maze")[0][16:] for entry in page.locator(".entry").all_text_contents()]
        assert rates[0] == "100 % · 0 %"
        assert sorted(rates[1:]) == ["0 % · 0 %", "– · –", "– · –"]
        options = ["item 0 · sample 1: solved", "item 0 · sample 1: unsolved"]
        soon(page.locator("select[aria-label^='Episode of'] option").all_text_contents, options)
        soon(page.locator("article .link").all_text_contents, ["same replies"] * 2)
        for turn in (0, 1):  # the steps after the responses
            page.locator("[aria-label='Next step']").first.click()
            assert_turn(page, turn, sides=2)
        expect(page.locator(".stage svg.board")).to_have_count(2)
    evaluate_scripted("maze", "random", items="0-4", turns=30, seed=1, record=tmp_path / "random")
    with shown(browser, tmp_path, RunData(tmp_path / "random"), log_data.LogData(one), scheme="dark") as page:
        soon(page.locator(".conversation").count, 2)
        soon(page.locator("header.episode .link").count, 0)  # actions and replies are not compared
        page.wait_for_selector(".side1 .conversation .text")
        assert_readable(page)


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
