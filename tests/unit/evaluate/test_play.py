import io

import pytest
import tiny_run

from agentrl_jax.evaluate.play import with_tags
from agentrl_jax.text.grammar import ResponseGrammar

BOARD = "<|user|>######\n{}\n" + "######\n" * 4 + "{}<|assistant|><answer>"
LEGEND = "<|system|># wall _ floor O target √ box on target X box P you S you on target\nUp Down Left Right"


def test_a_person_reads_what_the_agent_reads(monkeypatch, tmp_path):
    (tmp_path / "level.txt").write_text("######\n#@ $.#\n######\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("Right\nright || Up\nUp\n"))
    code, out, err = tiny_run.command("play", "SimpleSokoban", "--levels", str(tmp_path / "level.txt"))
    assert code == 0
    # The second response solves the level, so the third line is not read.
    assert out == LEGEND + BOARD.format("#P_XO#", 10) + "<|end|>" + BOARD.format("#_PXO#", 9)
    assert "Sent as: right || Up</answer>" in err
    assert "Solved, ended by the environment; return 10.8." in err


@pytest.mark.parametrize("text", ["Fly\nquit\n", pytest.param("Fly\n", marks=pytest.mark.nightly)])
def test_the_end_of_the_input_and_quit_end_the_game(monkeypatch, text):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    _, out, err = tiny_run.command("play", "Bandit", "--style", "ragen", "--think", "--seed", "5")
    assert out.count("<|assistant|><think>") == 2
    assert out.endswith("<think>")
    assert "Reward:\n0.0\n\nTurn 2:" in out
    assert "from: Engineer and Teacher." in out, "with the default seed it is the other way around"
    assert "Not understood in full.\n" in err
    assert "Engineer" not in err, "hints do not say which variant comes first by number"
    assert "Not solved, ended by you; return 0." in err


def test_tags_are_completed():
    for think, forced, line, response in (
        (False, True, " Up || Left ", "Up || Left</answer>"),
        (False, False, "Up", "<answer>Up</answer>"),
        (True, True, "Up", "</think><answer>Up</answer>"),
        (True, False, "Up", "<think></think><answer>Up</answer>"),
        (False, True, "<answer>Up</answer>", "Up</answer>"),
        (True, True, "<think>so</think><answer>Up</answer>", "so</think><answer>Up</answer>"),
        (True, True, "so</think><answer>Up</answer>", "so</think><answer>Up</answer>"),
        (False, False, "well, <answer>Up</answer>", "well, <answer>Up</answer>"),
    ):
        assert with_tags(line, ResponseGrammar(actions=("Up", "Left"), think=think, forced=forced)) == response
