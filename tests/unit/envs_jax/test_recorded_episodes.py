"""Levels, slips and rewards of a key do not change by accident: runs would play other episodes."""

import importlib.util
import json

import pytest
from paths import GOLDEN

spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "envs" / "make_golden.py")
make_golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_golden)
RECORDED = json.loads(make_golden.GOLDEN.read_text())


@pytest.mark.parametrize("name", make_golden.NAMES)
def test_episodes_are_those_of_the_record(name):
    assert make_golden.episodes(name) == RECORDED[name]
