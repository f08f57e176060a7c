"""Comparisons of variants: every seed of a variant is a separate run, and finished parts are not played again."""

import json

import numpy as np
import tiny_run
import yaml

RUN = yaml.safe_load(tiny_run.CONFIG.replace("SimpleSokoban", "CoordFrozenLake").replace(", levels: LEVELS", ""))
RUN |= {
    "seed": 3,
    "algo": {"minibatches": 1},
    "imitation": RUN["imitation"] | {"levels": 8},
    "train": {"iterations": 2, "validate_every": 1, "validation_episodes": 8},
}
VARIANTS = {
    "starpo_s": {"algo": {"preset": "starpo_s", "filter": {"ratio": 0.5}}},
    "dapo": {"algo": {"preset": "dapo", "dynamic_sampling": 2}, "optim": {"lr": 0.02}},
}


def write(folder, **changes):
    file = folder / "variants.yaml"
    file.write_text(
        yaml.safe_dump({"seeds": 2, "run": RUN, "variants": VARIANTS, "pairs": [["dapo", "starpo_s"]]} | changes)
    )
    return str(file)


def test_a_comparison_from_the_file_to_its_report(tmp_path):
    """Two variants that differ in a number; what was played is not played again, nor mixed with something else."""
    quick = RUN | {"imitation": {}, "train": RUN["train"] | {"iterations": 1}}
    variants = {name: {"algo": {"preset": "grpo", "minibatches": 1, "epochs": 1}} for name in ("a", "b")}
    variants["b"]["optim"] = {"lr": 0.02}
    file, out = write(tmp_path, run=quick, variants=variants, pairs=[["a", "b"]]), tmp_path / "out"
    code, _, err = tiny_run.command("compare", file, "--out", str(out))
    assert code == 0, err
    records = [json.loads((out / f"{name}.json").read_text()) for name in variants]
    for record in records:
        assert record["seeds"] == [3, 4]
        assert np.shape(record["end"]["sampled"]) == (2, 24)
        assert record["validation"]["iteration"] == [0, 1]
    assert records[0]["start"] == records[1]["start"]
    assert (out / "curves.png").stat().st_size
    assert "a − b" in (out / "report.md").read_text()
    before = [(out / f"{name}.json").stat().st_mtime_ns for name in variants]
    assert tiny_run.command("compare", file, "--out", str(out))[0] == 0
    assert before == [(out / f"{name}.json").stat().st_mtime_ns for name in variants]
    variants["b"]["optim"] = {"lr": 0.01}
    code, _, err = tiny_run.command(
        "compare", write(tmp_path, run=quick, variants=variants, pairs=[]), "--out", str(out)
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "optim.lr" in err
