"""A run goes on with other settings, and another one starts from it."""

import json
import shutil

import tiny_run


def test_a_run_goes_on_with_another_rate_and_another_run_starts_from_it(finished, tmp_path):
    run, branch = shutil.copytree(finished.folder, tmp_path / "run"), tmp_path / "branch"
    change = ("--optim.lr", "0.001", "--train.iterations", "5", "--train.keep", "3")
    code, _, err = tiny_run.command("train", str(run), *change)
    assert (code, "--accept_changes" in err) == (2, True)
    tiny_run.done("train", str(run), *change, "--accept_changes")
    rates = [row["actor/lr"] for row in tiny_run.metrics(run)[3:]]
    assert rates == [0.01] * 4 + [0.001]
    # From before the change, iterations are those of before, and the change is made at its step again.
    for step in (7, 8):
        shutil.rmtree(run / "checkpoints" / str(step))
    shutil.copytree(run, tmp_path / "again")
    tiny_run.done("train", str(tmp_path / "again"))
    (aside,) = (tmp_path / "again" / "set_aside").iterdir()
    assert [row["step"] for row in tiny_run.metrics(aside)] == [6, 7, 8]
    assert {file.name for file in (aside / "rollouts").iterdir()} == {"000003.npz", "000004.npz", "000005.npz"}
    assert tiny_run.metrics(tmp_path / "again") == tiny_run.metrics(run)
    words = ("--from", str(run), "--checkpoint", "5", "--start.optimizer", "true", "--imitation.steps", "0")
    words += ("--imitation.levels", "0", "--train.iterations", "2", "--train.keep", "1", "--train.keep_every", "2")
    tiny_run.done("train", finished.file, "--run_dir", str(branch), *words)
    assert (tiny_run.summary(branch)["started_from"]["step"], tiny_run.checkpoints(branch)) == (5, [2])
    assert all("seen_midway_from_start" not in known for known in tiny_run.summary(branch)["levels"].values())
    learned = [json.loads(line) for line in (branch / "levels.jsonl").read_text().splitlines()]
    before = [json.loads(line) for line in (run / "levels.jsonl").read_text().splitlines()]
    known = {level for row in before if row["stage"] != "test" and row["step"] <= 5 for level in row["levels"]}
    assert (learned[0]["stage"], set(learned[0]["levels"])) == ("start", known)
