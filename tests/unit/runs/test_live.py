import io

from rich.console import Console

from agentrl_jax.runs.live import IterationView, LiveView, duration, final_table, gap_text, levels_line, sparkline


def show(terminal, iterations, **changes):
    numbers = {"success": 0.25, "mean_return": -1.5, "in_group_std": 0.75, "entropy": 0.5, "logprob_gap": 2.4e-7}
    out, ticks = io.StringIO(), iter(range(0, 1000, 10))
    console = Console(file=out, force_terminal=terminal, width=100, legacy_windows=False)
    with LiveView(20, title="demo", console=console, clock=lambda: next(ticks)) as view:
        view.note("imitation of 64 levels")
        for iteration in iterations:
            view.update(IterationView(**{"iteration": iteration, "tokens_per_second": 12345.6} | numbers | changes))
    return out.getvalue()


def test_the_numbers_of_an_iteration_on_plain_lines_and_in_place_at_a_terminal():
    lines, terminal = show(False, [1, 2, 3]).splitlines(), show(True, [1, 2, 3])
    assert (lines[0], len(lines), "\x1b" in "".join(lines)) == ("imitation of 64 levels", 4, False)
    for part in ("3/20", "25.0%", "-1.50", "0.75", "0.500", "2e-07", "12,346", "2:50"):  # 17 iterations of 10 seconds
        assert (part in lines[3], part in terminal) == (True, True), part
    assert "left -" in lines[1]  # no estimate after a single iteration
    assert "left 0:20" in show(False, [17, 18]).splitlines()[2]  # a resumed run counts its own iterations only
    assert ("skipped" in lines[1], "skipped updates 2" in show(False, [1], bad_updates=2)) == (False, True)
    assert all("nan" in show(terminal, [1], success=float("nan")) for terminal in (False, True))


def test_duration_and_sparkline():
    assert [duration(x) for x in (None, 0, 59.6, 3599, 3600)] == ["-", "0:00", "1:00", "59:59", "1:00:00"]
    assert sparkline([0.0, 1.0, 0.5, float("nan"), 2.0], 4) == f"█{sparkline([0.5], 1)} █"
    assert sparkline([0.0, 1.0], 5) == "▁█"


def rate(mean):
    return {"mean": mean, "low": mean - 0.03, "high": mean + 0.02, "n": 512}


SUMMARY = {
    "success": {"random": rate(0.19), "imitation": rate(0.4), "trained": rate(0.7), "optimal": rate(0.97)},
    "success_greedy": {"imitation": rate(0.5), "trained": rate(0.72)},
    "held_out": True,
    "levels": {"Bandit": {"held_out": "too few", "levels": 8, "distinct_levels": 2, "seen_levels": 8}},
    "imitated": True,
    "iterations": 7,
    "paired": {"after RL against imitation": {"mean": 0.3, "low": 0.25, "high": 0.345, "n": 512}},
}


def table(**changes):
    out = io.StringIO()
    Console(file=out, width=100).print(final_table(SUMMARY | changes))
    rows = [line.split("│") for line in out.getvalue().splitlines() if "%" in line and "│" in line]
    return " ".join(out.getvalue().split()), {row[1].strip(): " ".join(row[2:]) for row in rows}


def test_the_final_table():
    text, rows = table(gap_closed=0.6538, mean_turns=2.84, mean_tokens=17.66)
    assert list(rows) == ["random", "after imitation", "after RL", "optimal"]
    for part in ("70.0%  [67.0%, 72.0%]", "72.0%  [69.0%, 74.0%]"):
        assert part in rows["after RL"]
    for part in ("+30.0 points [+25.0, +34.5]", "65.4%", "2.8 turns and 17.7", "8 levels, 2 different", "too few"):
        assert part in text
    assert "after RL" not in table(iterations=0)[0]
    single = {"mean": 0.19, "low": 0.19, "high": 0.19, "n": 1}
    assert "[" not in table(success=SUMMARY["success"] | {"random": single})[1]["random"]
    text, rows = table(held_out=False, imitated=False, paired={}, success_greedy={}, optimal_is="closed loop")
    assert rows.keys() == {"random", "before RL", "after RL", "optimal (closed loop)"}
    assert "not all held out" in text
    assert ("25.0%" in gap_text(0.25), "below random play by 18.0%" in gap_text(-0.18)) == (True, True)
    seen = {"held_out": True, "levels": 512, "distinct_levels": 300, "seen_levels": 0, "seen_images": 0}
    line = levels_line("Sokoban", seen | {"seen_midway": 9, "seen_midway_since": 40})
    assert ("met 9 " in line, "step 40" in line, "not held out" in line) == (True, True, False)
