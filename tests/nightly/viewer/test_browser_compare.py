"""Two runs beside each other: in what they differ, and what a reader has chosen. In Chromium."""

import dataclasses
import re

import numpy as np
from chromium import expect, needs_chromium, opened, soon, title
from page_runs import TOKENIZER, make_record, write_run

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.runs.rollout_records import read_record, record_path
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.export import write_page

pytestmark = needs_chromium

SERVED = {
    "tasks": [{"env": "textcraft", "groups": 2, "items": "0-9", "held_out": "10-19"}],
    "prompt": {"style": "chat", "max_turns": 4},
    "train": {"validate_every": 0},
}


def write(folder, *records):
    """Writes the page of two runs of one record each; returns its address."""
    runs = [write_run(folder / name, [record]) for name, record in zip(("one", "two"), records, strict=True)]
    write_page(folder / "page.html", [RunData(run, boards=False) for run in runs])
    return (folder / "page.html").as_uri()


def replies(folder):
    """The responses of each recorded episode by its level."""
    record = read_record(record_path(folder, 1))
    return {
        level: [
            TOKENIZER.decode(record.tokens[row, turn, : record.length[row, turn]].tolist(), skip_special=True)
            for turn in range(record.num_turns[row])
        ]
        for row, level in enumerate(hexadecimal(record.state_hash[:, 0]))
    }


def test_replies_to_a_service_are_compared_by_their_text(browser, tmp_path):
    """All of them are recorded as the same action."""
    folders = [tmp_path / "random", tmp_path / "oracle"]
    for folder in folders:
        evaluate_scripted("textcraft", folder.name, items="0-2", record=folder)
    write_page(tmp_path / "page.html", [RunData(folder) for folder in folders])
    one, two = map(replies, folders)
    differ = {level: next(t for t, (a, b) in enumerate(zip(one[level], two[level]), 1) if a != b) for level in one}
    assert 1 in differ.values()
    assert len(set(differ.values())) > 1
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        for place in range(3):
            page.click(f".entry >> nth={place}")
            turn = differ[page.text_content(f".entry >> nth={place} >> code")]
            soon(page.locator("article header .link").all_text_contents, [f"replies differ from turn {turn} on"] * 2)
        assert set(page.locator(".result button").all_text_contents()) <= {"show this turn", "no action"}
    write_page(tmp_path / "page.html", [RunData(folders[1]), RunData(folders[1])])
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        soon(page.locator("article header .link").all_text_contents, ["same replies"] * 2)


def test_the_group_of_a_service_lists_replies(browser, tmp_path):
    made = make_record(1)
    header = dataclasses.replace(made.header, tasks=("textcraft",))
    record = dataclasses.replace(made, header=header, actions=np.minimum(made.actions, 0))
    run = write_run(tmp_path / "run", [record], config=SERVED)
    write_page(tmp_path / "page.html", [RunData(run, boards=False)])
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        first = TOKENIZER.decode(record.tokens[0, 0, : record.length[0, 0]].tolist(), skip_special=True)
        expect(page.locator(".sibling .actions").first).to_contain_text(first[:60])


def test_the_shorter_episode_stays_at_its_last_turn(browser, tmp_path):
    made = make_record(1, turns=4, observation="word " * 400)
    short, long = (
        dataclasses.replace(made, num_turns=np.full_like(made.num_turns, turns), truncation=made.truncation * 0)
        for turns in (2, 4)
    )
    with opened(browser, write(tmp_path, short, long), height=600) as page:
        one, two = (page.locator(f".side{side} .conversation") for side in (0, 1))
        at = lambda: one.evaluate("box => box.scrollTop")  # noqa: E731
        page.keyboard.press("ArrowRight")
        expect(two.locator("[aria-current=step]")).to_have_attribute("data-turn", "1")
        soon(lambda: at() > 0, True)
        before = at()
        page.keyboard.press("ArrowRight")
        expect(two.locator("[aria-current=step]")).to_have_attribute("data-turn", "2")
        expect(one.locator("[aria-current=step]")).to_have_attribute("data-turn", "1")
        page.wait_for_timeout(200)
        assert at() == before


def test_the_chosen_level_is_kept_while_the_list_changes(browser, tmp_path):
    """Also through a list without any level."""
    made = make_record(1, groups=3)
    with opened(browser, write(tmp_path, made, made)) as page:
        chosen = lambda: page.text_content(".entry[aria-selected=true] code")  # noqa: E731
        levels = page.locator(".entry code").all_text_contents()
        assert len(set(levels)) == 3
        page.keyboard.press("j")
        page.keyboard.press("j")
        soon(chosen, levels[2])
        box = page.locator("text=only levels on which success differs")
        box.check()
        soon(page.locator(".entry").count, 0)
        for key in ("j", "k", "j"):
            page.keyboard.press(key)
        box.uncheck()
        soon(chosen, levels[2])
        page.keyboard.press("k")
        soon(chosen, levels[1])
        page.click("text=Help")
        keys = page.locator("dialog .keys")
        expect(keys).to_contain_text("next and previous level")
        expect(keys).not_to_contain_text("search")


def test_a_link_in_an_open_comparison_is_followed(browser, tmp_path):
    made = dataclasses.replace(make_record(1, groups=3), num_turns=np.full(12, 4, np.int32))
    with opened(browser, write(tmp_path, made, made)) as page:
        levels = page.locator(".entry code").all_text_contents()
        for turn, level in ((2, levels[2]), (3, levels[2]), (1, levels[0])):
            page.evaluate(f"location.hash = 'level={level}&task=FrozenLake&turn={turn}'")
            soon(lambda: page.text_content(".entry[aria-selected=true] code"), level)
            expect(page.locator(f"[aria-current=step][data-turn='{turn - 1}']")).to_have_count(2)
        page.evaluate("location.hash = 'run=1&i=1&r=5'")
        soon(lambda: title(page), (1, 5))
        soon(lambda: page.text_content("nav[aria-label=View] [aria-pressed=true]"), "two")
        page.keyboard.press("j")
        expect(page).to_have_url(re.compile("run=1&i=1&r=6"))
        page.evaluate("location.hash = 'i=1&r=2'")
        soon(lambda: title(page), (1, 2))
        soon(lambda: page.text_content("nav[aria-label=View] [aria-pressed=true]"), "one")
        page.evaluate(f"location.hash = 'level={levels[1]}&task=FrozenLake&turn=1'")
        soon(lambda: page.text_content(".entry[aria-selected=true] code"), levels[1])
