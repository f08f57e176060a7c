"""Scripted policies over files of the user, by the names of the registry."""

import jax
import jax.numpy as jnp
import numpy as np
import search_files

import envs_jax
from envs_jax.scripted_commands import ScriptedCommands, command_of, written


def test_scripts_write_the_question_the_titles_of_the_evidence_and_the_answer(tmp_path):
    env, params = envs_jax.make("searchqa", **search_files.options(tmp_path))
    scripts = envs_jax.spec("searchqa").scripts
    write = jax.jit(ScriptedCommands(env, scripts).command)

    def said(question, **changes):
        state = env.start(jnp.int32(question), params).replace(**changes)
        return [written(env, write(state, jnp.int32(i), params)).decode() for i in range(len(scripts))]

    first = ["<search>which river is where Ulysses is set?</search>", "<search>Ulysses</search>"]
    assert said(1) == [*first, "<search>Dublin</search>", "<answer>unknown</answer>", "<answer>unknown</answer>", ""]
    assert said(1, seen=jnp.array([True, False]))[3] == "<answer>unknown</answer>"
    assert said(1, seen=jnp.array([True, True]))[3] == "<answer>Liffey</answer>"
    third = "<search>who rolls a stone?</search>"
    assert said(2)[:4] == [third, third, third, "<answer>Σίσυφος</answer>"]


def test_policies_mark_the_scale(tmp_path):
    """The oracle answers all questions, always_search those whose evidence its one search shows, others none."""
    env, params = envs_jax.make("searchqa", **search_files.options(tmp_path), results=1)
    spec = envs_jax.spec("searchqa")

    @jax.jit
    def success(policy):
        def episode(question):
            def turn(state, number):
                key = jax.random.fold_in(jax.random.key(0), number)
                command = command_of(env, spec.scripts, spec.policies, policy, key, state, params)
                return env.step_env(key, state, command, params)[1], None

            return jax.lax.scan(turn, env.start(question, params), jnp.arange(4))[0].solved

        return jax.vmap(episode)(jnp.arange(3))

    names = list(spec.policies)
    found = {name: np.asarray(success(jnp.int32(names.index(name)))).tolist() for name in names if name != "random"}
    assert found == {
        "null": [False] * 3,
        "answer_at_once": [False] * 3,
        "always_search": [True, False, True],
        "search_twice": [True] * 3,
        "oracle": [True] * 3,
    }
