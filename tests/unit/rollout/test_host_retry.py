from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent

from agentrl_jax.environments import HostStep
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_environment import host_task
from agentrl_jax.rollout.envs.host_retry import check_same_start, retry_observation, with_room
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.setup import build_inputs
from agentrl_jax.text.grammar import ParsedResponse, PlainResponse
from agentrl_jax.text.styles import FEEDBACK

TOKENIZER, TURNS, ATTEMPTS = toy_agent.TOKENIZER, 2, 3
LENGTH = max(len(TOKENIZER.encode(text)) for text in ("Right", "Down", "Left", "Up"))


class Scripted:
    """Shows its seed. Right solves it, Down ends it, Left cuts it, 7 ends it for good, and all else changes nothing."""

    made: ClassVar[list["Scripted"]] = []
    gone: ClassVar[set[int]] = set()

    def __init__(self):
        self.steps, self.closed = 0, 0
        Scripted.made.append(self)

    def reset(self, seed):
        self.seed = seed
        return f"seed {seed}{' is gone' if seed in Scripted.gone else ''}"

    def step(self, response, actions):
        self.steps += 1
        if response == "7":
            Scripted.gone.add(self.seed)
        over = response in ("Right", "Down", "7")
        return HostStep(
            f"step {self.steps}", 1.0, terminated=over, truncated=response == "Left", success=response == "Right"
        )

    def close(self):
        self.closed += 1


AGAIN = f"\n{FEEDBACK}seed "
SCRIPTS = (
    ("Right", ["step 1"], [0], (True, False)),
    ("Up Up Right", ["step 1", f"step 2{AGAIN}1", "step 1"], [0, 0, 1], (True, False)),
    ("Up Up " * 3, ["step 1", f"step 2{AGAIN}2"] * 2 + ["step 1", "step 2"], [0, 0, 1, 1, 2, 2], (False, False)),
    ("Down Left Up Up", [f"step 1{AGAIN}3"] * 2 + ["step 1", "step 2"], [0, 1, 2, 2], (False, True)),
    ("Down Down Down", [f"step 1{AGAIN}4"] * 2 + ["step 1"], [0, 1, 2], (True, False)),
)
"""The responses of an episode; then what is observed, the attempt of each turn, and how it ends."""


def make_env(attempts):
    response = PlainResponse(opening="")
    texts = {"instruction": "Play.", "response_format": response, "tokenizer": TOKENIZER, "response_words": 8}
    limits = {"observation_tokens": len(TOKENIZER.encode("seed 1 is gone")), "max_turns": TURNS, "max_actions": TURNS}
    task = host_task("Scripted", Scripted, style="bare", **texts, **limits)
    task = with_room(task, TOKENIZER) if attempts > 1 else task
    return RetryEnv(HostEnv((task,), TOKENIZER, deadline=20, restarts=attempts > 1), TURNS, attempts)


def play(scripts, attempts=ATTEMPTS):
    """Results and observations of each turn: dictionaries of arrays by row."""
    Scripted.made, Scripted.gone = [], set()
    env, count = make_env(attempts), len(scripts)
    ids = build_inputs.episode_ids(group=np.arange(count), member=[0] * count, task=[0] * count, level=np.arange(count))
    settings = toy_agent.settings(count).replace(
        env_params=(), horizon=jnp.int32(TURNS * attempts), max_actions=jnp.int32(TURNS)
    )
    parsed = ParsedResponse(
        *(jnp.zeros((count, 1), jnp.int32), *(jnp.ones(count, jnp.int32),) * 2, jnp.ones(count, bool))
    )
    state, _ = jax.jit(env.reset)(jax.random.key(0), settings, ids)
    step, active, found = jax.jit(env.step), np.ones(count, bool), []
    for turn in range(TURNS * attempts):
        said = [(script.split() + ["Up"] * turn)[turn] for script in scripts]
        response, encoded = empty_response(count, LENGTH), [TOKENIZER.encode(text) for text in said]
        tokens = np.array([row + [0] * (LENGTH - len(row)) for row in encoded], np.int32)
        response = response.replace(tokens=jnp.array(tokens), length=jnp.array([len(row) for row in encoded]))
        state, result, message = step(settings, state, response, parsed, jnp.array(active))
        texts = [
            TOKENIZER.decode(row[:length]) for row, length in zip(message.tokens.tolist(), message.length.tolist())
        ]
        found.append((active, jax.tree.map(np.asarray, result), texts))
        active = active & ~found[-1][1].terminated & ~found[-1][1].truncated & ~found[-1][1].failed
    env.clear()
    return found


@pytest.fixture(scope="module")
def played():
    return play([script for script, *_ in SCRIPTS]), Scripted.made


@pytest.mark.parametrize("row", range(len(SCRIPTS)))
def test_scripts(played, row):
    turns = [(result, texts[row]) for active, result, texts in played[0] if active[row]]
    _, shown, attempt, over = SCRIPTS[row]
    assert [text for _, text in turns] == shown
    assert [result.info["attempt"][row] for result, _ in turns] == attempt
    assert (turns[-1][0].terminated[row], turns[-1][0].truncated[row]) == over
    assert not any(result.terminated[row] or result.truncated[row] for result, _ in turns[:-1])
    # Every attempt begins in the same state.
    firsts = [attempt.index(number) for number in sorted(set(attempt))]
    assert len({turns[turn][0].state_hash[row].tobytes() for turn in firsts}) == 1


def test_every_attempt_has_an_environment_that_is_closed_once(played):
    assert [env.closed for env in played[1]] == [1] * sum(max(attempt) + 1 for _, _, attempt, _ in SCRIPTS)


def test_one_attempt_is_the_plain_episode():
    for script, over in (("Up Up", (False, False)), ("Left", (False, True)), ("Down", (True, False))):
        turns = play([script], attempts=1)[: len(script.split())]
        assert [texts[0] for _, _, texts in turns] == ["step 1", "step 2"][: len(turns)]
        assert (turns[-1][1].terminated[0], turns[-1][1].truncated[0]) == over


def test_another_start_fails_the_next_turn():
    turns = play(["7 Up", "Up Up"])
    assert turns[1][1].failed.tolist() == [True, False]
    with pytest.raises(BadValue) as refused:
        check_same_start("seed 1", "seed 1 is gone")
    assert refused.value.key == "environment"


def test_a_message_has_room_for_both_observations():
    one, several = (make_env(attempts) for attempts in (1, ATTEMPTS))
    (task,), (larger,) = one.tasks, several.tasks
    longest = len(TOKENIZER.encode(retry_observation("seed 1 is gone", "seed 1 is gone")))
    assert longest <= larger.observation_tokens <= longest + 2
    more = larger.observation_tokens - task.observation_tokens
    assert larger.prompt.max_message_tokens == task.prompt.max_message_tokens + more
    assert retry_observation("", "start") == f"{FEEDBACK}start"
    assert retry_observation("over\n", "start") == f"over\n{FEEDBACK}start"
