import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes

from agentrl_jax.runs.curves import SUBPLOTS, plot_curves

BLUE, GRAY = (0x25, 0x63, 0xEB), (0x64, 0x74, 0x8B)


def pixels(path, color):
    image = np.round(matplotlib.image.imread(path)[..., :3] * 255)
    return int((np.abs(image - np.array(color)).max(axis=-1) <= 2).sum())


def make_rows(n):
    keys = [key for subplot in SUBPLOTS for key, _ in subplot.lines]
    return [{"step": step, **{key: step / n for key in keys}} for step in range(1, n + 1)]


@pytest.mark.parametrize("n", [1, 60])
def test_curves_and_baselines_are_drawn(tmp_path, monkeypatch, n):
    plot_curves(make_rows(n), tmp_path / "without.png", subplots=SUBPLOTS[:1])
    said, annotate = [], Axes.annotate
    monkeypatch.setattr(
        Axes, "annotate", lambda self, text, *a, **k: said.append(text) or annotate(self, text, *a, **k)
    )
    lines = {"random": 0.2, "optimal": 0.95, "optimal_name": "optimal (scripted)"}
    plot_curves(make_rows(n), tmp_path / "with.png", **lines, subplots=SUBPLOTS[:1])
    assert said == ["random 20.0%", "optimal (scripted) 95.0%"]
    assert pixels(tmp_path / "with.png", BLUE) > 50
    assert pixels(tmp_path / "with.png", GRAY) > pixels(tmp_path / "without.png", GRAY) + 500
    assert sorted(file.name for file in tmp_path.iterdir()) == ["with.png", "without.png"]


def test_rows_with_gaps_and_missing_panels(tmp_path):
    rows = [{"step": 1, "train/success": None}, {"step": 2, "train/success": 0.5}, {"step": 3}]
    plot_curves(rows, tmp_path / "gaps.png")
    plot_curves([], tmp_path / "none.png")
    plot_curves(make_rows(3), tmp_path / "two.png", subplots=SUBPLOTS[:2])
    sizes = [matplotlib.image.imread(tmp_path / f"{name}.png").shape for name in ("gaps", "none", "two")]
    assert sizes[0] == sizes[1]
    assert sizes[2][1] == 2 * sizes[0][1]
