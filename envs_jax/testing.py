"""`check_env`: checks that an environment keeps the contract of `TextEnvironment`.

Shapes: `M` episodes played in parallel, `T` their steps, `A` actions.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Key

from envs_jax.environment import NO_PIECE, TextEnvironment
from envs_jax.errors import BadValue

_EPISODES = 4
_EAGER_STEPS = 2
_TOLERANCE = 1e-6
"""Largest relative difference of a float between two compilations of the same formula."""


class _Walk(NamedTuple):
    """Uniform random play: one start and T steps of M episodes.

    Attributes:
        step_keys: for gymnax's `step`, which gives `step_env` the first of two keys split from it.
        first: (obs, state) after reset, [M, ...].
        levels: what `sample_level` returns, [M, H, W]; None if there are no levels.
        given: (obs, state) by `reset_to_level` on these, or None.
        steps: (obs, state, reward, terminated, info) after each step, [M, T, ...].
        visited: states, with the start states, [M, 1 + T, ...].
        facts: results of the environment's methods for every visited state, NumPy arrays [M, 1 + T, ...].
    """

    level_keys: Key[Array, " M"]
    step_keys: Key[Array, "M T"]
    actions: Int32[Array, "M T"]
    first: Any
    levels: Any
    given: Any
    steps: Any
    visited: Any
    facts: dict[str, np.ndarray]


def check_env(env: TextEnvironment, params: Any, *, key: Key[Array, ""], num_steps: int = 12) -> None:
    """Plays an environment and checks the contract of `TextEnvironment`. Takes some seconds, mostly compilation.

    Checked are names and text; shapes and dtypes, which must never change nor be weak; that keys are used once; that
    random play is equal with and without jit, and batched and one by one; that finished states are absorbing; that
    values are inside the spaces; that observations give the rendered text; that the hash does not depend on the path;
    and gymnax's `reset` and `step`. The key decides levels, noise and actions; `num_steps` is the length of each random
    episode.

    Raises:
        AssertionError: the contract is broken; the message says how, with the values found.
        ValueError: `num_steps` is less than 2.
    """
    if num_steps < _EAGER_STEPS:
        raise BadValue(f"num_steps is {num_steps}; expected at least {_EAGER_STEPS}", "num_steps", num_steps)
    try:
        _check_names(env)
        _check_types(env, params, key)
        # Episodes are truncated before the end of the walk, so that truncation is checked too.
        params = params.replace(max_steps_in_episode=jnp.minimum(params.max_steps_in_episode, num_steps - 1))
        walk = _play(env, params, key, num_steps)
        _check_walk(walk)
        for check in (_check_absorbing, _check_spaces, _check_text, _check_images, _check_gymnax, _check_no_jit):
            check(env, params, walk)
    except AssertionError as error:
        raise AssertionError(f"{env.name}: {error}") from error


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_names(env: TextEnvironment) -> None:
    names = [name.strip().lower() for name in env.actions]
    _require(names and all(names), f"actions is {env.actions!r}; expected at least one, none of them empty")
    _require(len(set(names)) == len(names), f"actions is {env.actions!r}; expected names that differ in letters")
    texts = env.pieces and all(isinstance(piece, str) and piece for piece in env.pieces)
    _require(texts, f"pieces is {env.pieces!r}; expected a tuple of non-empty strings")
    _require(isinstance(env.instruction, str), f"instruction is {env.instruction!r}; expected a string")
    pairs = all(len(pair) == 2 and all(isinstance(text, str) and text for text in pair) for pair in env.legend)
    _require(pairs, f"legend is {env.legend!r}; expected pairs (symbol, meaning) of strings")


def _check_types(env: TextEnvironment, params: Any, key: jax.Array) -> None:
    """Checks shapes and dtypes without computing anything."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        _require(
            isinstance(leaf, jax.Array) and not leaf.weak_type,
            f"params{jax.tree_util.keystr(path)} is {leaf!r}; expected a JAX array with a strong dtype, "
            "such as jnp.float32(0.5)",
        )
    obs, state = jax.eval_shape(env.reset_env, key, params)
    action = jax.ShapeDtypeStruct((), jnp.int32)
    next_obs, next_state, reward, terminated, info = jax.eval_shape(env.step_env, key, state, action, params)
    after_reset = {"observation": obs, "state": state}
    after_step = {"observation": next_obs, "state": next_state, "reward": reward, "info": info}
    for function, parts in (("reset_env", after_reset), ("step_env", after_step)):
        for name, tree in parts.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                _require(
                    not getattr(leaf, "weak_type", False),
                    f"{function}'s {name}{jax.tree_util.keystr(path)} is a weakly typed {leaf.dtype}; expected a "
                    "strong dtype: write jnp.float32(0) instead of 0.0",
                )
    for name, before in after_reset.items():
        first, second = (_types(tree) for tree in (before, after_step[name]))
        same = first == second and str(jax.tree.structure(before)) == str(jax.tree.structure(after_step[name]))
        _require(same, f"the {name} is {first} after reset_env and {second} after step_env; expected the same twice")
    for field, dtype in (("time", jnp.int32), ("terminated", jnp.bool_)):
        _require(hasattr(state, field), f"the state has no field {field!r}; expected a subclass of EnvState")
        _check_leaf(f"state.{field}", getattr(state, field), (), dtype)
    _check_leaf("the reward", reward, (), jnp.float32)
    _check_leaf("terminated", terminated, (), jnp.bool_)
    for name in ("success", "action_is_effective"):
        _require(name in info, f"info has the keys {sorted(info)}; expected {name!r} among them")
        _check_leaf(f"info[{name!r}]", info[name], (), jnp.bool_)
    for name, leaf in info.items():
        _require(leaf.shape == (), f"info[{name!r}] has shape {leaf.shape}; expected a scalar")
    _check_leaf("success(state)", jax.eval_shape(env.success, state, params), (), jnp.bool_)
    for name in ("state_hash", "level_hash"):
        _check_leaf(f"{name}(state)", jax.eval_shape(getattr(env, name), state, params), (2,), jnp.uint32)
    ids = jax.eval_shape(env.describe, state, params)
    _require(ids.ndim == 1, f"describe returns shape {ids.shape}; expected one row of piece ids")
    _check_leaf("describe(state)", ids, ids.shape, jnp.int32)


def _types(tree: Any) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [f"{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves]


def _check_leaf(name: str, leaf: Any, shape: tuple[int, ...], dtype: Any) -> None:
    same = leaf.shape == shape and leaf.dtype == dtype
    _require(same, f"{name} is {leaf.dtype}{list(leaf.shape)}; expected {jnp.dtype(dtype)}{list(shape)}")


def _play(env: TextEnvironment, params: Any, key: jax.Array, num_steps: int) -> _Walk:
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    level_keys, step_keys = _keys(rng, key, _EPISODES), _keys(rng, key, _EPISODES, num_steps)
    actions = jnp.asarray(rng.integers(env.num_actions, size=(_EPISODES, num_steps)), jnp.int32)

    def episode(level_key: jax.Array, step_keys: jax.Array, chosen: jax.Array) -> tuple[Any, Any, Any, Any]:
        obs, state = env.reset_env(level_key, params)
        level = env.sample_level(level_key, params) if env.has_levels else None
        given = None if level is None else env.reset_to_level(level, params)

        def step(state: Any, inputs: Any) -> tuple[Any, Any]:
            key, action = inputs
            result = env.step_env(jax.random.split(key)[0], state, action, params)
            return result[1], result

        return (obs, state), level, given, jax.lax.scan(step, state, (step_keys, chosen))[1]

    def describe(state: Any) -> dict[str, jax.Array]:
        later = state.replace(time=state.time + 1)
        return {
            "done": env.is_done(state, params),
            "terminated": env.is_terminated(state, params),
            "success": env.success(state, params),
            "text": env.describe(state, params),
            "text later": env.describe(later, params),
            "hash": env.state_hash(state, params),
            "hash later": env.state_hash(later, params),
        }

    first, levels, given, steps = jax.jit(jax.vmap(episode))(level_keys, step_keys, actions)
    visited = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], axis=1), first[1], steps[1])
    facts = _over_states(describe, visited)
    return _Walk(level_keys, step_keys, actions, first, levels, given, steps, visited, facts)


def _keys(rng: np.random.Generator, like: jax.Array, *shape: int) -> jax.Array:
    """Makes PRNG keys on the host, because every random function called alone is another program to compile."""
    data = rng.integers(2**32, size=(*shape, *jax.random.key_data(like).shape), dtype=np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(like))


def _check_walk(walk: _Walk) -> None:
    """Checks the time, and that the two sources of termination, of success and of start states each agree."""
    if walk.given is not None:
        _check_equal("reset_to_level on sample_level's level", walk.given, walk.first)
    _, states, _, terminated, info = walk.steps
    time = np.asarray(walk.visited.time)
    _require(
        (np.diff(time, axis=1) == ~walk.facts["done"][:, :-1]).all(),
        f"state.time runs {time.tolist()}; expected one more for every action that is not absorbed",
    )
    for name, *pair in (
        ("step_env's terminated", terminated, states.terminated),
        ("is_terminated(state)", walk.facts["terminated"][:, 1:], states.terminated),
        ("info['success']", info["success"], walk.facts["success"][:, 1:]),
    ):
        found, expected = (np.asarray(values).tolist() for values in pair)
        message = f"{name} is {found} along {_EPISODES} episodes; expected what the state says, {expected}"
        _require(found == expected, message)


def _check_absorbing(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    """Terminates and truncates every visited state, and tries every action in it."""
    ways = {
        "terminated": lambda s: s.replace(terminated=jnp.ones_like(s.terminated)),
        "truncated": lambda s: s.replace(time=jnp.maximum(s.time, params.max_steps_in_episode)),
    }
    actions = jnp.arange(env.num_actions)

    def after(state: Any) -> dict[str, Any]:
        results = {}
        for way, end in ways.items():
            ended = end(state)
            tried = jax.vmap(lambda a, s=ended: env.step_env(walk.step_keys[0, 0], s, a, params))(actions)
            results[way] = ended, env.is_done(ended, params), tried[1], tried[2]
        return results

    for way, (ended, done, states, rewards) in _over_states(after, walk.visited).items():
        _require(done.all(), f"is_done says False of a {way} state; expected True")
        for (path, before), (_, now) in zip(*map(jax.tree_util.tree_leaves_with_path, (ended, states))):
            _require(
                (now == np.expand_dims(before, 2)).all(),
                f"state{jax.tree_util.keystr(path)} changes after the episode is {way}; expected the same state: "
                "compute `active = ~self.is_done(state, params)` and let nothing happen without it",
            )
        _require((rewards == 0).all(), f"a {way} state pays {rewards.min()} to {rewards.max()}; expected 0")


def _check_spaces(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    space, number = env.action_space(params), len(env.actions)
    same = getattr(space, "n", None) == number
    _require(same, f"the action space is {space!r} for {number} action names; expected as many")
    # With this many uniform draws, a given action is missed with probability below e^-20.
    keys = _keys(np.random.default_rng(0), walk.level_keys[0], 20 * number + 20)
    sampled = set(np.asarray(jax.jit(jax.vmap(space.sample))(keys)).tolist())
    missing = sorted(set(range(number)) - sampled)
    _require(not missing, f"the action space never samples {missing}; expected every action id")
    _require(sampled <= set(range(number)), "the action space samples ids without a name")
    space = env.observation_space(params)
    for name, obs, batch in (("reset_env", walk.first[0], 1), ("step_env", walk.steps[0], 2)):
        if hasattr(space, "dtype"):
            _check_leaf(f"{name}'s observation", _pick(obs, (0,) * batch), tuple(space.shape), space.dtype)
        rows = jax.tree.map(lambda leaf, batch=batch: leaf.reshape(-1, *leaf.shape[batch:]), obs)
        inside = jax.jit(jax.vmap(space.contains))(rows)
        _require(np.all(inside), f"{name} gives an observation outside {space!r}; expected all inside")


def _check_text(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    rows = walk.facts["text"].reshape(-1, walk.facts["text"].shape[-1])
    low, high, last = rows.min(), rows.max(), len(env.pieces) - 1
    inside = low >= NO_PIECE and high <= last
    _require(inside, f"describe gives ids from {low} to {high}; expected {NO_PIECE} to {last}")
    _require((rows != NO_PIECE).any(axis=1).all(), "describe says nothing in some state; expected at least one piece")
    if env.piece_limits:
        seen = np.max([np.bincount(row[row != NO_PIECE], minlength=len(env.pieces)) for row in rows], axis=0)
        _require(
            len(env.piece_limits) == len(env.pieces) and (seen <= env.piece_limits).all(),
            f"piece_limits is {env.piece_limits}; expected a number for each piece, at least as seen: {seen.tolist()}",
        )
    for first, end, most in env.piece_groups:
        together = int(((rows >= first) & (rows < end)).sum(axis=1).max())
        _require(together <= most, f"piece_groups allows {most} of pieces {first} to {end - 1}; seen are {together}")
    texts = ["".join(env.pieces[i] for i in row if i != NO_PIECE) for row in rows]
    named = env.lists_actions or any(name.lower() in text.lower() for text in texts for name in env.actions)
    _require(named, "lists_actions is False, but no observation names an action")
    text = "".join(env.pieces[i] for i in walk.facts["text"][0, 1] if i != NO_PIECE)
    rendered = env.render(_pick(walk.visited, (0, 1)), params)
    _require(rendered == text, f"render gives {rendered!r}; expected the joined pieces, {text!r}")
    same_text, same_hash = ((walk.facts[x] == walk.facts[f"{x} later"]).all(axis=-1) for x in ("text", "hash"))
    _require(
        (same_hash | ~same_text).all(),
        "state_hash changes with state.time although the text does not; expected equal hashes of equal situations",
    )


def _check_images(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    """All images of a level, where they are known, have its hash, by which levels are divided."""
    if walk.levels is None:
        return
    try:
        images = env.level_images(np.asarray(walk.levels[0]))
    except NotImplementedError:
        return
    hashed = jax.jit(jax.vmap(lambda level: env.level_hash(env.reset_to_level(level, params)[1], params)))
    hashes = np.asarray(hashed(jnp.stack(images)))
    _require((images[0] == walk.levels[0]).all(), "level_images gives another level first; expected the level itself")
    different = len(np.unique(hashes, axis=0))
    _require(different == 1, f"the {len(images)} level_images of a level have {different} level_hash; expected one")


def _check_gymnax(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    """Plays the walk again with gymnax's `reset` and `step`, compiled for one episode; `step` resets automatically.

    JAX tracks each key through both programs: a key used for two draws would make them equal or dependent.
    """

    def call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with jax.debug_key_reuse(True):
                return function(*arguments)
        except jax.errors.KeyReuseError as error:
            message = f"{name}_env uses a key twice; expected one use of each: split it first ({error})"
            raise AssertionError(message) from error

    for episode in range(_EPISODES):
        first = call("reset", env.reset, walk.level_keys[episode], params)
        _check_equal("reset, not batched,", first, _pick(walk.first, episode))
        state = _pick(walk.first[1], episode)
        for t in range(walk.actions.shape[1]):
            key, action = walk.step_keys[episode, t], walk.actions[episode, t]
            obs, state, reward, terminated, truncated, info = call("step", env.step, key, state, action, params)
            expected = _pick(walk.steps, (episode, t))
            name = f"step, not batched, at step {t + 1}"
            _check_equal(name, (info["final_observation"], reward, terminated), (expected[0], *expected[2:4]))
            cut = bool(expected[1].time >= params.max_steps_in_episode)
            _require(bool(truncated) == cut, f"{name} says truncated {bool(truncated)}; expected {cut}")
            if bool(expected[3]) or cut:
                again = call("reset", env.reset, jax.random.split(key)[1], params)
                _check_equal(f"{name}, where the next episode begins,", (obs, state), again)
            else:
                _check_equal(name, (obs, state), expected[:2])
            state = expected[1]


def _check_no_jit(env: TextEnvironment, params: Any, walk: _Walk) -> None:
    first = env.reset_env(walk.level_keys[0], params)
    _check_equal("reset_env without jit", first, _pick(walk.first, 0))
    state = first[1]
    for t in range(_EAGER_STEPS):
        key = jax.random.split(walk.step_keys[0, t])[0]
        result = env.step_env(key, state, walk.actions[0, t], params)
        _check_equal(f"step_env without jit, step {t + 1},", result, _pick(walk.steps, (0, t)))
        state = result[1]


def _over_states(function: Callable[[Any], Any], states: Any) -> Any:
    """Applies a function of one state to states [M, T, ...]; returns NumPy arrays."""
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(function)))(states))


def _pick(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _check_equal(name: str, found: Any, expected: Any) -> None:
    leaves: Sequence[tuple[Any, Any]] = jax.tree_util.tree_leaves_with_path(found)
    for (path, left), right in zip(leaves, jax.tree.leaves(expected)):
        a, b = np.asarray(left), np.asarray(right)
        same = np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE) if a.dtype.kind == "f" else np.array_equal(a, b)
        _require(same, f"{name} gives {a.tolist()} at {jax.tree_util.keystr(path)}; the batch gave {b.tolist()}")
