from typing import ClassVar

import pytest
import toy_agent

from agentrl_jax.environments import HostStep
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.host_environment import host_task
from agentrl_jax.rollout.envs.host_retry import RetriedEnvironment, retry_observation, with_retries
from agentrl_jax.text.grammar import PlainResponse
from agentrl_jax.text.styles import FEEDBACK

TURNS, ATTEMPTS = 2, 3


class Scripted:
    """An environment that shows its seed, and whose responses say what happens: solve, win, end, cut or stay."""

    made: ClassVar[list["Scripted"]] = []

    def __init__(self, start="seed"):
        self.start, self.steps, self.closed = start, 0, 0
        Scripted.made.append(self)

    def reset(self, seed):
        return f"{self.start} {seed}"

    def step(self, response, actions):
        self.steps += 1
        return HostStep(
            f"step {self.steps}",
            reward=1.0,
            terminated=response in ("solve", "end"),
            truncated=response == "cut",
            success=response in ("solve", "win"),
            info={"steps": float(self.steps)},
        )

    def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def made():
    Scripted.made = []
    return Scripted.made


def play(script, attempts=ATTEMPTS):
    env, found = RetriedEnvironment(Scripted, TURNS, attempts), []
    assert env.reset(7) == "seed 7"
    for response in script.split()[: TURNS * attempts]:
        found.append(env.step(response, ()))
        if found[-1].terminated or found[-1].truncated:
            break
    env.close()
    return found


AGAIN = f"step 2\n{FEEDBACK}seed 7"


@pytest.mark.parametrize(
    ("script", "shown", "attempt", "over"),
    [
        ("solve stay", ["step 1"], [0], (True, False)),
        ("stay stay solve stay", ["step 1", AGAIN, "step 1"], [0, 0, 1], (True, False)),
        # Solved, but neither over nor repeated: the turns of the attempt are played to their end.
        ("win stay stay", ["step 1", "step 2"], [0, 0], (False, True)),
        ("stay stay " * 3, ["step 1", AGAIN, "step 1", AGAIN, "step 1", "step 2"], [0, 0, 1, 1, 2, 2], (False, False)),
        ("end cut stay stay stay", [AGAIN.replace("2", "1")] * 2 + ["step 1", "step 2"], [0, 1, 2, 2], (False, True)),
        ("end end end stay", [AGAIN.replace("2", "1")] * 2 + ["step 1"], [0, 1, 2], (True, False)),
    ],
)
def test_scripts(made, script, shown, attempt, over):
    found = play(script)
    assert [step.observation for step in found] == shown
    assert [step.info["attempt"] for step in found] == attempt
    assert (found[-1].terminated, found[-1].truncated) == over
    assert {(step.terminated, step.truncated) for step in found[:-1]} <= {(False, False)}
    assert sum(step.reward for step in found) == len(found)
    # Every attempt has an environment, and each was closed once.
    assert [env.closed for env in made] == [1] * (max(attempt) + 1)


@pytest.mark.parametrize("script", ["solve", "stay stay", "end", "cut", "win stay"])
def test_one_attempt_is_the_plain_episode(script):
    plain = Scripted()
    plain.reset(7)
    for step, response in zip(play(script, attempts=1), script.split(), strict=True):
        expected = plain.step(response, ())
        assert vars(step) == vars(expected) | {"info": {**expected.info, "attempt": 0.0}}


def test_another_start_is_an_error(made):
    env = RetriedEnvironment(lambda: Scripted(f"start {len(made)}"), TURNS, ATTEMPTS)
    env.reset(7)
    with pytest.raises(BadValue):
        env.step("end", ())
    env.close()
    assert [env.closed for env in made] == [1, 1]


def test_an_environment_that_is_closed_during_a_step_does_not_begin_again(made):
    env = RetriedEnvironment(Scripted, TURNS, ATTEMPTS)
    env.reset(7)
    env.close()
    with pytest.raises(TimeoutError):
        env.step("end", ())
    assert [env.closed for env in made] == [1, 1]


def test_lines_are_joined():
    assert retry_observation("", "start") == f"{FEEDBACK}start"
    assert retry_observation("over\n", "start") == f"over\n{FEEDBACK}start"


def test_a_message_has_room_for_both_observations():
    tokenizer, text = toy_agent.TOKENIZER, "seed 1234"
    limits = {"observation_tokens": len(tokenizer.encode(text)), "max_turns": TURNS, "max_actions": TURNS}
    texts = {"instruction": "Play.", "response_format": PlainResponse(opening=""), "tokenizer": tokenizer}
    task = host_task("Scripted", Scripted, style="bare", response_words=8, info_keys=("steps",), **texts, **limits)
    several = with_retries(task, tokenizer, turns=TURNS, attempts=ATTEMPTS)
    longest = tokenizer.encode(retry_observation(text, text))
    assert len(longest) <= several.observation_tokens <= len(longest) + 2
    more = several.observation_tokens - task.observation_tokens
    assert several.prompt.max_message_tokens == task.prompt.max_message_tokens + more
    assert several.info_keys == ("steps", "attempt")
    once = with_retries(task, tokenizer, turns=TURNS, attempts=1)
    assert once.observation_tokens == task.observation_tokens
    assert once.prompt.max_message_tokens == task.prompt.max_message_tokens
