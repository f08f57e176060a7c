"""Many clients at once."""

from both_ways import check_many_instances


def test_256_instances_of_textcraft_answer_as_one(serve):
    check_many_instances(serve, 256)
