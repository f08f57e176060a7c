"""Two runs beside each other: in what they differ, and what a reader has chosen. In Chromium."""

import dataclasses
import re

import numpy as np
from chromium import assert_turn, expect, needs_chromium, press, shown, soon, title
from page_runs import make_record, write_run

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.viewer.data import RunData

pytestmark = needs_chromium


def beside(browser, folder, *records, **options):
    """The page of two runs of one record each."""
    runs = [write_run(folder / name, [record]) for name, record in zip(("one", "two"), records, strict=True)]
    return shown(browser, folder, *(RunData(run, boards=False) for run in runs), **options)


def replies(folder):
    """The responses of each recorded episode by its level."""
    return {episode.extra["level_id"]: [turn.response for turn in episode.turns] for episode in read_episodes(folder)}


def test_replies_to_a_service_are_compared_by_their_text(browser, tmp_path):
    """All of them are recorded as the same action."""
    folders = [tmp_path / "random", tmp_path / "oracle"]
    for folder in folders:
        evaluate_scripted("textcraft", folder.name, items="0-2", record=folder)
    one, two = map(replies, folders)
    differ = {level: next(t for t, (a, b) in enumerate(zip(one[level], two[level]), 1) if a != b) for level in one}
    assert len(set(differ.values())) > 1
    with shown(browser, tmp_path, *map(RunData, folders)) as page:
        for place in range(3):
            page.click(f".entry >> nth={place}")
            turn = differ[page.text_content(f".entry >> nth={place} >> code")]
            soon(page.locator("article header .link").all_text_contents, [f"replies differ from turn {turn} on"] * 2)
    with shown(browser, tmp_path, RunData(folders[1]), RunData(folders[1])) as page:
        soon(page.locator("article header .link").all_text_contents, ["same replies"] * 2)


def test_the_chosen_level_is_kept_while_the_list_changes(browser, tmp_path):
    """Also through a list without any level."""
    made = make_record(1, groups=3)
    with beside(browser, tmp_path, made, made) as page:
        chosen = lambda: page.text_content(".entry[aria-selected=true] code")  # noqa: E731
        levels = page.locator(".entry code").all_text_contents()
        assert len(set(levels)) == 3
        press(page, "j", "j")
        soon(chosen, levels[2])
        page.check("text=only levels on which success differs")
        soon(page.locator(".entry").count, 0)
        press(page, "j", "k", "j")
        page.uncheck("text=only levels on which success differs")
        soon(chosen, levels[2])
        press(page, "k")
        soon(chosen, levels[1])


def test_a_link_in_an_open_comparison_is_followed(browser, tmp_path):
    made = dataclasses.replace(make_record(1, groups=3), num_turns=np.full(12, 4, np.int32))
    with beside(browser, tmp_path, made, made) as page:
        levels = page.locator(".entry code").all_text_contents()
        for turn, level in ((2, levels[2]), (3, levels[2]), (1, levels[0])):
            page.evaluate(f"location.hash = 'level={level}&task=FrozenLake&turn={turn}'")
            soon(lambda: page.text_content(".entry[aria-selected=true] code"), level)
            assert_turn(page, turn - 1, sides=2)
        for link, row, name in (("run=1&i=1&r=5", 5, "two"), ("i=1&r=2", 2, "one")):
            page.evaluate(f"location.hash = '{link}'")
            soon(lambda row=row: title(page), (1, row))
            soon(lambda: page.text_content("nav[aria-label=View] [aria-pressed=true]"), name)
            press(page, "j")
            expect(page).to_have_url(re.compile(f"i=1&r={row + 1}"))
