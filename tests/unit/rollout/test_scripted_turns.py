"""Turns with given responses: what is trained, what is executed, what it costs. No model is used.

A script replaces sampling: token i of turn t of an episode is looked up, so every case is explicit.
"""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_texts import message_text, prefix_text
from toy_agent import END, TOKENIZER

from agentrl_jax.rollout import engine
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


class Play(NamedTuple):
    batched_env: CompiledEnv
    trajectory: engine.Trajectory
    sequences: object


@pytest.fixture(scope="session")
def play_script(policy):
    """Function (responses of each episode, forced, stop_at_answer, changes of the engine's configuration) -> `Play`."""

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
        rows = jax.jit(pack_trajectories, static_argnums=1)(trajectory, "full")
        return Play(batched_env, *jax.tree.map(np.asarray, (trajectory, rows)))

    return play


CUT, BUDGET, NONSENSE, MANY, UNKNOWN, UNCLOSED, STOPPED = range(7)
FORCED = [
    ["Up</answer>" + "Up" * 20, "Up</answer><|end|>"],
    ["Down||Down||Down||Down</answer><|end|>"] * 2 + ["Down||Down||Down||Down||Down</answer><|end|>"],
    ["I do not know<|end|>"] * 5,
    ["Down||Down||Down||Down||Down||Down||Down</answer><|end|>"],
    ["Down||Fly||UP</answer><|end|>"],
    ["Up||Up<|end|>"],
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


def conversation(play: Play, row: int) -> tuple[str, str]:
    """Returns the whole row as text, and the text of the trained tokens alone."""
    sequences = play.sequences
    tokens = sequences.tokens[row, : sequences.length[row]]
    trained = tokens[sequences.position[row][sequences.response_mask[row]]]
    return tuple(TOKENIZER.decode(x.tolist(), skip_special=False) for x in (tokens, trained))


def read(play: Play, responses: list[str], heights: list[tuple[int, int, float]], row: int, stopped: bool) -> str:
    """Builds the conversation by string joins; `heights` are (height, actions left, reward) before each response."""
    prompt = play.batched_env.tasks[0].prompt
    shown = play.trajectory.observation[row, 0, : play.trajectory.observation_length[row, 0]].tolist()
    goal = TOKENIZER.decode(shown, skip_special=False).partition(" of ")[2][0]
    text = prefix_text(prompt, TOKENIZER)
    for turn, (said, (height, left, reward)) in enumerate(zip(responses, heights)):
        options = {"turn": turn, "actions_left": left, "reward": reward, "first": turn == 0, "response_ended": stopped}
        text += message_text(prompt, f"{height} of {goal}", **options) + said
    return text


def test_two_turn_conversation_is_exactly_the_joined_text(forced):
    whole, trained = conversation(forced, BUDGET)
    heights = [(0, 10, 0.0), (0, 6, -2.0), (0, 2, -2.0)]
    assert whole == read(forced, FORCED[BUDGET], heights, BUDGET, stopped=True)
    assert trained == "".join(FORCED[BUDGET])
    assert forced.trajectory.response.ended[BUDGET, :3].all()
    sampled = forced.sequences.response_mask[BUDGET]
    np.testing.assert_array_equal(forced.sequences.logprob[BUDGET], np.where(sampled, -1.0, 0.0))


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


def test_five_invalid_turns_cost_five_penalties_and_nothing_else(forced):
    trajectory = toy_agent.rows(forced.trajectory, [NONSENSE])
    assert trajectory.num_turns.tolist() == [TURNS]
    assert trajectory.returns.tolist() == [0.0]
    assert float(PROMPT.format_penalty * trajectory.turn.format_error[0].sum()) == pytest.approx(-0.5)
    assert not trajectory.success.any()
    assert (trajectory.turn.actions == -1).all()
    assert not trajectory.turn.terminated.any()


@pytest.mark.parametrize(
    ("row", "actions", "penalties"),
    [(MANY, [1] * 5, 0), (UNKNOWN, [1, 0, -1, -1, -1], 1), (UNCLOSED, [-1] * 5, 1)],
    ids=["beyond the cap", "unknown action", "missing closing tag"],
)
def test_what_is_executed_and_what_it_costs(forced, row, actions, penalties):
    turn = jax.tree.map(lambda x: x[row, 0], forced.trajectory.turn)
    assert turn.actions.tolist() == actions
    assert (turn.format_error, turn.valid) == (penalties, actions[0] >= 0)
    assert turn.reward == -0.5 * sum(action >= 0 for action in actions)


def test_any_stop_token_ends_a_response(forced):
    assert forced.trajectory.response.ended[STOPPED, :3].tolist() == [True, True, False]
    text, trained = conversation(forced, STOPPED)
    assert "<answer>Down</answer><|pad|><|user|>" in text
    assert "<answer>Down</answer><|end|><|user|>" in text
    assert trained.startswith("Down</answer><|pad|>Down</answer><|end|>Down</answer><|user|>Down")
