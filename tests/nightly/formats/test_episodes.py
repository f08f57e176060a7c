"""Recorded episodes of a pretrained model that sees single turns, with RAGEN's prompt."""

import made_run
import recorded

from agentrl_jax.formats.episodes import read_episodes


def test_contexts_of_single_turns_and_the_parts_of_ragens_prompt(tmp_path):
    model = made_run.write_model(tmp_path / "model")
    record = recorded.write_run(tmp_path / "run", recorded.SINGLE.replace("MODEL", str(model)))
    source = read_episodes(tmp_path / "run")
    assert source.model == "model"
    for row, episode in enumerate(source):
        for t, turn in enumerate(episode.turns):
            prompt = record.prompt[row, : record.prompt_length[row]]
            read = record.observation[row, t, : record.observation_length[row, t]]
            assert turn.prompt_token_ids == [*prompt, *read]
            assert f"Turn {t + 1}:" in turn.message
            assert turn.response.startswith("<think>")
            text = source.tokenizer.decode([*turn.prompt_token_ids, *turn.token_ids], skip_special=False)
            said = f"<|user|>{turn.message}<|end|><|assistant|>{turn.response}{'<|end|>' * turn.ended}"
            assert text == f"<|system|>{episode.system}<|end|>{said}"
