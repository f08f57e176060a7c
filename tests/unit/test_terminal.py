"""What is printed at the terminal goes through one place."""

import ast

from paths import ROOT

from agentrl_jax.terminal import visible

PRODUCT = sorted((ROOT / "agentrl_jax").rglob("*.py"))


def test_no_other_console_is_made():
    made = {
        f"{file.name}: {name}"
        for file in PRODUCT
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and (name := ast.unparse(node.func)) in ("Console", "Text.from_markup", "print_json", "rich.print")
    }
    assert made == set()


def test_what_a_terminal_would_obey_is_escaped():
    assert visible("a\tb\n[/c] é移\u3000\u00a0") == "a\tb\n[/c] é移\u3000\u00a0"
    assert visible("\x1b[2J\r\x07\x9b\u202e\ud800") == r"\x1b[2J\r\x07\x9b\u202e\ud800"
