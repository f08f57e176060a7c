"""Converts the tokenizer in a GGUF file to a `tokenizer.json`."""

import json

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from agentrl_jax.errors import BadValue, shortened
from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"\p{N}" + _REST
"""Patterns by which the tokenizers of Llama 3 and Qwen 2 split text into words, from their `tokenizer.json`."""

_SPLITTERS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    **{"qwen2": _QWEN2, "smollm": "digits", "gpt-2": "gpt-2", "gpt2": "gpt-2"},
}

_TOKENS = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}


def convert_tokenizer(fields: Fields) -> dict[str, bytes]:
    """Content of `tokenizer.json`, `tokenizer_config.json` and, if there is one, `chat_template.jinja`, by file name.

    Token ids equal those of the original tokenizer. Two things that the file does not record may differ: a token is
    special if its type is control, and rows that only pad the vocabulary have no token.
    """
    kind, splitter = fields.take(_key("model")), fields.take(_key("pre"))
    if kind != "gpt2":
        raise fields.error(_key("model"), "gpt2, a byte-level BPE; SentencePiece tokenizers (llama) are not supported")
    if not isinstance(splitter, str) or splitter not in _SPLITTERS:
        raise fields.error(_key("pre"), f"one of {', '.join(_SPLITTERS)}")
    fields.only({_key("add_space_prefix"): (False,), _key("add_eos_token"): (False,)})
    names, token_types = _vocabulary(fields)
    backend = tokenizers.Tokenizer(_model(fields, names, token_types, splitter))
    if _SPLITTERS[splitter] == _QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(_SPLITTERS[splitter])
    backend.decoder = decoders.ByteLevel()
    added = [
        (name, token_type == _CONTROL)
        for name, token_type in zip(names, token_types)
        if token_type in (_CONTROL, _USER_DEFINED)
    ]
    backend.add_tokens([AddedToken(name, special=special, normalized=False) for name, special in added])
    marks = {mark: _named(fields, key, names, token_types) for mark, key in _TOKENS.items()}
    default = _SPLITTERS[splitter] == _LLAMA3  # such files need not say that texts begin with a BOS token
    if fields.flag(_key("add_bos_token")) or (default and _key("add_bos_token") not in fields.raw):
        backend.post_processor = _begins_with(fields, backend, marks["bos_token"])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **{k: v for k, v in marks.items() if v is not None}}
    files = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(settings, indent=2)}
    template = fields.take("tokenizer.chat_template")
    if template is not None:
        if not isinstance(template, str):
            raise fields.error("tokenizer.chat_template", "text")
        files["chat_template.jinja"] = template
    return {name: text.encode() for name, text in files.items()}


def _begins_with(fields: Fields, backend: tokenizers.Tokenizer, bos: str | None) -> processors.TemplateProcessing:
    try:
        if bos is None:
            raise BadValue("there is none", key="none")
        return processors.TemplateProcessing(
            single=[f"{bos}:0", "$A:0"],
            pair=[f"{bos}:0", "$A:0", f"{bos}:1", "$B:1"],
            special_tokens=[(bos, backend.token_to_id(bos))],
        )
    except ValueError as error:
        raise fields.error(_key("bos_token_id"), "a special token for the beginning of a text") from error


def _key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


def _strings(fields: Fields, name: str) -> list[str]:
    values = fields.take(_key(name))
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise fields.error(_key(name), "a list of texts")
    return values


def _vocabulary(fields: Fields) -> tuple[list[str], list[int]]:
    """Name and type of every token, by id."""
    names, token_types = _strings(fields, "tokens"), fields.take(_key("token_type"))
    if not isinstance(token_types, list) or len(token_types) != len(names):
        raise fields.error(_key("token_type"), f"a type for each of {len(names)} tokens")
    if others := sorted(
        {str(token_type) for token_type in token_types if token_type not in (_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED)}
    ):
        raise WeightsError.at(
            fields.where, f"tokens of type {others[0]}; expected normal, control, user-defined or unused"
        )
    return names, token_types


def _model(fields: Fields, names: list[str], token_types: list[int], splitter: str) -> models.BPE:
    vocabulary = {name: i for i, name in enumerate(names) if token_types[i] != _UNUSED}
    if len(vocabulary) + token_types.count(_UNUSED) != len(names):
        repeated = next(name for i, name in enumerate(names) if token_types[i] != _UNUSED and vocabulary[name] != i)
        raise WeightsError.at(fields.where, f"the token {shortened(repr(repeated))} occurs twice; download it again")
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for name, i in vocabulary.items():
        if not name or (token_types[i] == _NORMAL and not alphabet.issuperset(name)):
            text = shortened(repr(name))
            raise WeightsError.at(fields.where, f"the token {text} is not in byte-level characters; download it again")
    merges = []
    for merge in _strings(fields, "merges"):
        left, _, right = merge.partition(" ")
        if any(part not in vocabulary for part in (left, right, left + right)):
            text = shortened(repr(merge))
            raise WeightsError.at(fields.where, f"the merge {text} does not join two tokens; download it again")
        merges.append((left, right))
    unknown = _named(fields, "unknown_token_id", names, token_types)
    # Llama 3's vocabulary has words that its merges cannot produce.
    return models.BPE(vocabulary, merges, unk_token=unknown, ignore_merges=_SPLITTERS[splitter] == _LLAMA3)


def _named(fields: Fields, key: str, names: list[str], token_types: list[int]) -> str | None:
    if fields.take(_key(key)) is None:
        return None
    i = fields.integer(_key(key), len(names) - 1, least=0)
    return None if token_types[i] == _UNUSED else names[i]


def _pre_tokenizer(splitter: str) -> pre_tokenizers.PreTokenizer:
    if splitter == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if splitter == "digits":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    split = pre_tokenizers.Split(Regex(splitter), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
