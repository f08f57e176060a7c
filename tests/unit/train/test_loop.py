"""Whole runs in this process: the files they write, that they are reproducible, and how they end on errors."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
import xla_settings

from agentrl_jax.config import EvalConfig, TrainConfig, load_config
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.setup.programs import Programs
from agentrl_jax.train.guards import check_logprobs

OTHER = """
devices: 2
tasks: [{env: FrozenLake-deterministic, groups: 4}]
prompt: {style: ragen, max_turns: 2, max_actions_per_turn: 1, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2, context: single_turn}
algo: {preset: starpo_grpo, minibatches: 2, kl: {coef: 0.5}}
optim: {lr: 0.03, schedule: linear}
imitation: {levels: 8, steps: 25, batch: 4, lr: 0.03}
train: {iterations: 3, checkpoint_every: 1, keep: 9, validate_every: 2, validation_episodes: 3, trajectories_every: 0}
evaluation: {episodes: 5}
"""
"""Group-relative learning with a reference, one turn of context, RAGEN's prompt, two devices."""


@pytest.fixture(scope="module")
def compiled():
    """Programs by name and devices, for runs with identical programs."""
    return {}


@pytest.fixture
def shared_programs(monkeypatch, compiled):
    """Lets the runs of `tiny_run.CONFIG` share their compiled programs; only traced values may differ."""

    def keep(self, name, function, **options):
        self.compiled[name] = compiled.setdefault(name, jax.jit(function, **options))
        return self.compiled[name]

    monkeypatch.setattr(Programs, "_keep", keep)


def train(run, file, *words):
    return tiny_run.command("train", file, "--run_dir", str(run), *words)


def refused(run, file, *words):
    code, _, err = train(run, file, *words)
    assert code == 2
    assert err.startswith("agentrl: ")
    assert err.count("\n") == 1
    return err


def test_what_a_run_leaves_behind(finished):
    names = {entry.name for entry in finished.folder.iterdir()}
    records = {"config.yaml", "metrics.jsonl", "levels.jsonl", "trajectories.jsonl", "summary.json", "curves.png"}
    assert names == records | {"checkpoints", "rollouts", "tensorboard", ".lock"}
    assert tiny_run.checkpoints(finished.folder) == [5, 7]
    assert load_config(finished.folder / "config.yaml") == load_config(finished.file).replace(
        run_dir=str(finished.folder)
    )
    for part in ("after imitation", "after RL", "optimal", str(finished.folder)[-20:]):
        assert part in finished.output


def test_metrics_hold_every_task(finished):
    rows = tiny_run.metrics(finished.folder)
    assert [(row["step"], row["stage"]) for row in rows] == [(i, "imitation") for i in (1, 2, 3)] + [
        (i, "rl") for i in (4, 5, 6, 7)
    ]
    assert rows[2]["imitation/loss"] < 2  # nats per token; a uniform policy has 6.2
    for row in rows[3:]:
        assert row["train/SimpleSokoban/episodes"] == row["train/FrozenLake/episodes"] == 8
        parts = [row[f"train/{name}/success"] for name in ("SimpleSokoban", "FrozenLake")]
        assert row["train/success"] == pytest.approx(np.mean(parts))
        assert row["rollout/active_token_share"] == row["rollout/sampled_tokens"] / row["rollout/slot_steps"]
        assert 0 < row["update/trained_tokens"] <= row["rollout/sampled_tokens"]
    validated = [row["step"] for row in rows if "validation/success" in row]
    assert validated == [5, 7]
    assert {"validation/FrozenLake/success", "validation/SimpleSokoban/return"} <= rows[4].keys()
    shown = tiny_run.curves(finished.folder)
    assert shown["train/success", 6] == np.float32(rows[5]["train/success"])
    assert {step for _, step in shown} == set(range(1, 8))


@pytest.mark.slow
def test_training_episodes_alone_are_quantized(finished, tmp_path):
    """Their policy is a little off the learner's; evaluations before learning are those of the plain run."""
    words = ("--rollout.quantization", "weights_and_cache", "--train.iterations", "1")
    code, _, err = train(tmp_path / "run", finished.file, *words)
    assert code == 0, err
    plain, off = (tiny_run.metrics(run)[3] for run in (finished.folder, tmp_path / "run"))
    assert plain["rollout/logprob_gap_mean"] < 1e-5 < 1e-4 < off["rollout/logprob_gap_mean"] < 0.05
    summaries = [json.loads((run / "summary.json").read_text()) for run in (finished.folder, tmp_path / "run")]
    assert summaries[0]["success"]["imitation"] == summaries[1]["success"]["imitation"]


def test_the_summary_counts_the_run(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    rows = tiny_run.metrics(finished.folder)
    assert (summary["iterations"], summary["gradient_steps"], summary["episodes"]) == (4, 75 + 4, 4 * 16)
    assert summary["sampled_tokens"] == sum(row.get("rollout/sampled_tokens", 0) for row in rows)
    assert summary["trained_tokens"] == sum(row.get("update/trained_tokens", 0) for row in rows)
    assert summary["programs_compiled"] == 5  # imitation, rollout, record, update, evaluation: nothing twice
    assert summary["seconds"]["total"] > 0
    for table in ("success", "success_greedy"):
        assert summary[table].keys() == {"null", "random", "imitation", "trained", "optimal"}
        assert summary[table]["null"]["mean"] == 0
        for interval in summary[table].values():
            assert interval["n"] == 2 + 12  # the first task has two levels
            assert 0 <= interval["low"] <= interval["mean"] <= interval["high"] <= 1
    assert summary["success"]["random"]["mean"] < summary["success"]["optimal"]["mean"]


def test_validations_are_made_when_they_are_due(finished):
    """Every second iteration, of eight levels and the two of the first task's file."""
    rows = tiny_run.metrics(finished.folder)
    assert [(row["step"], row["validation/episodes"]) for row in rows if "validation/success" in row] == [
        (5, 10),
        (7, 10),
    ]


def test_a_validation_plays_as_many_levels_at_the_temperature_that_is_set():
    class Played(Exception):
        pass

    class Levels:
        def number(self, wanted):
            return wanted - 1

        def play(self, params, episodes, temperature):
            raise Played(episodes, temperature)

    train = TrainConfig(validation_episodes=7, validation_temperature=0.125)
    with pytest.raises(Played) as found:
        HeldOut(EvalConfig(), train, Penalties(0.0), ("X",), eval_sets=(), validations=(Levels(),)).validation({})
    assert found.value.args == (6, 0.125)


def test_trajectories_are_written_as_text(finished):
    rows = [json.loads(line) for line in (finished.folder / "trajectories.jsonl").read_text().splitlines()]
    assert [(row["step"], row["iteration"]) for row in rows] == [(6, 3)] * 3 + [(7, 4)] * 3
    assert {row["task"] for row in rows} == {"SimpleSokoban"}
    assert all(1 <= len(row["turns"]) <= 2 for row in rows)
    responses = [turn["response"] for row in rows for turn in row["turns"] if not turn["format_error"]]
    assert responses
    assert all("</answer>" in response for response in responses)


def test_the_same_command_in_another_folder_gives_the_same_run(finished, tmp_path, shared_programs):
    run = tmp_path / "run"
    code, _, err = train(run, finished.file)
    assert (code, err) == (0, "")
    same(run, finished.folder)


def same(run, other):
    assert tiny_run.metrics(run) == tiny_run.metrics(other)
    assert tiny_run.recorded(run) == tiny_run.recorded(other)
    step = tiny_run.checkpoints(other)[-1]
    assert tiny_run.checkpoint(run, step) == tiny_run.checkpoint(other, step)
    assert tiny_run.summary(run) == tiny_run.summary(other)


@pytest.mark.slow
def test_another_seed_gives_another_run(finished, tmp_path, shared_programs):
    code, _, err = train(tmp_path / "run", finished.file, "--seed", "1")
    assert (code, err) == (0, "")
    for row, other in zip(tiny_run.metrics(tmp_path / "run"), tiny_run.metrics(finished.folder), strict=True):
        assert row != other


@pytest.fixture
def poison(monkeypatch, shared_programs):
    """Makes chosen updates non-finite; updates are counted from 1 in this process."""

    def poison(numbers):
        make, done = Programs.update, []

        def update(self, *arguments):
            program = make(self, *arguments)

            def run(state, trajectory, temperature, key, settings):
                done.append(1)
                if len(done) in numbers:
                    settings = settings.replace(entropy_coef=jnp.float32(jnp.nan))
                return program(state, trajectory, temperature, key, settings)

            return run

        monkeypatch.setattr(Programs, "update", update)

    return poison


def test_an_update_that_is_not_finite_is_skipped_and_counted(finished, tmp_path, poison):
    poison({2})
    run = tmp_path / "run"
    code, out, err = train(run, finished.file, "--train.checkpoint_every", "1", "--train.keep", "9")
    assert (code, err) == (0, "")
    rows = tiny_run.metrics(run)[3:]
    assert [row["update/skipped"] for row in rows] == [0, 1, 0, 0]
    assert [row["loss"] is None for row in rows] == [False, True, False, False]
    summary = tiny_run.summary(run)
    assert (summary["skipped_updates"], summary["gradient_steps"], summary["iterations"]) == (1, 78, 4)
    # No checkpoint after the skipped update, which changed no parameter. Steps 1 and 2 are imitation, 3 is its end.
    assert tiny_run.checkpoints(run) == [1, 2, 3, 4, 6, 7]
    first = tiny_run.checkpoint(finished.folder, 5)
    assert tiny_run.checkpoint(run, 4) != first
    assert "skipped" in out


def test_too_many_in_a_row_stop_the_run_which_keeps_its_last_good_state(finished, tmp_path, poison, monkeypatch):
    run, words = tmp_path / "run", ("--train.max_bad_updates", "2", "--train.checkpoint_every", "1")
    with monkeypatch.context():
        poison({3, 4})
        message = refused(run, finished.file, *words)
    assert "2 updates in a row" in message
    assert "step 5, is kept" in message
    assert tiny_run.checkpoints(run) == [4, 5]
    assert [row["step"] for row in tiny_run.metrics(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert tiny_run.checkpoint(run, 5) == tiny_run.checkpoint(finished.folder, 5)
    poison(set())  # as if the cause had been fixed
    code, _, err = train(run, finished.file, *words)
    assert (code, err) == (0, "")
    same(run, finished.folder)


def test_log_probabilities_that_are_not_those_of_the_rollout_stop_the_run(finished, tmp_path, shared_programs):
    """With a limit below rounding errors: the iteration is recorded, and its state is not saved."""
    run = tmp_path / "run"
    message = refused(run, finished.file, "--algo.logprob_gap_limit", "1e-12", "--train.checkpoint_every", "1")
    for part in ("differ by", "algo.logprob_gap_limit is 1e-12", "step 3, is kept", "algo.mismatch replay"):
        assert part in message
    assert tiny_run.checkpoints(run) == [2, 3]
    rows = tiny_run.metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert 1e-12 < rows[3]["rollout/logprob_gap_mean"] <= rows[3]["rollout/logprob_gap_max"]


def test_a_quantized_policy_that_is_too_far_off_is_named(finished):
    config = load_config(finished.file, ["--rollout.quantization", "weights"])
    with pytest.raises(UserError, match=r"use rollout.quantization none instead of weights, or a higher limit"):
        check_logprobs(config, {"rollout/logprob_gap_mean": 0.1}, lambda: "nothing is kept")


def test_rates_that_are_much_too_high(finished, tmp_path, shared_programs):
    message = refused(tmp_path / "a", finished.file, "--imitation.lr", "1e30")
    assert "updates in a row" in message
    assert "no checkpoint yet" in message
    assert "lower imitation.lr" in message
    assert tiny_run.metrics(tmp_path / "a")[0]["imitation/skipped"] > 20
    message = refused(tmp_path / "b", finished.file, "--optim.lr", "1e30", "--train.max_bad_updates", "2")
    assert "lower optim.lr" in message
    assert 3 in tiny_run.checkpoints(tmp_path / "b")


def test_another_configuration_in_the_same_folder(finished):
    before = {file: file.stat().st_mtime_ns for file in finished.folder.rglob("*") if file.name != ".lock"}
    message = refused(finished.folder, finished.file, "--seed", "3", "--tasks.0.groups", "4")
    for part in ("seed (0 there, 3 now)", "tasks.0.groups (2 there, 4 now)", "--run_dir"):
        assert part in message
    after = {file: file.stat().st_mtime_ns for file in finished.folder.rglob("*") if file.name != ".lock"}
    assert after == before


def test_a_folder_in_use(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "run")
    config = load_config(finished.file).replace(run_dir=str(tmp_path / "run"))
    with RunFolder(config):
        assert "another process" in refused(tmp_path / "run", finished.file)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--model.tokenizer", "absent"), ["absent", "no such tokenizer"]),
        (("--tasks.0.groups", "14", "--devices", "16", "--imitation.batch", "16"), ["devices is 16", "has 8"]),
        (("--devices", "0"), ["devices is 8", "4 groups"]),
        (("--rollout.slots", "6"), ["rollout.slots is 6", "rollout.group_size = 4"]),
        (("--devices", "2", "--rollout.slots", "12"), ["rollout.slots is 12", "2 replicas", "16 episodes"]),
        (("--prompt.max_response_tokens", "4"), ["max_response_tokens is 4", "at least 5"]),
    ],
)
def test_what_cannot_run_takes_no_folder(finished, tmp_path, words, parts):
    message = refused(tmp_path / "run", finished.file, *words)
    for part in parts:
        assert part in message
    assert not (tmp_path / "run").exists()


def test_nothing_to_imitate(tmp_path):
    file = tmp_path / "bandit.yaml"
    file.write_text(
        "tasks: [{env: Bandit, groups: 4}]\nimitation: {levels: 4, steps: 25}\nprompt: {max_response_tokens: 40}"
    )
    assert "Bandit has no planner" in refused(tmp_path / "run", str(file))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_group_relative_learning_on_two_devices_keeps_its_reference(tmp_path, monkeypatch, shared_programs, compiled):
    compiled.clear()
    file = tiny_run.write_config(tmp_path, OTHER)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert train(straight, file)[0] == 0
    assert tiny_run.summary(straight)["devices"] == 2
    assert tiny_run.summary(straight)["success"]["trained"]["n"] == 5
    first, last = tiny_run.checkpoint(straight, 1), tiny_run.checkpoint(straight, 4)
    reference = {name: value for name, value in first.items() if name.startswith("['reference']")}
    assert reference
    for name, value in reference.items():
        policy = name.replace("['reference']", "['params']['policy']")
        assert value == first[policy] == last[name]
    assert any(
        last[name.replace("['reference']", "['params']['policy']")] != value for name, value in reference.items()
    )
    rows = tiny_run.metrics(straight)[1:]
    assert rows[0]["actor/lr"] == pytest.approx(0.03)
    assert rows[2]["actor/lr"] == pytest.approx(0.01)
    assert rows[2]["actor/kl"] != 0

    with monkeypatch.context() as patch:
        make = Programs.rollout

        def rollout(self, name, *arguments, **options):
            program, calls = make(self, name, *arguments, **options), []

            def run(*inputs):
                calls.append(1)
                if name == "rollout" and len(calls) == 3:
                    raise KeyboardInterrupt
                return program(*inputs)

            return run

        patch.setattr(Programs, "rollout", rollout)
        code, _, err = train(broken, file)
        assert (code, err) == (
            130,
            "agentrl: stopped; the same command goes on from the last checkpoint, if there is one\n",
        )
    assert tiny_run.checkpoints(broken) == [1, 2, 3]
    assert train(broken, file)[0] == 0
    assert tiny_run.metrics(broken) == tiny_run.metrics(straight)
    assert tiny_run.checkpoint(broken, 4) == last


@pytest.mark.slow
@pytest.mark.parametrize("context", ["full", "single_turn"])
@pytest.mark.parametrize("preset", ["starpo", "starpo_grpo", "starpo_s"])
@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_every_preset_context_and_style_trains(tmp_path, preset, context, style):
    # Canonical responses in RAGEN's style have spaces around the separator, which are separate tokens.
    max_response_tokens = {"compact": 6, "ragen": 12}[style]
    text = tiny_run.CONFIG.replace("max_response_tokens: 6", f"max_response_tokens: {max_response_tokens}")
    file = tiny_run.write_config(tmp_path, text)
    words = [
        "--algo.preset",
        preset,
        "--rollout.context",
        context,
        "--prompt.style",
        style,
        "--model.critic",
        "separate",
    ]
    words += [] if preset == "starpo_s" else ["--algo.filter", "none"]
    run = tmp_path / "run"
    code, _, err = train(run, file, *words, "--devices", "2", "--rollout.slots", "4")
    assert (code, err) == (0, "")
    rows = tiny_run.metrics(run)
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert all(row["update/skipped"] == 0 and row["actor/grad_norm"] > 0 for row in rows[3:])
    assert os.path.getsize(run / "curves.png") > 1000


@pytest.mark.slow
def test_a_strict_run_keeps_the_bits_of_its_rollouts(tmp_path, monkeypatch):
    """On two devices with refilled slots; if a bit differs, the run stops."""

    def keep(self, name, function, **options):
        self.compiled[name] = jax.jit(function, **options, compiler_options=xla_settings.SAME_BITS)
        return self.compiled[name]

    monkeypatch.setattr(Programs, "_keep", keep)
    file = tiny_run.write_config(tmp_path)
    words = (
        "--algo.mismatch",
        "replay",
        "--devices",
        "2",
        "--rollout.slots",
        "4",
        "--rollout.prefill_threshold",
        "0.5",
    )
    run = tmp_path / "run"
    code, _, err = train(run, file, *words)
    assert (code, err) == (0, "")
    rows = tiny_run.metrics(run)[3:]
    assert [row["step"] for row in rows] == [4, 5, 6, 7]
    for row in rows:
        assert (row["rollout/logprob_bit_equal"], row["rollout/logprob_gap_max"]) == (1.0, 0.0)
        assert (row["actor/ratio_mean"], row["actor/ppo_kl"]) == (1.0, 0.0)  # one gradient step per iteration
        assert row["rollout/parallel_gap_max"] > 0

    make = Programs.update

    def update(self, *arguments):
        program = make(self, *arguments)

        def run(*inputs):
            state, metrics = program(*inputs)
            return state, metrics | {"rollout/logprob_bit_equal": jnp.float32(0.5)}

        return run

    monkeypatch.setattr(Programs, "update", update)
    message = refused(tmp_path / "other", file, *words)
    assert "only 50.0000% of the replay's log-probabilities" in message
    assert "step 3, is kept" in message
