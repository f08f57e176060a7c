"""A small corpus and questions about it, as files of a user."""

import json

PASSAGES = (
    ("Emma", "Emma is by Jane Austen."),
    ("Ulysses", "Ulysses by James Joyce is set in Dublin."),
    ("Dublin", "Dublin is on the river Liffey."),
    ("Σίσυφος", "Ο Σίσυφος rolls a stone."),
)
QUESTIONS = (
    {"question": "who wrote Emma?", "golden_answers": ["Jane Austen", "Austen"], "evidence": ["p0"]},
    {"question": "which river is where Ulysses is set", "golden_answers": ["Liffey"], "evidence": ["p1", "p2"]},
    {"question": "who rolls a stone?", "golden_answers": ["Σίσυφος", "the", "Sisyphus"], "data_source": "own"},
)


def rows(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return str(path)


def corpus_file(folder, passages=PASSAGES):
    found = [{"id": f"p{i}", "title": title, "text": text} for i, (title, text) in enumerate(passages)]
    return rows(folder / "corpus.jsonl", found)


def questions_file(folder, questions=QUESTIONS):
    return rows(folder / "questions.jsonl", questions)


def options(folder, passages=PASSAGES, questions=QUESTIONS):
    return {"corpus": corpus_file(folder, passages), "questions": questions_file(folder, questions)}
