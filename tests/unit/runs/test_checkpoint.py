import contextlib
import errno
import logging
import shutil
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from flax import struct

from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
from agentrl_jax.runs.digests import write_digests


@struct.dataclass
class State:
    params: Any
    opt_state: Any
    reference: Any
    iteration: jax.Array
    key: jax.Array
    python: int
    scalar: Any


def make_state(seed):
    random = np.random.default_rng(seed)
    params = {
        "layer": {"w": jnp.asarray(random.normal(size=(3, 4)), jnp.float32), "b": jnp.zeros(1)},
        "half": jnp.asarray(random.normal(size=5), jnp.bfloat16),
        "flags": [jnp.array(True), jnp.asarray(random.integers(0, 9, 3), jnp.int8)],
    }
    inexact = {"layer": params["layer"]}
    return State(
        params=params,
        opt_state=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init(inexact),
        reference=None,
        iteration=jnp.int32(seed),
        key=jax.random.split(jax.random.key(seed)),
        python=seed,
        scalar=np.int64(seed),
    )


def bits(state):
    """Returns type, dtype, shape and bytes of every leaf."""
    leaves, structure = jax.tree.flatten(state)
    plain = []
    for leaf in leaves:
        kind = f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')}"
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        plain.append((kind, array.shape, array.tobytes()))
    return structure, plain


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 2 and 3 after three saves; tests copy it before they damage it."""
    path = tmp_path_factory.mktemp("checkpoints")
    with Checkpoints(path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), {"note": f"n{step}"}, wait=step != 3)
    return path


def test_a_state_comes_back_bit_for_bit(saved):
    with Checkpoints(saved, keep=2) as checkpoints:
        for like in (make_state(0), _abstract(make_state(0))):
            assert bits(checkpoints.restore(3, like)) == bits(make_state(3))
        assert bits(checkpoints.restore(2, make_state(0))) == bits(make_state(2))


def _abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, state)


def test_the_newest_are_kept_and_found(saved):
    with Checkpoints(saved, keep=2) as checkpoints:
        assert checkpoints.steps() == [2, 3]
        assert checkpoints.latest_step() == 3
        assert checkpoints.meta(3) == {"step": 3, "note": "n3"}


def test_the_best_is_kept_beside_the_newest(tmp_path):
    small = {"a": jnp.ones(3)}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.best_step() is None
        for step, score in enumerate((0.1, 0.7, None, 0.7, 0.2, None, None), start=1):
            checkpoints.save(step, small, score=score, wait=False)
        checkpoints.wait()
        # Of equal ones the newest.
        assert (checkpoints.steps(), checkpoints.best_step()) == ([4, 6, 7], 4)
        assert checkpoints.meta(4) == {"step": 4}
        checkpoints.save(8, small, score=0.8)
        assert checkpoints.steps() == [7, 8]


def test_one_between_the_regular_ones_takes_no_place(tmp_path):
    small = {"a": jnp.ones(3)}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step, regular in enumerate((True, True, False, False), start=1):
            checkpoints.save(step, small, regular=regular)
        assert (checkpoints.steps(), checkpoints.regular_steps()) == ([1, 2, 4], [1, 2])
        checkpoints.save(5, small, score=0.5, regular=False)
        checkpoints.save(6, small)
        assert (checkpoints.steps(), checkpoints.regular_steps()) == ([2, 5, 6], [2, 6])


def test_a_checkpoint_is_written_in_the_background(tmp_path, monkeypatch):
    """The caller goes on, donates what was saved, and hears of a failure at the next step."""
    may_end = threading.Event()

    def slow(folder):
        may_end.wait(60)
        write_digests(folder)

    state = {"a": jnp.arange(4.0)}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.runs.checkpoint.write_digests", slow)
            checkpoints.save(1, state, wait=False)
            jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(state)
            checkpoints.raise_failure()
            assert checkpoints.steps() == []
            may_end.set()
            checkpoints.wait()
        np.testing.assert_array_equal(checkpoints.restore(1, {"a": jnp.zeros(4)})["a"], np.arange(4.0))

        def full(folder):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.runs.checkpoint.write_digests", full)
            checkpoints.save(2, {"a": jnp.ones(4)}, wait=False)
            while not checkpoints.is_idle():
                time.sleep(0.01)
            with pytest.raises(CheckpointError, match=r"the disk is full.*that of step 1 is kept and nothing is lost"):
                checkpoints.raise_failure()
        checkpoints.save(3, {"a": jnp.ones(4)})
        assert checkpoints.steps() == [1, 3]


def test_a_reader_is_not_warned_that_it_only_reads(saved, caplog):
    caplog.set_level(logging.WARNING, logger="absl")  # the command sets another one
    with Checkpoints(saved, keep=None):
        logging.getLogger("absl").warning("other warnings of Orbax")
    assert caplog.messages == ["other warnings of Orbax"]


def test_a_reader_leaves_the_folder_alone(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    with Checkpoints(path, keep=2) as checkpoints:
        checkpoints.save(4, make_state(4))
    half = (path / "3").rename(path / "5.orbax-checkpoint-tmp")
    before = sorted(path.rglob("*"))
    with Checkpoints(path, keep=None) as checkpoints:
        assert checkpoints.latest_step() == 4
        assert bits(checkpoints.restore(4, make_state(0))) == bits(make_state(4))
    assert sorted(path.rglob("*")) == before
    with Checkpoints(path, keep=2) as checkpoints:
        assert checkpoints.latest_step() == 4
        checkpoints.save(5, make_state(5))
        assert checkpoints.latest_step() == 5
    assert not half.exists()


def test_an_empty_folder_has_none(tmp_path):
    with Checkpoints(tmp_path / "new", keep=1) as checkpoints:
        assert checkpoints.latest_step() is None
        with pytest.raises(CheckpointError, match="no checkpoint 1"):
            checkpoints.restore(1, make_state(1))


def test_a_state_may_be_given_away_while_it_is_written(tmp_path):
    forget = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    state = {"w": jnp.arange(1_000_000, dtype=jnp.float32)}
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, state, wait=False)
        forget(state["w"]).block_until_ready()
        checkpoints.wait()
        restored = checkpoints.restore(1, {"w": jax.ShapeDtypeStruct((1_000_000,), jnp.float32)})
    np.testing.assert_array_equal(restored["w"], np.arange(1_000_000, dtype=np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.replace(iteration=jnp.zeros(2, jnp.int32)),
            r"iteration is int32\[\], expected int32\[2\]",
        ),
        (lambda state: state.replace(iteration=jnp.float32(0)), r"iteration is int32\[\], expected float32\[\]"),
        (lambda state: state.replace(reference={"w": jnp.zeros(2)}), r"reference\.w is only in the state"),
        (lambda state: state.replace(params={"half": state.params["half"]}), r"params\..* is only in the checkpoint"),
    ],
)
def test_another_state_is_refused_by_name(saved, change, message):
    with Checkpoints(saved, keep=2) as checkpoints, pytest.raises(CheckpointError, match=message):
        checkpoints.restore(3, change(make_state(0)))


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of Orbax, which gives up a read halfway
@pytest.mark.parametrize("damage", ["truncate", "remove", "metadata"])
def test_a_damaged_checkpoint_is_a_named_error_and_the_one_before_is_intact(saved, tmp_path, damage):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    data = sorted((path / "3" / "state").rglob("d/*"), key=lambda file: file.stat().st_size)
    if damage == "truncate":
        for file in data:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "remove":
        for file in data:
            file.unlink()
    else:
        (path / "3" / "state" / "_METADATA").write_text("{")
    with Checkpoints(path, keep=2) as checkpoints:
        with pytest.raises(
            CheckpointError,
            match=r"the checkpoint of step 3 cannot be used: .*/3/.*; the last good checkpoint is that of step 2",
        ) as caught:
            checkpoints.restore(3, make_state(0))
        assert "\n" not in str(caught.value)
        assert bits(checkpoints.restore(2, make_state(0))) == bits(make_state(2))


def test_a_flipped_bit_anywhere_is_found(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    random = np.random.default_rng(0)
    files = sorted(file for file in (path / "3").rglob("*") if file.is_file() and file.stat().st_size)
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        for place in random.integers(0, len(whole), 3).tolist():
            flipped = bytearray(whole)
            flipped[place] ^= 1 << int(random.integers(8))
            file.write_bytes(flipped)
            with Checkpoints(path, keep=None) as checkpoints:
                if file.name == "digests.json":  # may then name another file, or differ in white space
                    with contextlib.suppress(CheckpointError):
                        assert bits(checkpoints.restore(3, make_state(0))) == bits(make_state(3))
                    continue
                with pytest.raises(CheckpointError, match=str(file)):
                    checkpoints.restore(3, make_state(0))
        file.write_bytes(whole)
    with Checkpoints(path, keep=None) as checkpoints:
        assert bits(checkpoints.restore(3, make_state(0))) == bits(make_state(3))


def test_damaged_ones_are_moved_aside_unless_none_is_good(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    with Checkpoints(path, keep=2) as checkpoints:
        assert checkpoints.rename_damaged() == []
    (path / "3" / "meta" / "metadata").write_text("{}")
    with Checkpoints(path, keep=2) as checkpoints:
        with pytest.raises(CheckpointError, match=r"meta/metadata is damaged"):
            checkpoints.meta(3)
        (said,) = checkpoints.rename_damaged()
        assert said.endswith("the last good checkpoint is that of step 2; renamed to 3.damaged")
        assert (checkpoints.latest_step(), (path / "3.damaged" / "state").is_dir()) == (2, True)
        checkpoints.save(3, make_state(3))
        assert bits(checkpoints.restore(3, make_state(0))) == bits(make_state(3))
    for step in (2, 3):
        (path / str(step) / "_CHECKPOINT_METADATA").unlink()
    with Checkpoints(path, keep=2) as checkpoints, pytest.raises(CheckpointError, match=r"3/_CHECK.*no earlier one"):
        checkpoints.rename_damaged()
    assert {entry.name for entry in path.iterdir()} == {"2", "3", "3.damaged"}


@pytest.mark.parametrize("record", ["{}", "[]", '{"step": 2, "digests": "sha256"}', "7"])
def test_a_record_of_something_else_is_an_error(saved, tmp_path, record):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    (path / "3" / "meta" / "metadata").write_text(record)
    (path / "3" / "digests.json").unlink()
    write_digests(path / "3")
    with Checkpoints(path, keep=None) as checkpoints, pytest.raises(CheckpointError, match="step 3"):
        checkpoints.meta(3)


def test_a_checkpoint_in_the_folder_of_another_step_is_an_error(saved, tmp_path):
    """Also for readers that restore a state without a look at its record."""
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    (path / "3").rename(path / "4")
    with Checkpoints(path, keep=None) as checkpoints:
        with pytest.raises(CheckpointError, match=r"step 4 cannot be used: .*no record of step 4; .* that of step 2"):
            checkpoints.restore(4, make_state(0))
        assert bits(checkpoints.restore(2, make_state(0))) == bits(make_state(2))


def test_what_lacks_its_digests_is_not_complete_and_an_older_version_is_refused(saved, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(saved, path)
    (path / "3" / "digests.json").unlink()
    with Checkpoints(path, keep=None) as checkpoints:
        assert checkpoints.steps() == [2]
    with Checkpoints(path, keep=2) as checkpoints:
        assert checkpoints.steps() == [2]
        assert {entry.name for entry in path.iterdir()} == {"2", "3.unfinished"}
        checkpoints.save(3, make_state(3))
        assert checkpoints.steps() == [2, 3]
    assert {entry.name for entry in path.iterdir()} == {"2", "3"}
    (path / "1").mkdir()  # the rest of a copy that was made while it was removed
    (path / "1" / "_CHECKPOINT_METADATA").write_text("{}")
    with Checkpoints(path, keep=None) as checkpoints:
        assert checkpoints.steps() == [2, 3]
    with Checkpoints(path, keep=2) as checkpoints:
        assert checkpoints.steps() == [2, 3]
    assert {entry.name for entry in path.iterdir()} == {"1.unfinished", "2", "3"}
    for step in ("2", "3"):
        (path / step / "digests.json").unlink()
        (path / step / "meta" / "metadata").write_text(f'{{"step": {step}}}')
    with Checkpoints(path, keep=None) as checkpoints:
        assert checkpoints.without_digests == [2, 3]
    with pytest.raises(CheckpointError, match=r"2: this checkpoint has no digests.*older version"):
        Checkpoints(path, keep=2)


def test_one_that_was_only_begun_in_an_object_store(object_store):
    """There Orbax writes into the final folder, and names its end."""
    path = epath.Path("s3://bucket/checkpoints")
    (path / "5" / "state").mkdir(parents=True)
    (path / "5" / "state" / "array").write_text("half")
    with Checkpoints(path, keep=2) as checkpoints:
        assert checkpoints.steps() == []
    assert [entry.name for entry in path.iterdir()] == ["5.unfinished"]
    (path / "6" / "state").mkdir(parents=True)
    (path / "6" / "commit_success.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"6: this checkpoint has no digests.*older version"):
        Checkpoints(path, keep=2)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38])
def test_a_weight_that_is_none_is_refused(tmp_path, value):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, {"a": jnp.ones(3), "w": jnp.asarray([0.0, value], jnp.float32)})
        with pytest.raises(CheckpointError, match="step 1 cannot be used: w holds numbers that are not finite"):
            checkpoints.restore(1, {"a": jnp.ones(3), "w": jnp.zeros(2)})


def test_a_kill_before_the_digests_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(folder):
        raise Killed

    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, make_state(1))
        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.runs.checkpoint.write_digests", killed)
            with pytest.raises(Killed):
                checkpoints.save(2, make_state(2))
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.steps() == [1]
        assert bits(checkpoints.restore(1, make_state(0))) == bits(make_state(1))
