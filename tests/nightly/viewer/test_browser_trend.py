"""The bands of random and optimal play, and what is said of a replay, in Chromium."""

import json

import pytest
from checkpoints import write_checkpoints
from chromium import assert_readable, expect, needs_chromium, shown, soon, title
from page_runs import make_record, write_run

from agentrl_jax.viewer.data import RunData

pytestmark = needs_chromium

BAND_ROWS = """() => {
  const canvas = document.querySelector(".trend canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const filled = (y) => { let n = 0; for (let x = 0; x < canvas.width; x++)
    n += Math.abs(data[4 * (y * canvas.width + x) + 3] - 0.28 * 255) < 3; return n > canvas.width / 3; };
  return [...Array(canvas.height).keys()].filter(filled).map((y) => y / canvas.height);
}"""
"""Rows of the first chart that are filled as bands are, as shares of its height from the top."""


def shown_run(browser, folder, scheme="light", **line):
    """The page of a run of iterations 1, 5 and 9 with such an interval of random play."""
    run = write_run(folder / "run", [make_record(i) for i in (1, 5, 9)])
    success = {"random": {"mean": 0.12, "low": 0.08, "high": 0.4} | line, "optimal": {"mean": 0.9}}
    (run / "summary.json").write_text(json.dumps({"success": success}))
    write_checkpoints(run, {7: 0})
    return shown(browser, folder, RunData(run, boards=False), scheme=scheme)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_intervals_of_the_baselines_are_bands(browser, tmp_path, scheme):
    with shown_run(browser, tmp_path, scheme) as page:
        legend = page.locator(".trend figcaption").first
        expect(legend).to_contain_text("random 12.0 % 8.0 to 40.0")
        expect(legend).to_contain_text("optimal 90.0 % 95 % interval")  # the interval of optimal play is not known
        rows = page.evaluate(BAND_ROWS)
        assert max(rows) - min(rows) == pytest.approx(0.32 / 1.06 * 94 / 124, abs=0.04)
        assert_readable(page)


def test_without_intervals_there_is_no_band(browser, tmp_path):
    with shown_run(browser, tmp_path, high=None) as page:
        expect(page.locator(".trend figcaption").first).not_to_contain_text("interval")
        assert page.evaluate(BAND_ROWS) == []


def test_a_replay_that_trains_again_says_so(browser, tmp_path):
    """The steps of the iterations are 4, 8 and 12: the checkpoint of step 7 is right before the second."""
    with shown_run(browser, tmp_path) as page:
        note = page.locator(".command + .replay-note")
        for iteration, said in (
            (1, "3 steps again, from the start"),
            (5, ""),
            (9, "4 steps again, from the checkpoint"),
        ):
            page.evaluate(f"location.hash = 'i={iteration}&r=0'")
            soon(lambda iteration=iteration: title(page), (iteration, 0))
            expect(note).to_have_count(bool(said))
            if said:
                expect(note).to_contain_text(said)
