"""A plugin that says where the seconds of the suite go: `TEST_COSTS=1 make test` prints a table at the end.

Seconds of a folder of tests by cause: tracing (and lowering) programs, compiling them, waiting for processes, sleeping,
and the rest, which runs programs and Python. A second within several causes counts for the first of them in that
order. Seconds are those of the process that tests; with two of them on two cores the wall time is about half.
"""

import collections
import os
import subprocess
import time
from pathlib import Path

import jax
import pytest

CAUSES = ("tracing", "compiling", "processes", "sleeping")
_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


def length(spans):
    total, known = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, known))
        known = max(known, end)
    return total


class Costs:
    def __init__(self):
        self.spans = collections.defaultdict(list)
        self.folders = collections.defaultdict(collections.Counter)
        jax.monitoring.register_event_duration_secs_listener(self._event)
        time.sleep = self._timed("sleeping", time.sleep)
        for name in ("wait", "communicate"):
            setattr(subprocess.Popen, name, self._timed("processes", getattr(subprocess.Popen, name)))

    def _event(self, event, seconds, **_):
        now = time.monotonic()
        self.spans[_EVENTS.get(event)].append((now - seconds, now))

    def _timed(self, cause, function):
        def timed(*arguments, **options):
            began = time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                self.spans[cause].append((began, time.monotonic()))

        return timed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call):
        report, spans, before = (yield), [], 0.0
        for cause in CAUSES:
            spans += [span for span in self.spans.pop(cause, []) if span[1] > time.monotonic() - call.duration]
            report.user_properties = [*report.user_properties, (cause, length(spans) - before)]
            before = length(spans)
        report.user_properties = [*report.user_properties, ("running", call.duration - before)]
        return report

    def pytest_runtest_logreport(self, report):
        for folder in ("all", str(Path(report.location[0]).parent)):
            self.folders[folder].update(dict(report.user_properties))

    def pytest_terminal_summary(self, terminalreporter):
        write, columns = terminalreporter.write_line, (*CAUSES, "running")
        write(f"{'seconds':32}{'all':>10}" + "".join(f"{cause:>11}" for cause in columns))
        for folder, row in sorted(self.folders.items(), key=lambda entry: -entry[1].total()):
            write(f"{folder:32}{row.total():>10.1f}" + "".join(f"{row[cause]:>11.1f}" for cause in columns))


def install(config):
    if os.environ.get("TEST_COSTS") == "1":
        config.pluginmanager.register(Costs())
