import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
from benchmark_scripts import MODEL, PHASES, TOKENIZATION, params, script, tokenizer

from agentrl_jax.models import decoder
from agentrl_jax.setup import build


def test_canonical_is_the_whole_text_between_special_tokens():
    small, situations = tokenizer(), script("situations")
    cut = [*small.encode("<ans"), *small.encode("wer>U"), small.end_of_turn_id, *small.encode("p")]
    whole = [*small.encode("<answer>U"), small.end_of_turn_id, *small.encode("p")]
    assert len(whole) < len(cut)
    assert situations.canonical(small, cut) == whole
    assert situations.canonical(small, []) == []


def test_situations_hold_the_prompt_and_an_optimal_response():
    small, situations = tokenizer(), script("situations")
    lake, two_arms = build.build_compiled_env(TOKENIZATION, small).tasks
    found = situations.situations(lake, small, jax.random.key(0), 6, TOKENIZATION.prompt)
    assert len(found) == 6
    for s in found:
        board = small.decode(s.observation)
        assert (small.decode(s.whole), len(board), board.count("P")) == (board, 4 * 5 - 1, 1)
        assert s.head[: len(lake.prompt.prefix)] == lake.prompt.prefix.tolist()
        text = small.decode(s.head + s.observation + s.rest, skip_special=False)
        assert f"{board}\n" in text
        assert (text[-8:], small.decode(s.response)[-9:]) == ("<answer>", "</answer>")
    once = TOKENIZATION.prompt.replace(max_actions=1)
    arms = situations.situations(two_arms, small, jax.random.key(0), 6, once)
    assert [small.decode(s.response) for s in arms] == ["Teacher</answer>"] * 2  # both orders of display


def test_nats_are_sums_over_the_spans():
    weights = params()
    rows = [([5, 6, 7, 8, 9, 10], [(2, 3), (4, 6)]), ([11, 12, 13], [(1, 3)])]
    for (tokens, spans), sums in zip(rows, script("tokenization").score(weights, MODEL, rows)):
        logits = decoder.Decoder(made_run.SHAPE).apply({"params": weights["policy"]}, jnp.array([tokens]))
        scores = jax.nn.log_softmax(logits[0])
        wanted = [sum(float(scores[i - 1, tokens[i]]) for i in range(*span)) for span in spans]
        np.testing.assert_allclose(sums, wanted, rtol=1e-5)


def test_only_rows_that_are_trained_count(tmp_path):
    """A filter that keeps half of the groups halves the microbatch, and the calls of score and update."""
    phases, file = script("phases"), tmp_path / "tiny.yaml"
    file.write_text(PHASES)
    words = ["--devices", "1", "--algo.preset", "starpo_s", "--algo.filter.ratio", "0.5"]
    config = phases.load_config(str(file), words)
    ours = phases.Ours(config, None, 0, 0)
    assert (ours.run.episodes, ours.rows, ours.microbatch) == (8, 8, 2)
    assert ours.calls()[phases.UPDATE] == 2 * config.algo.epochs
    assert ours.calls()[phases.SCORE] == 2 * phases.score_passes(ours.run)
    with pytest.raises(SystemExit):  # Tunix would compute in another type
        phases.main([str(file), "--tunix-python", "python", "--model.precision", "mixed"])


def test_the_least_difference_is_that_of_the_least_times():
    least = script("phases").least
    assert least([3.0, 2.0, 2.5]) == 2.0
    assert least([[1.0, 3.0], [2.0, 2.5], [1.5, 4.0]]) == 1.5  # not 0.5


@pytest.mark.nightly
def test_every_phase_is_measured(tmp_path, capsys):
    phases, file = script("phases"), tmp_path / "tiny.yaml"
    file.write_text(PHASES)
    phases.main([str(file), "--rows", "4", "--repeats", "1", "--model.embed_dim", "32"])
    peaks, sizes, header, *lines, last = capsys.readouterr().out.splitlines()
    assert "peaks measured" in peaks
    assert sizes.startswith("4 rows of 2 turns, microbatches of 4 rows")
    assert header.split()[:3] == ["side", "ms", "tokens/s"]
    assert [line.split()[:2] for line in lines] == [[name, "here"] for name in phases.MEASURED]
    assert all(float(number) > 0 for line in lines for number in line.split()[2:6])
    assert {line.split()[6] for line in lines} <= {"compute", "memory"}
    assert "turns/s" in last


@pytest.mark.nightly
def test_play_pairs_levels_noise_and_sampling():
    """The shipped tokenizer gives the same tokens for both encodings of FrozenLake, so both must play the same."""
    config = TOKENIZATION.replace(tasks=TOKENIZATION.tasks[:1])
    for how, success, formatted in script("tokenization").play(config, params(), MODEL, tokenizer(), 16):
        assert how in ("sampled", "greedy")
        assert success.shape == formatted.shape == (16, 2)
        assert (success[:, 0] == success[:, 1]).all()
        assert (formatted[:, 0] == formatted[:, 1]).all()
