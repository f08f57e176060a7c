"""What the quick tests check with fewer clients and shorter lists of texts."""

import pytest
from both_ways import check_many_instances
from scene_lists import SERVICES, STARTS, check_long_texts


def test_256_instances_of_textcraft_answer_as_one(serve):
    check_many_instances(serve, 256)


@pytest.mark.parametrize("name", SERVICES)
def test_no_text_takes_more_than_a_moment(name):
    check_long_texts(name, STARTS)
