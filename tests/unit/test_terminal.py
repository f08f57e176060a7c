import ast

from paths import ROOT

from agentrl_jax.terminal import visible

PRODUCT = sorted((ROOT / "agentrl_jax").rglob("*.py"))


def test_no_other_console_is_made():
    for file in PRODUCT:
        called = {ast.unparse(x.func) for x in ast.walk(ast.parse(file.read_text())) if isinstance(x, ast.Call)}
        assert not called & {"Console", "Text.from_markup", "print_json", "rich.print"}, file


def test_what_a_terminal_would_obey_is_escaped():
    assert visible("a\tb\n[/c] é移\u3000\u00a0") == "a\tb\n[/c] é移\u3000\u00a0"
    assert visible("\x1b[2J\r\x07\x9b\u202e\ud800") == r"\x1b[2J\r\x07\x9b\u202e\ud800"
