"""A run on data x fsdp x sequence x tensor: it learns, stops, resumes bit for bit, and is evaluated on one device."""

import json
import shutil

import pytest
import tiny_run

MESH = ("--devices", "8", "--mesh.fsdp", "2", "--mesh.tensor", "2")


@pytest.mark.parametrize(("layout", "sequence"), [("rows", 1), ("rows", 2), ("wide", 1)])
def test_a_run_on_a_mesh_goes_on_with_the_same_bits(tmp_path, layout, sequence):
    file = tiny_run.write_config(tmp_path)
    words = (*MESH, "--mesh.rollout", layout, "--mesh.sequence", str(sequence))
    code, _, err = tiny_run.command("train", file, "--run_dir", str(tmp_path / "run"), *words)
    assert (code, err) == (0, "")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "run", copy)
    (copy / "summary.json").unlink()
    shutil.rmtree(copy / "checkpoints" / str(tiny_run.checkpoints(copy)[-1]))
    code, out, err = tiny_run.command("train", file, "--run_dir", str(copy), *words)
    assert (code, err) == (0, "")
    assert "going on from the checkpoint" in out
    assert tiny_run.metrics(copy) == tiny_run.metrics(tmp_path / "run")
    one, other = (json.loads((path / "summary.json").read_text()) for path in (tmp_path / "run", copy))
    assert one["success"] == other["success"]
    assert one["devices"] == 8
    code, out, _ = tiny_run.command("eval", str(copy), "--json")
    assert code == 0
    assert json.loads(out)["success"]["n"] > 0
