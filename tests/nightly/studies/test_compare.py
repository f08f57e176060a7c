"""Comparisons of variants: every seed of a variant is a separate run, and finished parts are not played again."""

import io
import json

import jax
import numpy as np
import pytest
import tiny_run
import yaml
from rich.console import Console

from agentrl_jax.config.comparison import load_comparison
from agentrl_jax.setup import build_model, start
from agentrl_jax.studies.imitation import SeedImitation
from agentrl_jax.studies.variants import Variants

RUN = yaml.safe_load(tiny_run.CONFIG.replace("SimpleSokoban", "CoordFrozenLake").replace(", levels: LEVELS", ""))
RUN |= {"seed": 3, "algo": {"minibatches": 1}, "imitation": RUN["imitation"] | {"levels": 8}}
RUN |= {"train": {"iterations": 2, "validate_every": 1, "validation_episodes": 8}}
VARIANTS = {
    "starpo_s": {"algo": {"preset": "starpo_s", "filter": {"ratio": 0.5}}},
    "dapo": {"algo": {"preset": "dapo", "dynamic_sampling": 2}, "optim": {"lr": 0.02}},
}


def write(folder, **changes):
    file, data = folder / "variants.yaml", {"seeds": 2, "run": RUN, "variants": VARIANTS}
    file.write_text(yaml.safe_dump(data | {"pairs": [["dapo", "starpo_s"]]} | changes))
    return str(file)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    file = write(folder)
    out = tiny_run.done("compare", file, "--out", str(folder / "out"))
    return file, folder / "out", out


def variant(out, name):
    return json.loads((out / f"{name}.json").read_text())


@pytest.mark.parametrize("packing", [False, True])
def test_a_seed_of_an_arm_is_a_run_with_that_seed(packing, played, tmp_path):
    _, out, _ = played
    if packing:
        out = tmp_path / "packed"
        packed = write(tmp_path, run=RUN | {"algo": RUN["algo"] | {"packing": True}})
        tiny_run.done("compare", packed, "--out", str(out), "--only", "dapo")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN | VARIANTS["dapo"] | {"seed": 4}))
    words = ("--algo.minibatches", "1", "--train.trajectories_every", "0", "--algo.packing", str(packing).lower())
    tiny_run.done("train", str(tmp_path / "run.yaml"), "--run_dir", str(tmp_path / "run"), *words)
    rows = [row for row in tiny_run.metrics(tmp_path / "run") if row["stage"] == "rl"]
    record = variant(out, "dapo")
    assert record["seeds"] == [3, 4]
    names = ["train/success", "train/turns", "rollout/rounds", "update/trained_tokens", "actor/entropy"]
    for name in (*names, "rollout/in_group_std", "rollout/chosen_in_group_std"):
        mine = [of_seeds[1] for of_seeds in record["metrics"][name]]
        # The two programs round differently, and learning amplifies the difference.
        assert mine == pytest.approx([row[name] for row in rows], rel=1e-2), name
    start = tiny_run.summary(tmp_path / "run")["success"]["imitation"]
    assert np.mean(record["start"]["sampled"][1]) == pytest.approx(start["mean"])


def test_seeds_with_other_numbers_of_bins_imitate_as_if_alone(tmp_path):
    file = write(tmp_path, run=RUN | {"algo": RUN["algo"] | {"packing": True}})
    lines = []
    variants = Variants(load_comparison(file), Console(file=io.StringIO()))
    inputs = variants.seeds, variants.batched_env, variants.splits, variants.tokenizer
    imitation = SeedImitation(variants.config, *inputs, lines.append)
    tx = build_model.build_optimizer(variants.config)
    fresh = variants.seeds.each(lambda key, *_: variants._fresh_state(key, variants.model, tx))

    def after(batches):
        imitation.batches = np.array(batches)
        states = fresh(variants.seeds.keys, None, None).replace(frozen_params=None)
        return imitation.run(states, variants.frozen_params, variants.programs, variants.model, tx).params

    together, ones, twos = after([1, 2]), after([1, 1]), after([2, 2])
    for mixed, one, two in zip(*map(jax.tree.leaves, (together, ones, twos))):
        np.testing.assert_array_equal(mixed, np.stack([one[0], two[1]]))
        assert not np.array_equal(one, two)
    assert all(any(f"loss of the seeds {shown}:" in line for line in lines) for shown in ("3", "4", "3, 4"))


def test_the_report_has_every_arm_and_pair_and_none_is_played_again(played):
    file, out, shown = played
    assert "dapo − starpo_s" in (out / "report.md").read_text()
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    # The notes of `agentrl train` at its start, once per variant.
    for name, config in load_comparison(file).variants.items():
        assert [shown.count(f"{name}: {line}") for line in start.notes(config)] == [1] * len(start.notes(config))
    for name in VARIANTS:
        record = variant(out, name)
        assert np.shape(record["end"]["sampled"]) == (2, 24)
        turns, tokens = (np.array(record["used"][what]) for what in ("mean_turns", "mean_tokens"))
        assert (turns.shape, tokens.shape) == ((2,), (2,))
        assert all((turns >= 1) & (turns <= record["config"]["prompt"]["max_turns"]) & (tokens >= turns))
        assert record["validation"]["iteration"] == [0, 1, 2]
        assert len(record["seconds"]) == 2  # of the iterations alone, not of what the variants share
        # All variants start from the same policies.
        assert record["start"] == variant(out, "dapo")["start"]
    times = lambda: {file: file.stat().st_mtime_ns for file in out.glob("*.json")}  # noqa: E731
    before = times()
    assert "imitation" not in tiny_run.done("compare", file, "--out", str(out))
    assert before == times()


def test_seeds_over_devices_play_the_same(played, tmp_path):
    _, out, _ = played
    file = write(tmp_path, devices=2)
    tiny_run.done("compare", file, "--out", str(tmp_path / "out"), "--only", "dapo")
    one, two = variant(out, "dapo"), variant(tmp_path / "out", "dapo")
    # Imitation amplifies what is rounded otherwise, so that a few tokens differ; other seeds differ by more.
    for name in ("train/success", "update/trained_tokens"):
        assert one["metrics"][name][0] == pytest.approx(two["metrics"][name][0], rel=0.15)
    three = write(tmp_path, devices=2, seeds=3)
    assert "3 seeds" in tiny_run.refusal("compare", three, "--out", str(tmp_path / "three"))
