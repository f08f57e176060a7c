"""Chatting with the policy of a run, and with the model that it exports."""

import io

import made_run
import tiny_run

from agentrl_jax.config import load_resolved
from agentrl_jax.evaluate import chat
from agentrl_jax.models.io.load import load_pretrained


def test_the_policy_of_a_run_talks(tmp_path, monkeypatch):
    """Its responses equal those of the exported model, not those of the base model."""
    thinker = made_run.write_model(tmp_path / "thinker", made_run.THINKING)
    model = f"pretrained: {thinker}, lora: {{rank: 2, alpha: 3.0}}"
    run = made_run.write_run(tmp_path / "run", model, "think: true, max_response_tokens: 8")
    assert tiny_run.command("export", str(run), str(tmp_path / "whole"))[0] == 0
    found = chat.speaker(str(run))
    assert (found.positions, found.thinking) == (512, True)

    def response(speaker):
        return list(chat.Conversation(*speaker[:3], length=60).respond("Up?", 20))

    assert response(found) == response(chat.speaker(str(tmp_path / "whole")))
    base = load_pretrained(load_resolved(run / "config.yaml").model.pretrained)
    assert response(found) != response((base.params, base.config.decoder, found.tokenizer))
    monkeypatch.setattr("sys.stdin", io.StringIO("Up?\n"))
    code, out, _ = tiny_run.command("chat", str(run), "--max_tokens", "4", "--length", "100")
    assert (code, out) == (0, found.tokenizer.decode(response(found)[:4]) + "\n")
