"""A plugin that says where the seconds of the suite go: `TEST_COSTS=1 make test` prints a table at the end.

Seconds of a folder of tests by cause: tracing (and lowering) programs, compiling them, waiting for processes, sleeping,
and the rest, which runs programs and Python. A second within several causes counts for the first of them in that
order. Seconds are those of the process that tests; with two of them on two cores the wall time is about half.
"""

import collections
import json
import os
import subprocess
import time
from pathlib import Path

import jax
import pytest
from paths import TESTS

CAUSES = ("tracing", "compiling", "processes", "sleeping")
_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "tracing",
    "/jax/core/compile/backend_compile_duration": "compiling",
}


def union(spans):
    """Returns the length of the union of spans (begin, end), and the union."""
    joined = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return sum(end - begin for begin, end in joined), joined


class Costs:
    """Counts in each process, and adds up in the one that reports."""

    def __init__(self, config):
        self.worker = hasattr(config, "workerinput")
        self.spans = collections.defaultdict(list)
        self.seconds = collections.defaultdict(lambda: collections.defaultdict(float))
        jax.monitoring.register_event_duration_secs_listener(self._event)
        time.sleep = self._timed("sleeping", time.sleep)
        for name in ("wait", "communicate"):
            setattr(subprocess.Popen, name, self._timed("processes", getattr(subprocess.Popen, name)))

    def _event(self, event, seconds, **_):
        if cause := _EVENTS.get(event):
            now = time.monotonic()
            self.spans[cause].append((now - seconds, now))

    def _timed(self, cause, function):
        def timed(*arguments, **options):
            began = time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                self.spans[cause].append((began, time.monotonic()))

        return timed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.spans.clear()
        began = time.monotonic()
        result = yield
        whole, known, before = time.monotonic() - began, [], 0.0
        row = self.seconds[str(Path(item.path).relative_to(TESTS))]
        for cause in CAUSES:
            length, known = union([*known, *(span for span in self.spans[cause] if span[0] >= began)])
            row[cause] += length - before
            before = length
        row["running"] += whole - before
        return result

    def pytest_sessionfinish(self, session):
        if self.worker:
            session.config.workeroutput["costs"] = json.dumps(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        for file, row in json.loads(getattr(node, "workeroutput", {}).get("costs", "{}")).items():
            for cause, seconds in row.items():
                self.seconds[file][cause] += seconds

    def pytest_terminal_summary(self, terminalreporter):
        folders = collections.defaultdict(lambda: collections.defaultdict(float))
        for file, row in self.seconds.items():
            for cause, seconds in row.items():
                for name in ("all", str(Path(file).parent)):
                    folders[name][cause] += seconds
        write = terminalreporter.write_line
        columns = (*CAUSES, "running")
        write(f"{'seconds':32}{'all':>10}" + "".join(f"{cause:>11}" for cause in columns))
        for folder, row in sorted(folders.items(), key=lambda entry: -sum(entry[1].values())):
            write(f"{folder:32}{sum(row.values()):>10.1f}" + "".join(f"{row[cause]:>11.1f}" for cause in columns))


def install(config):
    """Adds the plugin if the environment asks for it."""
    if os.environ.get("TEST_COSTS") == "1":
        config.pluginmanager.register(Costs(config))
