import contextlib
import errno
import logging
import shutil
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from refusing import refusal

from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
from agentrl_jax.runs.digests import write_digests


def make_state(seed):
    random = np.random.default_rng(seed)
    layer = {"w": jnp.asarray(random.normal(size=(3, 4)), jnp.float32), "b": jnp.zeros(1)}
    half = jnp.asarray(random.normal(size=5), jnp.bfloat16)
    flags = [jnp.array(True), jnp.asarray(random.integers(0, 9, 3), jnp.int8)]
    opt_state = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init({"layer": layer})
    made = {"params": {"layer": layer, "half": half, "flags": flags}, "opt_state": opt_state, "reference": None}
    made |= {"iteration": jnp.int32(seed), "python": seed, "scalar": np.int64(seed)}
    return made | {"key": jax.random.split(jax.random.key(seed))}


def bits(state):
    leaves, structure = jax.tree.flatten(state)
    kinds = [f"{type(leaf).__name__} {getattr(leaf, 'dtype', '')}" for leaf in leaves]
    arrays = map(np.asarray, jax.tree.leaves(state | {"key": jax.random.key_data(state["key"])}))
    return structure, kinds, [(array.shape, array.tobytes()) for array in arrays]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints 2 and 3 after three saves; tests copy it before they damage it."""
    path = tmp_path_factory.mktemp("checkpoints")
    with Checkpoints(path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, make_state(step), {"note": f"n{step}"}, wait=step != 3)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def refused(path, step, restore=True):
    with Checkpoints(path, keep=None) as checkpoints:
        error = refusal(checkpoints.restore, step, make_state(0)) if restore else refusal(checkpoints.meta, step)
    assert "\n" not in str(error)
    return str(error)


def assert_good(path, step):
    with Checkpoints(path, keep=None) as checkpoints:
        assert bits(checkpoints.restore(step, make_state(0))) == bits(make_state(step))


def test_a_state_comes_back_bit_for_bit(saved):
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, make_state(0)
    )
    with Checkpoints(saved, keep=2) as checkpoints:
        for like in (make_state(0), abstract):
            assert bits(checkpoints.restore(3, like)) == bits(make_state(3))
        assert bits(checkpoints.restore(2, make_state(0))) == bits(make_state(2))
        assert (checkpoints.steps(), checkpoints.latest_step()) == ([2, 3], 3)
        assert checkpoints.meta(3) == {"step": 3, "note": "n3"}


SMALL = {"a": jnp.ones(3)}


def test_the_best_those_for_good_and_those_between_are_kept_beside_the_newest(tmp_path):
    with Checkpoints(tmp_path / "best", keep=2) as checkpoints:
        assert (checkpoints.latest_step(), checkpoints.best_step()) == (None, None)
        assert "no checkpoint 1" in str(refusal(checkpoints.restore, 1, SMALL))
        for step, score in enumerate((0.1, 0.7, None, 0.7, 0.2, None, None), start=1):
            checkpoints.save(step, SMALL, score=score, wait=False)
        checkpoints.wait()
        # Of equal ones the newest.
        assert (checkpoints.steps(), checkpoints.best_step()) == ([4, 6, 7], 4)
        assert checkpoints.meta(4) == {"step": 4}
        checkpoints.save(8, SMALL, score=0.8)
        assert checkpoints.steps() == [7, 8]
    with Checkpoints(tmp_path / "for good", keep=1, for_good=lambda step: step % 2 == 0) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(step, SMALL, wait=False)
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4, 5]
    with Checkpoints(tmp_path / "between", keep=2) as checkpoints:
        for step, regular in enumerate((True, True, False, False), start=1):
            checkpoints.save(step, SMALL, regular=regular)
        assert (checkpoints.steps(), checkpoints.regular_steps()) == ([1, 2, 4], [1, 2])
        checkpoints.save(5, SMALL, score=0.5, regular=False)
        checkpoints.save(6, SMALL)
        assert (checkpoints.steps(), checkpoints.regular_steps()) == ([2, 5, 6], [2, 6])


def test_a_checkpoint_is_written_in_the_background(tmp_path, monkeypatch):
    may_end = threading.Event()

    def slow(folder):
        may_end.wait(60)
        write_digests(folder)

    state = {"a": jnp.arange(1e6)}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.runs.checkpoint.write_digests", slow)
            checkpoints.save(1, state, wait=False)
            jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(state)
            checkpoints.raise_failure()
            assert checkpoints.steps() == []
            may_end.set()
            checkpoints.wait()
        restored = checkpoints.restore(1, {"a": jax.ShapeDtypeStruct((1_000_000,), jnp.float32)})
        np.testing.assert_array_equal(restored["a"], np.arange(1e6))
        full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.runs.checkpoint.write_digests", full)
            checkpoints.save(2, {"a": jnp.ones(4)}, wait=False)
            while not checkpoints.is_idle():
                time.sleep(0.01)
            said = str(refusal(checkpoints.raise_failure))
            assert ("the disk is full" in said, "step 1 is kept and nothing is lost" in said) == (True, True)
        checkpoints.save(3, {"a": jnp.ones(4)})
        assert checkpoints.steps() == [1, 3]


def test_a_reader_leaves_the_folder_alone_and_is_not_warned_that_it_only_reads(copy, caplog):
    caplog.set_level(logging.WARNING, logger="absl")  # the command sets another one
    half = (copy / "2").rename(copy / "5.orbax-checkpoint-tmp")
    before = sorted(copy.rglob("*"))
    assert_good(copy, 3)
    with Checkpoints(copy, keep=None):
        logging.getLogger("absl").warning("other warnings of Orbax")
    assert caplog.messages == ["other warnings of Orbax"]
    assert sorted(copy.rglob("*")) == before
    with Checkpoints(copy, keep=2) as checkpoints:
        checkpoints.save(5, make_state(5))
        assert checkpoints.steps() == [3, 5]
    assert not half.exists()


def test_another_state_is_refused_by_name(saved):
    with Checkpoints(saved, keep=2) as checkpoints:
        for changes, message in (
            ({"iteration": jnp.zeros(2, jnp.int32)}, "iteration is int32[], expected int32[2]"),
            ({"iteration": jnp.float32(0)}, "iteration is int32[], expected float32[]"),
            ({"reference": {"w": jnp.zeros(2)}}, "reference.w is only in the state"),
            ({"params": {"half": jnp.zeros(5, jnp.bfloat16)}}, "params.flags.0 is only in the checkpoint"),
        ):
            assert message in str(refusal(checkpoints.restore, 3, make_state(0) | changes))


def test_damage_to_any_file_is_found(copy):
    """A flipped bit, half a file, and none; then the error names the one before, which is intact."""
    random = np.random.default_rng(0)
    files = sorted(file for file in (copy / "3").rglob("*") if file.is_file() and file.stat().st_size)
    assert len(files) > 5
    for file in files:
        whole = file.read_bytes()
        flipped = bytearray(whole)
        flipped[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        file.write_bytes(flipped)
        if file.name == "digests.json":  # may then name another file, or differ in white space
            with contextlib.suppress(CheckpointError):
                assert_good(copy, 3)
        else:
            assert str(file) in refused(copy, 3)
        file.write_bytes(whole[: len(whole) // 2])
        assert str(file) in refused(copy, 3)
        file.write_bytes(whole)
    assert_good(copy, 3)
    for file in (copy / "3" / "state").rglob("d/*"):
        file.unlink()
    said = refused(copy, 3)
    assert said.startswith(f"{copy / '3'}: the checkpoint of step 3 cannot be used: {copy / '3'}/")
    assert said.endswith("the last good checkpoint is that of step 2")
    assert_good(copy, 2)


def test_damaged_ones_are_moved_aside_unless_none_is_good(copy):
    with Checkpoints(copy, keep=2) as checkpoints:
        assert checkpoints.rename_damaged() == []
    (copy / "3" / "meta" / "metadata").write_text("{}")
    assert "meta/metadata is damaged" in refused(copy, 3, restore=False)
    with Checkpoints(copy, keep=2) as checkpoints:
        (said,) = checkpoints.rename_damaged()
        assert said.endswith("the last good checkpoint is that of step 2; renamed to 3.damaged")
        assert (checkpoints.latest_step(), (copy / "3.damaged" / "state").is_dir()) == (2, True)
        checkpoints.save(3, make_state(3))
        assert bits(checkpoints.restore(3, make_state(0))) == bits(make_state(3))
    for step in (2, 3):
        (copy / str(step) / "_CHECKPOINT_METADATA").unlink()
    with Checkpoints(copy, keep=2) as checkpoints, pytest.raises(CheckpointError, match=r"3/_CHECK.*no earlier one"):
        checkpoints.rename_damaged()
    assert {entry.name for entry in copy.iterdir()} == {"2", "3", "3.damaged"}


def test_a_record_of_something_else_or_of_another_step_is_an_error(copy):
    for record in ("{}", "[]", '{"step": 2, "digests": "sha256"}', "7"):
        (copy / "3" / "meta" / "metadata").write_text(record)
        (copy / "3" / "digests.json").unlink()
        write_digests(copy / "3")
        assert "step 3" in refused(copy, 3, restore=False)
    (copy / "2").rename(copy / "4")
    assert "no record of step 4" in refused(copy, 4)


def test_what_lacks_its_digests_is_not_complete_and_an_older_version_is_refused(copy):
    def found(keep):
        """The complete steps, and the entries of the folder that are no step."""
        with Checkpoints(copy, keep=keep) as checkpoints:
            return checkpoints.steps(), {entry.name for entry in copy.iterdir() if not entry.name.isdigit()}

    (copy / "3" / "digests.json").unlink()
    assert found(None) == ([2], set())
    assert found(2) == ([2], {"3.unfinished"})
    with Checkpoints(copy, keep=2) as checkpoints:
        checkpoints.save(3, make_state(3))
    (copy / "1").mkdir()  # the rest of a copy that was made while it was removed
    (copy / "1" / "_CHECKPOINT_METADATA").write_text("{}")
    assert found(None) == ([2, 3], set())
    assert found(2) == ([2, 3], {"1.unfinished"})
    for step in ("2", "3"):
        (copy / step / "digests.json").unlink()
        (copy / step / "meta" / "metadata").write_text(f'{{"step": {step}}}')
    with Checkpoints(copy, keep=None) as checkpoints:
        assert checkpoints.without_digests == [2, 3]
    with pytest.raises(CheckpointError, match=r"2: this checkpoint has no digests.*older version"):
        Checkpoints(copy, keep=2)


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


def test_a_weight_that_is_none_is_refused(tmp_path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step, value in enumerate((np.nan, -np.inf, 3e38)):
            checkpoints.save(step, {"a": jnp.ones(3), "w": jnp.asarray([0.0, value], jnp.float32)})
            for read in (checkpoints.restore, checkpoints.restore_part):
                error = refusal(read, step, {"a": jnp.ones(3), "w": jnp.zeros(2)})
                assert f"step {step} cannot be used: w holds numbers that are not finite" in str(error)


def test_a_kill_before_the_digests_leaves_the_checkpoint_before(copy, monkeypatch):
    killed = mock.Mock(side_effect=KeyboardInterrupt)
    with Checkpoints(copy, keep=1) as checkpoints, monkeypatch.context() as patched:
        patched.setattr("agentrl_jax.runs.checkpoint.write_digests", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(4, make_state(4))
    assert_good(copy, 3)
