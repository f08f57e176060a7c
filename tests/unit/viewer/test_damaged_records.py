"""Files of recorded rollouts that are damaged in ways that Python's archive reader does not call damage."""

import dataclasses
import io
import json
import zipfile

import numpy as np
import pytest
from page_runs import make_record

from agentrl_jax.errors import UserError
from agentrl_jax.runs.rollout_records import read_record, write_record


def rewritten(file, change):
    """Rewrites the members of an archive; `change` gets name and content."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(name, content))


def huge(name, content):
    """An array that names ten trillion numbers and has none."""
    if name != "reward.npy":
        return content
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
    return file.getvalue()


def deep(name, content):
    if name != "header.npy":
        return content
    file = io.BytesIO()
    np.save(file, np.frombuffer(b"[" * 200_000, np.uint8))
    return file.getvalue()


def flagged(file, at, value):
    """Changes a field of the first member's two headers."""
    data = bytearray(file.read_bytes())
    for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = data.index(signature)
        data[start + at + shift : start + at + shift + 2] = value.to_bytes(2, "little")
    file.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: rewritten(file, huge),
        lambda file: rewritten(file, deep),
        lambda file: flagged(file, 6, 1),  # encrypted
        lambda file: flagged(file, 8, 99),  # compressed in an unknown way
    ],
)
def test_it_is_refused_with_its_name(tmp_path, damage):
    file = write_record(tmp_path, make_record(1))
    read_record(file)
    damage(file)
    with pytest.raises(UserError, match=f"{file.name}: is no rollout of a run of this version"):
        read_record(file)


@pytest.mark.parametrize(
    "change", [{"iteration": "1"}, {"temperature": 10**400}, {"horizon": 0}, {"roll_backs": 2**31}, {"more": 1}]
)
def test_headers_of_another_form_are_refused(tmp_path, change):
    def changed(name, content):
        if name != "header.npy":
            return content
        header, file = json.loads(np.load(io.BytesIO(content)).tobytes()), io.BytesIO()
        np.save(file, np.frombuffer(json.dumps(header | change).encode(), np.uint8))
        return file.getvalue()

    file = write_record(tmp_path, make_record(1))
    rewritten(file, changed)
    with pytest.raises(UserError, match=f"{file.name}: is no rollout of a run of this version"):
        read_record(file)


@pytest.mark.parametrize(("name", "value"), [("task", 7), ("num_turns", 99), ("length", -1), ("prompt_length", 10**6)])
def test_numbers_that_lead_nowhere_are_refused(tmp_path, name, value):
    record = make_record(1)
    values = getattr(record, name).copy()
    values.flat[0] = value
    file = write_record(tmp_path, dataclasses.replace(record, **{name: values}))
    with pytest.raises(UserError, match=f"{name} has values from .* expected 0 to"):
        read_record(file)
