from unittest import mock

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes

from agentrl_jax.runs.curves import SUBPLOTS, plot_curves


def make_rows(n):
    keys = [key for subplot in SUBPLOTS for key, _ in subplot.lines]
    return [{"step": step, **{key: step / n for key in keys}} for step in range(1, n + 1)]


def spied(name):
    return mock.patch.object(Axes, name, autospec=True, side_effect=getattr(Axes, name))


@pytest.mark.parametrize("n", [1, 60])
def test_curves_and_baselines_are_drawn(tmp_path, n):
    with spied("annotate") as said, spied("plot") as drawn, spied("axhline") as lines:
        baselines = {"random": 0.2, "optimal": 0.95, "optimal_name": "optimal (scripted)"}
        plot_curves(make_rows(n), tmp_path / "curves.png", **baselines, subplots=SUBPLOTS[:1])
    assert [call.args[1] for call in said.mock_calls] == ["random 20.0%", "optimal (scripted) 95.0%"]
    assert [call.args[1] for call in lines.mock_calls] == [0.2, 0.95]
    for call in drawn.mock_calls:
        np.testing.assert_array_equal(call.args[1], np.arange(1, n + 1))
    np.testing.assert_allclose(drawn.mock_calls[0].args[2], np.arange(1, n + 1) / n)
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


def test_rows_with_gaps_and_missing_panels(tmp_path):
    rows = [{"step": 1, "train/success": None}, {"step": 2, "train/success": 0.5}, {"step": 3}]
    plot_curves(rows, tmp_path / "gaps.png")
    plot_curves([], tmp_path / "none.png")
    plot_curves(make_rows(3), tmp_path / "two.png", subplots=SUBPLOTS[:2])
    sizes = [matplotlib.image.imread(tmp_path / f"{name}.png").shape for name in ("gaps", "none", "two")]
    assert sizes[0] == sizes[1]
    assert sizes[2][1] == 2 * sizes[0][1]
