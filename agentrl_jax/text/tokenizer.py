"""Byte-level tokenizers with special tokens that text can never spell."""

import dataclasses
import functools
import logging
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path

import tokenizers

from agentrl_jax.errors import BadValue, shortened
from agentrl_jax.models.io import tokenizer_files
from agentrl_jax.models.io.local_files import read_bytes
from agentrl_jax.text import tokenizer_file
from agentrl_jax.text.chat_template import ChatTemplate, special_pattern
from agentrl_jax.text.tokenizer_file import SAMPLE, byte_alphabet
from agentrl_jax.text.tokenizer_settings import TokenizerSettings, read_settings, text_of

END_OF_TURN_NAMES = ("<|end|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>")
"""Special tokens that end a turn, in order of preference."""

PAD_NAMES = ("<|pad|>", "<|endoftext|>", "<|finetune_right_pad_id|>", "<|end_of_text|>", "<pad>")
"""Special tokens for padding, in order of preference."""


_RESPONSE_TAGS = {"<think>", "</think>", "<answer>", "</answer>"}
"""Tokens of the text of responses, also where a template writes them."""

_PROBES = ("player", "Player", "a b\n c", "  up  \n\n", "\0", SAMPLE)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """A byte-level BPE tokenizer: every ordinary token is a string of bytes, special tokens have no bytes.

    Attributes:
        pad_id: fills rows on the right; has no meaning when sampled.
        end_of_turn_id: the token that ends a turn.
        stop_ids: tokens that end a response, `end_of_turn_id` first.
        token_bytes: bytes of each token id; None for a special token and for an id without a token.
    """

    backend: tokenizers.Tokenizer = dataclasses.field(repr=False)
    vocab_size: int
    pad_id: int
    end_of_turn_id: int
    stop_ids: tuple[int, ...]
    special_ids: frozenset[int]
    token_bytes: tuple[bytes | None, ...] = dataclasses.field(repr=False)
    template: ChatTemplate | None = None

    def encode(self, text: str) -> list[int]:
        """Returns the ids of `text`, none of them special: text that spells a special token stays ordinary text.

        A tokenizer such as Qwen's writes text in the Unicode form NFC: an "e" with a combining accent becomes "é". The
        first text that is changed is noted in the log.

        Raises:
            ValueError: the vocabulary has no token for a byte of the text (SmolLM2 lacks most control characters).
        """
        ids = [i for i in self.backend.encode(text, add_special_tokens=False).ids if i not in self.special_ids]
        if self.backend.normalizer is not None and not text.isascii():
            written = self.backend.normalizer.normalize_str(text)
            if written != text:
                _note_normal_form()
            text = written
        missing = self.missing_bytes
        if missing and not missing.isdisjoint(data := text.encode()) and self.decode_bytes(ids) != data:
            lost = next(c for c in text if not missing.isdisjoint(c.encode()))
            raise BadValue(
                f"the tokenizer has no token for the character {lost!r} of {shortened(ascii(text), 60)}; leave it out, "
                "or use a model whose vocabulary has all 256 bytes",
                key="tokenizer",
                value=lost,
            )
        return ids

    @functools.cached_property
    def missing_bytes(self) -> frozenset[int]:
        """Bytes that are no token of their own, and can be written only where they are a part of an added token."""
        return frozenset(range(256)).difference(*(data for data in self.token_bytes if data and len(data) == 1))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of the ordinary tokens in `ids`; special tokens have none."""
        return b"".join(self.token_bytes[i] or b"" for i in ids)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Returns `ids` as text, with special tokens by name unless `skip_special`.

        Bytes that are not UTF-8 become U+FFFD.
        """
        if skip_special:
            return self.decode_bytes(ids).decode("utf-8", "replace")
        parts = (self.special_name(i).encode() if i in self.special_ids else self.token_bytes[i] or b"" for i in ids)
        return b"".join(parts).decode("utf-8", "replace")

    def special_name(self, token: int) -> str:
        """Returns the name of a special token, such as `"<|end|>"`."""
        return str(self.backend.id_to_token(token))

    def special_id(self, name: str) -> int:
        """Returns the id of the special token called `name`; ValueError if there is none."""
        token = self.backend.token_to_id(name)
        if token is None or token not in self.special_ids:
            known = ", ".join(self.special_name(i) for i in sorted(self.special_ids))
            raise BadValue(f"{name!r} is no special token of this tokenizer; expected one of {known}", key=name)
        return token

    def has_special(self, name: str) -> bool:
        """Returns whether `name` is one of the special tokens."""
        return self.backend.token_to_id(name) in self.special_ids


@functools.cache
def _note_normal_form() -> None:
    """Says once that texts are changed."""
    _log.warning("the tokenizer writes texts in the Unicode form NFC: the model reads some characters in another form")


def load_small() -> Tokenizer:
    """Returns the tokenizer shipped with the package: fewer than 512 tokens, including tags and action names."""
    return from_files(small_files(), "the shipped tokenizer")


def small_files() -> dict[str, bytes]:
    """Returns the files of the tokenizer shipped with the package, for `from_files`."""
    return {"tokenizer.json": resources.files("agentrl_jax.text").joinpath("data/small_tokenizer.json").read_bytes()}


def load(path: str | Path, *, end_of_turn: str | None = None, pad: str | None = None) -> Tokenizer:
    """Reads a tokenizer from disk, without network access; arguments and errors as in `read` and `from_json`."""
    return from_files(read(path), str(path), end_of_turn=end_of_turn, pad=pad)


def read(path: str | Path) -> dict[str, bytes]:
    """Returns the files of a tokenizer on disk, for `from_files`; FileNotFoundError if there is none.

    `path` is a `tokenizer.json`, or a folder with one, whose chat template and settings are read too.
    """
    file = Path(path)
    files = tokenizer_files.read_files(file) if file.is_dir() else {}
    if file.is_file():
        files["tokenizer.json"] = read_bytes(file)
    if "tokenizer.json" not in files:
        raise FileNotFoundError(f"{file}: no such tokenizer; expected a tokenizer.json or a folder that holds one")
    return files


def from_files(
    files: Mapping[str, bytes], source: str, *, end_of_turn: str | None = None, pad: str | None = None
) -> Tokenizer:
    """Builds a `Tokenizer` from the files of a model, by their names in `tokenizer_files.NAMES`.

    `source` is where the files are from, for messages; the other arguments are those of `from_json`.

    Raises:
        ValueError: there is no tokenizer.json, a file is damaged, or as in `from_json`.
    """
    text = text_of(files, "tokenizer.json", source)
    if text is None:
        raise BadValue.at(source, "has no tokenizer.json; add the one of the model's tokenizer")
    return from_json(text, end_of_turn=end_of_turn, pad=pad, settings=read_settings(files, source))


def padded(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """Returns the tokenizer for a model with logits for more ids than there are tokens; the other ids have no bytes.

    Raises:
        ValueError: the model has fewer ids than the tokenizer.
    """
    missing = vocab_size - tokenizer.vocab_size
    if missing < 0:
        raise BadValue(
            f"the tokenizer has {tokenizer.vocab_size} tokens, more than the {vocab_size} of the model's embedding; "
            "use the tokenizer that belongs to the model",
            key="tokenizer",
            value=tokenizer.vocab_size,
        )
    token_bytes = (*tokenizer.token_bytes, *([None] * missing))
    return dataclasses.replace(tokenizer, vocab_size=vocab_size, token_bytes=token_bytes)


def from_json(
    text: str,
    *,
    end_of_turn: str | None = None,
    pad: str | None = None,
    settings: TokenizerSettings | None = None,
) -> Tokenizer:
    """Builds a `Tokenizer` from the text of a `tokenizer.json` and the settings in the files next to it.

    `end_of_turn` names the token that ends a turn; if None, the one with which the chat template ends a response, the
    model's end of sequence, or one of the usual names. `pad` names the padding token; if None, the model's, unless it
    ends turns, one of the usual names, or the end of a turn, because padding is never read.

    Tokens that the template writes around contents (`<|im_start|>`) are special even if the file does not say so, since
    a message could spell them otherwise.

    Raises:
        ValueError: the tokenizer is not byte-level, or a special token is missing.
    """
    settings = settings or TokenizerSettings()
    names_of_roles = [name for name in (settings.eos, settings.pad) if name is not None]
    control: set[str | int] = {*names_of_roles, *settings.stop_ids}
    file = tokenizer_file.parse(text, control)
    if headers := _header_tokens(file, settings.template):
        file = tokenizer_file.parse(text, control | headers)
    names, special = file.names, file.special
    size = max(names) + 1
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    token_bytes: list[bytes | None] = [None] * size
    for i, name in names.items():
        if i not in file.added:
            token_bytes[i] = bytes(byte_of[character] for character in name)
        elif i not in special:
            token_bytes[i] = name.encode()
    by_name = {names[i]: i for i in special}
    ends = {settings.eos: "tokenizer_config.json: eos_token"} | dict.fromkeys(
        settings.stop_ids, "generation_config.json: eos_token_id"
    )
    for i, name in names.items():
        if i not in special and (where := ends.get(name) or ends.get(i)):
            raise BadValue.of(
                f"{where}",
                name,
                "which is ordinary text in tokenizer.json, so that no response can end with it; name a token of "
                "added_tokens",
            )
    response_end = settings.template.closing_token(by_name) if settings.template else None
    end = _pick(by_name, end_of_turn, (response_end, settings.eos, *END_OF_TURN_NAMES), "end_of_turn")
    padding = (settings.pad if settings.pad != names[end] else None, *PAD_NAMES, names[end])
    stops = [end, *(by_name[name] for name in (response_end, settings.eos) if name in by_name), *settings.stop_ids]
    tokenizer = Tokenizer(
        backend=file.backend,
        vocab_size=size,
        pad_id=_pick(by_name, pad, padding, "pad"),
        end_of_turn_id=end,
        stop_ids=tuple(dict.fromkeys(stop for stop in stops if stop in special)),
        special_ids=special,
        token_bytes=tuple(token_bytes),
        template=settings.template,
    )
    _refuse_lossy(tokenizer)
    return tokenizer


def _header_tokens(file: tokenizer_file.TokenizerFile, template: ChatTemplate | None) -> set[str]:
    """Added tokens in brackets that are ordinary text, but that a template writes around contents."""
    names = {file.names[i] for i in file.added}
    ordinary = {name for name in names if re.fullmatch(r"[<\[]\S+[>\]]", name)} - _RESPONSE_TAGS
    ordinary -= {file.names[i] for i in file.special}
    if template is None or not ordinary:
        return set()
    return ordinary.intersection(special_pattern(names).findall(template.frame()))


def _refuse_lossy(tokenizer: Tokenizer) -> None:
    """Refuses a tokenizer that changes a text, except for bytes that it does not have."""
    for probe in _PROBES:
        text = "".join(character for character in probe if tokenizer.missing_bytes.isdisjoint(character.encode()))
        if (found := tokenizer.decode_bytes(tokenizer.encode(text))) != text.encode():
            raise BadValue(
                f"tokenizer.json: changes {text!r} to {found.decode('utf-8', 'replace')!r}; use a byte-level tokenizer "
                "that keeps letter case and spaces, without a prefix space",
                key="tokenizer.json",
                value=text,
            )


def _pick(by_name: dict[str, int], wanted: str | None, usual: tuple[str | None, ...], argument: str) -> int:
    names = [name for name in ((wanted,) if wanted else usual) if name]
    for name in names:
        if name in by_name:
            return by_name[name]
    raise BadValue(
        f"no special token {shortened(' or '.join(names))} in this tokenizer, which has "
        f"{shortened(', '.join(sorted(by_name)) or 'none')}; name one by {argument}=",
        key="special token",
        value=" or ".join(names),
    )
