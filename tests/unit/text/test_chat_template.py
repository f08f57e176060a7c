"""Chat templates: rendered as by transformers, sandboxed, and found in the folder of a tokenizer."""

import datetime
import json
import resource
from types import SimpleNamespace

import chat_families
import pytest
from chat_families import CHATML, FAMILIES, family

from agentrl_jax.errors import UserError
from agentrl_jax.text import chat, chat_template, tokenizer
from agentrl_jax.text.chat_template import ChatTemplate

TALK = [("system", "Be kind."), ("user", " Hi!\n"), ("assistant", "<b>Hello</b>"), ("user", "Bye 'now' {{ x }} √")]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("thinking", [None, True, False])
def test_text_is_that_of_transformers(name, thinking, monkeypatch):
    pytest.importorskip("transformers")
    from transformers.utils import chat_template_utils

    source, variables = FAMILIES[name]
    template = family(name).template
    options = {} if thinking is None else {"enable_thinking": thinking}
    today = datetime.datetime.combine(template.date, datetime.time())
    monkeypatch.setattr(chat_template_utils, "datetime", SimpleNamespace(now=lambda: today))
    for messages in (TALK[1:], TALK[1:3], *([] if name == "mistral" else [TALK, TALK[:3]])):
        generate = messages[-1][0] == "user"
        spoken = [{"role": role, "content": content} for role, content in messages]
        (expected,), _ = chat_template_utils.render_jinja_template(
            conversations=[spoken], chat_template=source, add_generation_prompt=generate, **variables, **options
        )
        assert template.render(messages, generate=generate, thinking=thinking) == expected


def test_the_real_template_of_smollm2(smollm2):
    text = smollm2.template.render([("user", "Hi")], generate=True)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert dict(smollm2.template.variables) == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }
    assert smollm2.stop_ids == (smollm2.special_id("<|im_end|>"),)
    assert smollm2.special_name(smollm2.pad_id) == "<|endoftext|>"  # its own padding token ends turns


def test_the_date_is_given():
    template = family("llama3.2").template
    assert "Today Date: 26 Jul 2024\n" in template.render(TALK, generate=True)
    later = ChatTemplate(template.source, template.variables, datetime.date(2031, 2, 3))
    assert "Today Date: 03 Feb 2031\n" in later.render(TALK, generate=True)


def test_filters_and_blocks_of_the_hub():
    def written(source):
        return ChatTemplate(source).render(TALK[:2], generate=False)

    assert written("{{ messages[0] | tojson }}") == '{"role": "system", "content": "Be kind."}'
    assert written("{{ {'a': '<√'} | tojson(indent=1) }}") == '{\n "a": "<√"\n}'
    assert written("{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% break %}{% endfor %}") == (
        "system"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for m in %}", "no Jinja template: line 1"),
        ("{{ raise_exception('only one turn') }}", "refuses a conversation of system, user: only one turn"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "refuses"),
        ("{{ namespace.__init__.__globals__ }}", "refuses"),
        ("{% for i in range(1000000) %}x{% endfor %}", "refuses"),
        ("{% for i in range(90000) %}{{ messages[0].content * 100 }}{% endfor %}", "more than 262248 characters"),
        ("{{ 1 + messages[0].content }}", "refuses"),
        (" " * ((1 << 17) + 1), "expected at most 131072"),
    ],
)
def test_templates_that_go_wrong_are_refusals(source, message):
    with pytest.raises(ValueError, match=message):
        ChatTemplate(source).render(TALK[:2], generate=False)


def test_the_process_that_renders_is_started_again():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render(TALK, generate=False) == "Be kind."
    first = chat_template._worker()
    first.kill()
    first.wait()
    assert template.render(TALK, generate=False) == "Be kind."
    assert chat_template._worker() is not first


ENDLESS = "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = ns.x * 10**1000 %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        # Each rendering takes a part of the time, of which there are many.
        CHATML + "{% for i in range(99999) %}{% set x = i ~ '' %}{% endfor %}" * 2,
    ],
    ids=["endless", "in parts"],
)
def test_a_hostile_template_is_refused_within_three_seconds(source):
    """Of processor time in all, with another process to render the next one."""

    def used():
        return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

    chat_template._worker().communicate()
    chat_template._worker.cache_clear()
    before, worker = used(), chat_template._worker()
    with pytest.raises(ValueError, match="the chat template refuses a conversation"):
        chat.chat_format(chat_families.with_template(source, {"eos_token": "<|im_end|>"}))
    if worker.poll() is None:
        worker.communicate()
    assert used() - before < 3
    assert ChatTemplate("next").render(TALK, generate=False) == "next"


def test_an_interrupt_ends_the_process_that_renders(monkeypatch):
    worker = chat_template._worker()

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(worker, "stdout", SimpleNamespace(readline=interrupted))
        with pytest.raises(KeyboardInterrupt):
            ChatTemplate("late").render(TALK, generate=False)
    worker.wait()
    assert ChatTemplate("next").render(TALK, generate=False) == "next"


def test_a_process_ended_from_outside_is_no_refusal(monkeypatch):
    worker = chat_template._worker()

    def ended():
        worker.kill()
        return ""

    monkeypatch.setattr(worker, "stdout", SimpleNamespace(readline=ended, close=worker.stdout.close))
    monkeypatch.setattr(worker, "communicate", worker.wait)
    with pytest.raises(UserError, match="was killed by another process; try again"):
        ChatTemplate("x").render(TALK, generate=False)


def test_without_transformers(monkeypatch):
    chat_template._worker.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="need the package transformers; pip install"):
        family("chatml")


def test_longest_special_token_is_found():
    pattern = chat_template.special_pattern(["<a", "<a>", "b"])
    assert pattern.findall("<a><ab") == ["<a>", "<a", "b"]
    assert chat_template.special_pattern([]).findall("<a>") == []


@pytest.fixture
def folder(tmp_path):
    """Function that writes a folder with a tokenizer and other JSON files, given by name."""

    def write(**files):
        (tmp_path / "tokenizer.json").write_text(chat_families.backend().to_str(), encoding="utf-8")
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write


def test_a_folder_brings_its_template_and_its_names(folder):
    small = chat_families.backend()
    bos = {"content": "<|begin_of_text|>", "lstrip": False}
    stops = [small.token_to_id(name) for name in ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")]
    config = {"chat_template": chat_families.LLAMA3, "bos_token": bos, "eos_token": "<|end_of_text|>"}
    path = folder(tokenizer_config=config, generation_config={"eos_token_id": stops})
    llama = tokenizer.load(path)
    names = [llama.special_name(i) for i in llama.stop_ids]
    assert names == ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"]
    assert llama.end_of_turn_id == llama.stop_ids[0]
    assert llama.special_name(llama.pad_id) == "<|pad|>"
    assert llama.template.render([("user", "x")], generate=False).startswith("<|begin_of_text|><|start_header_id|>")
    bare = tokenizer.load(path / "tokenizer.json")
    assert bare.template is None
    assert bare.stop_ids == (bare.end_of_turn_id,)
    given = tokenizer.load(path, end_of_turn="<|eom_id|>")
    assert [given.special_name(i) for i in given.stop_ids] == ["<|eom_id|>", "<|eot_id|>", "<|end_of_text|>"]


def test_a_folder_without_a_template_still_names_its_end(folder):
    path = folder(
        tokenizer_config={"eos_token": "</s>", "pad_token": "</s>"}, special_tokens_map={"pad_token": "<|eom_id|>"}
    )
    loaded = tokenizer.load(path)
    assert loaded.special_name(loaded.end_of_turn_id) == "</s>"
    assert loaded.special_name(loaded.pad_id) == "<|pad|>"
    (path / "tokenizer_config.json").write_text("{}")
    assert tokenizer.load(path).special_name(tokenizer.load(path).pad_id) == "<|eom_id|>"


def test_of_several_templates_the_default_is_taken(folder):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": chat_families.CHATML}]
    path = folder(tokenizer_config={"chat_template": several})
    assert tokenizer.load(path).template.source == chat_families.CHATML
    (path / "chat_template.json").write_text(json.dumps({"chat_template": chat_families.LLAMA3}))
    assert tokenizer.load(path).template.source == chat_families.LLAMA3
    (path / "chat_template.jinja").write_text(chat_families.QWEN3, encoding="utf-8")
    assert tokenizer.load(path).template.source == chat_families.QWEN3


def test_damaged_files_are_named(folder):
    path = folder(tokenizer_config={"chat_template": 3})
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: chat_template is '3', neither text nor"):
        tokenizer.load(path)
    (path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: holds a JSON list; expected an object"):
        tokenizer.load(path)
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: not valid JSON \(.*line 1"):
        tokenizer.load(path)
    (path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: not valid JSON \('utf-8'"):
        tokenizer.load(path)
    (path / "tokenizer_config.json").unlink()
    (path / "generation_config.json").write_text('{"eos_token_id": ["</s>"]}')
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id \['</s>'\]; expected ids"):
        tokenizer.load(path)
