"""Chromium for the tests of the page: what opens a page in it and waits for what a reader sees."""

import contextlib
import os
import re
import shutil
import threading
import time

import pytest

from agentrl_jax.viewer.export import write_page
from agentrl_jax.viewer.live import PageServer

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ARGUMENTS = ["--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]

CONTRASTS = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return text.startsWith("color(srgb") ?
    [255 * n[0], 255 * n[1], 255 * n[2], n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1]; };
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const ground = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; } return [255, 255, 255, 1]; };
  const found = [];
  for (const e of document.querySelectorAll("#app *")) {
    if (e.closest("svg, select, dialog, .swatches") || e.disabled || !e.checkVisibility()) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), e.className + ": " + e.textContent.slice(0, 30)]);
  }
  return found;
}"""
"""The contrast of every text on the page with what is behind it."""

UNNAMED = """() => [...document.querySelectorAll("button, input, select, [role=region], [role=img]")]
  .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length))
  .map((e) => e.outerHTML)"""


@contextlib.contextmanager
def launched():
    sandbox = [] if os.getuid() else ["--no-sandbox"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *sandbox])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, url, *, width=1400, height=900, scheme="light", requests=lambda url: False):
    """A page that is open; at the end, it has logged nothing and asked for nothing but what `requests` allows."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(20_000)
    seen, said = [], []
    page.on("request", lambda request: seen.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog {dialog.message}") or dialog.dismiss())
    page.goto(url)
    page.wait_for_selector(".conversation .text")
    yield page
    assert said == []
    assert [asked for asked in seen if asked.split("#")[0] != url.split("#")[0] and not requests(asked)] == []
    page.close()


@contextlib.contextmanager
def shown(browser, folder, *data, **options):
    write_page(folder / "page.html", data)
    with opened(browser, (folder / "page.html").as_uri(), **options) as page:
        yield page


@contextlib.contextmanager
def served(browser, data):
    with PageServer([data]) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with opened(browser, server.url, requests=lambda url: url == f"{server.url}version") as page:
            yield page
        server.shutdown()
        thread.join()


def soon(read, wanted):
    """What is read becomes what is wanted: the page draws after the call that changed it has returned."""
    deadline = time.monotonic() + 20
    while (found := read()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found == wanted


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def reload(page):
    page.reload()
    page.wait_for_selector(".conversation .text")


def assert_readable(page):
    found = page.evaluate(CONTRASTS)
    assert found
    assert [entry for entry in found if entry[0] < 4.5] == []


def assert_turn(page, turn, sides=1):
    expect(page.locator(f"[aria-current=step][data-turn='{turn}']")).to_have_count(sides)


def title(page) -> tuple[int, int]:
    return tuple(map(int, re.findall(r"\d+", page.text_content(".episode h2"))))


def heading(page) -> str:
    return page.text_content("article h2")


def status(page) -> str:
    return page.text_content(".listhead [role=status]")


def count(page) -> int:
    return int(status(page).split()[0])
