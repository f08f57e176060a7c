"""Reads an untrusted `tokenizer.json` and checks that it is supported and not too large."""

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from agentrl_jax.errors import BadValue, shortened

MAX_IDS = 1 << 21
"""Maximum vocabulary size, including ids without a token."""

MAX_TOKEN_BYTES = 4096
"""Maximum bytes of a token's name; the longest of usual models has a few hundred."""

_MAX_DEPTH = 32
_ALPHABET = frozenset(pre_tokenizers.ByteLevel.alphabet())
SAMPLE = "Up || <answer>\n\té 你 12345 don't  </answer>"
"""A text with letters, digits, spaces and tags, for trying a tokenizer."""


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """Content of a `tokenizer.json`.

    `names` has the tokens by id as the vocabulary writes them; `added` and `special` are ids of added tokens.
    """

    backend: tokenizers.Tokenizer = dataclasses.field(repr=False)
    names: Mapping[int, str] = dataclasses.field(repr=False)
    added: frozenset[int]
    special: frozenset[int]


def parse(text: str, special: Collection[str | int] = ()) -> TokenizerFile:
    """Reads the text of a `tokenizer.json`.

    Added tokens that `special` has, by text or id, are special even if the file does not say so.

    Raises:
        ValueError: the text is damaged, too large, or not a byte-level BPE tokenizer.
    """
    try:
        layout = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadValue(
            f"tokenizer.json: not valid JSON ({shortened(error)}); copy the file again", key="tokenizer.json"
        ) from error
    _check_components(layout)
    _refuse_unless_byte_level(layout)
    _check_tokens(layout)
    if _mark_special(layout.get("added_tokens") or [], special):
        text = json.dumps(layout)
    backend = _from_library("built", lambda: tokenizers.Tokenizer.from_str(text))
    backend.encode_special_tokens = True  # a special token's spelling inside ordinary text is split into bytes
    backend.no_padding()
    backend.no_truncation()
    ids = backend.get_vocab(with_added_tokens=True)
    names = {i: name for name, i in ids.items()}
    _require(len(names) == len(ids), "{} tokens have the id of another one", len(ids) - len(names))
    added = layout.get("added_tokens") or []
    for token in added:
        content, i = token["content"], token["id"]
        _require(names.get(i) == content, "added_tokens: {} does not have the id {}", content, i)
    _require(bool(names), "model.vocab is empty")
    _from_library("used", lambda: backend.encode(SAMPLE, add_special_tokens=False))
    return TokenizerFile(
        backend=backend,
        names=names,
        added=frozenset(token["id"] for token in added),
        special=frozenset(token["id"] for token in added if token["special"]),
    )


def _refuse_unless_byte_level(layout: Mapping[str, Any]) -> None:
    model = shortened(layout["model"].get("type") or "BPE")
    decoders = _kinds(layout.get("decoder"), "decoders")
    splitters = _kinds(layout.get("pre_tokenizer"), "pretokenizers")
    found = shortened(sorted(decoders))
    if "Metaspace" in decoders | splitters or layout["model"].get("byte_fallback") or model == "Unigram":
        raise BadValue(
            f"a SentencePiece tokenizer (model {model}, decoder {found}), as Llama 2 has, "
            "is not supported: its tokens depend on the spaces around them; use a model with a byte-level BPE "
            "tokenizer, such as Llama 3, Qwen or SmolLM2",
            key="model",
            value=model,
        )
    if model != "BPE" or "ByteLevel" not in decoders:
        raise BadValue(
            f"tokenizer with model {model} and decoder {found}; expected model BPE and "
            "decoder ByteLevel; use a model with a byte-level BPE tokenizer, such as Llama 3, Qwen or SmolLM2",
            key="model",
            value=model,
        )
    if changing := _kinds(layout.get("normalizer"), "normalizers") - {"Sequence", "NFC"}:
        raise BadValue(
            f"tokenizer.json: the normalizer {shortened(sorted(changing))} changes texts; use a byte-level tokenizer "
            "that keeps letter case and spaces, with no normalizer but NFC",
            key="normalizer",
            value=sorted(changing),
        )


@functools.cache
def byte_alphabet() -> dict[int, str]:
    """Returns the printable character by which a byte-level vocabulary file spells each of the 256 bytes.

    Printable Latin-1 characters represent themselves; the other bytes get the code points from 256 on, in order
    (Radford et al. 2019, the encoder of GPT-2).
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (b for b in range(256) if b not in printable)
    return {b: chr(b) for b in printable} | {b: chr(256 + k) for k, b in enumerate(others)}


def _check_components(layout: Any) -> None:
    _require(isinstance(layout, dict), "it is no object with keys")
    _check_depth(layout, _MAX_DEPTH)
    _require(isinstance(layout.get("model"), dict), "model is no object with keys")
    for name in ("model", "decoder", "pre_tokenizer", "normalizer", "post_processor"):
        component = layout.get(name)
        kind = component.get("type") if isinstance(component, dict) else component
        _require(kind is None or (isinstance(component, dict) and isinstance(kind, str)), f"{name} has no type")


def _check_tokens(layout: Mapping[str, Any]) -> None:
    model, added = layout["model"], layout.get("added_tokens") or []
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):  # the library removes prefixes silently
        _require(not model.get(name), f"model.{name} is {{}}, which byte-level tokens do not have", model.get(name))
    vocab = model.get("vocab")
    _require(isinstance(vocab, dict), "model.vocab is no object with an id for every token")
    _require(isinstance(added, list), "added_tokens is no list")
    for token in added:
        _require(isinstance(token, dict), "added_tokens contains {}", token)
        content = token.get("content")
        _require(isinstance(content, str) and bool(content), "added_tokens: content is {}", content)
        _check_id(token.get("id"), content)
        _check_length(content)
        _require(isinstance(token.get("special"), bool), "added_tokens: special of {} is not true or false", content)
        swallows = not token["special"] and (token.get("lstrip") or token.get("rstrip"))
        _require(not swallows, "added_tokens: {} removes the spaces beside it, although it is ordinary text", content)
    _require(
        not model.get("dropout"), "model.dropout is {}, so that the tokens of a text are random", model.get("dropout")
    )
    contents = {token["content"] for token in added}  # added tokens represent their own text
    for token, i in vocab.items():
        _check_id(i, token)
        _check_length(token)
        in_alphabet = _ALPHABET.issuperset(token) or token in contents
        _require(in_alphabet, "the token {} has characters outside the byte-level alphabet", token)


def _check_depth(node: Any, left: int) -> None:
    _require(left > 0, f"it is nested more than {_MAX_DEPTH} deep")
    for entry in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        if isinstance(entry, dict | list):
            _check_depth(entry, left - 1)


def _check_id(i: Any, token: str) -> None:
    _require(type(i) is int and 0 <= i < MAX_IDS, f"the id of {{}} is {{}}, not from 0 to {MAX_IDS - 1}", token, i)


def _check_length(token: str) -> None:
    _require(
        len(token.encode("utf-8", "replace")) <= MAX_TOKEN_BYTES, f"{{}} is longer than {MAX_TOKEN_BYTES} bytes", token
    )


def _mark_special(added: list[dict[str, Any]], special: Collection[str | int]) -> bool:
    """Marks added tokens as special, as the Transformers library does with the roles of its settings.

    Returns whether any was not.
    """
    changed = [
        token for token in added if not token["special"] and (token["content"] in special or token["id"] in special)
    ]
    for token in changed:
        token["special"] = True
    return bool(changed)


def _require(holds: bool, problem: str, *values: Any) -> None:
    """Raises `problem`, with the values in its braces, unless the condition holds."""
    if not holds:
        shown = (shortened(ascii(value) if isinstance(value, str) else json.dumps(value), 60) for value in values)
        raise BadValue(f"tokenizer.json: {problem.format(*shown)}; copy the file again", key="tokenizer.json")


def _kinds(component: Any, children: str) -> set[str]:
    if component is None:
        return set()
    entries = component.get(children) or [] if isinstance(component, dict) else None
    valid = isinstance(entries, list) and isinstance(component.get("type"), str)
    _require(valid, f"{children} has an entry without type")
    return {component["type"]}.union(*(_kinds(child, children) for child in entries or ()))


def _from_library(how: str, action: Callable[[], Any]) -> Any:
    """Calls the tokenizers library, which raises errors without a specific class."""
    try:
        return action()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is no `Exception`
        raise BadValue(
            f"tokenizer.json: cannot be {how} ({shortened(error)}); copy the file again", key="tokenizer.json"
        ) from error
