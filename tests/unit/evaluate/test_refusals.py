"""Options, files and folders that commands of evaluations refuse before anything is played or written."""

import shutil

import pytest
import tiny_run
from evaluating import refusal

WORDS = {
    "API": "--api m --base_url http://127.0.0.1:9/v1 --out OUT",
    "STAIRS": "--env maze --items 15-18",
    "BANDIT": "--policy random --panel bandit-v1",
}
OF_RUN = [
    ("eval RUN --samples 0", "--samples", 0),
    ("eval RUN --temperature 0", "--temperature", 0),
    ("eval RUN --checkpoint 4", "RUN/checkpoints", "4"),
    ("eval RUN/checkpoints", "RUN/checkpoints", "holds no config.yaml"),
    ("eval RUN --panel sokoban-6x6", "--panel", "sokoban-6x6"),
    ("eval RUN --panel bandit-v1 --episodes 3", "--panel", "bandit-v1"),
    ("eval RUN --panel maze-v1", "--panel", "maze-v1"),
    ("eval RUN --selector value", "--selector", "value"),
    ("eval RUN --panel bandit-v1 --out absent/absent/x.json", "--out", "absent/absent/x.json"),
    ("eval RUN --clusters --episodes 2", "--clusters", None),
    ("eval RUN --against RUN --record OUT", "--record", "OUT"),
    ("eval --policy constant --action x --panel maze-v1", "--action", "x"),
    ("eval BANDIT --plays 3", "--plays", 3),
    ("eval BANDIT --env Bandit", "--policy", None),
    ("scaling RUN", "--turns", None),
    ("scaling RUN --turns 5,x", "--turns", "5,x"),
    ("scaling RUN --turns 2,2", "--turns", "2,2"),
    ("scaling RUN --turns 0,2", "--turns", "0,2"),
    ("scaling RUN --tokens 1,2", "--tokens", "1,2"),
    ("scaling RUN --attempts 1,65", "--attempts", "1,65"),
    ("scaling RUN --samples 9999999", "--samples", "9999999"),
    ("scaling RUN --turns 2 --selector value", "--selector", "value"),
    ("scaling RUN --turns 2 --out absent/absent", "--out", "absent/absent"),
    ("scaling RUN --turns 2 --env Bandits", "environment", "Bandits"),
    ("scaling RUN --samples 2 --selector majority", "--selector", "majority"),
    ("scaling RUN --turns 2 --record OUT", "--record", "OUT"),
    ("scaling --turns 1", "RUN", None),
    ("leaderboard RUN/rollouts", "RUN/rollouts", None),
    ("leaderboard RUN --json --markdown", "--json", None),
    ("diagnose OUT", "OUT", "no such folder"),
    ("chat RUN --online", "RUN", None),
    ("chat org/name --revision main", "--revision", "main"),
]
OF_API = [
    ("scaling runs/x --turns 1 --items 0-3", "--items", "0-3"),
    ("scaling runs/x --turns 1 --max_tokens 9", "--max_tokens", 9),
    ("scaling API runs/x --env maze --turns 1", "--run", "runs/x"),
    ("scaling API --env maze", "--turns", None),
    ("scaling API STAIRS --samples 2 --selector value", "--selector", "value"),
    ('scaling API --env maze --tokens 9 --extra {"max_tokens":null}', "--tokens", None),
    ("eval --api m --env maze", "--api", None),
    ("eval --base_url http://a/v1", "--base_url", "http://a/v1"),
    ("eval API --env maze --policy random", "--policy", "random"),
    ("eval API --env maze --extra 3", "--extra", "3"),
    ('eval API --env maze --extra {"model":1}', "--extra", "model"),
    ("eval API --env maze --key_variable NOT_SET_AT_ALL", "--key_variable", "NOT_SET_AT_ALL"),
    ("eval API --env maze --temperature -1", "--temperature", -1),
    ("eval API --env maze --max_tokens 0", "--max_tokens", 0),
    ("eval API --env maze --retries -1", "--retries", -1),
    ("eval API --env maze --style ragen", "--style", "ragen"),
    ("eval API --env maze --think", "--think", None),
    ("eval API --env maze --items 25", "--items", 25),
    ("eval API --env maze --items a.json", "a.json", None),
    ("eval API --env nowhere", "environment", "nowhere"),
    ("eval API --env FrozenLake --style compact --url http://a", "--style", "compact"),
    ("eval API --env FrozenLake --levels panel", "levels", "panel"),
    ("eval API --env SimpleSokoban --levels LEVELS --items 2", "--items", 2),
    ("eval API --env maze --attempts 0", "--attempts", 0),
    ("eval API --env maze --attempts 65", "--attempts", 65),
    ("eval API --env maze --selector shortest", "--selector", "shortest"),
    ("eval API --env maze --items 18 --clusters", "--clusters", None),
    ("eval API --panel maze-v1 --env maze", "--env", "maze"),
    ("eval API --panel maze-v1 --turns 2", "--turns", 2),
]


@pytest.mark.parametrize(("words", "key", "value"), OF_RUN + OF_API)
def test_options_that_cannot_be(finished, tmp_path, words, key, value):
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    paths = {"OUT": tmp_path / "out", "LEVELS": tmp_path / "levels.txt", "RUN/": f"{finished.folder}/"}

    def filled(text):
        for name, path in (WORDS | paths).items():
            text = text.replace(name, str(path))
        return str(finished.folder) if text == "RUN" else text

    found = refusal(*(word for part in words.split() for word in filled(part).split()))
    expected = key if words.startswith("scaling --turns") else filled(key)
    assert (found.key, found.value) == (expected, filled(value) if isinstance(value, str) else value)
    assert not (tmp_path / "out").exists()


def test_a_level_file_that_cannot_be_played(finished, tmp_path):
    file = tmp_path / "levels.txt"
    for content, parts in ((b"#####\n#@x.#\n#####\n", ["line 2, column 3", "'x'"]), (b"\xff\xfe\x00", ["no level"])):
        file.write_bytes(content)
        message = str(refusal("eval", finished.folder, "--levels", file))
        assert all(part in message for part in [str(file), *parts])


def test_a_run_that_cannot_be_evaluated(finished, tmp_path):
    copy = shutil.copytree(finished.folder, tmp_path / "copy")
    file, whole = copy / "config.yaml", (copy / "config.yaml").read_text()
    file.write_text(whole.replace("tokenizer: ''", "tokenizer: /absent"))
    assert "/absent" in str(refusal("eval", copy))
    file.write_text(whole[: whole.index("\nrollout:")])
    assert "config.yaml: lacks rollout" in str(refusal("eval", copy))
