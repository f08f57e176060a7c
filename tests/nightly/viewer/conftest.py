"""One browser for the tests of a file."""

import pytest


@pytest.fixture(scope="module")
def browser():
    from chromium import launched  # skips where Playwright is missing

    with launched() as browser:
        yield browser
