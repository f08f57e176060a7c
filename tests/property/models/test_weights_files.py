"""Files changed at random: each loads or is refused with the project's error, in bounded time and memory."""

import datetime
import struct
import tracemalloc

import jax
import pytest
from hf_models import LLAMA3, PEFT_SETTINGS, adapter_tensors, config_of, tensors_of, write_adapter, write_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_jax.models.io import hf_config, load, peft_files
from agentrl_jax.models.io.errors import WeightsError

CONFIG = config_of("qwen3", num_hidden_layers=1)
DECODER = hf_config.parse_config(config_of("qwen2")).decoder

edits = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
        st.tuples(st.just("number"), st.floats(0, 1), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1])),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("repeat"), st.floats(0, 1), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=3,
)
"""Changes to a file; positions are fractions of its size, and half of them are in the first tenth, with the headers."""

FUZZ = settings(
    max_examples=30,
    deadline=datetime.timedelta(seconds=10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def edited(content: bytes, changes) -> bytes:
    made = bytearray(content)
    for kind, share, value in changes:
        place = int((share / 5 if share < 0.5 else share) * len(made))
        if kind == "flip" and place < len(made):
            made[place] ^= value
        elif kind == "number":
            made[place : place + 8] = struct.pack("<Q", value)
        elif kind == "cut":
            del made[place:]
        elif kind == "repeat":
            made[place:place] = made[place : place + value]
    return bytes(made)


def loads_or_is_refused(load_it) -> None:
    tracemalloc.start()
    refused = ""
    try:
        made = load_it()
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(made))
    except WeightsError as error:
        refused = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 30e6
    assert "\n" not in refused
    assert len(refused) < 3000


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@FUZZ
@given(changes=edits)
def test_fuzzed_folder(name, changes, tmp_path):
    write_folder(tmp_path, CONFIG, tensors_of(CONFIG))
    (tmp_path / name).write_bytes(edited((tmp_path / name).read_bytes(), changes))
    loads_or_is_refused(lambda: load.load_pretrained(tmp_path).params)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
@FUZZ
@given(changes=edits)
def test_fuzzed_adapter(name, changes, tmp_path):
    write_adapter(tmp_path, adapter_tensors())
    (tmp_path / name).write_bytes(edited((tmp_path / name).read_bytes(), changes))
    loads_or_is_refused(lambda: peft_files.load_adapter(tmp_path, DECODER)[0])


odd_values = st.sampled_from(
    [True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, "", "x", "llama", "1", [], [1], ["x"], [[]], {}]
)
OF_ROPE = ["rope_type", "type", "rope_theta", *LLAMA3]
ODD_KEYS = [*CONFIG, *OF_ROPE, "rope_scaling", "rope_parameters", "layer_types", "architectures", "use_sliding_window"]
FAMILIES = ["qwen2 window", "llama 3", "mistral"]


@settings(FUZZ, max_examples=160)
@given(key=st.sampled_from([*ODD_KEYS, "dtype"]), value=odd_values, family=st.sampled_from(FAMILIES))
def test_odd_values_in_a_configuration(key, value, family):
    changed = {"rope_scaling": LLAMA3 | {key: value}} if family == "llama 3" and key in OF_ROPE else {key: value}
    loads_or_is_refused(lambda: hf_config.parse_config(config_of(family, **changed)) and [])


@settings(FUZZ, max_examples=100)
@given(key=st.sampled_from([*PEFT_SETTINGS, "target_modules"]), value=odd_values)
def test_odd_values_in_an_adapters_configuration(key, value, tmp_path):
    write_adapter(tmp_path, adapter_tensors(), **{key: value})
    loads_or_is_refused(lambda: peft_files.load_adapter(tmp_path, DECODER)[0])


GGUF_VALUES = [True, 0, 1, 2**31, 0.5, 1e30, "", "x", "llama", [1], ["x"], [1.5], [True], ["bc"] * 11, [3] * 11]


@FUZZ
@given(data=st.data())
def test_odd_values_in_a_gguf_file(data, tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed; it writes and reads GGUF files")
    from gguf_models import settings_of, write_gguf

    key = data.draw(st.sampled_from(sorted(settings_of(CONFIG))[1:]))  # the writer sets the first key, the architecture
    changed = {key: data.draw(st.sampled_from(GGUF_VALUES))}
    path = write_gguf(tmp_path / "m.gguf", CONFIG, tensors_of(CONFIG), settings=changed)
    loads_or_is_refused(lambda: load.load_pretrained(path).params)


@FUZZ
@given(changes=edits)
def test_fuzzed_gguf(changes, tmp_path):
    pytest.importorskip("gguf", reason="gguf is not installed; it writes and reads GGUF files")
    from gguf_models import write_gguf

    path = write_gguf(tmp_path / "m.gguf", CONFIG, tensors_of(CONFIG))
    path.write_bytes(edited(path.read_bytes(), changes))
    loads_or_is_refused(lambda: load.load_pretrained(path).params)
