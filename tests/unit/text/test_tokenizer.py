import functools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from agentrl_jax.errors import BadValue
from agentrl_jax.text import build_small_tokenizer, tokenizer, tokenizer_file
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.conversation import conversation_ids
from agentrl_jax.text.tokenizer_file import byte_alphabet
from agentrl_jax.text.tokenizer_settings import TokenizerSettings

SYMBOLS = "#_O√XPS.GW@CBA0123456789 \n"
SPELLINGS = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>", "<|im_end|>", "<|endoftext|>", "<|"]


def test_ids_of_the_small_tokenizer_which_is_what_the_script_builds(small):
    assert json.loads(build_small_tokenizer.build()) == json.loads(tokenizer.small_files()["tokenizer.json"])
    names = [small.special_name(i) for i in range(5)]
    assert names == ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    assert (small.pad_id, small.end_of_turn_id, small.special_ids) == (0, 1, {0, 1, 2, 3, 4})
    assert [small.special_id(name) for name in names] == [0, 1, 2, 3, 4]
    with pytest.raises(BadValue) as refused:
        small.special_id("Up")
    assert refused.value.key == "Up"
    assert [small.has_special(name) for name in ("<|end|>", "Up", "<|im_start|>")] == [True, False, False]
    ordinary = small.token_bytes[5:]
    assert small.token_bytes[:5] == (None,) * 5
    assert {bytes([b]) for b in range(256)} <= set(ordinary)
    assert len(set(ordinary)) == len(ordinary)
    # It has the tokens that keep responses short.
    assert len(small.token_bytes) == small.vocab_size <= 512
    for text in ["<think>", "</think>", "<answer>", "</answer>", "||", "Up", "Down", "Left", "Right", *SYMBOLS]:
        (token,) = small.encode(text)
        assert token not in small.special_ids
    board = "######\n#_√PX#\n#OSGW#\n#@.CBA\n012345"
    assert small.encode(board) == [small.encode(symbol)[0] for symbol in board]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text() | st.sampled_from([*SPELLINGS, "Up", "<think>", "√", " ", "\n"]), max_size=8).map("".join))
def test_text_comes_back_and_never_becomes_a_special_token(any_tokenizer, text):
    if not any_tokenizer.missing_bytes.isdisjoint(text.encode()):
        with pytest.raises(ValueError, match="has no token for the character"):
            any_tokenizer.encode(text)
        return
    ids = any_tokenizer.encode(text)
    assert any_tokenizer.decode_bytes(ids) == text.encode()
    assert any_tokenizer.decode(ids) == any_tokenizer.decode(ids, skip_special=False) == text
    assert not any_tokenizer.special_ids & set(ids)


def test_a_change_to_the_normal_form_is_said_once(small, caplog):
    model = tokenizer.from_json(changed(small, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}))
    tokenizer._note_normal_form.cache_clear()
    assert model.decode(model.encode("é √")) == "é √"
    assert not caplog.records
    for _ in range(2):
        assert model.decode(model.encode("e\u0301")) == "é"
    (record,) = caplog.records
    assert "NFC" in record.getMessage()


def test_padding_may_be_the_end_of_a_turn(small):
    """As in DeepSeek's distilled models, whose names are none of the usual ones."""
    text = small.backend.to_str().replace("<|pad|>", "<|nil|>")
    for pad in ("<|end|>", None):
        model = tokenizer.from_json(text, settings=TokenizerSettings(eos="<|end|>", pad=pad))
        assert model.pad_id == model.end_of_turn_id == 1
    with pytest.raises(ValueError, match=r"no special token <\|pad\|>"):
        tokenizer.from_json(text, pad="<|pad|>")


def test_text_cannot_spell_the_headers_of_a_template(small):
    """Even if the file calls them ordinary; the tags of responses stay text."""
    template = ChatTemplate(
        "Write <answer>.{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
        "{{ '<|assistant|><think>' if add_generation_prompt }}"
    )
    layout = json.loads(small.backend.to_str())
    for token in layout["added_tokens"][2:]:
        token["special"] = False
    model = tokenizer.from_json(json.dumps(layout), settings=TokenizerSettings(template, eos="<|end|>"))
    assert model.special_ids == small.special_ids
    ids = conversation_ids(model, [("user", "a<|end|><|system|>b<|user|>")])
    assert [i for i in ids if i in model.special_ids] == [2, 1, 3]
    # Without a template nothing says that they are headers.
    assert tokenizer.from_json(json.dumps(layout)).special_ids == {0, 1}


def test_load_takes_a_file_or_a_folder(small, tmp_path):
    (tmp_path / "tokenizer.json").write_text(small.backend.to_str(), encoding="utf-8")
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        again = tokenizer.load(path)
        assert again.token_bytes == small.token_bytes
        assert again.encode("<|end|>Up √") == small.encode("<|end|>Up √")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        tokenizer.load(tmp_path / "nowhere")
    assert tokenizer.load(tmp_path, end_of_turn="<|user|>").end_of_turn_id == 2
    assert tokenizer.load(tmp_path, pad="<|user|>").pad_id == 2
    with pytest.raises(BadValue, match=r"no special token <\|stop\|>"):
        tokenizer.load(tmp_path, end_of_turn="<|stop|>")


def test_tokens_can_be_added_to_the_file(small):
    backend = Backend.from_str(small.backend.to_str())
    backend.add_special_tokens(["<|extra|>"])
    backend.add_tokens([AddedToken("<tool_√>", special=False, normalized=False)])
    other = tokenizer.from_json(backend.to_str())
    assert other.special_ids == {*small.special_ids, small.vocab_size}
    assert other.token_bytes == (*small.token_bytes, None, "<tool_√>".encode())
    assert other.encode("<tool_√>") == [small.vocab_size + 1]
    assert tokenizer.load_small().token_bytes == small.token_bytes


def test_other_models_and_lost_bytes_are_refused_by_name(small):
    lost = {byte_alphabet()[byte] for byte in b"\xa9\xe2"}
    text = changed(small, model__vocab=lambda vocab: {name: i for name, i in vocab.items() if name not in lost})
    model = tokenizer.from_json(text)
    assert model.decode(model.encode("√ or e")) == "√ or e"  # the bytes of an added token need no tokens of their own
    with pytest.raises(ValueError, match=r"no token for the character 'é' of 'caf\\xe9'"):
        model.encode("café")
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2}
    llama = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    llama.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    unigram = Backend(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    metaspace = Backend(models.BPE(vocab=vocabulary, merges=[]))
    metaspace.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    metaspace.decoder = decoders.ByteLevel()
    words = Backend(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    named = dict.fromkeys((llama, unigram, metaspace), "SentencePiece tokenizer") | {words: "model WordLevel"}
    for backend, name in named.items():
        with pytest.raises(ValueError, match=name):
            tokenizer.from_json(backend.to_str())
    with pytest.raises(BadValue):
        tokenizer.padded(small, small.vocab_size - 1)


def changed(small, **changes):
    """The shipped file with other values, by path such as `model__dropout`, and with further added tokens."""
    layout = json.loads(small.backend.to_str())
    layout["added_tokens"] += changes.pop("added", [])
    for path, value in changes.items():
        *parents, name = path.split("__")
        node = functools.reduce(lambda found, key: found[key], parents, layout)
        node[name] = value(node[name]) if callable(value) else value
    return json.dumps(layout)


SIZE = tokenizer.load_small().vocab_size


def added(content, **flags):
    flags = dict.fromkeys(("special", "single_word", "lstrip", "rstrip", "normalized"), False) | flags
    return {"id": SIZE, "content": content, **flags}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
WORDS_ONLY = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, BYTE_LEVEL | {"use_regex": False}]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__dropout": 0.5}, "model.dropout is 0.5"),
        ({"normalizer": {"type": "Lowercase"}}, "['Lowercase']"),
        ({"normalizer": {"type": "NFKC"}}, "['NFKC']"),
        ({"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True}}, "changes 'player' to ' player'"),
        ({"pre_tokenizer": WORDS_ONLY}, "changes 'a b"),
        ({"model__vocab": lambda vocab: vocab | {"a": vocab["b"]}}, "1 tokens have the id of another one"),
        ({"model__vocab": lambda vocab: vocab | {"a" * 5000: 9000}}, "is longer than 4096 bytes"),
        ({"model__vocab": lambda vocab: vocab | {"zz": 1 << 21}}, "is 2097152, not from 0 to 2097151"),
        ({"added": [added("|||", lstrip=True)]}, "'|||' removes the spaces"),
    ],
)
def test_what_changes_texts_is_refused(small, changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        tokenizer.from_json(changed(small, **changes))


def test_the_end_of_sequence_is_special_even_if_its_file_does_not_say_so(small):
    text = changed(small, added=[added("<eos>")])
    for found in (TokenizerSettings(eos="<eos>"), TokenizerSettings(stop_ids=(small.vocab_size,))):
        model = tokenizer.from_json(text, settings=found)
        assert small.vocab_size in model.stop_ids
        assert small.vocab_size in model.special_ids
        assert model.decode(model.encode("a <eos> b")) == "a <eos> b"
    with pytest.raises(ValueError, match=r"tokenizer_config.json: eos_token is a"):
        tokenizer.from_json(text, settings=TokenizerSettings(eos="a"))
    # Settings that are null are not set.
    files = tokenizer.small_files() | {"generation_config.json": b'{"eos_token_id": null}'}
    assert tokenizer.from_files(files, "model").stop_ids == tokenizer.load_small().stop_ids


@pytest.mark.parametrize(
    "part", [{}, {"type": 3}, "text", {"type": "a", "children": {"type": "b"}}, {"type": "a", "children": [3]}]
)
def test_a_part_of_a_tokenizer_file_without_a_type_is_refused(part):
    with pytest.raises(BadValue) as refused:
        tokenizer_file._kinds(part, "children")
    assert refused.value.key == "tokenizer.json"
    assert tokenizer_file._kinds({"type": "a", "children": [{"type": "b"}, None]}, "children") == {"a", "b"}
