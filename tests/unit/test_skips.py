import pytest
import skips


@pytest.mark.parametrize("kind", [pytest.TestReport, pytest.CollectReport])
def test_a_skipped_test_fails(kind):
    common = {"nodeid": "tests/test_page.py", "outcome": "skipped", "longrepr": ("file", 3, "Skipped: needs Chromium")}
    of_test = {"location": ("file", 3, "test"), "keywords": {}, "when": "setup"}
    report = skips.as_failure(kind(**common, **(of_test if kind is pytest.TestReport else {"result": []})))
    assert report.failed
    assert "needs Chromium" in report.longrepr


def test_other_reports_stay():
    for outcome in ("passed", "failed", "skipped"):
        report = pytest.TestReport("test", ("file", 3, "test"), {}, outcome, None, "call")
        if outcome == "skipped":
            report.wasxfail = "known"
        assert skips.as_failure(report).outcome == outcome
