import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from toy_agent import END, TOKENIZER

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.packing import pack_trajectories

TURNS, MAX_RESPONSE_TOKENS, ACTIONS = 5, 14, 5
PROMPT = toy_agent.CONFIG.prompt.replace(
    max_turns=TURNS, max_response_tokens=MAX_RESPONSE_TOKENS, max_actions_per_turn=ACTIONS, max_actions=10
)


def script(episodes: list[list[str]]) -> np.ndarray:
    """Tokens i32[E, T, L] of responses; after the text of a response the engine samples "Down"."""
    table = np.full((len(episodes), TURNS, MAX_RESPONSE_TOKENS), toy_agent.vocabulary("Down")[0], np.int32)
    for row, responses in zip(table, episodes):
        for turn, text in enumerate(responses):
            words, stop = re.fullmatch(r"(.*?)(<\|\w+\|>)?", text).groups()
            tokens = [*TOKENIZER.encode(words), *([TOKENIZER.special_id(stop)] if stop else [])][:MAX_RESPONSE_TOKENS]
            row[turn, : len(tokens)] = tokens
    return table


@pytest.fixture(scope="session")
def play_script(policy):
    """Function (responses of each episode, ...) -> what was played, and the learner's rows."""

    def play(episodes, *, forced, stop_at_answer, **changes):
        batched_env = CompiledEnv((toy_agent.make_task("Long", 100, PROMPT.replace(forced_tag=forced)),))
        table, count = jnp.asarray(script(episodes)), len(episodes)
        config = toy_agent.engine_config(
            max_turns=TURNS, max_response_tokens=MAX_RESPONSE_TOKENS, stop_at_answer=stop_at_answer, **changes
        )
        ids = toy_agent.mixed_ids(count, 1).replace(task=jnp.zeros(count, jnp.int32))
        settings = toy_agent.settings(
            count, horizon=jnp.int32(TURNS), max_actions=jnp.int32(10), env_params=(batched_env.tasks[0].env_params,)
        )

        def draw(places, logits, temperature):
            return table[tuple(places.T)], jnp.full(count, -1.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "sample", draw)
            patch.setattr(engine.rng, "sample_key", lambda key, ids: ids.group)
            patch.setattr(engine.rng, "token_key", lambda group, turn, i: jnp.stack([group, turn, i], axis=1))

            def run(key):
                return engine.rollout(policy, toy_agent.MODEL.decoder, batched_env, config, key, ids, settings)[0]

            trajectory = jax.jit(run)(jax.random.key(3))
        rows = jax.jit(pack_trajectories, static_argnums=1)(trajectory, FULL)
        return SimpleNamespace(trajectory=jax.tree.map(np.asarray, trajectory), rows=jax.tree.map(np.asarray, rows))

    return play


CUT, BUDGET, STOPPED = range(3)
FORCED = [
    ["Up</answer>" + "Up" * 20, "Up</answer><|end|>"],
    ["Down||Down||Down||Down</answer><|end|>"] * 2 + ["Down||Down||Down||Down||Down</answer><|end|>"],
    ["Down</answer><|pad|>", "Down</answer><|end|>", "Down</answer><|user|>"],
]


@pytest.fixture(scope="session")
def forced(play_script):
    stops = (END, TOKENIZER.special_id("<|pad|>"))
    return play_script(FORCED, forced=True, stop_at_answer=False, end_of_turn=stops)


@pytest.fixture(scope="session")
def unforced(play_script):
    closed = "<answer>Down</answer>"
    responses = [[closed + "Up" * 9] * 2, ["Down</answer><|end|>"], [closed[:-9] + "<|end|>", closed]]
    return play_script(responses, forced=False, stop_at_answer=True)


def conversation(play, row):
    sequences = play.rows
    tokens = sequences.tokens[row, : sequences.length[row]]
    trained = tokens[sequences.position[row][sequences.response_mask[row]]]
    return tuple(TOKENIZER.decode(x.tolist(), skip_special=False) for x in (tokens, trained))


def test_length_cut_trains_what_was_drawn_and_inserts_the_end_untrained(forced):
    whole, trained = conversation(forced, CUT)
    cut = "Up</answer>" + "Up" * (MAX_RESPONSE_TOKENS - 2)
    assert forced.trajectory.response.length[CUT, 0] == MAX_RESPONSE_TOKENS
    assert not forced.trajectory.response.ended[CUT, 0]
    assert trained.startswith(cut + "Up</answer><|end|>")
    assert cut + "<|end|>" in whole
    # The answer tag was closed before the cut, so its action counts.
    assert forced.trajectory.turn.actions[CUT, 0].tolist() == [0, -1, -1, -1, -1]


def test_answer_that_closes_ends_the_turn_without_an_end_token(unforced):
    whole, trained = conversation(unforced, 0)
    assert unforced.trajectory.response.length[0, 0] == len(TOKENIZER.encode("<answer>Down</answer>"))
    assert not unforced.trajectory.response.ended[0, 0]
    assert trained.startswith("<answer>Down</answer>" * 2)
    assert "<|end|>" not in trained.removesuffix(trained[42:])
    assert whole.count("<answer>Down</answer><|end|>") == 2


def test_unforced_tag_has_to_be_drawn(unforced):
    assert not unforced.trajectory.turn.valid[1, 0]
    assert unforced.trajectory.turn.format_error[1, 0] == 1
    _, trained = conversation(unforced, 2)
    assert trained.startswith("<answer>Down<|end|><answer>Down</answer>")
    assert unforced.trajectory.response.ended[2, :2].tolist() == [True, False]
    assert unforced.trajectory.turn.valid[2, :2].tolist() == [False, True]


def test_budget_cuts_the_turn_and_ends_the_episode(forced):
    turn = jax.tree.map(lambda x: x[BUDGET], forced.trajectory.turn)
    assert forced.trajectory.num_turns[BUDGET] == 3
    assert turn.actions[2].tolist() == [1, 1, -1, -1, -1]
    assert turn.truncated.tolist()[:3] == [False, False, True]
    assert not turn.success.any()
    assert turn.format_error.sum() == 0
    assert turn.reward.tolist() == [-2.0, -2.0, -1.0, 0.0, 0.0]
    assert forced.trajectory.response.ended[BUDGET, :3].all()
    assert conversation(forced, BUDGET)[1] == "".join(FORCED[BUDGET])


def test_any_stop_token_ends_a_response(forced):
    assert forced.trajectory.response.ended[STOPPED, :3].tolist() == [True, True, False]
    text, trained = conversation(forced, STOPPED)
    assert "<answer>Down</answer><|pad|><|user|>" in text
    assert "<answer>Down</answer><|end|><|user|>" in text
    assert trained.startswith("Down</answer><|pad|>Down</answer><|end|>Down</answer><|user|>Down")
