"""Whole runs in this process: the files they write, that they are reproducible, and how they end on errors."""

import json
import os

import jax
import jax.numpy as jnp
import pytest
import tiny_run
import xla_settings

from agentrl_jax.setup.programs import Programs


def test_training_episodes_alone_are_quantized(finished, tmp_path):
    """Their policy is a little off the learner's; evaluations before learning are those of the plain run."""
    words = ("--rollout.quantization", "weights_and_cache", "--train.iterations", "1")
    code, _, err = tiny_run.train(tmp_path / "run", finished.file, *words)
    assert code == 0, err
    plain, off = (tiny_run.metrics(run)[3] for run in (finished.folder, tmp_path / "run"))
    assert plain["rollout/logprob_gap_mean"] < 1e-5 < 1e-4 < off["rollout/logprob_gap_mean"] < 0.05
    summaries = [json.loads((run / "summary.json").read_text()) for run in (finished.folder, tmp_path / "run")]
    assert summaries[0]["success"]["imitation"] == summaries[1]["success"]["imitation"]


@pytest.fixture
def poison(monkeypatch):
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
    code, out, err = tiny_run.train(run, finished.file, "--train.checkpoint_every", "1", "--train.keep", "9")
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
        message = tiny_run.refused(run, finished.file, *words)
    assert "2 updates in a row" in message
    assert "step 5, is kept" in message
    assert tiny_run.checkpoints(run) == [4, 5]
    assert [row["step"] for row in tiny_run.metrics(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert tiny_run.checkpoint(run, 5) == tiny_run.checkpoint(finished.folder, 5)
    poison(set())  # as if the cause had been fixed
    code, _, err = tiny_run.train(run, finished.file, *words)
    assert (code, err) == (0, "")
    tiny_run.assert_same_end(run, finished.folder)


def test_log_probabilities_that_are_not_those_of_the_rollout_stop_the_run(finished, tmp_path):
    """With a limit below rounding errors: the iteration is recorded, and its state is not saved."""
    run = tmp_path / "run"
    message = tiny_run.refused(run, finished.file, "--algo.logprob_gap_limit", "1e-12", "--train.checkpoint_every", "1")
    for part in ("differ by", "algo.logprob_gap_limit is 1e-12", "step 3, is kept", "algo.mismatch replay"):
        assert part in message
    assert tiny_run.checkpoints(run) == [2, 3]
    rows = tiny_run.metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert 1e-12 < rows[3]["rollout/logprob_gap_mean"] <= rows[3]["rollout/logprob_gap_max"]


@pytest.mark.parametrize("context", ["full", "single_turn"])
@pytest.mark.parametrize("preset", ["starpo", "starpo_grpo", "starpo_s"])
@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_every_preset_context_and_style_trains(tmp_path, preset, context, style):
    # Canonical responses in RAGEN's style have spaces around the separator, which are separate tokens.
    max_response_tokens = {"compact": 6, "ragen": 12}[style]
    text = tiny_run.CONFIG.replace("max_response_tokens: 6", f"max_response_tokens: {max_response_tokens}")
    file = tiny_run.write_config(tmp_path, text)
    words = ["--algo.preset", preset, "--rollout.context", context, "--prompt.style", style]
    words += ["--model.critic", "separate", "--devices", "2", "--rollout.slots", "4"]
    words += [] if preset == "starpo_s" else ["--algo.filter", "none"]
    run = tmp_path / "run"
    code, _, err = tiny_run.train(run, file, *words)
    assert (code, err) == (0, "")
    rows = tiny_run.metrics(run)
    assert [row["step"] for row in rows] == list(range(1, 8))
    assert all(row["update/skipped"] == 0 and row["actor/grad_norm"] > 0 for row in rows[3:])
    assert os.path.getsize(run / "curves.png") > 1000


def test_a_strict_run_keeps_the_bits_of_its_rollouts(tmp_path, monkeypatch):
    """On two devices with refilled slots; if a bit differs, the run stops."""

    def keep(self, name, function, made_of, **options):
        self.compiled[name] = jax.jit(function, **options, compiler_options=xla_settings.SAME_BITS)
        self._before[name] = 0
        return self.compiled[name]

    monkeypatch.setattr(Programs, "_keep", keep)
    file = tiny_run.write_config(tmp_path)
    words = [
        "--algo.mismatch",
        "replay",
        "--devices",
        "2",
        "--rollout.slots",
        "4",
        "--rollout.prefill_threshold",
        "0.5",
    ]
    run = tmp_path / "run"
    code, _, err = tiny_run.train(run, file, *words)
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
    assert "step 3, is kept" in tiny_run.refused(tmp_path / "other", file, *words)
