import dataclasses

import pytest
import toy_agent
from refusing import refusal

from agentrl_jax.config import decode, load_config
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN, Window
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.agents import check_window, context_of
from agentrl_jax.text.styles import Segment


@pytest.mark.parametrize(
    ("given", "context"),
    [
        ({}, FULL),
        ({"agent": "full"}, FULL),
        ({"agent": {"kind": "single_turn"}}, SINGLE_TURN),
        ({"agent": {"kind": "window", "turns": 3}}, Window(3)),
        ({"rollout": {"context": "single_turn"}}, SINGLE_TURN),
    ],
)
def test_the_context_of_a_run(given, context):
    config = decode(given)
    engine = build_inputs.engine_config(config, toy_agent.TOKENIZER, group_size=1, slots=0)
    assert context_of(config) == engine.context == build_inputs.learner_config(config).context == context


def test_the_key_of_before_is_read_on_the_command_line_and_refused_beside_its_new_name():
    agent = load_config({"agent": "single_turn"}, ["--rollout.context", "full"]).agent
    assert agent.kind == "full"
    agent = load_config({"rollout": {"context": "full"}}, ["--agent", "window", "--agent.turns", "3"]).agent
    assert (agent.kind, agent.limit, agent.label) == ("window", 3, "window(3)")
    error = refusal(decode, {"agent": "full", "rollout": {"context": "single_turn"}})
    assert (error.key, error.value) == ("rollout.context", "single_turn")


def test_windows_need_later_messages_that_can_be_first():
    (prompt, *_) = (task.prompt for task in toy_agent.BATCHED_ENV.tasks)
    turns = {"prompt": {"max_turns": 4}}
    engine = build_inputs.engine_config(decode(turns), toy_agent.TOKENIZER, group_size=1, slots=0)
    windows = dataclasses.replace(engine, context=Window(2))
    check_window(windows, [prompt])
    other = prompt.replace(message_parts=(Segment("text", ("[INST]",), when="first"), *prompt.message_parts))
    for context in (FULL, SINGLE_TURN):
        check_window(dataclasses.replace(engine, context=context), [other])
    assert refusal(check_window, windows, [prompt, other]).key == "agent.kind"
