"""The page in Chromium: what a reader clicks, types and sees. Skipped where Playwright or Chromium is missing."""

import dataclasses
import json
import re

import chromium
import numpy as np
import pytest
from chromium import assert_readable, assert_turn, count, expect, opened, press, shown, soon, status, title
from page_runs import TOKENIZER, DrawnBoards, make_record, padded, write_checkpoints, write_long_run, write_run

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import write_record
from agentrl_jax.viewer import data
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.export import write_page

pytestmark = chromium.needs_chromium


def write(folder, records):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "scenes", DrawnBoards())
        write_page(folder.parent / f"{folder.name}.html", [RunData(write_run(folder, records))])
    return (folder.parent / f"{folder.name}.html").as_uri()


@pytest.fixture(scope="module")
def url(tmp_path_factory, records):
    return write(tmp_path_factory.mktemp("page") / "run", records)


def test_keys_and_clicks_select_episodes(browser, url):
    with opened(browser, url) as page:
        assert "alarms in 8 iterations" in page.get_attribute(".chart >> nth=0", "aria-label")
        assert page.text_content(".command code").endswith("run --iteration 36 --row 0")
        soon(lambda: title(page), (36, 0))
        press(page, "j", "ArrowDown")
        soon(lambda: title(page), (36, 2))
        press(page, "k")
        soon(lambda: title(page), (36, 1))
        page.click(".entry >> text=row 5")
        soon(lambda: title(page)[1], 5)
        page.focus(".list")
        press(page, "End")
        soon(lambda: title(page), (36, 7))
        expect(page).to_have_url(re.compile("i=36&r=7"))
        chromium.reload(page)
        soon(lambda: title(page), (36, 7))
        # Its board is not known; what the model read is shown.
        soon(page.locator(".stage svg.board").count, 0)
        expect(page.locator(".scene-text").first).to_contain_text("SFFF")
        page.click(".sibling >> nth=1")
        soon(lambda: title(page), (36, 5))


def test_slider_and_arrow_keys_move_through_the_episode(browser, url, records):
    row = int(np.argmax(records[2].num_turns[:-1]))
    turns = int(records[2].num_turns[row])
    scenes = DrawnBoards().run_scenes(None, None, records[2])[row]
    with opened(browser, f"{url}#i=36&r={row}") as page:
        step = page.locator(".stage h3").first
        soon(page.locator(".stage svg.board > g").count, 64)
        assert_turn(page, 0)
        press(page, "ArrowRight")
        before = [i for i, scene in enumerate(scenes) if i == 0 or scene["turn"] < 1][-1]
        expect(step).to_contain_text(f"step {before} of")
        assert_turn(page, 1)
        press(page, *["ArrowRight"] * turns)
        assert_turn(page, turns - 1)
        press(page, "ArrowLeft")
        assert_turn(page, turns - 2)
        page.focus("input[type=range]")
        press(page, "End")
        expect(step).to_contain_text(f"step {len(scenes) - 1} of {len(scenes) - 1}")
        expect(step).to_contain_text(scenes[-1]["action"])
        assert_turn(page, scenes[-1]["turn"])
        cells = scenes[-1]["cells"]
        (place,) = {(x, y) for y, line in enumerate(cells) for x, cell in enumerate(line) if "agent" in cell}
        spoken = page.get_attribute(".stage svg.board", "aria-label")
        assert f"agent at row {place[1] + 1} column {place[0] + 1}" in spoken


def test_keys_act_after_a_checkbox_or_the_slider_and_not_behind_the_help(browser, tmp_path, records):
    row = int(records[2].num_turns[:-1].argmax())
    with shown(browser, tmp_path, RunData(write_run(tmp_path / "run", records), boards=False)) as page:
        page.evaluate(f"location.hash = 'i=36&r={row}&c=entropy'")  # a link in an open page is followed
        soon(lambda: title(page), (36, row))
        expect(page.locator("[role=radio][aria-checked=true]")).to_have_text("Entropy")
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
        for text, found in (("no such text anywhere", 0), ("frozen", 24)):  # it goes back to the episode
            page.fill("[type=search]", text)
            soon(lambda found=found: status(page), f"{found} of 24 episodes")
        soon(lambda: title(page), (36, row))


def test_filters_agree_with_the_records(browser, url, records):
    returns = np.concatenate([r.returns for r in records])
    turns = np.concatenate([r.num_turns for r in records])
    solved = np.concatenate([r.success.any(1) for r in records])
    broken = np.concatenate([r.format_error.sum(1) > 0 for r in records])
    shown = np.round(returns.astype(float), 3)
    with opened(browser, url) as page:
        soon(lambda: count(page), len(returns))
        page.click("summary")
        for name in ("truncated", "unsolved"):
            page.uncheck(f"label:has-text('{name}') input")
        page.check("label:has(.solved) input")
        soon(lambda: count(page), solved.sum())
        page.click("text=Clear filters")
        # Returns are f32: 0.9 is a little less than what the list shows and a reader types.
        page.fill("[aria-label='Lowest return']", "0.9")
        assert (returns.astype(float) >= 0.9).sum() < (shown >= 0.9).sum()
        soon(lambda: count(page), (shown >= 0.9).sum())
        page.fill("[aria-label='Lowest return']", "abc")
        expect(page.locator("[aria-label='Lowest return']")).to_have_attribute("aria-invalid", "true")
        soon(lambda: count(page), len(returns))
        page.fill("[aria-label='Lowest return']", "0.75")
        page.fill("[aria-label='Highest turns']", "2")
        soon(lambda: count(page), ((returns >= 0.75) & (turns <= 2)).sum())
        page.click("text=Clear filters")
        page.select_option("label:has-text('Format') select", "broken")
        soon(lambda: count(page), broken.sum())
        page.select_option("label:has-text('Format') select", "any")
        page.select_option("label:has-text('Alarm') select", "entropy_lost")
        soon(lambda: count(page), 8)  # those of iteration 36
        page.click("text=Clear filters")
        page.select_option("[aria-label=Iteration]", "10")
        page.select_option("[aria-label=Order]", "best")
        best = f"{records[1].returns.max():.2f}"
        soon(lambda: f"{float(page.text_content('.entry >> nth=0 >> .number')):.2f}", best)
        page.fill("[type=search]", "no such text anywhere")
        expect(page.locator(".middle").first).to_have_text("No episode passes the filters.")


def test_tokens_show_their_numbers(browser, url, records):
    record, row, token = records[2], 1, 3
    with opened(browser, f"{url}#i=36&r={row}") as page:
        soon(page.locator("[data-turn='0'] .token").count, record.length[row, 0])
        soon(page.locator("[data-turn='0'] .token.trained").count, record.trained[row, 0].sum())
        page.hover(f"[data-turn='0'] .token >> nth={token}")
        page.wait_for_selector(".inspector dd")
        texts = page.locator(".inspector dd").all_text_contents()
        numbers = [float(text.rstrip(" %").replace("−", "-")) for text in texts if text not in ("yes", "no")]
        expected = {name: getattr(record, name)[row, 0, token] for name in ("logprob", "entropy", "advantage")}
        logprob, probability, entropy, advantage, gap, number = numbers
        assert logprob == pytest.approx(expected["logprob"], rel=0.02, abs=2e-3)
        assert probability == pytest.approx(100 * np.exp(expected["logprob"]), rel=0.02)
        assert entropy == pytest.approx(expected["entropy"], rel=0.05, abs=2e-3)
        assert advantage == pytest.approx(expected["advantage"], abs=1e-3)
        assert gap == pytest.approx((record.learner_logprob - record.logprob)[row, 0, token], rel=0.1, abs=1e-3)
        assert number == record.tokens[row, 0, token]
        first = page.locator("[data-turn='0'] .token >> nth=0")
        first.focus()
        press(page, "ArrowRight")
        assert page.evaluate("document.activeElement.dataset.token") == str(1 + int(first.get_attribute("data-token")))
        page.focus("[role=radio][aria-checked=true]")
        press(page, "ArrowRight", "ArrowRight")
        soon(lambda: page.text_content("[role=radio][aria-checked=true]"), "Advantage")
        sign = "p" if record.advantage[row, 0, 0] > 0 else "n"
        expect(first).to_have_class(re.compile(rf"\b{sign}\d"))


def hostile_record():
    """Texts that try to become markup, to turn around what follows, or to be too long; and broken UTF-8."""
    texts = [
        b"</script><script>alert(1)</script>",
        b"<img src=x onerror=alert(2)><a href=javascript:alert(3)>x</a>",
        "\u202egnp.exe\u202c \u2066x\u2069 \x1b[31m\x00".encode(),
        b"caf\xc3\xa9 \xe2\x82\xac \xff\xfe \xe2\x82",
        b"a" * 100_000,
    ]
    ids = {data: i for i, data in enumerate(TOKENIZER.token_bytes) if data is not None and len(data) == 1}
    rows = [[ids[bytes([byte])] for byte in text] for text in texts]
    record = make_record(1, groups=1, group_size=len(texts), turns=1, observation=texts[0].decode() + texts[1].decode())
    tokens = padded(rows, 100_000)[:, None]
    return dataclasses.replace(
        record,
        tokens=tokens,
        length=np.asarray([[len(row)] for row in rows], np.int32),
        num_turns=np.ones(len(rows), np.int32),
        observation_length=np.full((len(rows), 1), record.observation.shape[2], np.int32),
        **dict.fromkeys(("logprob", "learner_logprob", "entropy", "advantage"), np.zeros(tokens.shape, np.float32)),
        trained=np.zeros(tokens.shape, bool),
    )


def test_hostile_texts_are_inert(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(DrawnBoards, "last_text", "<img src=x onerror=alert(4)>\u202e")
    with opened(browser, write(tmp_path / "<b>run<!--", [hostile_record()]).replace("#", "%23")) as page:
        said = lambda: page.text_content(".response .text")  # noqa: E731
        soon(said, "</script><script>alert(1)</script>")
        expect(page.locator(".scene-text").first).to_contain_text("<img src=x onerror=alert(4)>⟨U+202E⟩")
        soon(lambda: page.text_content("h1"), "<b>run<!--")
        press(page, "j", "j")
        # The tokens are single bytes, so that each byte of these characters is shown alone.
        expect(page.locator(".response .text").first).to_contain_text("⟨E2⟩⟨80⟩⟨AE⟩gnp.exe")
        expect(page.locator(".response .text").first).to_contain_text("⟨U+001B⟩[31m⟨U+0000⟩")
        press(page, "j")
        soon(said, "caf⟨C3⟩⟨A9⟩ ⟨E2⟩⟨82⟩⟨AC⟩ ⟨FF⟩⟨FE⟩ ⟨E2⟩⟨82⟩")
        press(page, "j")
        soon(page.locator(".token").count, 5000)
        page.click(".more")
        soon(page.locator(".token").count, 10_000)
        assert page.evaluate("document.querySelectorAll('#app :is(img, a, iframe, object, script)').length") == 0
        press(page, "/")  # the search joins the bytes of a character
        page.keyboard.type("café €")
        soon(lambda: status(page), "1 of 5 episodes")
        soon(lambda: title(page), (1, 3))
        press(page, "Escape", "j")
        assert page.input_value("[type=search]") == "café €"


def test_two_runs_are_compared_on_shared_levels(browser, tmp_path, records):
    other = make_record(1, seed=0)
    flipped = dataclasses.replace(other, success=np.zeros_like(other.success), actions=other.actions[::-1].copy())
    runs = [write_run(tmp_path / "one", records), write_run(tmp_path / "two", [flipped, make_record(10, seed=7)])]
    shared = records[0].success.any(1).reshape(2, 4).mean(1)
    with shown(browser, tmp_path, *(RunData(run, boards=False) for run in runs)) as page:
        expect(page.locator(".note").first).to_contain_text("2 levels have recorded training episodes in both runs")
        texts = page.locator(".entry").all_text_contents()
        assert f"{round(100 * shared.max())} % · 0 %" in texts[0]
        assert f"{round(100 * shared.min())} % · 0 %" in texts[1]
        soon(page.locator(".conversation").count, 2)
        assert any("actions differ from turn" in text for text in page.locator("article .link").all_text_contents())
        press(page, "ArrowRight", "ArrowLeft")
        assert_turn(page, 0, sides=2)
        page.click(".entry >> nth=1")
        press(page, "ArrowRight")
        level = page.text_content(".entry[aria-selected=true] code")
        expect(page).to_have_url(re.compile(f"level={level}&task=FrozenLake&turn=2"))
        chromium.reload(page)
        soon(lambda: page.text_content(".entry[aria-selected=true] code"), level)
        expect(page.locator("[aria-current=step][data-turn='1']").first).to_be_visible()
        page.check("text=only levels on which success differs")
        soon(page.locator(".entry").count, (shared > 0).sum())
        page.click("nav[aria-label=View] >> text=two")
        soon(lambda: count(page), 16)
        expect(page).to_have_url(re.compile("run=1&i=10"))
        page.goto(f"{page.url.split('#')[0]}#run=x&i=1&r=0")
        chromium.reload(page)
        soon(lambda: title(page), (1, 0))


BAND_ROWS = """() => {
  const canvas = document.querySelector(".trend canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const filled = (y) => { let n = 0; for (let x = 0; x < canvas.width; x++)
    n += Math.abs(data[4 * (y * canvas.width + x) + 3] - 0.28 * 255) < 3; return n > canvas.width / 3; };
  return [...Array(canvas.height).keys()].filter(filled).map((y) => y / canvas.height);
}"""
"""Rows of the first chart that are filled as the bands of intervals are, as shares of its height from the top."""


@pytest.mark.parametrize("high", [0.4, None])
def test_trend_has_bands_and_a_replay_that_trains_again_says_so(browser, tmp_path, high):
    """The steps of the iterations are 4, 8 and 12: the checkpoint of step 7 is right before the second."""
    run = write_run(tmp_path / "run", [make_record(i) for i in (1, 5, 9)])
    success = {"random": {"mean": 0.12, "low": 0.08, "high": high}, "optimal": {"mean": 0.9}}
    (run / "summary.json").write_text(json.dumps({"success": success}))
    write_checkpoints(run, {7: 0})
    with shown(browser, tmp_path, RunData(run, boards=False), scheme="dark") as page:
        legend = page.locator(".trend figcaption").first
        expect(legend).to_contain_text("random 12.0 % 8.0 to 40.0" if high else "random 12.0 %")
        rows = page.evaluate(BAND_ROWS)
        assert bool(rows) == bool(high)
        if rows:
            assert max(rows) - min(rows) == pytest.approx(0.32 / 1.06 * 94 / 124, abs=0.04)
        assert_readable(page)
        note = page.locator(".command + .replay-note")
        for iteration, said in ((1, "3 steps again, from the start"), (9, "4 steps again, from the checkpoint")):
            page.evaluate(f"location.hash = 'i={iteration}&r=0'")
            expect(note).to_contain_text(said)
        page.evaluate("location.hash = 'i=5&r=0'")
        expect(note).to_have_count(0)


def test_a_page_of_two_million_tokens_opens(browser, tmp_path):
    folder = write_long_run(tmp_path / "run")
    with shown(browser, tmp_path, RunData(folder, boards=False)) as page:
        names = ("first-contentful-paint", "rendered")
        times = [page.evaluate("(name) => performance.getEntriesByName(name)[0].startTime", name) for name in names]
        size = (tmp_path / "page.html").stat().st_size / 1e6
        print("{:.1f} MB; first contentful paint after {:.0f} ms, list and trend after {:.0f} ms".format(size, *times))
        soon(page.locator(".token").count, 2000)
        page.focus(".list")
        press(page, "Home")
        soon(lambda: title(page), (1, 0))
        press(page, "End")
        soon(lambda: title(page), (10, 99))
        expect(page.locator(".entry[aria-selected=true]")).to_be_visible()
        assert page.locator(".entry").count() < 40, "of a thousand, only those in view"
        press(page, "/")
        page.keyboard.type("frozen lake")
        soon(lambda: status(page), "1,000 of 1,000 episodes")


@pytest.mark.parametrize(("scheme", "other"), [("light", "dark"), ("dark", "light")])
@pytest.mark.parametrize("quantity", ["logprob", "advantage"])
def test_text_can_be_read(browser, url, scheme, other, quantity):
    with opened(browser, f"{url}#i=36&r=1&c={quantity}", scheme=scheme) as page:
        assert page.get_attribute("html", "data-theme") == scheme
        page.click("summary")
        assert_readable(page)
        while page.get_attribute("[aria-label^='Theme']", "title") != f"Theme: {other}":
            page.click("[aria-label^='Theme']")
        assert page.get_attribute("html", "data-theme") == other


FOCUSED = """() => { const e = document.activeElement;
  return e.className + " " + (e.getAttribute("aria-label") ?? e.textContent.slice(0, 12)); }"""


def test_everything_is_named_and_within_reach_of_the_keyboard(browser, url):
    with opened(browser, url) as page:
        assert page.evaluate(chromium.UNNAMED) == []
        page.click("text=Help")
        soon(page.locator("dialog[open]").count, 1)
        press(page, "Escape")
        soon(page.locator("dialog[open]").count, 0)
        reached = set()
        for _ in range(80):
            press(page, "Tab")
            reached.add(page.evaluate(FOCUSED))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none" or page.evaluate("document.activeElement === document.body")
        for name in ("Search the text", "Episodes", "Conversation of", "Step of the episode", "Copy", "token"):
            assert any(name in each for each in reached), name


def test_a_phone_shows_one_part_at_a_time_and_the_conversation_high_up(browser, url):
    with opened(browser, url, width=390, height=844) as page:
        colors = page.locator(".top [role=radiogroup]")
        expect(colors).to_be_visible()
        assert page.locator(".conversation").bounding_box()["y"] < 180
        page.click(".pane-switch >> text=Episodes")
        expect(colors).to_be_hidden()  # nothing is colored here
        assert page.locator(".left").bounding_box()["y"] < 90
        for button in page.locator(".top button:visible, .pane-switch button").all():
            place = button.bounding_box()
            assert place["x"] >= 0
            assert place["x"] + place["width"] <= 390
        for name, part in (("Episodes", ".left"), ("Conversation", ".middle"), ("Board", ".right")):
            page.click(f".pane-switch >> text={name}")
            for other in (".left", ".middle", ".right"):
                expect(page.locator(other)).to_be_visible(visible=other == part)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_board_begins_below_the_token_of_its_role(browser, tmp_path, records):
    """So that its first row is in line with the others, alone and beside another run."""
    record, user = records[0], TOKENIZER.special_id("<|user|>")
    marked = dataclasses.replace(
        record,
        observation=np.insert(record.observation, 0, user, axis=2),
        observation_length=record.observation_length + (record.observation_length > 0),
        final_observation=np.insert(record.final_observation, 0, user, axis=1),
    )
    runs = [RunData(write_run(tmp_path / name, [marked]), boards=False) for name in ("one", "two")]
    begins = lambda: [text.split("\n")[:3] for text in page.locator(".observation .text").all_inner_texts()]  # noqa: E731
    with shown(browser, tmp_path, *runs) as page:
        soon(page.locator(".conversation").count, 2)
        for _ in ("compared", "alone"):
            found = begins()
            assert found
            assert {tuple(lines) for lines in found} == {("<|user|>", "SFFF", "FHFH")}
            page.click("nav[aria-label=View] >> text=two")
            soon(page.locator(".conversation").count, 1)
            page.wait_for_selector(".observation .text")


def test_live_page_keeps_what_the_reader_chose(browser, tmp_path, records):
    folder = write_run(tmp_path / "run", records[:2])
    filled = {"[aria-label='Highest turns']": "3", "[type=search]": "frozen"}
    selected = {"[aria-label=Order]": "worst", "[aria-label='Metric of the second chart']": "actor/entropy"}
    with chromium.served(browser, RunData(folder, boards=False)) as page:
        soon(lambda: title(page)[0], 10)
        page.click("summary")
        page.select_option("[aria-label=Iteration]", "10")
        for place, value in selected.items():
            page.select_option(place, value)
        for place, value in filled.items():
            page.fill(place, value)
        soon(lambda: count(page), (records[1].num_turns <= 3).sum())
        write_record(folder, records[2])
        page.click("text=New records: load")
        # A reader of the newest iteration goes to the newest one.
        expect(page.locator("[aria-label=Iteration]")).to_have_value("36")
        soon(lambda: count(page), (records[2].num_turns <= 3).sum())
        soon(lambda: title(page)[0], 36)
        assert all(page.input_value(place) == value for place, value in (filled | selected).items())


def test_replies_to_a_service_are_compared_by_their_text(browser, tmp_path):
    """All of them are recorded as the same action."""
    folders = [tmp_path / "random", tmp_path / "oracle"]
    for folder in folders:
        evaluate_scripted("textcraft", folder.name, items="0-2", record=folder)
    one, two = (
        {episode.extra["level_id"]: [turn.response for turn in episode.turns] for episode in read_episodes(folder)}
        for folder in folders
    )
    differ = {level: next(t for t, (a, b) in enumerate(zip(one[level], two[level]), 1) if a != b) for level in one}
    with shown(browser, tmp_path, *map(RunData, folders)) as page:
        levels = page.locator(".entry code").all_text_contents()
        for place, level in enumerate(levels):
            page.click(f".entry >> nth={place}")
            said = f"replies differ from turn {differ[level]} on"
            soon(page.locator("article header .link").all_text_contents, [said] * 2)
