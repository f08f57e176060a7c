"""A plugin of pytest that ends at the first failed assertion, and writes what was found to a file."""

import json
import os
from pathlib import Path

import pytest

RESULT = "MUTANTS_RESULT"
"""Variable of the environment with the path of the file."""

MOST_RAISED = "MUTANTS_MOST_RAISED"
"""Variable of the environment: tests that may fail with other exceptions before the rest is not run."""

_found = {"killed": "", "raised": "", "collection": ""}
_failures: list[str] = []


def is_assertion(error: BaseException) -> bool:
    """Whether an exception is a failed assertion of a test, and not a limit of time."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_assertion, error.exceptions))
    return isinstance(error, AssertionError) or (
        isinstance(error, pytest.fail.Exception) and not str(error).startswith("Timeout")
    )


def pytest_sessionstart(session):
    """Hypothesis need not look for the smallest input that fails."""
    if RESULT in os.environ:
        from hypothesis import Phase, settings

        usual = settings.get_profile(settings.get_current_profile_name())
        phases = [phase for phase in usual.phases if phase not in (Phase.shrink, Phase.explain)]
        settings.register_profile("mutants", usual, phases=phases, database=None)
        settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Ends the session at the first failed assertion."""
    report = yield
    if report.failed and call.excinfo is not None:
        if is_assertion(call.excinfo.value):
            _found["killed"] = item.nodeid
            item.session.shouldstop = "noticed"
        else:
            _failures.append(f"{item.nodeid}: {call.excinfo.typename}")
            _found["raised"] = _failures[0]
            if len(_failures) >= int(os.environ[MOST_RAISED]):
                item.session.shouldstop = "raises everywhere"
    return report


def pytest_collectreport(report):
    """Notes a file that cannot be imported."""
    if report.failed:
        _found["collection"] = report.nodeid


def pytest_sessionfinish(session):
    if RESULT in os.environ:
        Path(os.environ[RESULT]).write_text(json.dumps(_found))
