"""Skipped tests as failures, for runs that must have every tool that a test needs."""

import os

REQUIRED = os.environ.get("TEST_TOOLS") == "1"
"""Nothing may be skipped: `make test-tools`."""


def as_failure(report):
    """Makes the report of a skipped test, or of a file that was skipped while it was read, one of a failure."""
    if report.skipped and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: TEST_TOOLS is 1, so that no test may be skipped, but: {reason}"
    return report
