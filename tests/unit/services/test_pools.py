"""The two ways to instances of a service: in this process, or over HTTP."""

import pytest
from both_ways import check_both_ways


@pytest.mark.parametrize("name", ["textcraft", "maze", "wordle", "Bandit"])
def test_in_process_and_over_http(serve, name):
    check_both_ways(serve, name)
