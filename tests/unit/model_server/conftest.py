import made_run
import pytest

from agentrl_jax.model_server.served_model import load_served


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return load_served(str(made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")))
