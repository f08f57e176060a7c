"""The page of a run that was trained and recorded by the program itself."""

import numpy as np
from page_runs import decode_page
from tiny_run import command

from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations


def test_a_trained_run_is_shown_with_its_boards(finished, tmp_path):
    file = tmp_path / "page.html"
    code, out, err = command("view", str(finished.folder), "--export", str(file))
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
