"""Python environments for tests; the trainer and processes of their own import them by `python_worlds:NAME`."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np

from agentrl_jax.environments import HostStep

print("imported")  # must not disturb the protocol of a process


class Count:
    """Says a number, to which the action `up` adds 1, until it is 3; `fault` happens in the second turn."""

    actions = ("up", "stay")
    instruction = "Count to 3."
    info_keys = ("number",)

    def __init__(self, fault="", above=-1):
        self.fault, self.above = fault, above
        if fault == "init":
            raise RuntimeError("no engine")

    @staticmethod
    def content(seed):
        return f"start {seed % 200}"

    def reset(self, seed):
        self.seed, self.number, self.turn = seed, 0, 0
        if self.fault == "no text":
            return ("text", {})
        return f"level {seed % 200}, at 0"

    def step(self, response, actions):
        self.turn += 1
        if self.turn == 2 and self.seed > self.above and self.fault:
            return self.fail()
        self.number = min(3, self.number + list(actions).count("up"))
        done = np.bool_(self.number == 3)
        return HostStep(
            f"at {self.number}",
            reward=np.float32(done),
            terminated=done,
            truncated=bool(done),
            success=int(done),
            valid=bool(actions),
            info={"number": np.int64(self.number)},
        )

    def fail(self):
        match self.fault:
            case "raise":
                raise RuntimeError("broken [/step]")
            case "exit":
                sys.exit(3)
            case "die":
                os._exit(4)
            case "hang":
                time.sleep(60)
            case "lock":
                re.match(r"(a+)+$", "a" * 60 + "b")
            case "child":
                child = subprocess.Popen(["sleep", "60"])
                return HostStep(str(child.pid))
            case "alarm":
                signal.signal(signal.SIGALRM, lambda *_: None)
                return HostStep(threading.current_thread().name)
            case "nan":
                return HostStep("x", reward=float("nan"))
            case "none":
                return None
            case "tuple":
                return "x", 0.0, False, False, {}
            case "surrogate":
                return HostStep("\ud800")
            case "info":
                return HostStep("x", info={"other": 1.0})

    def plan(self):
        return ["up"] * (3 - self.number)

    def close(self):
        pass


class Silent(Count):
    """Without contents, so that its seeds are divided by number."""

    content = None


class Random(Count):
    """Answers differently each time."""

    def step(self, response, actions):
        return HostStep(str(random.random()))


class Shared(Count):
    """In one thread."""

    one_thread = True

    def step(self, response, actions):
        super().step(response, actions)
        return HostStep(str(threading.get_ident()))


class Words:
    """Free text, and five items."""

    items = 5

    def reset(self, seed):
        return f"Say {seed}."

    def step(self, response, actions):
        return HostStep("", reward=1.0, terminated=True, success=actions == ["five"], valid=bool(actions))

    def close(self):
        pass
