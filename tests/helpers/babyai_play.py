"""Play of the service babyai, beside what was recorded of AgentGym's server."""

import babyai_fixtures as recorded
import pytest

from agentrl_jax.services.catalog import get_service
from envs_jax.babyai import items, plans

SERVICE = get_service("babyai")
LOST_ITEM, LOST_ACTION = 12, "toggle and go through red closed door 1"
"""The action opens the door that the item asks for, which by AgentGym's rules does not count: the agent walks on."""


def play(item, actions, *, upstream):
    instance = SERVICE.make(upstream)
    return [instance.reset(item), *(instance.step(action) for action in actions)]


def check_recorded_answers(stride):
    traces, texts = recorded.read("traces"), recorded.action_texts()
    starts, instance = traces["sequence_start"], SERVICE.make(True)
    for row in range(0, len(starts) - 1, stride):
        item = traces["sequence_item"][row]
        first = instance.reset(int(traces["index"][item]))
        assert (recorded.digest(first.observation.encode()) == traces["first_text"][item]).all()
        for step in range(starts[row], starts[row + 1]):
            answer = instance.step(texts[traces["action"][step]])
            where = f"item {traces['index'][item]}, step {step - starts[row]}, {texts[traces['action'][step]]!r}"
            assert (recorded.digest(answer.observation.encode()) == traces["text"][step]).all(), where
            assert answer.reward == traces["reward"][step], where
            assert answer.score == pytest.approx(traces["score"][step], abs=1e-12), where
            assert answer.done == traces["done"][step], where


def check_plans(stride):
    stored = plans.stored()
    assert {item for item in items.stored_indices() if items.number_of(item) in items.NUMBERS} == set(stored)
    assert all(stored[item] is not None for item in items.panel())
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        instance = SERVICE.make(upstream)
        failed = []
        for item, plan in list(stored.items())[::stride]:
            if item in items.UNSOLVABLE and not upstream:
                continue  # another level is played
            policy, answer = oracle(item), instance.reset(item)
            for _ in plan or ():
                answer = instance.step(policy.act(answer.observation))
            if plan is not None and not SERVICE.solved(answer):
                failed.append(item)
            assert len(plan or ()) <= plans.ROUNDS
        assert failed == []
