"""One browser for the tests of a file, and the records of their run."""

import pytest
from page_runs import make_record


@pytest.fixture(scope="module")
def browser():
    from chromium import launched  # skips where Playwright is missing

    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def records():
    return [make_record(i) for i in (1, 10, 36)]
