"""A limit on the memory of a test."""

import pytest


@pytest.fixture
def bounded_memory():
    """Fails the test if the memory of this process grows a lot while it runs."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
