"""Chat templates made to take much time or memory, and damaged ones."""

import random

import chat_families
import pytest
from damage import damaged, ends_in_one_line

from agentrl_jax.text import chat_template
from agentrl_jax.text.chat_template import ChatTemplate

TALK = [("user", "hi"), ("assistant", "<b>yo</b>"), ("user", "x")]
DOUBLING = "{% set ns = namespace(a='a', b='b') %}{% for i in range(60) %}STEP{% endfor %}{{ ns.a }}"

BOMBS = [
    "{{ 'a' * 30000000000 }}",
    "{{ 'a' * 16000000 }}",
    "{{ 30000000000 * [1] }}",
    "{% for i in range(10**10) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    *("{{ 'a'" + growing + " }}" for growing in ("|center(10**10)", ".center(10**10)", ".ljust(10**10)")),
    *(
        "{{ 'a'" + growing + " }}"
        for growing in (".zfill(10**10)", "|indent(10**10, true)", ".encode().center(10**10)")
    ),
    "{{ '\t'.expandtabs(10**10) }}",
    *(
        DOUBLING.replace("STEP", "{% set ns.a = EXPR %}".replace("EXPR", grown))
        for grown in ("ns.a ~ ns.a", "ns.a + ns.a", "'%s%s' % (ns.a, ns.a)", "[ns.a, ns.a]", "{'x': ns.a, 'y': ns.a}")
    ),
    DOUBLING.replace("STEP", "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}") + "{{ ns.a == ns.b }}",
    "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}xxxxxx{% endmacro %}{{ m(60) }}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{{ 10**(10**9) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    *("{{ '%10000000000d' " + how + " }}" for how in ("% 1", "|format(1)")),
    "{{ '%*d' % (10**10, 1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**10) }}",
    "{{ '{:10000000000}'['format'](1) }}",
    *("{{ [1]|" + name + " }}" for name in ("tojson(indent=10**10)", "batch(10**10, 'x')|list", "slice(10**10)|list")),
    "{{ lipsum(10**9) }}",
    "{{ range(90000)|join('x' * 4000000) }}",
    "{{ ('x' * 4000000).join(range(99)|map('string')) }}",
    *("{{ ('a' * 4000000)" + name + "replace('a', 'b' * 4000000) }}" for name in ".|"),
    "{% set x = 'a' * 4000000 %}{% for i in range(90000) %}{{ x[1:]|length }}{% endfor %}",
    "{% set x %}{% for i in range(90000) %}{{ 'a' * 4000000 }}{% endfor %}{% endset %}",
    "{% set x %}{% for i in range(99999) %}" + "y" * 100000 + "{% endfor %}{% endset %}",
    "{{ ['a']|map('center', 10**10)|list }}",
    "{{ range(99999)|list|sum(start=[]) }}",
    "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "{% for i in a %}" * 30 + "{% endfor %}" * 30,
    "{{ " + "1" * 5000 + " }}",
    "{{ a" + ".a" * 20000 + " }}",
    "{{ raise_exception('x' * 4000000) }}",
    "{{ '\\ud800' }}",
]


@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_bombs_are_refused(source, bounded_memory, monkeypatch):
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.5)
    assert not ends_in_one_line(lambda: ChatTemplate(source).render(TALK, generate=True), ValueError)


WORDS = [b"{{", b"}}", b"{% for i in messages %}", b"{% endfor %}", b"{% endif %}", b"|", b"~ ", b"*10**10", b"[", b"'"]


@pytest.mark.parametrize("name", chat_families.FAMILIES)
def test_damaged_templates(name, bounded_memory):
    rng = random.Random(name)
    source, variables = chat_families.FAMILIES[name]
    for _ in range(150):
        text = damaged(source.encode(), rng, WORDS).decode("utf-8", "replace")
        template = ChatTemplate(text, tuple(variables.items()))
        ends_in_one_line(lambda template=template: template.render(TALK, generate=True), ValueError)
