"""Every preset is valid, and its values have sources; test_defaults.py has the values."""

import pytest

from agentrl_jax.config import decode, to_dict, validate
from agentrl_jax.config.load import leaves
from agentrl_jax.config.presets import NAMES, read_preset


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_valid_rule_whose_values_have_sources(name):
    preset = read_preset(name)
    assert len(preset.about) > 20
    written = {key for key, _ in leaves(preset.values, lists=False)}
    assert preset.sources.keys() == written
    assert all(len(source) > 5 for source in preset.sources.values())
    config = decode({"algo": {"preset": name}, "prompt": {"max_turns": 10}})
    validate(config)
    decoded = to_dict(config)["algo"]
    for key, value in preset.values.items():
        if isinstance(value, dict):
            assert value.items() <= decoded[key].items()
        else:
            assert decoded[key] in (value, {"kind": value})
