import json
import random
from pathlib import Path

import pytest
from chat_families import FAMILIES
from damage import LEVELS, TOKENIZER, damaged, ends_in_one_line, uses_tokenizer, with_odd_values

from agentrl_jax.config import TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.text import chat_template

TALK = [("user", "hi"), ("assistant", "<b>yo</b>"), ("user", "x")]
BOMBS = [
    *Path(__file__).with_name("bombs.jinja").read_text(encoding="utf-8").splitlines(),
    "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ns.x * 10**1000 %}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}" + "y" * 100000 + "{% endfor %}{% endset %}",
    "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "{% for i in a %}" * 30 + "{% endfor %}" * 30,
    "{{ " + "1" * 5000 + " }}",
    "{{ a" + ".a" * 20000 + " }}",
]


@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_bombs_are_refused(source, bounded_memory, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.5)
    assert not ends_in_one_line(lambda: chat_template.ChatTemplate(source).render(TALK, generate=True), ValueError)


WORDS = [b"{{", b"}}", b"{% for i in messages %}", b"{% endfor %}", b"{% endif %}", b"|", b"~ ", b"*10**10", b"[", b"'"]


@pytest.mark.parametrize("name", FAMILIES)
def test_damaged_templates(name, bounded_memory):
    rng = random.Random(name)
    source, variables = FAMILIES[name]
    for _ in range(150):
        text = damaged(source.encode(), rng, WORDS).decode("utf-8", "replace")
        template = chat_template.ChatTemplate(text, tuple(variables.items()))
        ends_in_one_line(lambda template=template: template.render(TALK, generate=True), ValueError)


@pytest.mark.parametrize("seed", range(2))
def test_damaged_tokenizers(seed, bounded_memory, capfd):
    rng = random.Random(seed)
    layout = json.loads(TOKENIZER)
    for number in range(400):
        content = damaged(TOKENIZER, rng) if number % 4 == 0 else json.dumps(with_odd_values(layout, rng)).encode()
        ends_in_one_line(lambda content=content: uses_tokenizer(content), ValueError)
    assert capfd.readouterr().err == ""  # a panic of the library prints by itself


CHARACTERS = [bytes([byte]) for byte in b"#@$.*+SFHG \n\r\x0b\x85;-_=059()"]


@pytest.mark.parametrize("kind", LEVELS, ids="-".join)
def test_damaged_levels(kind, tmp_path, bounded_memory):
    env, suffix = kind
    rng = random.Random(env + suffix)
    file = tmp_path / f"levels.{suffix}"
    for _ in range(400):
        file.write_bytes(damaged(LEVELS[kind], rng, [*CHARACTERS, b"99999999999", b"\xe2\x80\xa8", b"\0", b"1L"]))
        ends_in_one_line(lambda: make_env(TaskConfig(env=env, groups=1, levels=str(file))), UserError)
