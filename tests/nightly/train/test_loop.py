"""Whole runs: meshes, quantized play, bad updates, other settings later, early stops, teachers that read plans."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
import xla_settings

from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.setup.programs import Programs


def test_training_episodes_alone_are_quantized(finished, tmp_path):
    """Their policy is a little off the learner's; evaluations before learning are those of the plain run."""
    words = ("--rollout.quantization", "weights_and_cache", "--train.iterations", "1")
    tiny_run.trained(tmp_path / "run", finished.file, *words)
    plain, off = (tiny_run.metrics(run)[3] for run in (finished.folder, tmp_path / "run"))
    assert plain["rollout/logprob_gap_mean"] < 1e-5 < 1e-4 < off["rollout/logprob_gap_mean"] < 0.05
    summaries = [json.loads((run / "summary.json").read_text()) for run in (finished.folder, tmp_path / "run")]
    assert summaries[0]["success"]["imitation"] == summaries[1]["success"]["imitation"]


def test_too_many_in_a_row_stop_the_run_which_keeps_its_last_good_state(finished, tmp_path, monkeypatch):
    run, words = tmp_path / "run", ("--train.max_bad_updates", "2", "--train.checkpoint_every", "1")
    done, make = [], Programs.update

    def poisoned(self, *given):
        program = make(self, *given)

        def update(state, trajectory, temperature, key, settings):
            done.append(1)
            bad = settings.replace(entropy_coef=jnp.float32(jnp.nan))
            return program(state, trajectory, temperature, key, bad if len(done) in (3, 4) else settings)

        return update

    with monkeypatch.context() as patch:
        patch.setattr(Programs, "update", poisoned)
        message = tiny_run.refused(run, finished.file, *words)
    assert ("2 updates in a row" in message, "step 5, is kept" in message) == (True, True)
    assert tiny_run.checkpoints(run) == [4, 5]
    assert [row["step"] for row in tiny_run.metrics(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert tiny_run.checkpoint(run, 5) == tiny_run.checkpoint(finished.folder, 5)
    tiny_run.trained(run, finished.file, *words)  # as if the cause had been fixed
    tiny_run.assert_same_end(run, finished.folder)


@pytest.mark.parametrize("context", ["full", "single_turn"])
@pytest.mark.parametrize("preset", ["starpo", "starpo_grpo", "starpo_s"])
@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_every_preset_context_and_style_trains(tmp_path, preset, context, style):
    words = f"--algo.preset {preset} --rollout.context {context} --prompt.style {style}".split()
    words += ["--model.critic", "separate", "--devices", "2", "--rollout.slots", "4"]
    # Canonical responses in RAGEN's style have spaces around the separator, which are separate tokens.
    words += ["--prompt.max_response_tokens", {"compact": "6", "ragen": "12"}[style]]
    words += [] if preset == "starpo_s" else ["--algo.filter", "none"]
    run = tmp_path / "run"
    tiny_run.trained(run, tiny_run.write_config(tmp_path), *words)
    rows = tiny_run.metrics(run)
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert all(row["update/skipped"] == 0 and row["actor/grad_norm"] > 0 for row in rows[3:])
    assert os.path.getsize(run / "curves.png") > 1000


def test_a_strict_run_keeps_the_bits_of_its_rollouts(tmp_path, monkeypatch):
    """On two devices with refilled slots."""

    def keep(self, name, function, made_of, **options):
        self.compiled[name] = jax.jit(function, **options, compiler_options=xla_settings.SAME_BITS)
        self._before[name] = 0
        return self.compiled[name]

    monkeypatch.setattr(Programs, "_keep", keep)
    words = "--algo.mismatch replay --devices 2 --rollout.slots 4 --rollout.prefill_threshold 0.5"
    tiny_run.trained(tmp_path / "run", tiny_run.write_config(tmp_path), *words.split())
    rows = tiny_run.metrics(tmp_path / "run")[3:]
    assert [row["step"] for row in rows] == [4, 5, 6, 7]
    for row in rows:
        assert (row["rollout/logprob_bit_equal"], row["rollout/logprob_gap_max"]) == (1.0, 0.0)
        assert (row["actor/ratio_mean"], row["actor/ppo_kl"]) == (1.0, 0.0)  # one gradient step per iteration
        assert row["rollout/parallel_gap_max"] > 0


ON_MESH = ("--devices", "8", "--mesh.fsdp", "2", "--mesh.tensor", "2")


@pytest.mark.parametrize(("layout", "sequence"), [("rows", 1), ("rows", 2), ("wide", 1)])
def test_a_run_on_a_mesh_goes_on_with_the_same_bits(tmp_path, layout, sequence):
    file = tiny_run.write_config(tmp_path)
    words = (*ON_MESH, "--mesh.rollout", layout, "--mesh.sequence", str(sequence))
    words += ("--algo.kl.kind", "fixed", "--algo.kl.coef", "0.5") if sequence == 2 else ()
    tiny_run.done("train", file, "--run_dir", str(tmp_path / "run"), *words)
    copy = tmp_path / "copy"
    assert "going on from the checkpoint" in tiny_run.resumed(tmp_path / "run", copy, file, *words)
    tiny_run.assert_same_end(copy, tmp_path / "run")
    assert tiny_run.summary(copy)["devices"] == 8
    assert json.loads(tiny_run.done("eval", str(copy), "--json"))["success"]["n"] > 0


def test_programs_are_kept_for_the_next_start(tmp_path):
    file, kept = tiny_run.write_config(tmp_path), []
    unset = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def agentrl(*words):
        command = [sys.executable, "-m", "agentrl_jax", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done

    for name in ("one", "two"):
        words = ["--devices", "2", "--imitation.levels", "0", "--imitation.steps", "0", "--train.iterations", "1"]
        assert agentrl("train", file, "--run_dir", str(tmp_path / name), *words).stderr == ""
        kept.append({entry.name for entry in (tmp_path / "cache").rglob("*-cache")})
    assert len(kept[0]) > 10
    assert kept[1] == kept[0]
    assert tiny_run.metrics(tmp_path / "one") == tiny_run.metrics(tmp_path / "two")
    assert (tmp_path / "cache" / "agentrl_jax" / "compiled").stat().st_mode & 0o077 == 0
    shown = agentrl("replay", str(tmp_path / "one"), "--iteration", "1").stdout
    assert "equal to the record bit for bit: every field" in shown


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


STOP = "train: {stop: {patience: 1}, best: {metric: validation/FrozenLake/return, mode: min, evaluate: true}, "
RULE = "algo: {tokens: {kind: top_entropy, share: 0.5}, entropy_target: 0.5, epochs: 2, "


def test_a_run_ends_by_its_validations_at_the_same_iteration_after_a_stop(tmp_path):
    text = tiny_run.CONFIG.replace("train: {", STOP).replace("iterations: 4", "iterations: 40")
    text = text.replace("algo: {", RULE).replace("optim: {", "optim: {average_rate: 0.3, ")
    file, whole, again = tiny_run.write_config(tmp_path, text), tmp_path / "whole", tmp_path / "again"
    tiny_run.trained(whole, file)
    found = tiny_run.summary(whole)
    assert found["stopped_by"] == "patience"
    assert found["iterations"] < 40
    rows = [row for row in tiny_run.metrics(whole) if "validation/success" in row]
    values = [row["validation/FrozenLake/return"] for row in rows]
    assert values[-1] >= min(values[:-1])
    assert all(later < min(values[: i + 1]) for i, later in enumerate(values[1:-1]))
    assert (found["best"]["value"], found["best"]["iteration"]) == (min(values), rows[-2]["iteration"])
    learned = [row for row in tiny_run.metrics(whole) if row["stage"] == "rl"]
    assert all(0 < row["actor/chosen_tokens"] < 1 for row in learned)
    assert len({row["actor/entropy_coef"] for row in learned}) > 1
    tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == found

    config = read_config(whole)
    policy = load_policy(whole, config, "best")
    with Checkpoints(whole / "checkpoints", keep=None) as checkpoints:
        like = {"average": policy.params["policy"], "params": {"policy": policy.params["policy"]}}
        stored = checkpoints.restore_part(policy.step, jax.eval_shape(lambda: like))
    equal = [jax.tree.all(jax.tree.map(np.array_equal, stored[name], like[name])) for name in like]
    assert equal == [True, False]


ON_FOUR = """
devices: 4
mesh: {fsdp: 2}
tasks: [{env: FrozenLake-deterministic, groups: 4, sampling: {kind: prioritized, levels: 6}}]
prompt: {style: ragen, max_turns: 2, max_actions_per_turn: 1, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
agent: single_turn
rollout: {group_size: 2}
algo: {preset: starpo_grpo, minibatches: 2, kl: {coef: 0.5}, tokens: {kind: clip_cov, low: 0.0, high: 9.0, share: 0.25},
  entropy_target: 1.0, entropy_step: 0.02}
optim: {lr: 0.03, schedule: linear, average_rate: 0.25}
train: {iterations: 3, checkpoint_every: 1, keep: 9, validate_every: 0, trajectories_every: 0}
evaluation: {episodes: 4}
"""
"""Group-relative learning with a reference, one turn of context, RAGEN's prompt, and sharded parameters; tokens are
chosen at random among those of all devices, and the policy has an average."""


POLICY = "['params']['policy']", "['reference']"


def test_a_run_on_several_devices_keeps_its_reference(tmp_path):
    run = tmp_path / "run"
    tiny_run.trained(run, tiny_run.write_config(tmp_path, ON_FOUR))
    assert tiny_run.summary(run)["devices"] == 4
    assert tiny_run.summary(run)["success"]["trained"]["n"] == 4
    first, last = tiny_run.checkpoint(run, 0), tiny_run.checkpoint(run, 3)
    reference = {name: value for name, value in first.items() if name.startswith("['reference']")}
    assert reference
    for name, value in reference.items():
        policy = name.replace("['reference']", "['params']['policy']")
        assert value == first[policy] == last[name]
    assert any(last[name.replace("['reference']", "['params']['policy']")] != reference[name] for name in reference)
    rows = tiny_run.metrics(run)
    assert rows[0]["actor/lr"] == pytest.approx(0.03)
    assert rows[2]["actor/lr"] == pytest.approx(0.01)
    assert rows[2]["actor/kl"] != 0
    averages = [name for name in last if name.startswith("['average']")]
    assert len(averages) == len(reference)
    assert not any(last[name] in (last[name.replace("['average']", at)] for at in POLICY) for name in averages)

    one = tmp_path / "one"
    file = tiny_run.write_config(tmp_path, ON_FOUR.replace("devices: 4\nmesh: {fsdp: 2}", "devices: 1"))
    tiny_run.trained(one, file)
    for ours, theirs in zip(rows, tiny_run.metrics(one), strict=True):
        assert 0.2 < ours["actor/chosen_tokens"] == pytest.approx(theirs["actor/chosen_tokens"])
        for name in ("actor/entropy_coef", "actor/grad_norm", "actor/entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)


TAUGHT = """
tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake-deterministic, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: grpo, filter: none, minibatches: 2, distillation: {kind: self, teacher: ema, loss: full}}
optim: {lr: 0.01}
imitation: {levels: 2, steps: 25, batch: 4, lr: 0.03, hinted: 0.5}
train: {iterations: 3, checkpoint_every: 1, keep: 4, validate_every: 2, validation_episodes: 8, trajectories_every: 0}
evaluation: {episodes: 8}
"""


@pytest.fixture(scope="module")
def taught_run(tmp_path_factory):
    home = tmp_path_factory.mktemp("distillation")
    return tiny_run.write_config(home, TAUGHT), home / "taught_run"


def test_a_weak_teacher_is_accepted_later_and_the_run_goes_on_from_any_checkpoint(taught_run, tmp_path):
    file, folder = taught_run
    assert "accept_weak_teacher" in tiny_run.refused(folder, file)
    accepted = "--algo.distillation.accept_weak_teacher", "true"
    tiny_run.trained(folder, file, *accepted)
    rows = tiny_run.metrics(folder)[1:]
    assert [sorted(key for key in row if key.endswith("_success") and "distill" in key) for row in rows] == [
        ["distill/student_success", "distill/teacher_success"],
        [],
        ["distill/student_success", "distill/teacher_success"],
    ]
    assert all(row["distill/kl"] > 0 and row["distill/planned"] > 0 for row in rows)
    again = tmp_path / "taught_run"
    shutil.copytree(folder, again)
    (again / "summary.json").unlink()
    for step in (3, 4):
        shutil.rmtree(again / "checkpoints" / str(step))
    tiny_run.trained(again, file, *accepted)
    assert tiny_run.metrics(again) == tiny_run.metrics(folder)
    stored = tiny_run.checkpoint(folder, 4)
    assert tiny_run.checkpoint(again, 4) == stored
    assert [name for name in stored if "teacher" in name] != []
    assert tiny_run.summary(again) == tiny_run.summary(folder)
