"""Logs of other programs and evaluations of API models on the page, in Chromium, alone and beside a run."""

import functools
import json
import re

import api_folders
import page_runs
import pytest
from chromium import CONTRASTS, UNNAMED, count, expect, length, needs_chromium, opened, soon

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.viewer import log_data
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.export import write_page
from agentrl_jax.viewer.log_data import LogData

pytestmark = needs_chromium


def test_log_of_another_program(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(log_data, "BLOCK_CHARACTERS", 4000)
    write_page(tmp_path / "log.html", [LogData(page_runs.write_log(tmp_path / "<b>log<!--.jsonl"))])
    episodes = page_runs.LOG_EPISODES
    chosen = lambda: int(re.findall(r"\d+", page.text_content(".episode h2"))[0])  # noqa: E731
    status = lambda: page.text_content(".listhead [role=status]")  # noqa: E731
    with opened(browser, (tmp_path / "log.html").as_uri()) as page:
        soon(lambda: page.text_content("h1"), "<b>log<!--.jsonl")
        soon(lambda: page.text_content(".response .text"), page_runs.HOSTILE_LOG.replace("\u202e", "⟨U+202E⟩"))
        titles = page.locator(".conversation h3").all_text_contents()
        assert [title.split()[0].rstrip(",") for title in titles] == ["System", "User", "Assistant", "User"]
        muted = [page.evaluate("(e) => getComputedStyle(e).color", text) for text in page.query_selector_all(".text")]
        assert muted[0] == muted[1] == muted[3] != muted[2]
        cells = page.locator(".metadata tr").all_text_contents()
        assert {"custom_idtraj_0", "env_id0", "note<b>0</b>", "CoordSokoban/success1.0"} <= set(cells)
        expect(page.locator("header.top").first).to_contain_text("no tokens")
        for absent in (
            ".trend",
            ".token",
            ".command",
            ".stage",
            "[role=radio]",
            "[aria-label=Iteration]",
            ".inspector",
        ):
            expect(page.locator(absent)).to_have_count(0)
        expect(page.locator(".end").first).to_contain_text("says that the task was solved")
        page.keyboard.press("j")
        page.keyboard.press("ArrowDown")
        soon(chosen, 3)
        expect(page.locator(".episode .outcome").first).to_have_text(re.compile("unknown$"))
        soon(lambda: page.text_content(".episode >> text=return"), "return –")
        expect(page.locator(".end").first).to_contain_text("does not say whether")
        for turn in (0, 1, 2, 2):
            expect(page.locator("[aria-current=step]")).to_have_attribute("data-turn", str(turn))
            page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("[aria-current=step]")).to_have_attribute("data-turn", "1")
        page.reload()
        page.wait_for_selector(".conversation .text")
        soon(chosen, 3)
        page.click("summary")
        soon(page.locator(".outcomes label").all_text_contents, ["✓ solved", "✗ unsolved", "? unknown"])
        page.uncheck("label:has(.solved) input")
        page.uncheck("label:has(.unsolved) input")
        soon(status, f"{episodes // 3} of {episodes} episodes")
        page.fill("[aria-label='Lowest return']", "0")
        soon(status, f"0 of {episodes} episodes")
        page.click("text=Clear filters")
        page.fill("[aria-label='Highest return']", "4")
        soon(status, f"4 of {episodes} episodes")
        page.click("text=Clear filters")
        unknown = [i + 1 for i in range(episodes) if i % 3 == 2]
        for order, first, last in (("best", 23, unknown[-1]), ("worst", 1, unknown[-1]), ("longest", 12, 9)):
            page.select_option("[aria-label=Order]", order)
            page.focus(".list")
            page.keyboard.press("Home")
            soon(chosen, first)
            page.keyboard.press("End")
            soon(chosen, last)
        page.keyboard.press("/")
        page.keyboard.type("DOWN 1 of 17")
        expect(page.locator(".listhead [role=status]")).to_have_text(f"1 of {episodes} episodes")
        soon(chosen, 18)
        page.fill("[type=search]", "traj_20")
        expect(page.locator(".entry")).to_contain_text("episode 21")
        assert page.evaluate(UNNAMED) == []
        page.click("text=Help")
        expect(page.locator("dialog").first).to_contain_text("The search finds metadata")


def test_steps_of_a_log_are_filtered(browser, tmp_path):
    said = [{"role": "user", "content": "#P_"}, {"role": "assistant", "content": "Right"}]
    for step, items in ((0, (7, "\u202e8")), (10, (9,))):
        (tmp_path / "agrl" / f"step{step}").mkdir(parents=True)
        rows = [{"item_id": item, "conversations": said, "reward": 1.0} for item in items]
        (tmp_path / "agrl" / f"step{step}" / "0.json").write_text(json.dumps(rows))
    write_page(tmp_path / "log.html", [LogData(tmp_path / "agrl")])
    with opened(browser, (tmp_path / "log.html").as_uri()) as page:
        soon(lambda: page.text_content("h1"), "agrl")
        parts = ["2 steps: all", "Step 0 · 2 of 2 episodes", "Step 10 · 1 of 1 episodes"]
        soon(page.locator("[aria-label=Iteration] option").all_text_contents, parts)
        labels = page.locator(".entry-bottom > span:first-child")
        soon(labels.all_text_contents, ["step 0 · item 7", "step 0 · item 8", "step 10 · item 9"])
        page.select_option("[aria-label=Iteration]", "10")
        soon(lambda: page.text_content(".episode h2"), "Step 10 · item 9")
        page.select_option("[aria-label=Iteration]", "0")
        soon(lambda: count(page), 2)
        soon(lambda: page.text_content(".episode h2"), "Step 0 · item 7")
        expect(page.locator(".metadata").first).to_contain_text("step0/0.json")


def test_a_link_leads_to_the_same_episode_after_others_were_added(browser, tmp_path):
    said = [{"role": "user", "content": "#P_"}, {"role": "assistant", "content": "Right"}]
    (tmp_path / "agrl").mkdir()

    def write(file, *items):
        rows = [{"item_id": item, "conversations": said} for item in items]
        (tmp_path / "agrl" / file).write_text(json.dumps(rows))
        write_page(tmp_path / "log.html", [LogData(tmp_path / "agrl")])

    write("1.json", 7, 8)
    write("5.json", 9)
    with opened(browser, (tmp_path / "log.html").as_uri()) as page:
        page.click(".entry >> nth=2")
        soon(lambda: page.text_content("article h2"), "Item 9")
        write("3.json", 1, 2)
        page.reload()
        page.wait_for_selector(".conversation .text")
        soon(lambda: page.text_content("article h2"), "Item 9")
        soon(page.locator(".entry").count, 5)
        page.evaluate("location.hash = 'e=1.json, episode 2'")
        soon(lambda: page.text_content("article h2"), "Item 8")
        page.keyboard.press("k")
        soon(lambda: page.text_content("article h2"), "Item 7")
        expect(page).to_have_url(re.compile("1.json%2C\\+episode\\+1$"))


HIDDEN = (0x34F, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180F, 0x202E, 0x3164, 0xFE0F, 0xFFA0, 0xE0041, 0xE0100)
"""Some of the characters that nobody sees, or that turn around a text."""


def test_invisible_characters_are_spelled_out(browser, tmp_path):
    text = "a" + "".join(chr(code) for code in HIDDEN) + "é\tb 𝒜"
    row = {"conversations": [{"role": "user", "content": "#P_"}, {"role": "assistant", "content": text}]}
    (tmp_path / "log.json").write_text(json.dumps([row]))
    write_page(tmp_path / "log.html", [LogData(tmp_path / "log.json")])
    with opened(browser, (tmp_path / "log.html").as_uri()) as page:
        spelled = "".join(f"⟨U+{code:04X}⟩" for code in HIDDEN)
        soon(lambda: page.text_content(".response .text"), f"a{spelled}é\tb 𝒜")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_a_log_can_be_read(browser, tmp_path, scheme):
    write_page(tmp_path / "log.html", [LogData(page_runs.write_log(tmp_path / "log.jsonl"))])
    with opened(browser, (tmp_path / "log.html").as_uri(), scheme=scheme) as page:
        page.click("summary")
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 60
        assert [entry for entry in contrasts if entry[0] < 4.5] == []


def test_long_logs_are_drawn_in_parts(browser, tmp_path):
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i}"} for i in range(2001)]
    rows = [{"item_id": 1, "conversations": messages}, {"item_id": 2, "conversations": []}]
    rows.append({"item_id": "x" * 100_000, "conversations": [{"role": "tool", "content": "a" * 100_000}]})
    (tmp_path / "log.json").write_text(json.dumps(rows))
    write_page(tmp_path / "log.html", [LogData(tmp_path / "log.json")])
    with opened(browser, (tmp_path / "log.html").as_uri()) as page:
        drawn = page.locator(".conversation .text")
        soon(drawn.count, 400)
        for _ in range(201):
            page.keyboard.press("ArrowRight")
        expect(page.locator("[aria-current=step]")).to_have_attribute("data-turn", "201")
        soon(drawn.count, 404)
        page.click(".conversation > .more")
        soon(drawn.count, 804)
        page.keyboard.press("j")
        soon(lambda: page.text_content(".conversation .text"), "This episode has no messages.")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("j")
        for place in (".conversation .text", ".metadata td .text"):
            soon(functools.partial(length, page, place), 40_000)
        page.click(".metadata td .more")
        soon(lambda: length(page, ".metadata td .text"), 80_000)


def test_api_model(browser, tmp_path):
    """Hostile replies stay text, reasoning is apart, and outcomes can be filtered."""
    write_page(tmp_path / "page.html", [LogData(api_folders.write_folder(tmp_path / "out"))])
    status = lambda: page.text_content(".listhead [role=status]")  # noqa: E731
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        expect(page.locator(".left").first).to_contain_text("2 answered, 1 cut, 1 refused, 1 unfinished")
        soon(lambda: page.text_content("article h2"), "Item 0 · sample 1")
        soon(lambda: page.text_content(".reasoning .text"), f"I think {api_folders.SCRIPT}")
        expect(page.locator(".response:not(.reasoning) h3").first).to_contain_text("10 tokens written")
        page.click("summary")
        marks = ["✓ solved", "✗ unsolved", "… cut", "! refused", "… unfinished"]
        soon(page.locator(".outcomes label").all_text_contents, marks)
        for name in ("solved", "unsolved", "unfinished"):
            page.uncheck(f"label:has(.{name}) input")
        soon(status, "2 of 5 episodes")
        soon(lambda: page.text_content("article h2"), "Item 1 · sample 1")
        expect(page.locator(".end").first).to_contain_text("cut by a limit of tokens")
        page.click("text=Clear filters")
        returns = page.locator(".entry .number").all_text_contents
        soon(returns, ["1", "–", "–", "–", "0"])
        page.select_option("[aria-label=Order]", "worst")
        soon(returns, ["0", "1", "–", "–", "–"])
        page.select_option("[aria-label=Order]", "recorded")
        page.fill("[aria-label='Highest return']", "0")
        soon(status, "1 of 5 episodes")
        page.click("text=Clear filters")
        soon(status, "5 of 5 episodes")
        page.click(".entry >> nth=4")
        soon(lambda: page.text_content("article h2"), "Item 4 · sample 1")
        said = f"{api_folders.SCRIPT}\nAction: half ? of a pair, ⟨U+0007⟩ and ⟨U+202E⟩"
        soon(lambda: page.text_content(".response .text"), said)
        tokens = page.locator("[data-turn='1'] .token")
        soon(tokens.all_text_contents, [text for text, _ in api_folders.LOGPROBS])
        assert tokens.last.get_attribute("class") > tokens.first.get_attribute("class")
        expect(page.locator(".inspector")).to_contain_text("Point at a token, or move to it")
        numbers = page.locator(".inspector dd")
        tokens.last.hover()
        soon(numbers.all_text_contents, ["−4", "1.83 %"])
        page.locator("[data-turn='1'] .response h3").click()
        page.keyboard.press("Tab")  # the keys alone reach every token
        soon(numbers.all_text_contents, ["−0.25", "77.88 %"])
        page.keyboard.press("ArrowRight")
        soon(numbers.all_text_contents, ["−4", "1.83 %"])
        page.keyboard.press("ArrowRight")
        soon(lambda: page.text_content(".inspector code"), api_folders.LOGPROBS[0][0])
        soon(lambda: page.text_content("article h2"), "Item 4 · sample 1")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.className") == "conversation"
        page.click("text=Help")
        expect(page.locator("dialog .keys")).to_contain_text("Home and End move between tokens")


def test_api_models_are_compared(browser, tmp_path):
    """With each other, and with the record of another policy on the same levels."""
    folders = [api_folders.write_folder(tmp_path / name) for name in ("one", "two")]
    rows = [json.loads(line) for line in (folders[1] / "episodes.jsonl").read_text().splitlines()]
    lost = [row | {"solved": False, "score": 0.0} if row["item"] == api_folders.SOLVED else row for row in rows]
    (folders[1] / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lost))
    write_page(tmp_path / "page.html", [LogData(folder) for folder in folders])
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        note = page.text_content(".note")
        assert "4 levels have recorded evaluation episodes in both runs (5 in one, 5 in two)" in note
        assert "cut or withheld is not in these means" in note
        rates = [entry.split("maze")[0][16:] for entry in page.locator(".entry").all_text_contents()]
        assert sorted(rates) == ["0 % · 0 %", "100 % · 0 %", "– · –", "– · –"]
        assert rates[0] == "100 % · 0 %"
        page.check("text=only levels on which success differs")
        soon(page.locator(".entry").count, 1)
        page.uncheck("text=only levels on which success differs")
        soon(page.locator("select[aria-label^='Episode of'] option").all_text_contents, [
            "item 0 · sample 1: solved", "item 0 · sample 1: unsolved",
        ])  # fmt: skip
        soon(page.locator("article .link").all_text_contents, ["same replies"] * 2)
        for turn in (0, 1):  # the steps after the responses
            page.locator("[aria-label='Next step']").first.click()
            expect(page.locator(f"[aria-current=step][data-turn='{turn}']")).to_have_count(2)
        expect(page.locator(".stage svg.board")).to_have_count(2)
        page.click("nav[aria-label=View] >> text=two")
        soon(page.locator(".conversation").count, 1)
    evaluate_scripted("maze", "random", items="0-4", turns=30, seed=1, record=tmp_path / "random")
    write_page(tmp_path / "page.html", [RunData(tmp_path / "random"), LogData(folders[0])])
    with opened(browser, (tmp_path / "page.html").as_uri(), scheme="dark") as page:
        expect(page.locator(".note").first).to_contain_text("4 levels have recorded evaluation episodes in both runs")
        soon(page.locator(".conversation").count, 2)
        soon(page.locator("header.episode .link").count, 0)  # actions and replies are not compared
        page.keyboard.press("j")
        expect(page.locator(".entry[aria-selected=true]")).to_have_attribute("aria-posinset", "2")
        page.wait_for_selector(".side1 .conversation .text")
        assert [entry for entry in page.evaluate(CONTRASTS) if entry[0] < 4.5] == []
