"""Records of a panel, and the tables that are computed from them."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax import api
from agentrl_jax.evaluate import leaderboard, panels, records
from agentrl_jax.evaluate.leaderboard import make_leaderboard, row_of
from agentrl_jax.evaluate.records import Record, parameters_digest, read_record
from agentrl_jax.evaluate.scripted import evaluate_on_panel, evaluate_scripted
from agentrl_jax.evaluate.statistics import mean_interval, paired_interval, success_interval
from agentrl_jax.services.catalog import success_rule

LAKES, COUNT = "frozen-lake-4x4-v2", 32


@pytest.fixture(scope="module", autouse=True)
def few_lakes():
    """The panel of lakes has its first levels only."""
    panel = dataclasses.replace(panels.get_panel(LAKES), levels=COUNT)
    panel = dataclasses.replace(panel, sha256=panels.digest(panel, panels.first_observations(panel)))
    stored = panels.load_panels() | {LAKES: panel}
    with pytest.MonkeyPatch.context() as patch:
        for module in (panels, leaderboard):
            patch.setattr(module, "load_panels", lambda: stored)
        yield


@pytest.fixture(scope="module")
def folder(finished, few_lakes, tmp_path_factory):
    found = tmp_path_factory.mktemp("records")
    of_run = (finished.folder, "--panel", LAKES, "--samples", "3", "--best_of", "2", "--selector", "shortest")
    scripted = {policy: ("--policy", policy, "--panel", "bandit-v1") for policy in ("random", "null", "oracle")}
    for name, words in {"run": of_run, **scripted}.items():
        printed = result_of("eval", *words, "--out", found / f"{name}.json")
        assert printed == json.loads((found / f"{name}.json").read_text())
    return found


def changed(folder, tmp_path, change):
    """A folder with one record, that of the run with changed contents."""
    content = json.loads((folder / "run.json").read_text())
    change(content)
    (tmp_path / "changed.json").write_text(json.dumps(content))
    return str(tmp_path)


def of_kind(rows, kind="run"):
    (row,) = (row for row in rows if row.kind == kind)
    return row


def test_a_record_says_what_was_played(folder, finished):
    record, panel = read_record(folder / "run.json"), panels.get_panel(LAKES)
    agent, decoding, outcomes = record.agent, record.decoding, record.outcomes
    assert (record.panel.name, record.panel.sha256) == (LAKES, panel.sha256)
    assert (agent.kind, agent.name, agent.iteration) == ("run", "run", 4)
    assert (decoding.samples, decoding.turns, decoding.actions, decoding.actions_per_turn) == (3, 2, 10, 2)
    assert (decoding.temperature, decoding.response_tokens, decoding.seed) == (1.0, 6, 123)
    assert decoding.options == panel.options
    assert np.shape(outcomes.samples) == (COUNT, 3)
    assert 1 <= record.mean_turns <= record.mean_tokens <= 12
    assert np.all(np.array(outcomes.samples) <= np.array(outcomes.optimal)[:, None])
    assert 0 < np.mean(outcomes.random) < np.mean(outcomes.optimal) < 1, "four actions at most"
    assert (record.seen.held_out, record.seen.levels) == (True, COUNT)
    assert record.results["best_of"]["selector"] == "shortest"
    parameters = api.load_policy(finished.folder).params["policy"]
    assert agent.parameters_sha256 == parameters_digest(parameters)
    assert agent.model["parameters"] == sum(x.size for x in jax.tree.leaves(parameters))


def test_a_digest_of_parameters_reads_every_bit_and_name():
    tree = {"a": np.arange(4, dtype=np.float32), "b": {"c": np.ones((2, 2), np.float16)}}
    changed = (np.nextafter(tree["a"], 9, dtype=np.float32), tree["a"].reshape(2, 2), tree["a"].astype(np.int32))
    others = [{**tree, "a": other} for other in changed] + [{"d": tree["a"], "b": tree["b"]}]
    assert len({parameters_digest(other) for other in (tree, *others)}) == 5
    assert parameters_digest(tree) == parameters_digest({"b": tree["b"], "a": jax.numpy.asarray(tree["a"])})


def test_scripted_policies_are_exact_where_they_can_be(folder):
    for name, mean in (("random", 0.5), ("null", 0.0), ("oracle", 1.0)):
        record = read_record(folder / f"{name}.json")
        assert (record.outcomes.exact, record.outcomes.samples) == (True, [[mean]] * 64)
        assert (record.agent.kind, record.agent.name, record.agent.parameters_sha256) == ("scripted", name, None)
    record = read_record(folder / "random.json")
    row = row_of(record, "")
    assert (row.success, row.samples, row.turns) == (mean_interval([0.5] * 64), None, 1.0)
    assert (record.mean_turns, record.results["gap_closed"]) == (1.0, 0.0)
    assert [record.results[name]["mean"] for name in ("random", "null", "optimal")] == [0.5, 0.0, 1.0]
    served = Record.model_validate(result_of("eval", "--policy", "oracle", "--panel", "maze-v1"))
    assert (served.outcomes.exact, served.outcomes.samples) == (False, [[1.0]] * 25)
    assert (served.results["score"]["mean"], served.success_rule) == (1.0, success_rule("maze"))
    null = records.of_result(evaluate_on_panel("null", "maze-v1", plays=2))
    assert null.outcomes.samples == [[0, 0]] * 25
    assert row_of(null, "").turns == 50, "it never ends by itself"


def test_a_service_stands_beside_the_other_policies():
    def played(policy, action=None):
        return evaluate_scripted("maze", policy, action=action, items="3-9", turns=20, seed=4)

    found = {policy: played(policy) for policy in ("oracle", "null", "random")}
    for result in found.values():
        for name, policy in {"optimal": "oracle", "null": "null", "random": "random"}.items():
            alone = found[policy]
            assert result[name]["mean"] == alone["success"]["mean"]
            assert result["baseline_turns"][name] == alone["mean_turns"]
            assert result["baseline_score"][name]["mean"] == alone["score"]["mean"]
            assert result["outcomes"][name] == [solved for (solved,) in alone["outcomes"]["samples"]]
        assert (result["optimal_is"], result["success_rule"]) == ("scripted", success_rule("maze"))
        assert "strict_rule" not in result
    assert [found[policy]["gap_closed"] for policy in ("oracle", "random")] == [1.0, 0.0]
    assert played("constant", "move up")["random"] == found["random"]["success"]


def test_old_records_can_be_read(folder, tmp_path):
    def before(content):
        del content["baseline_turns"], content["outcomes"]["unanswered"]

    old, new = (make_leaderboard(where).tables[LAKES] for where in (changed(folder, tmp_path, before), str(folder)))
    row = of_kind(old)
    assert (row.unanswered, row.answered, row.success_answered) == (None, None, None)
    turns = [{row.agent: row.turns for row in rows if row.kind == "baseline"} for rows in (old, new)]
    assert turns[0] == dict.fromkeys(turns[1])
    assert turns[1]["null play"] == 2


def test_the_table_is_computed_from_the_outcomes(folder, tmp_path):
    found = make_leaderboard(str(folder))
    assert (list(found.tables), found.left_out) == ([LAKES, "bandit-v1"], [])
    gaps = [(row.agent, row.gap_closed) for row in found.tables["bandit-v1"]]
    assert gaps == [("oracle", 1.0), ("random", 0.0), ("null", -1.0)], "the best first"
    assert result_of("leaderboard", folder, "--panel", "bandit-v1")["tables"].keys() == {"bandit-v1"}
    assert refusal("leaderboard", folder, "--panel", "maze-v1").key == str(folder)
    run, outcomes = of_kind(found.tables[LAKES]), read_record(folder / "run.json").outcomes
    samples = np.array(outcomes.samples)
    assert run.success == success_interval(samples.mean(axis=1))
    assert run.greedy == success_interval(outcomes.greedy)
    assert run.pass_at == success_interval(samples.any(axis=1))
    random, optimal = np.mean(outcomes.random), np.mean(outcomes.optimal)
    assert run.gap_closed == pytest.approx((samples.mean() - random) / (optimal - random))

    def lie(content):
        content["results"]["success"]["mean"] = 1.0
        content["outcomes"]["samples"][0] = [1 - x for x in content["outcomes"]["samples"][0]]

    other = of_kind(make_leaderboard(changed(folder, tmp_path, lie)).tables[LAKES])
    assert other.success["mean"] == pytest.approx(samples.mean() + (3 - 2 * samples[0].sum()) / samples.size)


def test_records_that_cannot_be_used_are_named(folder, tmp_path):
    def unanswered(kind, missing, counted):
        def change(content):
            content["agent"]["kind"] = kind
            content["outcomes"]["samples"][5][:missing] = [None] * missing
            content["outcomes"]["unanswered"] = {"length": counted, "refusal": 0}

        return change

    for change, part in (
        (lambda c: c["panel"].update(sha256="0" * 64), "other levels"),
        (lambda c: c["panel"].update(name="bandit-v9"), "'bandit-v9'"),
        (lambda c: c["outcomes"]["random"].pop(), "outcomes.random are of 31 levels"),
        (lambda c: c["outcomes"]["samples"][5].pop(), "2 outcomes of level 5; expected 3"),
        (lambda c: c["outcomes"]["samples"][5].__setitem__(0, 0.5), "level 5 are not all 0 or 1"),
        (lambda c: c["outcomes"]["greedy"].__setitem__(0, 0.5), "outcomes.greedy"),
        (lambda c: c["outcomes"]["samples"][5].__setitem__(0, 7.0), "less than or equal to 1"),
        (unanswered("run", 1, 1), "1 outcomes are null, which they may be only for agents of kind api"),
        (unanswered("api", 0, 2), "0 outcomes are null, but 2 are counted"),
        (lambda c: c["outcomes"].update(exact=True), "of kind scripted, not run"),
        (lambda c: c.update({"B" * 5_000_000: 1}), "BBB ... BBB"),
        (lambda c: c.pop("decoding"), "decoding: "),
        (lambda c: c.update(version=2), "version: "),
    ):
        found = make_leaderboard(changed(folder, tmp_path, change))
        assert found.tables == {}
        (line,) = found.left_out
        assert part in line
        assert "changed.json" in line
        assert len(line) < 1000
    # Other files are left out, too.
    for name, content in (("empty", ""), ("list", "[" * 100_000), ("twice", '{"version": 1, "version": 1}')):
        (tmp_path / f"{name}.json").write_text(content)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "changed.json").write_text((folder / "run.json").read_text())
    _, out, err = tiny_run.command("leaderboard", str(tmp_path), "--json")
    assert [row["kind"] for row in json.loads(out)["tables"][LAKES]].count("run") == 1
    assert err.count("left out: ") == 5
    assert all(f"{name}.json" in err for name in ("empty", "folder", "list", "pipe", "twice"))


def test_random_null_and_optimal_play_stand_in_the_table_once(folder, tmp_path):
    def other_limits(content):
        content["outcomes"]["random"] = [x / 2 for x in content["outcomes"]["random"]]

    (tmp_path / "a.json").write_text((folder / "run.json").read_text())
    found = make_leaderboard(changed(folder, tmp_path, other_limits))
    outcomes = read_record(folder / "run.json").outcomes
    lines = {row.agent: row for row in found.tables[LAKES] if row.kind == "baseline"}
    assert len(lines) == 3
    assert lines["random play"].success == success_interval(outcomes.random)
    assert [row.source for row in lines.values()] == ["a.json"] * 3
    assert lines["null play"].limit == 2
    (note,) = found.notes[LAKES]
    assert note.startswith("random play: of a.json; other in changed.json: ")
    assert {row.kind for row in make_leaderboard(str(folder)).tables["bandit-v1"]} == {"scripted"}


def test_all_agents_are_compared_with_one(folder, tmp_path):
    def half(content):
        content["agent"] |= {"name": "half", "iteration": None}
        content["outcomes"]["samples"] = [[row[0], 0.0, row[2]] for row in content["outcomes"]["samples"]]

    where = changed(folder, tmp_path, half)
    for name in ("run", "null"):
        (tmp_path / f"{name}.json").write_text((folder / f"{name}.json").read_text())
    run, other = (np.mean(read_record(tmp_path / f"{name}.json").outcomes.samples, 1) for name in ("run", "changed"))
    random = np.mean(read_record(tmp_path / "run.json").outcomes.random)
    for against in ("half", "changed.json"):
        found = make_leaderboard(where, against=against)
        rows = {row.source if row.kind != "baseline" else row.agent: row for row in found.tables[LAKES]}
        assert rows["run.json"].difference == paired_interval(run, other)
        assert rows["changed.json"].difference is None, "not with itself"
        assert rows["random play"].difference["mean"] == pytest.approx(random - other.mean())
    lake = result_of("leaderboard", where, "--against", "random play")["tables"][LAKES]
    assert {row["agent"] for row in lake if row["difference"] is None} == {"random play"}
    assert "null (null.json)" in str(refusal("leaderboard", folder, "--against", "nobody"))
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text((folder / "null.json").read_text())
    message = str(refusal("leaderboard", tmp_path, "--against", "null"))
    assert message.endswith(": null.json, one.json, two.json")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_width_folds_a_number_and_no_name_changes_the_table(folder, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    where = changed(folder, tmp_path, lambda content: content["agent"].update(name="a-model-with-a-long-name-" * 3))
    out = tiny_run.command("leaderboard", where)[1]
    assert max(map(len, out.splitlines()[:-1])) <= width
    assert all(f" {100 * row.success['mean']:.1f} " in out for row in make_leaderboard(where).tables[LAKES])
    assert ("source" in out.partition("left out to fit")[2]) == (width < 200)
    changed(folder, tmp_path, lambda content: content["agent"].update(name="a|b\n<script>" + "x" * 500))
    out = tiny_run.done("leaderboard", where, "--markdown")
    (row,) = (line for line in out.splitlines() if "a\\|b" in line)
    assert "<script>" not in out
    assert len(row) < 300


def test_published_figures_stand_beside_records_of_their_panel(tmp_path):
    panel = panels.get_panel("babyai-agentgym-v1")
    result = {"panel": {"name": panel.name, "sha256": panel.sha256}, **records.of_scripted("random", panel, 1, 0)}
    record = records.of_result(result | {"outcomes": {"samples": [[i % 2] for i in range(90)]}})
    records.write_record(record, str(tmp_path / "a.json"))
    rows = make_leaderboard(str(tmp_path)).tables[panel.name]
    assert (rows[0].agent, rows[0].success) == ("ScalingInter-7B", {"mean": pytest.approx(0.9667)})
    assert of_kind(rows, "scripted").success["mean"] == 0.5
    assert ["2509.08755" in row.source for row in rows if row.kind == "published"] == [True] * 20
    # All figures are of 90 items, so that they are multiples of 1/90 but for rounding.
    assert all(abs(row.success["mean"] * 90 % 1 - 0.5) > 0.48 for row in rows)
