"""gymnax is whole for those who use it beside `envs_jax`, whatever they import first."""

import subprocess
import sys

import pytest

BOTH_WAYS = """
import gymnax
assert isinstance(gymnax.make("Catch-bsuite")[0], gymnax.environments.environment.Environment)
from gymnax.environments import environment, spaces
from envs_jax import gymnax_base
assert (environment, spaces) == (gymnax_base.environment, gymnax_base.spaces)
try:
    gymnax.nothing
except AttributeError as error:
    print(error)
"""


@pytest.mark.parametrize("first", ["import envs_jax", "import gymnax", "from gymnax.environments import CartPole"])
def test_environments_of_gymnax_are_there(first):
    done = subprocess.run([sys.executable, "-c", first + BOTH_WAYS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("module 'gymnax' has no attribute 'nothing'\n", "")
