import pytest
from exported_runs import check_adapter, check_weights, exported

from agentrl_jax.models.io.load import load_pretrained


@pytest.mark.parametrize("kind", ["lora", "upper", "frozen", "whole"])
def test_what_is_read_again_is_the_policy(kind, runs, tmp_path):
    check_weights(runs[1](kind), tmp_path / "new")


def test_an_adapter_of_upper_layers_beside_its_base(runs, tmp_path):
    check_adapter(runs[1]("upper"), runs[0], tmp_path / "new", "float32")


def test_types_of_the_file(runs, tmp_path):
    exported(runs[1]("whole"), tmp_path / "new", "--dtype", "bfloat16")
    assert load_pretrained(tmp_path / "new").config.raw["torch_dtype"] == "bfloat16"
    assert (tmp_path / "new" / "model.safetensors").stat().st_size < 2 * 480 * 16 * 2 * 2
