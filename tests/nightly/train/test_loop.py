import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import tiny_run
import xla_settings

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
