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
    height, width, num_codes = 2, 3, 4

    def reset_to_level(self, level, params):
        return level, level


def test_a_board_of_ones_own_takes_a_pack_that_fits(monkeypatch, tmp_path):
    monkeypatch.setattr(registry._default, "_specs", dict(registry.BUILT_IN))
    params = BoardParams(max_steps_in_episode=jnp.int32(5), levels=jnp.zeros((0, 2, 3), jnp.int8))
    envs_jax.register("Board", lambda: (Board(), params))

    def make(levels, env="Board"):
        file = tmp_path / ("levels.txt" if isinstance(levels, str) else "levels.npy")
        file.write_text(levels) if isinstance(levels, str) else np.save(file, levels)
        return make_env(TaskConfig(env=env, groups=1, levels=str(file)))

    pack = np.arange(12, dtype=np.int8).reshape(2, 2, 3) % 4
    env, params = make(pack)
    assert np.array_equal(params.levels, pack)
    assert env.reset_env(jax.random.key(0), params)[0].tolist() in pack.tolist()
    for levels, name, message in (
        (np.zeros((2, 3, 3), np.int8), "Board", "holds levels of 3x3; expected the size of the board of Board, 2x3"),
        (np.full((1, 2, 3), 4, np.int8), "Board", "level 1 holds cell codes 4 to 4; expected 0 to 3"),
        (np.zeros((1, 2, 3)), "Board", "expected a level pack"),
        ("SFG", "Board", r"levels of Board are read from a \.npy pack only"),
        ("SFG", "Bandit", r"Bandit has no levels that can be given.*a GridEnvironment"),
    ):
        with pytest.raises(UserError, match=message):
            make(levels, name)
