"""A small environment for tests: it counts, and fails, sleeps or ends on command."""

import threading
import time

from agentrl_jax.services.action_parsing import ParsedAction
from agentrl_jax.services.environment import ItemError, Service, StepResult

ITEMS = 100
INFO = {"task_description": "Count.", "sites": ["a"], "object": "count", "available_actions": ["look", "go"]}


class Counting:
    """Counts up from its item; `end` ends the episode, `fail` raises, `sleep S` waits."""

    opened = 0
    closed = 0
    lock = threading.Lock()

    def __init__(self, upstream=False):
        self.upstream, self.number, self.inside = upstream, 0, False
        with self.lock:
            type(self).opened += 1

    def reset(self, item):
        if not 0 <= item < ITEMS:
            raise ItemError(f"no item {item}")
        self.number = item
        return StepResult(f"start {item}", info=INFO)

    def step(self, action):
        assert not self.inside, "two requests at once"
        self.inside = True
        try:
            word, _, value = action.partition(" ")
            if word == "fail":
                raise RuntimeError("told to fail")
            if word == "sleep":
                time.sleep(float(value))
            self.number += 1
            done = word == "end"
            return StepResult(f"{self.number} {action}", float(done), self.number / 100, done, {"success": done})
        finally:
            self.inside = False

    def doubled(self):
        return {"doubled": 2 * self.number}

    def close(self):
        with self.lock:
            type(self).closed += 1


def counting(kind=Counting):
    own = type("Own", (kind,), {"opened": 0, "closed": 0, "lock": threading.Lock()})
    service = Service(
        name="counting",
        make=own,
        items=ITEMS,
        instruction="Count.",
        read=ParsedAction,
        turns=5,
        solved=lambda answer: answer.done,
        success_rule="the episode is over",
        oracle=None,
        random=lambda item, seed: None,
        views=("doubled",),
        facts={"colors": ["red"]},
    )
    return service, own


def wait_until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
