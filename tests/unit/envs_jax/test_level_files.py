"""Level files of environments on a board that are not built in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs_jax
from agentrl_jax.config import TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.setup.level_files import make_env
from envs_jax import EnvParams, registry
from envs_jax.grid import GridEnvironment


@struct.dataclass(kw_only=True)
class BoardParams(EnvParams):
    levels: jax.Array


class Board(GridEnvironment):
    """Has levels and nothing else."""

    height, width, num_codes = 2, 3, 4

    def reset_to_level(self, level, params):
        return level, level


@pytest.fixture(autouse=True)
def _board(monkeypatch):
    monkeypatch.setattr(registry._default, "_specs", dict(registry.BUILT_IN))
    params = BoardParams(max_steps_in_episode=jnp.int32(5), levels=jnp.zeros((0, 2, 3), jnp.int8))
    envs_jax.register("Board", lambda: (Board(), params))


def make(file, env="Board"):
    return make_env(TaskConfig(env=env, groups=1, levels=str(file)))


def test_a_board_of_ones_own_takes_a_pack(tmp_path):
    pack = np.arange(12, dtype=np.int8).reshape(2, 2, 3) % 4
    np.save(tmp_path / "levels.npy", pack)
    env, params = make(tmp_path / "levels.npy")
    assert np.array_equal(params.levels, pack)
    assert env.reset_env(jax.random.key(0), params)[0].tolist() in pack.tolist()


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (np.zeros((2, 3, 3), np.int8), "holds levels of 3x3; expected the size of the board of Board, 2x3"),
        (np.full((1, 2, 3), 4, np.int8), "level 1 holds cell codes 4 to 4; expected 0 to 3"),
        (np.zeros((1, 2, 3)), "expected a level pack"),
    ],
)
def test_packs_that_do_not_fit_the_board_are_refused(levels, message, tmp_path):
    np.save(tmp_path / "levels.npy", levels)
    with pytest.raises(UserError, match=message):
        make(tmp_path / "levels.npy")


def test_other_files_say_what_is_read(tmp_path):
    file = tmp_path / "levels.txt"
    file.write_text("SFG")
    with pytest.raises(UserError, match=r"levels of Board are read from a \.npy pack only"):
        make(file)
    with pytest.raises(UserError, match=r"Bandit has no levels that can be given.*a GridEnvironment"):
        make(file, "Bandit")
