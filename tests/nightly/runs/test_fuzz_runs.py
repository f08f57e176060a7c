"""Commands on a run with damaged files: they work, or print one line and exit with code 2."""

import io
import json
import random
import shutil

import made_run
import pytest
import tiny_run
import yaml
from damage import damaged, with_odd_values

from agentrl_jax.errors import MAX_ERROR, UserError
from agentrl_jax.evaluate.eval_set import EvalSet

DEEP = "[" * 3000 + "]" * 3000
WORDS = [b"9" * 5000, DEEP.encode(), b"null", b"NaN", b"{", b'"', b"\n", b"\xff", b"\\ud800"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of a fresh decoder and one of a pretrained model, with records of three steps."""
    home = tmp_path_factory.mktemp("runs")
    model = made_run.write_model(home / "model")
    made_run.write_run(home / "fresh")
    made_run.write_run(home / "talks", f"pretrained: {model}")
    names = ("rollout/in_group_std", "train/success", "actor/entropy", "actor/grad_norm_max", "train/response_tokens")
    rows = [{"step": i + 1, "stage": "rl", "iteration": i + 1, **dict.fromkeys(names, 0.5)} for i in range(3)]
    levels = [{"step": i + 1, "stage": "rl", "levels": ["0" * 16]} for i in range(3)]
    for run in ("fresh", "talks"):
        for name, lines in (("metrics", rows), ("levels", levels)):
            (home / run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return home


@pytest.fixture
def runs(whole, tmp_path, monkeypatch):
    """Copies; evaluation stops before it plays, which takes long and reads no other file but levels.jsonl."""

    def play(self, *_):
        raise UserError("everything has been read")

    monkeypatch.setattr(EvalSet, "play", play)
    for run in ("fresh", "talks"):
        shutil.copytree(whole / run, tmp_path / run)
    return tmp_path


def reads(*words):
    """Returns whether a command that reads a run succeeds; checks that a failure is reported in one line."""
    code, out, err = tiny_run.command(*words)
    last = err.rstrip("\n").split("\n")[-1]
    assert code in (0, 2), (words, err)
    assert (code == 2) == last.startswith("agentrl: "), (words, out, err)
    assert len(last) <= MAX_ERROR + len("agentrl: ")
    return code == 0 or "everything has been read" in last


def commands(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    shutil.rmtree(folder / "out", ignore_errors=True)
    return [
        ("diagnose", str(folder / "fresh"), "--figure", str(folder / "a.png")),
        ("eval", str(folder / "fresh")),
        ("export", str(folder / "fresh"), str(folder / "out")),
        ("chat", str(folder / "talks"), "--length", "64"),
    ]


def test_whole_runs_can_be_read(runs, monkeypatch):
    assert [reads(*words) for words in commands(runs, monkeypatch)] == [True] * 4
    file = runs / "fresh" / "config.yaml"
    data = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(data | {"tasks": [data["tasks"][0] | {"levels": "gone.txt"}]}))
    diagnose, evaluate, *_ = commands(runs, monkeypatch)
    assert reads(*diagnose)  # it needs no level file
    assert not reads(*evaluate)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_runs(seed, runs, whole, monkeypatch, bounded_memory):
    rng, ended = random.Random(seed), []
    for number in range(40):
        words = commands(runs, monkeypatch)[number % 4]
        run = "talks" if words[0] == "chat" else "fresh"
        names = ["config.yaml", "config.yaml", "metrics.jsonl", "levels.jsonl"]
        for file in (whole / run / "checkpoints").rglob("*") if number % 3 == 0 else ():
            names += [str(file.relative_to(whole / run))] if file.is_file() and file.stat().st_size else []
        file = rng.choice(names)
        content = (whole / run / file).read_bytes()
        if file == "config.yaml" and rng.random() < 0.7:
            made = json.dumps(with_odd_values(yaml.safe_load(content), rng)).encode()
        elif file.endswith(".jsonl") and rng.random() < 0.7:
            rows = with_odd_values([json.loads(line) for line in content.splitlines()], rng)
            made = "".join(json.dumps(row) + "\n" for row in rows).encode()
        else:
            made = damaged(content, rng, WORDS)
        (runs / run / file).write_bytes(made)
        ended.append(reads(*words))
        (runs / run / file).write_bytes(content)
    assert 0 < sum(ended) < len(ended)
