import itertools
import textwrap

import pytest

HEAD = """
from typing import Annotated
import jax
import jax.numpy as jnp
import numpy as np
from pydantic import Field
from agentrl_jax.rules import AdvantageInputs, FilterInputs, ObjectiveInputs, Trajectory, groups, rule
"""
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of rules, and returns its name; no two have the same."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text, head=HEAD):
        name = f"rules_of_test_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(head + textwrap.dedent(text))
        return name

    return write
