"""All recorded play of the original BabyAI."""

import babyai_fixtures as recorded
import numpy as np
import pytest
from babyai_parity import check_sequences

SEQUENCES = len(recorded.read("traces")["sequence_item"])


@pytest.mark.parametrize("part", range(4))
def test_all_recorded_play_equals_the_original(part):
    check_sequences(np.arange(part, SEQUENCES, 4))
