"""A second interpreter that answers requests, so that two stacks in different venvs can alternate in one run.

Requests and answers are one JSON object per line. This file needs only the standard library.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Worker:
    """A script of this folder, which runs in another interpreter and calls `serve`."""

    def __init__(self, python: str, script: str):
        """Starts the worker; `python` is the path of the interpreter."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.process = subprocess.Popen(
            [python, str(Path(__file__).parent / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, name: str, **arguments: Any) -> Any:
        """Calls the worker's function `name` and returns its result.

        Raises:
            RuntimeError: the function failed, or the worker has ended; its output says why.
        """
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"name": name, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended while it did {name}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{name} {arguments}: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        """Ends the worker."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def serve(functions: dict[str, Callable[..., Any]]) -> None:
    """Answers requests until the input ends. Output printed by the functions goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": functions[request["name"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def seconds(function: Callable[[], Any]) -> float:
    """Returns how many seconds a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
