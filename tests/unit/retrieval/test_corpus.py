import json

import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.retrieval.corpus import Corpus, Passage, read_corpus
from envs_jax.errors import BadValue


def written(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_both_forms_are_read(tmp_path):
    file = written(
        tmp_path / "c.jsonl",
        json.dumps({"id": 7, "contents": '"Ada "L" B"\nfirst\nsecond'}),
        json.dumps({"id": "8", "title": "Alan", "text": ""}),
        json.dumps({"id": "x", "contents": "only text"}),
    )
    corpus = read_corpus(file)
    assert corpus.passages == (
        Passage("7", 'Ada "L" B', "first\nsecond"),
        Passage("8", "Alan", ""),
        Passage("x", "", "only text"),
    )
    assert corpus.passages[0].contents == '"Ada "L" B"\nfirst\nsecond'
    assert corpus.texts[1] == "Alan\n"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"id": 1, "contents": "b", "contents": "c"}', None),
        ('{"id": NaN, "contents": "b"}', None),
        ('{"id": 1.0, "contents": "b"}', 1.0),
        ('{"id": true, "contents": "b"}', True),
        ('{"id": 1, "contents": "b", "url": "u"}', "url"),
        ('{"id": 1, "contents": "b", "title": "u"}', ""),
        ('{"id": 1, "title": "b"}', ""),
        ('{"id": 1, "contents": 3}', 3),
        ('{"id": 1, "contents": "\\ud800"}', "\ud800"),
        ('{"id": 1, "contents": " "}', ""),
        ('{"id": "0", "contents": "again"}', "0"),
        ('{"id": 0, "contents": "again"}', "0"),
        ("[1]", None),
        ("{", None),
    ],
)
def test_a_bad_line_is_refused_by_its_number(tmp_path, line, value):
    file = written(tmp_path / "c.jsonl", '{"id": "0", "contents": "a"}', line)
    with pytest.raises(UserError) as error:
        read_corpus(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert error.value.value == value


def test_missing_and_empty_files_are_refused(tmp_path):
    for file in (tmp_path / "none.jsonl", written(tmp_path / "empty.jsonl", "", " ")):
        with pytest.raises(UserError) as error:
            read_corpus(file)
        assert error.value.key == str(file)
    with pytest.raises(BadValue) as error:
        Corpus(())
    assert error.value.key == "corpus"
    with pytest.raises(BadValue) as error:
        Corpus((Passage("a", "", "b"), Passage("a", "", "c")))
    assert (error.value.key, error.value.value) == ("id", "a")
