"""What states look like: the table of sprites, and the scene of every environment."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import LARGE, walk
from paths import ROOT

import envs_jax
from envs_jax.babyai import codes, items
from envs_jax.babyai.render import TILE, picture
from envs_jax.bandit import Bandit
from envs_jax.scenes import SPRITES, grid_scene

GUIDE = ROOT / "docs" / "guides" / "own_environment.md"
SHAPES = ["square", "circle", "triangle", "diamond", "key", "box", "door", "cross", "dot", "ball", "wall", "letter"]


def scene_of(name, env, state, params):
    scene = envs_jax.spec(name).scene(env, jax.device_get(state), params)
    assert scene == json.loads(json.dumps(scene))
    return scene


def stacks(scene):
    return [["+".join(cell) for cell in row] for row in scene["cells"]]


def test_every_environment_has_scenes_and_every_sprite_is_complete():
    assert [name for name in envs_jax.registered() if envs_jax.spec(name).scene is None] == ["searchqa"]
    for name, sprite in SPRITES.items():
        more = {"turn"} if sprite["shape"] == "triangle" else set()
        assert sprite.keys() == {"shape", "color", "label"} | more, name
        assert sprite["shape"] in SHAPES
        assert re.fullmatch(r"#[0-9a-f]{6}([0-9a-f]{2})?", sprite["color"])
        assert sprite["label"].strip()
    assert set(codes.NAMES) <= SPRITES.keys()
    assert [SPRITES[f"player facing {side}"]["turn"] for side in ("right", "down", "left", "up")] == [0, 1, 2, 3]


def test_grids_that_cannot_be_drawn_are_refused():
    for cells, message in (
        ([], r"rows of \[\] cells"),
        ([[], []], r"rows of \[0\] cells"),
        ([[["ice"]], [["ice"], ["ice"]]], r"rows of \[1, 2\] cells"),
        ([[["ice", "playr"]]], "'playr'; did you mean player"),
        ([[["zzz"]]], "'zzz'; known are floor, wall"),
    ):
        with pytest.raises(ValueError, match=message):
            grid_scene(cells)


def test_a_lake_that_is_not_square_and_every_cell_code_of_sokoban():
    """Boards of lakes after moves are compared with what the agent read in unit/viewer/test_scenes.py."""
    env, params = envs_jax.make("FrozenLake-v2", height=2, width=3)
    _, state = env.reset_to_level(jnp.array([[3, 0, 2], [1, 0, 0]]), params)
    start = scene_of("FrozenLake-v2", env, state, params)
    assert (start["kind"], start["width"], start["height"]) == ("grid", 3, 2)
    assert stacks(start) == [["ice+start+player", "ice", "ice+goal"], ["ice+hole", "ice", "ice"]]
    arrived = state.replace(player=jnp.zeros((2, 3), bool).at[0, 2].set(True))
    assert stacks(scene_of("FrozenLake-v2", env, arrived, params))[0][2] == "ice+goal+player+arrived"
    assert "0.80" in start["text"][0]
    env, params = envs_jax.make("SimpleSokoban")
    for code, last, targets in ((5, "floor+player", 2), (6, "floor+player+target", 3)):
        board = np.zeros((6, 6), np.int8)
        board[0] = 0, 1, 2, 3, 4, code
        scene = scene_of("SimpleSokoban", env, env.reset_to_level(board, params)[1], params)
        expected = ["wall", "floor", "floor+target", "floor+box on target", "floor+box", last]
        assert stacks(scene) == [expected, *[["wall"] * 6] * 5]
        assert scene["text"] == [f"Boxes on targets: 1 of {targets}."]


def test_arms():
    env, params = envs_jax.make("Bandit")
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(shown=jnp.array([1, 0]))
    arms = ["Teacher: high arm", "Engineer: low arm"]
    assert scene_of("Bandit", env, state, params) == {"kind": "text", "text": [*arms, "No arm was pulled yet."]}
    pulled = state.replace(chosen=jnp.int32(0), reward=jnp.float32(0.1))
    assert scene_of("Bandit", env, pulled, params)["text"] == [*arms, "Engineer was pulled, reward 0.1."]
    two_pairs = Bandit((tuple(env.actions), ("Trader", "Librarian")))
    elsewhere = scene_of("Bandit", two_pairs, pulled.replace(shown=jnp.array([3, 2])), params)
    assert elsewhere["text"] == ["Librarian: high arm", "Trader: low arm", "Engineer is not one of the two arms."]


CARRYING = next(i for i in items.stored_indices() if items.number_of(i) == 23)
LOCKED = next(i for i in items.stored_indices() if items.number_of(i) == 28)
ACTIONS = ("turn left", "drop")


@pytest.mark.parametrize("item", [0, CARRYING, LOCKED])
def test_rooms(item):
    held = [check_room(*one, first=not n) for n, one in enumerate(walk(LARGE, items.load((item,))[0], ACTIONS))]
    assert held == ([True, True, False] if item == CARRYING else [False] * 3)


def check_room(state, read, first):
    """A scene shows what the state has, and the text says; returns whether the agent holds something."""
    state = jax.device_get(state)
    scene = scene_of("BabyAI", LARGE, state, LARGE.default_params)
    world, drawn = state.world, stacks(scene)
    height, width = scene["height"], scene["width"]
    assert (world.cells[height:] == codes.WALL).all()
    assert (world.cells[:, width:] == codes.WALL).all()
    things = {codes.WALL: "wall", codes.EMPTY: "floor"} | {
        codes.OBJECT + i: f"floor+{name}" + "+lock" * name.endswith("locked door") for i, name in enumerate(codes.NAMES)
    }
    visible = set()
    for row, column in np.ndindex(height, width):
        stack = things[int(world.cells[row, column])]
        if (row, column) == (world.y, world.x):
            stack += f"+player facing {['right', 'down', 'left', 'up'][world.heading]}"
        assert drawn[row][column] in (stack, f"{stack}+unseen")
        if drawn[row][column] == stack:
            visible.add(row * width + column)
    # The agent looks up from the middle of the last row of its view.
    numbers = np.pad(np.arange(height * width).reshape(height, width), 7, constant_values=-1)
    turned = np.rot90(numbers, (world.heading + 1) % 4)
    (y,), (x,) = np.nonzero(turned == world.y * width + world.x)
    assert visible == {*turned[y - 6 : y + 1, x - 3 : x + 4][state.view != codes.UNSEEN].tolist()} - {-1}
    goal, carrying, steps = scene["text"]
    assert read.startswith(f"{goal}\n") == first
    in_hand = re.search(r"You are carrying a ([a-z ]+)\.", read)
    assert carrying == f"Carrying: {in_hand[1] if in_hand else 'nothing'}."
    assert steps == f"Primitive actions: {int(world.steps)} of {int(state.max_steps)}."
    assert ("lock" in str(drawn)) == (codes.form_of(world.cells.astype(int)) == codes.LOCKED_DOOR).any()
    return bool(in_hand)


def test_pictures_show_every_form_in_every_color():
    """At one point of each form, and at one beside it, in the same row of pixels."""
    ((state, _),) = walk(LARGE, items.load((0,))[0], ())
    cells = np.array(state.world.cells)
    cells[1:7, 1:7] = codes.OBJECT + np.arange(36).reshape(6, 6)
    outside = state.replace(world=state.world.replace(cells=cells, x=0, y=0, heading=3))
    tiles = np.asarray(picture(outside))[TILE:-TILE, TILE:-TILE].reshape(6, TILE, 6, TILE, 3)
    colors = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (112, 39, 195), (255, 255, 0), (100, 100, 100)])
    for form, (on, off) in enumerate(((16, 8), (16, 4), (16, 2), (31, 16), (23, 8), (21, 8))):
        np.testing.assert_array_equal(tiles[form, 15, :, on], colors)
        np.testing.assert_array_equal(tiles[form, 15, :, off], colors * 2 // 5 * (form == codes.LOCKED_DOOR))
    np.testing.assert_array_equal(tiles[codes.CLOSED_DOOR, -1, :, 16], colors)  # its frame, around the black


def test_the_scene_of_the_guide():
    """The guide registers the environment that it shows with a scene."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    for block in blocks:
        if "check_env(" not in block and "agentrl_jax" not in block:
            exec(block, names)
    registry = names["envs_jax"] = envs_jax.Registry({})
    names["register"]()
    env = registry.make("Corridor")[0]
    assert registry.spec("Corridor").max_actions == int(env.default_params.max_steps_in_episode)
    state = env.reset_env(jax.random.key(0), env.default_params)[1].replace(place=jnp.int32(2))
    drawn = registry.spec("Corridor").scene(env, jax.device_get(state), env.default_params)
    assert stacks(drawn) == [["floor", "floor", "floor+player", *["floor"] * 5, "floor+yellow open door"]]
    assert drawn["text"] == ["Action 0"]
