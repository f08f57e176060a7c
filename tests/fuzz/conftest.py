"""What all tests of this folder need."""

import pytest


@pytest.fixture
def bounded_memory():
    """Fails the test if this process comes to hold much more memory while it runs."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
