"""What the quick tests check with a shorter list of texts."""

import pytest
from scene_lists import SERVICES, STARTS, check_long_texts


@pytest.mark.parametrize("name", SERVICES)
def test_no_text_takes_more_than_a_moment(name):
    check_long_texts(name, STARTS)
