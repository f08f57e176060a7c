"""A plugin of pytest that ends at the first failed assertion, and writes what was found to a file."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

RESULT = "MUTANTS_RESULT"
"""Variable of the environment with the path of the file."""

MOST_RAISED = 10
"""Tests that may fail with other exceptions before the rest is not run."""


@dataclasses.dataclass
class Session:
    """What one process of pytest, in which this module is a plugin, has found."""

    killed: str = ""
    raised: str = ""
    collection: str = ""
    failures: int = 0


_session = Session()


def is_assertion(error: BaseException) -> bool:
    """Whether an exception is a failed assertion of a test, and not a limit of time."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_assertion, error.exceptions))
    return isinstance(error, AssertionError) or (
        isinstance(error, pytest.fail.Exception) and not str(error).startswith("Timeout")
    )


def pytest_sessionstart(session):
    """Hypothesis need not look for the smallest input that fails."""
    import hypothesis

    if RESULT in os.environ:
        usual = hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name())
        phases = [phase for phase in usual.phases if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
        hypothesis.settings.register_profile("mutants", usual, phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Ends the session at the first failed assertion."""
    report = yield
    if report.failed and call.excinfo is not None:
        if is_assertion(call.excinfo.value):
            _session.killed = item.nodeid
            item.session.shouldstop = "noticed"
        else:
            _session.raised = _session.raised or f"{item.nodeid}: {call.excinfo.typename}"
            _session.failures += 1
            if _session.failures >= MOST_RAISED:
                item.session.shouldstop = "raises everywhere"
    return report


def pytest_collectreport(report):
    """Notes a file that cannot be imported."""
    if report.failed:
        _session.collection = report.nodeid


def pytest_sessionfinish(session):
    """Writes what was found."""
    if RESULT in os.environ:
        Path(os.environ[RESULT]).write_text(json.dumps(dataclasses.asdict(_session)))
