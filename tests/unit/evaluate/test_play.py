import io

import pytest

from agentrl_jax.cli import main as cli
from agentrl_jax.evaluate.play import play, with_tags
from agentrl_jax.text.grammar import ResponseGrammar

LEVEL = "######\n#@ $.#\n######\n"

FIRST = """<|system|># wall _ floor O target √ box on target X box P you S you on target
Up Down Left Right<|user|>######
#P_XO#
######
######
######
######
10<|assistant|><answer>"""

SECOND = """<|end|><|user|>######
#_PXO#
######
######
######
######
9<|assistant|><answer>"""


@pytest.fixture
def typed(monkeypatch):
    def typed(text):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return typed


@pytest.fixture
def level(tmp_path):
    path = tmp_path / "level.txt"
    path.write_text(LEVEL)
    return str(path)


def test_a_person_reads_what_the_agent_reads(typed, level, capsys):
    typed("Right\nright || Up\nUp\n")
    with pytest.raises(SystemExit) as end:
        cli.main(["play", "SimpleSokoban", "--levels", level])
    out, err = capsys.readouterr()
    assert not end.value.code
    assert out == FIRST + SECOND  # the second response solves the level, so the third line is not read
    assert "Sent as: right || Up</answer>" in err
    assert "Solved, ended by the environment; return 10.8." in err


@pytest.mark.parametrize("text", ["Fly\n", "Fly\nquit\n"])
def test_the_end_of_the_input_and_quit_end_the_game(typed, capsys, text):
    typed(text)
    play("Bandit", style="ragen", think=True, seed=0, levels=None)
    out, err = capsys.readouterr()
    assert out.count("<|assistant|><think>") == 2
    assert out.endswith("<think>")
    assert "Reward:\n0.0\n\nTurn 2:" in out
    assert "Not understood in full.\n" in err
    assert "Engineer" not in err, "hints do not say which variant comes first by number"
    assert "ended by you" in err
    assert "Not solved, ended by you; return 0." in err


@pytest.mark.parametrize(
    ("think", "forced", "line", "response"),
    [
        (False, True, " Up || Left ", "Up || Left</answer>"),
        (False, False, "Up", "<answer>Up</answer>"),
        (True, True, "Up", "</think><answer>Up</answer>"),
        (True, False, "Up", "<think></think><answer>Up</answer>"),
        (False, True, "<answer>Up</answer>", "Up</answer>"),
        (True, True, "<think>so</think><answer>Up</answer>", "so</think><answer>Up</answer>"),
        (True, True, "so</think><answer>Up</answer>", "so</think><answer>Up</answer>"),
        (False, False, "<answer>Up", "<answer>Up"),
        (False, False, "well, <answer>Up</answer>", "well, <answer>Up</answer>"),
    ],
)
def test_tags_are_completed(think, forced, line, response):
    assert with_tags(line, ResponseGrammar(actions=("Up", "Left"), think=think, forced=forced)) == response
