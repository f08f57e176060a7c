"""Episodes of an evaluation do not depend on how many are played, and environments of other shapes."""

import json

import chex
import jax
import numpy as np
import pytest
import tiny_run

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from envs_jax.splits import Split


def test_an_episode_does_not_depend_on_how_many_are_played(finished):
    """Nor on how many are played at once, except for ties of the sampled token."""
    config = load_config(finished.file)
    config = config.replace(tasks=config.tasks[1:])
    tokenizer = build.load_tokenizer(config.model)
    model, batched_env = build.build_model(config, tokenizer), build.build_compiled_env(config, tokenizer)
    params = actor_critic.init_params(jax.random.key(3), model)
    engine = build.engine_config(config, tokenizer, group_size=1, slots=0)

    def play(chunk, episodes):
        program = Programs(make_mesh(1)).rollout("evaluation", model, batched_env, engine)
        of = {"prompt": config.prompt, "task": 0, "levels": TaskLevels(), "split": Split.TEST, "seed": 9}
        settings = build.rollout_settings(config, batched_env, 1, 0.0)
        eval_set = EvalSet(program=program, chunk=chunk, batched_env=batched_env, settings=settings, **of)
        return [eval_set.play(params, n, 1.0) for n in episodes]

    short, long = play(4, (3, 10))
    (other,) = play(10, (10,))
    chex.assert_shape(short.success, (3,))
    for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(long)):
        np.testing.assert_array_equal(a, b[:3])
    same = np.all(long.response.tokens == other.response.tokens, axis=(1, 2))
    assert same.sum() >= 8
    np.testing.assert_array_equal(long.success[same], other.success[same])
    np.testing.assert_array_equal(long.turn.state_hash[:, 0], other.turn.state_hash[:, 0])


SOKOBAN = """; one push, three pushes on a longer board, and a box that can never move
######
#@$. #
######

########
# @$  .#
########

#####
#$  #
#.@ #
#####
"""


def evaluate(run, *words):
    code, out, err = tiny_run.command("eval", str(run), "--json", *words)
    assert code == 0, err
    return json.loads(out)


def test_sokoban_levels_from_a_file(finished, tmp_path):
    file = tmp_path / "levels.txt"
    file.write_text(SOKOBAN)
    result = evaluate(finished.folder, "--levels", str(file))
    assert (result["episodes"], result["success"]["n"], result["success_greedy"]["n"]) == (3, 3, 3)
    # By hand: the third box is in a corner, so two of three levels can be solved.
    assert result["optimal"]["mean"] == pytest.approx(2 / 3)
    assert 0 <= result["success"]["low"] <= result["success"]["mean"] <= result["success"]["high"] <= 1
    assert result["success"]["mean"] <= result["optimal"]["mean"]


def test_the_lines_are_at_the_budget_of_the_environment(finished):
    """One action, which is right with probability 1/2."""
    other = evaluate(finished.folder, "--env", "Bandit", "--episodes", "4")
    assert (other["random"]["mean"], other["optimal"]["mean"], other["null"]["mean"]) == (0.5, 1.0, 0.0)


def test_the_same_boards_with_coordinates_are_the_same_levels(finished):
    seen = evaluate(finished.folder, "--env", "CoordFrozenLake", "--episodes", "8")["seen"]
    assert (seen["held_out"], seen["seen_levels"], seen["seen_images"]) == (True, 0, 0)
