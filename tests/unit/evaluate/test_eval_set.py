"""`agentrl eval` on the checkpoint of a tiny run; episodes do not depend on how many are played."""

import json
import re
import shutil

import numpy as np
import pytest
import tiny_run

from agentrl_jax.evaluate import against

LAKES = """
SFFF
FFFF
FFFF
FFFG

SFFG
HHHH
HHHH
HHHH

SHFF
HHFF
FFFF
FFFG
"""


def evaluate(run, *words):
    code, out, err = tiny_run.command("eval", str(run), "--json", *words)
    assert code == 0, err
    return json.loads(out)


def refused(run, *words):
    code, out, err = tiny_run.command("eval", str(run), "--json", *words)
    assert (code, out) == (2, "")
    assert err.startswith("agentrl: ")
    assert err.count("\n") == 1
    return err


def test_the_tasks_of_the_run_give_what_its_summary_says(finished):
    summary = tiny_run.summary(finished.folder)
    parts = [evaluate(finished.folder), evaluate(finished.folder, "--env", "FrozenLake")]
    assert [(part["env"], part["iteration"], part["success"]["n"]) for part in parts] == [
        ("SimpleSokoban", 4, 2),  # the file has no more
        ("FrozenLake", 4, 12),
    ]
    for table, key, name in (
        ("success", "trained", "success"),
        ("success_greedy", "trained", "success_greedy"),
        ("success", "random", "random"),
        ("success", "optimal", "optimal"),
    ):
        pooled = np.average([part[name]["mean"] for part in parts], weights=[2, 12])
        assert pooled == pytest.approx(summary[table][key]["mean"])
    for name in ("mean_turns", "mean_tokens"):
        assert np.average([part[name] for part in parts], weights=[2, 12]) == pytest.approx(summary[name])
    random, optimal = (summary["success"][line]["mean"] for line in ("random", "optimal"))
    assert summary["gap_closed"] == pytest.approx((summary["success"]["trained"]["mean"] - random) / (optimal - random))


def test_samples_are_other_episodes_on_the_same_levels(finished):
    """The first of several samples is the only one of a plain evaluation; greedy play stays the same."""
    words = ("--env", "FrozenLake", "--episodes", "8")
    one, several = evaluate(finished.folder, *words), evaluate(finished.folder, *words, "--samples", "3")
    assert (one["samples"], several["samples"]) == (1, 3)
    assert "pass_at" not in one
    for name in ("success_greedy", "random", "optimal", "seen"):
        assert one[name] == several[name]
    assert several["success"]["n"] == 8
    assert list(several["pass_at"]) == list(several["pass_all"]) == ["1", "2", "3"]
    for table in ("pass_at", "pass_all"):
        assert several[table]["1"]["mean"] == pytest.approx(several["success"]["mean"])
    rising, falling = ([several[table][k]["mean"] for k in "123"] for table in ("pass_at", "pass_all"))
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert rising[-1] > falling[-1]
    assert "expected at least 1" in refused(finished.folder, "--samples", "0")


def test_two_runs_are_compared_level_by_level(finished, tmp_path, monkeypatch):
    words = ("--env", "FrozenLake", "--episodes", "8", "--samples", "2")
    result = evaluate(finished.folder, *words, "--against", str(finished.folder))
    plain = result["run"]
    assert plain == result["against"], "the same evaluation gives the same numbers"
    assert len(plain["outcomes"]["success_greedy"]) == 8
    assert np.mean(plain["outcomes"]["success"]) == plain["success"]["mean"]
    for name in ("difference", "difference_greedy"):
        assert (result[name]["mean"], result[name]["n"]) == (0, 8)
    monkeypatch.setattr(against, "evaluate_against", lambda *_, **__: result)
    code, out, _ = tiny_run.command("eval", str(finished.folder), *words, "--against", str(finished.folder))
    assert code == 0
    for title in ("agent, greedy", "agent, pass@2", "agent, pass^2", "│ optimal play"):
        assert out.count(title) == 2
    assert re.search(r"greedy: \+0\.0 points .*, paired over 8 levels", " ".join(out.split()))
    monkeypatch.undo()
    other = shutil.copytree(finished.folder, tmp_path / "other")
    settings = (other / "config.yaml").read_text()
    before, after = settings.split("env: FrozenLake\n")
    changed = after.replace("options: {}", "options: {frozen_probability: 0.7}", 1)
    assert changed != after
    (other / "config.yaml").write_text(f"{before}env: FrozenLake\n{changed}")
    code, out, err = tiny_run.command("eval", str(finished.folder), *words, "--against", str(other))
    assert (code, out) == (2, "")
    assert "play different levels of FrozenLake" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "words", "parts"),
    [
        ("#####\n#@x.#\n#####\n", [], ["line 2, column 3", "'x'"]),
        ("", [], ["no level"]),
        ("#####\n#@$ #\n#####\n", [], ["1 boxes and 0 targets"]),
        ("#####\n#@$.\n#####\n", [], ["closed by #"]),
        (b"\xff\xfe\x00", [], ["no level"]),
        (LAKES, [], ["no level", "XSB"]),
        ("SFFG\n", ["--env", "Bandit"], ["Bandit has no levels"]),
        ("SFFG\n\nSG\n", ["--env", "FrozenLake"], ["level 2 is 1x2", "one size"]),
        ("SFFF\n", ["--env", "FrozenLake"], ["0 goals"]),
    ],
)
def test_a_bad_file_is_one_line(finished, tmp_path, content, words, parts):
    file = tmp_path / "levels.txt"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused(finished.folder, "--levels", str(file), *words)
    for part in [str(file), *parts]:
        assert part in message


def test_a_bad_pack_is_one_line(finished, tmp_path):
    file = tmp_path / "pack.npy"
    file.write_bytes(b"no array")
    assert "pack.npy" in refused(finished.folder, "--levels", str(file))
    np.save(file, np.zeros((2, 3), np.float32))
    for words in ([], ["--env", "FrozenLake"]):
        assert "float32" in refused(finished.folder, "--levels", str(file), *words)


def test_other_mistakes_are_one_line(finished, tmp_path):
    assert "no such folder" in refused(tmp_path / "absent")
    assert "that is no folder" in refused(finished.file)
    assert "holds no config.yaml" in refused(tmp_path)
    assert "--episodes is 0" in refused(finished.folder, "--episodes", "0")
    assert "--temperature is 0" in refused(finished.folder, "--temperature", "0")
    message = refused(finished.folder, "--checkpoint", "4")
    assert "expected one of last, best, 5 (iteration 2), 7 (iteration 4)" in message
    copy = tmp_path / "copy"
    shutil.copytree(finished.folder, copy)
    for step in tiny_run.checkpoints(copy):
        shutil.rmtree(copy / "checkpoints" / str(step))
    assert "no checkpoint yet" in refused(copy)
    shutil.rmtree(copy / "checkpoints")
    assert "no checkpoint yet" in refused(copy)
    file = copy / "config.yaml"
    whole = file.read_text()
    file.write_text(whole.replace("tokenizer: ''", "tokenizer: /absent"))
    assert "/absent" in refused(copy)
    file.write_text(whole[: whole.index("\nrollout:")])
    assert "config.yaml: lacks rollout" in refused(copy)
