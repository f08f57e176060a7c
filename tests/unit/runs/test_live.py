import io

from rich.console import Console

from agentrl_jax.runs.live import IterationView, LiveView, duration, final_table, sparkline


def progress(iteration, **changes):
    numbers = {
        "success": 0.25,
        "mean_return": -1.5,
        "in_group_std": 0.75,
        "entropy": 0.5,
        "logprob_gap": 2.4e-7,
        "tokens_per_second": 12345.6,
        **changes,
    }
    return IterationView(iteration=iteration, **numbers)


def show(terminal, iterations, **changes):
    out, ticks = io.StringIO(), iter(range(0, 1000, 10))
    console = Console(file=out, force_terminal=terminal, width=100, legacy_windows=False)
    with LiveView(20, title="demo", console=console, clock=lambda: next(ticks)) as view:
        view.note("imitation of 64 levels")
        for iteration in iterations:
            view.update(progress(iteration, **changes))
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal():
    lines = show(False, [1, 2, 3]).splitlines()
    assert lines[0] == "imitation of 64 levels"
    assert len(lines) == 4
    for part in (
        "iteration  3/20",
        "success  25.0%",
        "return -1.50",
        "in-group std 0.75",
        "entropy 0.500",
        "gap 2e-07",
        "12,346",
    ):
        assert part in lines[3]
    assert "left -" in lines[1]  # no estimate after a single iteration
    assert "left 2:50" in lines[3]  # 17 iterations of 10 seconds
    assert "\x1b" not in "".join(lines)


def test_time_left_of_a_resumed_run_counts_its_own_iterations_only():
    assert "left 0:20" in show(False, [17, 18]).splitlines()[2]


def test_a_terminal_shows_the_same_numbers_in_place():
    out = show(True, [1, 2])
    for part in ("demo", "iteration 2/20", "25.0%", "-1.50", "0.75", "0.500", "12,346", "3:00", "▃▃"):
        assert part in out


def test_skipped_updates_are_shown_where_there_are_any():
    assert "skipped" not in show(False, [1])
    assert "skipped updates 2" in show(False, [1], bad_updates=2)


def test_numbers_that_are_not_finite_can_be_shown():
    assert "nan" in show(False, [1], success=float("nan"))
    assert "nan" in show(True, [1], success=float("nan"))


def test_duration_and_sparkline():
    assert [duration(x) for x in (None, 0, 59.6, 3599, 3600)] == ["-", "0:00", "1:00", "59:59", "1:00:00"]
    assert sparkline([0.0, 1.0, 0.5, float("nan"), 2.0], 4) == "█▅ █".replace("▅", sparkline([0.5], 1))
    assert sparkline([0.0, 1.0], 5) == "▁█"


def test_the_final_table():
    def rate(mean):
        return {"mean": mean, "low": mean - 0.03, "high": mean + 0.02, "n": 512}

    summary = {
        "success": {"random": rate(0.19), "imitation": rate(0.4), "trained": rate(0.7), "optimal": rate(0.97)},
        "success_greedy": {"imitation": rate(0.5), "trained": rate(0.72)},
        "held_out": True,
        "levels": {
            "Sokoban": {"held_out": True, "levels": 512, "distinct_levels": 300, "seen_levels": 0, "seen_images": 0,
                "seen_midway": 9, "seen_midway_since": 40},
            "Bandit": {"held_out": "too few", "levels": 8, "distinct_levels": 2, "seen_levels": 8},
        },
        "imitated": True,
        "iterations": 7,
        "paired": {"after RL against imitation": {"mean": 0.3, "low": 0.25, "high": 0.345, "n": 512}},
    }
    out = io.StringIO()
    Console(file=out, width=100).print(final_table(summary))
    text = out.getvalue()
    rows = [line for line in text.splitlines() if "%" in line and "│" in line]
    assert [row.split("│")[1].strip() for row in rows] == ["random", "after imitation", "after RL", "optimal"]
    assert "70.0%  [67.0%, 72.0%]" in rows[2]
    assert "72.0%  [69.0%, 74.0%]" in rows[2]
    assert "after RL against imitation: +30.0 points [+25.0, +34.5], paired over 512 levels" in text
    assert "Success on held-out levels" in text
    assert "300 different; training episodes started from 0 of them and from images of 0, and met 9 on the way after step 40" in (
        " ".join(text.split())
    )
    assert "Bandit: 8 levels, 2 different; training episodes started from 8 of them; not held out: too few" in text
    used = {"gap_closed": 0.6538, "mean_turns": 2.84, "mean_tokens": 17.66}
    Console(file=out, width=100).print(final_table(summary | used))
    assert "after RL, sampled: closes 65.4% of the gap between random and optimal" in out.getvalue()
    assert "after RL, sampled: 2.8 turns and 17.7 sampled tokens per episode" in out.getvalue()
    out.truncate(out.seek(0))
    Console(file=out, width=100).print(final_table(summary | {"iterations": 0}))
    without = out.getvalue().rpartition("Success")[2]
    assert "after imitation" in without
    assert "after RL" not in without
    summary["success"]["random"] = {"mean": 0.19, "low": 0.19, "high": 0.19, "n": 1}
    Console(file=out, width=100).print(final_table(summary))
    assert "19.0%  [" not in out.getvalue().rpartition("Success")[2]
    del summary["paired"], summary["success_greedy"]
    Console(file=out).print(final_table(summary | {"held_out": False, "imitated": False}))
    assert "before RL" in out.getvalue()
    assert "optimal (" not in out.getvalue()
    Console(file=out).print(final_table(summary | {"optimal_is": "closed loop"}))
    assert "optimal (closed loop)" in out.getvalue()
    assert out.getvalue().count("held-out") == 3
