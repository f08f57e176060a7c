"""The story of a run: its records, a resume bit for bit, a replay, a page, an export; and what its endpoint replies."""

import contextlib
import json
import shutil

import numpy as np
import pytest
import tiny_run
from maze_model import lines_in, replies_in
from page_runs import decode_page
from serving import running

from agentrl_jax import api
from agentrl_jax.config import load_config
from agentrl_jax.evaluate import retry
from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.served_model import load_served, make_sampler
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.setup import build_model


def test_what_a_run_leaves_behind(finished):
    names = {entry.name for entry in finished.folder.iterdir()}
    records = {"config.yaml", "metrics.jsonl", "levels.jsonl", "trajectories.jsonl", "summary.json", "curves.png"}
    records |= {"provenance.jsonl"}
    assert names == records | {"checkpoints", "rollouts", "tensorboard", ".lock"}
    assert tiny_run.checkpoints(finished.folder) == [5, 7]
    assert recorded_iterations(finished.folder) == [3, 4]
    given = load_config(finished.file).replace(run_dir=str(finished.folder))
    assert load_config(finished.folder / "config.yaml") == given
    for part in ("after imitation", "after RL", "optimal", str(finished.folder)[-20:]):
        assert part in finished.output


def test_metrics_hold_every_task(finished):
    rows = tiny_run.metrics(finished.folder)
    assert [(row["step"], row["stage"]) for row in rows] == [*enumerate(3 * ["imitation"] + 4 * ["rl"], 1)]
    assert rows[2]["imitation/loss"] < 2  # nats per token; a uniform policy has 6.2
    for row in rows[3:]:
        assert row["train/SimpleSokoban/episodes"] == row["train/FrozenLake/episodes"] == 8
        parts = [row[f"train/{name}/success"] for name in ("SimpleSokoban", "FrozenLake")]
        assert row["train/success"] == pytest.approx(np.mean(parts))
        assert row["rollout/active_token_share"] == row["rollout/sampled_tokens"] / row["rollout/slot_steps"]
        assert 0 < row["update/trained_tokens"] <= row["rollout/sampled_tokens"]
    # Every second iteration, of eight levels and the two of the first task's file.
    validated = [(row["step"], row["validation/episodes"]) for row in rows if "validation/success" in row]
    assert validated == [(5, 10), (7, 10)]
    assert {"validation/FrozenLake/success", "validation/SimpleSokoban/return"} <= rows[4].keys()
    shown = tiny_run.curves(finished.folder)
    assert shown["train/success", 3] == np.float32(rows[5]["train/success"])
    assert {step for _, step in shown} == set(range(-2, 5))  # iterations, and imitation before them


def test_the_summary_counts_the_run(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    rows = tiny_run.metrics(finished.folder)
    assert (summary["iterations"], summary["gradient_steps"], summary["episodes"]) == (4, 75 + 4, 4 * 16)
    assert summary["sampled_tokens"] == sum(row.get("rollout/sampled_tokens", 0) for row in rows)
    assert summary["trained_tokens"] == sum(row.get("update/trained_tokens", 0) for row in rows)
    assert len(summary["programs"]) == 5  # imitation, rollout, record, update, evaluation
    assert summary["seconds"]["total"] > 0
    for table in ("success", "success_greedy"):
        assert summary[table].keys() == {"null", "random", "imitation", "trained", "optimal"}
        assert summary[table]["null"]["mean"] == 0
        for interval in summary[table].values():
            assert interval["n"] == 2 + 12  # the first task has two levels
            assert 0 <= interval["low"] <= interval["mean"] <= interval["high"] <= 1
    assert summary["success"]["random"]["mean"] < summary["success"]["optimal"]["mean"]


def test_a_recorded_rollout_is_that_of_the_text_and_of_the_learner(finished):
    rows = [json.loads(line) for line in (finished.folder / "trajectories.jsonl").read_text().splitlines()]
    assert [(row["step"], row["iteration"]) for row in rows] == [(6, 3)] * 3 + [(7, 4)] * 3
    assert any("</answer>" in turn["response"] for row in rows for turn in row["turns"])
    record = read_record(record_path(finished.folder, 4))
    tokenizer = build_model.load_tokenizer(read_config(finished.folder).model, None)
    header = record.header
    assert (header.step, header.iteration, header.roll_backs) == (7, 4, 0)
    assert header.tasks == ("SimpleSokoban", "FrozenLake")
    assert (header.group_size, header.episodes, header.horizon, header.temperature) == (4, 16, 2, 1.0)
    assert (record.group.tolist(), record.member.tolist()) == ([0, 0, 0], [0, 1, 2])
    for row, text in enumerate(rows[-3:]):
        assert (text["task"], record.num_turns[row]) == ("SimpleSokoban", len(text["turns"]))
        assert record.returns[row] == pytest.approx(text["return"])
        for turn, shown in enumerate(text["turns"]):
            sampled = record.tokens[row, turn, : record.length[row, turn]]
            assert tokenizer.decode(sampled.tolist(), skip_special=False) == shown["response"]
    sampled = np.arange(record.tokens.shape[2]) < record.length[..., None]
    np.testing.assert_allclose(record.learner_logprob[sampled], record.logprob[sampled], atol=2e-6)
    assert record.entropy[sampled].min() >= 0
    assert record.entropy[sampled].max() > 0.01
    for values in (record.learner_logprob, record.entropy, record.advantage, record.trained):
        assert not values[~sampled].any()
    assert not record.advantage[~record.trained].any()


def test_a_run_that_goes_on_from_a_checkpoint_ends_like_one_that_was_not_stopped(finished, tmp_path):
    run, words = tmp_path / "run", ["train", finished.file, "--run_dir", str(tmp_path / "run")]
    assert "going on from the checkpoint of step 5" in tiny_run.resumed(finished.folder, run, finished.file)
    tiny_run.assert_same(run, finished.folder)
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != ".lock"}
    assert "the run has ended" in tiny_run.done(*words)
    assert {file: file.read_bytes() for file in before} == before


def test_a_finished_run_is_replayed_and_exported(finished, tmp_path):
    run = shutil.copytree(finished.folder, tmp_path / "run")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    output = tiny_run.done("replay", str(run), "--iteration", "4", "--row", "2", "--json")
    found = json.loads(output)
    assert (found["different"], found["equal_rows"], found["rows"]) == ([], 3, 3)
    assert found["start"] == "the checkpoint of step 5"
    text = json.loads((run / "trajectories.jsonl").read_text().splitlines()[-1])
    assert found["episode"] == {name: value for name, value in text.items() if name not in ("step", "iteration")}
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    # A checkpoint that was not kept, from the one of step 5.
    rebuilt = tmp_path / "rebuilt"
    tiny_run.done("replay", str(run), "--rebuild", "6", "--out", str(rebuilt))
    assert tiny_run.metrics(rebuilt) == tiny_run.metrics(run)[:6]
    assert tiny_run.checkpoints(rebuilt)[-1] == 6
    for words in (("--rebuild", "2", "--out", str(tmp_path / "x")), ("--rebuild", "6", "--out", str(rebuilt)), ()):
        assert tiny_run.command("replay", str(run), *words)[0] == 2
    tiny_run.done("export", str(run), str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_configuration_that_was_edited_by_hand_is_refused_and_said(finished, tmp_path):
    run = shutil.copytree(finished.folder, tmp_path / "run")
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.01\n", "lr: 0.5\n", 1))
    code, _, err = tiny_run.command("train", str(run), "--train.iterations", "5")
    assert (code, "optim.lr" in err, "0.01" in err) == (2, True, True)
    code, _, err = tiny_run.command("export", str(run), str(tmp_path / "model"))
    assert (code, "optim.lr is 0.5, but 0.01" in err) == (0, True)


def test_a_trained_run_is_shown_with_its_boards(finished, tmp_path):
    file = tmp_path / "page.html"
    code, out, err = tiny_run.command("view", str(finished.folder), "--export", str(file))
    assert (code, out.startswith(f"page: {file}")) == (0, True)
    assert "no boards" not in err
    index, (_, *blocks) = decode_page(file.read_text())
    entry = index["runs"][0]
    assert [info["iteration"] for info in entry["iterations"]] == recorded_iterations(finished.folder) != []
    assert {line["name"] for line in entry["lines"]} == {"random", "optimal"}
    assert entry["trend"]["iteration"] == [1, 2, 3, 4]
    for info, (header, block) in zip(entry["iterations"], blocks, strict=True):
        record = read_record(record_path(finished.folder, info["iteration"]))
        executed = (record.actions >= 0).sum((1, 2))
        np.testing.assert_array_equal(block["scene_count"], 1 + executed)
        names = {name for stack in header["scenes"]["stacks"] for name in stack}
        assert names <= entry["sprites"].keys()
        assert "player" in names
        assert np.isfinite(block["logprob_table"][block["logprob"]]).all()


LEVELS = 8
"""As many as the validation of the run plays at a time, whose program plays them here, too."""


@contextlib.contextmanager
def served(folder):
    model = load_served(str(folder), name="tiny")
    sampler = make_sampler(model, context=320, max_tokens=6, max_batch=1)
    with running(create_app(model, sampler, Limits(), max_waiting=64)) as url:
        yield f"{url}/v1"


def words(address, out, *options):
    found = ["eval", "--api", "tiny", "--base_url", address, "--env", "FrozenLake", "--style", "compact"]
    found += ["--turns", "2", "--actions_per_turn", "2", "--episodes", str(LEVELS), "--max_tokens", "6", "--json"]
    return [*found, "--out", str(out), *options]


def greedy_episodes(folder):
    """The run's own greedy play on its first test levels of FrozenLake: episodes of (texts, token ids, success)."""
    policy = api.load_policy(folder)
    played = api.rollout(policy, LEVELS, task=1, temperature=0.0, seed=123)
    episodes = []
    for row in range(LEVELS):
        lengths = played.response.length[row, : played.num_turns[row]]
        ids = [played.response.tokens[row, turn, :length].tolist() for turn, length in enumerate(lengths)]
        texts = ["<answer>" + policy.tokenizer.decode(of_turn) for of_turn in ids]
        episodes.append((texts, ids, played.response.ended[row, : len(ids)].tolist(), bool(played.success[row])))
    return episodes


def check_replies(address, greedy, tmp_path, *options):
    result = json.loads(tiny_run.done(*words(address, tmp_path, *options)))
    rows = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    replies = {(row["item"], row["turn"]): row["reply"] for row in rows}
    episodes = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert result["episodes"]["unfinished"] == 0
    for episode in episodes:
        texts, ids, ended, success = greedy[episode["item"]]
        of_item = [replies[episode["item"], turn] for turn in range(episode["turns"])]
        assert [reply["text"] for reply in of_item] == texts[: len(of_item)]
        assert [reply["finish"] == "stop" for reply in of_item] == ended[: len(of_item)]
        if options:
            assert [reply["token_ids"] for reply in of_item] == ids[: len(of_item)]
        if episode["status"] == "answered":
            assert (len(of_item), episode["solved"]) == (len(texts), success)
    assert len(episodes) == LEVELS
    # Some episodes have a second turn, whose prompt holds the first reply.
    assert sum(episode["turns"] == 2 for episode in episodes) >= 3


def test_the_replies_are_those_of_the_run(finished, tmp_path):
    with served(finished.folder) as address:
        check_replies(address, greedy_episodes(finished.folder), tmp_path, "--token_ids")


@pytest.mark.nightly
def test_retries_are_those_of_the_run(finished, tmp_path, monkeypatch):
    """Greedy play with one retry: all that is said and done, with the random transitions of the second attempt."""
    played, within = [], retry.within
    monkeypatch.setattr(retry, "within", lambda trajectory, n: played.append(trajectory) or within(trajectory, n))
    evaluate_run(finished.folder, env="FrozenLake", episodes=LEVELS, attempts=(2,))
    _, greedy = played
    with served(finished.folder) as address:
        tiny_run.done(*words(address, tmp_path, "--token_ids", "--attempts", "2"))
    ids = {(item, turn): row["reply"]["token_ids"] for (item, _, turn), row in replies_in(tmp_path).items()}
    retried = 0
    for row in lines_in(tmp_path, "episodes"):
        item, attempts = row["item"], row["attempts"]
        turns = sum(attempt["turns"] for attempt in attempts)
        lengths = greedy.response.length[item]
        said = [greedy.response.tokens[item, turn, : lengths[turn]].tolist() for turn in range(turns)]
        assert [ids[item, turn] for turn in range(turns)] == said
        if attempts[-1]["status"] == "answered":
            assert (turns, attempts[-1]["solved"]) == (greedy.num_turns[item], greedy.success[item])
            retried += len(attempts) == 2
    assert retried >= 3
