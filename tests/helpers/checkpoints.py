"""Checkpoints as far as the page reads them."""

import json


def write_checkpoints(run, roll_backs):
    """Writes complete checkpoints, given as the number of roll-backs before each step, without their states."""
    for step, number in roll_backs.items():
        folder = run / "checkpoints" / str(step)
        (folder / "meta").mkdir(parents=True)
        (folder / "meta" / "metadata").write_text(json.dumps({"step": step, "roll_backs": number}))
        (folder / "digests.json").write_text("{}")
