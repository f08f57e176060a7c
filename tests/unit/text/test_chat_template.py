import dataclasses
import datetime
import json
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
from chat_families import FAMILIES, backend, family, with_template
from refusing import refusal

from agentrl_jax.errors import UserError
from agentrl_jax.text import chat_template, template_worker, tokenizer
from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.chat_template_out import write_template
from agentrl_jax.text.conversation import conversation_ids, turn_ids

TALK = [("system", "Be kind."), ("user", " Hi!\n"), ("assistant", "<b>Hello</b>"), ("user", "Bye 'now' {{ x }} √")]


def test_the_real_template_of_smollm2(smollm2):
    names = ("bos_token", "eos_token", "pad_token")
    assert smollm2.template.variables == tuple(zip(names, ("<|im_start|>", "<|im_end|>", "<|im_end|>")))
    assert smollm2.stop_ids == (smollm2.special_id("<|im_end|>"),)
    assert smollm2.special_name(smollm2.pad_id) == "<|endoftext|>"  # its own padding token ends turns


def test_the_date_is_given():
    template = family("llama3.2").template
    assert "Today Date: 26 Jul 2024\n" in template.render(TALK, generate=True)
    later = ChatTemplate(template.source, template.variables, datetime.date(2031, 2, 3))
    assert "Today Date: 03 Feb 2031\n" in later.render(TALK, generate=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in %}", "no Jinja template: line 1"),
        ("{{ raise_exception('only one turn') }}", "refuses a conversation of system, user: only one turn"),
        ("{% for i in range(90000) %}{{ messages[0].content * 100 }}{% endfor %}", "more than 262248 characters"),
        (" " * ((1 << 17) + 1), "expected at most 131072"),
        ("{{ messages.append(1) }}", "refuses"), ("{{ ''.__class__.__base__.__subclasses__() }}", "refuses"),
        ("{{ namespace.__init__.__globals__ }}", "refuses"), ("{{ 1 + messages[0].content }}", "refuses"),
        ("{% for i in range(1000000) %}x{% endfor %}", "refuses"), ("{{ '\\ud800' }}", "half of a surrogate"),
    ],
    ids=range(10),
)  # fmt: skip
def test_templates_that_go_wrong_are_refusals(source, message):
    with pytest.raises(ValueError, match=message):
        ChatTemplate(source).render(TALK[:2], generate=False)


def assert_renders():
    assert ChatTemplate("{{ messages[0].content }}").render(TALK, generate=False) == "Be kind."


# Each rendering takes a part of the time, of which there are many.
IN_PARTS = FAMILIES["chatml"][0] + "{% for i in range(99999) %}{% set x = i ~ '' %}{% endfor %}" * 2


def test_a_hostile_template_is_refused_within_a_second_and_the_start_of_two_processes():
    """Of processor time: the second process is started because the first one was ended."""

    def used():
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    chat_template._worker().communicate()
    chat_template._worker.cache_clear()
    before = used()
    assert_renders()
    chat_template._worker().communicate()
    chat_template._worker.cache_clear()
    start = used() - before
    before, worker = used(), chat_template._worker()
    with pytest.raises(ValueError, match="the chat template refuses a conversation"):
        chat_format(with_template(IN_PARTS))
    if worker.poll() is None:
        worker.communicate()
    assert used() - before < 2 * start + 1.5 * chat_template.MAX_SECONDS
    assert_renders()


def test_a_process_that_does_not_start_is_no_refusal_of_the_template(monkeypatch):
    silent = shutil.which("true")
    monkeypatch.setattr(sys, "executable", silent)
    assert refusal(chat_template._worker.__wrapped__).key.startswith(f"{silent} ")


def test_the_process_that_renders_may_end_at_any_time(monkeypatch):
    """Ended before, it is started again; an interrupt ends it; ended from outside meanwhile is no refusal."""
    first = chat_template._worker()
    first.kill()
    first.wait()
    assert_renders()
    worker = chat_template._worker()
    assert worker is not first
    with monkeypatch.context() as patched:
        patched.setattr(worker, "stdout", SimpleNamespace(readline=mock.Mock(side_effect=KeyboardInterrupt)))
        with pytest.raises(KeyboardInterrupt):
            ChatTemplate("late").render(TALK, generate=False)
    worker.wait()
    assert_renders()
    worker = chat_template._worker()

    def ended():
        worker.kill()
        return ""

    monkeypatch.setattr(worker, "stdout", SimpleNamespace(readline=ended, close=worker.stdout.close))
    monkeypatch.setattr(worker, "communicate", worker.wait)
    with pytest.raises(UserError, match="was killed by another process"):
        ChatTemplate("x").render(TALK, generate=False)


ELSEWHERE = """
import pathlib
from agentrl_jax.text import template_worker
template_worker.STATM, template_worker.MAX_MEMORY = pathlib.Path("/absent"), 1 << 24
template_worker.main()
"""
LARGE = "{% set ns = namespace(x='a') %}{% for i in range(26) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}" + IN_PARTS


def test_memory_is_limited_where_the_system_does_not_do_it():
    request = {"messages": [{"role": "user", "content": "Hi"}], "generate": False, "variables": {}, "seconds": 60}
    requests = [request | {"date": "2026-01-02", "source": source} for source in ("{{ messages[0].content }}", LARGE)]
    given = "".join(json.dumps(each) + "\n" for each in requests)
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=given, capture_output=True, text=True)
    _, *answers = done.stdout.splitlines()
    assert [json.loads(answer)["text"] for answer in answers] == ["Hi"]
    assert done.returncode == template_worker.TOO_MUCH_MEMORY


def test_without_transformers(monkeypatch):
    chat_template._worker.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refusal(with_template, FAMILIES["chatml"][0]).key == "transformers"


def test_longest_special_token_is_found():
    assert chat_template.special_pattern(["<a", "<a>", "b"]).findall("<a><ab") == ["<a>", "<a", "b"]
    assert chat_template.special_pattern([]).findall("<a>") == []


def folder_with(path, **files):
    (path / "tokenizer.json").write_text(backend().to_str(), encoding="utf-8")
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_folder_brings_its_template_and_its_names(tmp_path):
    small = backend()
    bos = {"content": "<|begin_of_text|>", "lstrip": False}
    stops = [small.token_to_id(name) for name in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    config = {"chat_template": FAMILIES["llama3"][0], "bos_token": bos, "eos_token": "<|end_of_text|>"}
    path = folder_with(tmp_path, tokenizer_config=config, generation_config={"eos_token_id": stops})
    llama = tokenizer.load(path)
    assert [llama.special_name(i) for i in llama.stop_ids] == ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"]
    assert llama.end_of_turn_id == llama.stop_ids[0]
    assert llama.special_name(llama.pad_id) == "<|pad|>"
    assert llama.template.render([("user", "x")], generate=False).startswith("<|begin_of_text|><|start_header_id|>")
    bare = tokenizer.load(path / "tokenizer.json")
    assert bare.template is None
    assert bare.stop_ids == (bare.end_of_turn_id,)
    given = tokenizer.load(path, end_of_turn="<|eom_id|>")
    assert [given.special_name(i) for i in given.stop_ids] == ["<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"]


def test_a_folder_without_a_template_still_names_its_end(tmp_path):
    config, special = {"eos_token": "</s>", "pad_token": "</s>"}, {"pad_token": "<|eom_id|>"}
    path = folder_with(tmp_path, tokenizer_config=config, special_tokens_map=special)

    def names():
        loaded = tokenizer.load(path)
        return [loaded.special_name(i) for i in (loaded.end_of_turn_id, loaded.pad_id)]

    assert names() == ["</s>", "<|pad|>"]
    (path / "tokenizer_config.json").write_text("{}")
    assert names()[1] == "<|eom_id|>"


TURNS = [("system", "Walk."), ("user", "Up?"), ("assistant", "Down || Up</answer>"), ("user", " {{ x }}\n")]
CONVERSATIONS = (TURNS, TURNS[1:], TURNS[:2], TURNS[1:2], TURNS[:3])


@pytest.mark.parametrize("name", ["small", "chatml", "llama3"])
def test_a_written_template_gives_the_same_conversations(name):
    plain = dataclasses.replace(tokenizer.load_small() if name == "small" else family(name), template=None)
    given = chat_format(plain)

    def written(**options):
        return dataclasses.replace(plain, template=ChatTemplate(write_template(given, **options)))

    for turns in CONVERSATIONS:
        assert conversation_ids(written(), turns) == conversation_ids(plain, turns)
        if name == "chatml":
            assert conversation_ids(family(name), turns) == conversation_ids(plain, turns)
        # What the template inserts before responses, and what a caller inserts.
        opened = [(role, "<answer>" * (role == "assistant") + text) for role, text in turns]
        wanted = turn_ids(plain, given, opened, opening="<answer>")
        assert conversation_ids(written(opening="<answer>"), turns) == wanted


def test_written_templates_of_single_turns_and_with_a_tag_which_is_not_inserted_again():
    plain = tokenizer.load_small()
    source = write_template(chat_format(plain), opening="<answer>")
    opened = chat_format(dataclasses.replace(plain, template=ChatTemplate(source)))
    assert opened.opens("<answer>")
    assert opened.opening("<answer>", forced=True) == ()
    for tag, forced in (("<answer>", False), ("<think>", True)):
        with pytest.raises(ValueError, match="opens an answer block"):
            opened.opening(tag, forced=forced)
    template = ChatTemplate(write_template(chat_format(plain), turns=1))
    for turns, read in ((TURNS, [TURNS[0], TURNS[3]]), (TURNS[1:], TURNS[3:]), (TURNS[:2], TURNS[:2])):
        text = template.render(turns, generate=True)
        assert text == plain.decode(conversation_ids(plain, read), skip_special=False)
