"""Host environments in the engine, with an example of one, and a policy that plays it."""

import collections
import dataclasses
import random
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import toy_agent
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.environments import HostStep
from agentrl_jax.parallel.mesh import DATA
from agentrl_jax.parallel.shards import maybe_shard_map
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_environment import host_task
from agentrl_jax.rollout.trajectory import RolloutSettings
from agentrl_jax.setup import build_inputs
from agentrl_jax.text.grammar import ResponseGrammar

SIDES = ("Left", "Right")
LETTERS = 3

_SYLLABLES = ("ba", "dor", "fi", "gul", "ka", "lem", "mo", "nü", "ra", "sil", "to", "vé")


class Courier:
    """Three letters; the right side earns 1/3 each. Success is three right sides, after three turns at least.

    A response without a side leaves the letter where it is. Chance succeeds in 1 of 8 episodes.
    """

    actions = SIDES
    instruction = "You carry letters. Answer with the side on which the reader lives."
    info_keys = ("delivered",)

    def reset(self, seed: int) -> str:
        """Draws names and sides and shows the first letter."""
        draw = random.Random(seed)
        self._sides = [draw.choice(SIDES) for _ in range(LETTERS)]
        self._names = ["".join(draw.choices(_SYLLABLES, k=draw.randint(1, 3))).title() for _ in range(LETTERS)]
        self._answered = self._right = 0
        return self._letter()

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Takes the letter to the first side of the response, or says what was not understood."""
        if not actions:
            return HostStep(f"Where is {response[-12:]!r}? {self._letter()}")
        delivered = actions[0] == self._sides[self._answered]
        self._right += delivered
        thanks = f"{self._names[self._answered]} {'smiles' if delivered else 'still waits'}."
        self._answered += 1
        over = self._answered == LETTERS
        return HostStep(
            observation=thanks if over else f"{thanks} {self._letter()}",
            reward=delivered / LETTERS,
            terminated=over,
            success=over and self._right == LETTERS,
            info={"delivered": float(delivered)},
        )

    def close(self) -> None:
        """Nothing is held."""

    def _letter(self) -> str:
        return f"{self._names[self._answered]} lives {self._sides[self._answered]}."


TURNS, GROUP_SIZE, EPISODES, BUDGET, DEADLINE = 4, 2, 16, 3, 2.0
TOKENIZER = toy_agent.TOKENIZER
KEY = jax.random.key(3)
SETTINGS = RolloutSettings(
    temperature=jnp.ones(EPISODES), horizon=jnp.int32(TURNS), max_actions=jnp.int32(BUDGET), env_params=()
)
IDS = build_inputs.episode_ids(
    group=np.arange(EPISODES) // GROUP_SIZE,
    member=np.arange(EPISODES) % GROUP_SIZE,
    task=np.zeros(EPISODES),
    # The first groups have fixed levels, so that tests know their seeds; the key decides the others.
    level=np.where(np.arange(EPISODES) < 10, np.arange(EPISODES) // GROUP_SIZE, -1),
)

GRAMMAR = ResponseGrammar(actions=Courier.actions, think=False, forced=True, max_actions=2)


class Stage:
    """A host batched environment that counts calls, and whose environments can be changed without compiling again."""

    def __init__(self):
        self.kind = Courier
        self.calls = collections.Counter()
        limits = {"observation_tokens": 40, "max_turns": TURNS, "max_actions": BUDGET, "response_words": 8}
        texts = {"instruction": Courier.instruction, "response_format": GRAMMAR, "tokenizer": TOKENIZER}
        self.task = host_task("Courier", self._make, style="ragen", info_keys=Courier.info_keys, **texts, **limits)
        self.batched_env = HostEnv((self.task,), TOKENIZER, deadline=DEADLINE)
        for name in ("reset", "step"):
            self._count(name)

    def _make(self):
        self.calls["made"] += 1
        return self.kind()

    def _count(self, name):
        answer = getattr(self.batched_env.host_episodes, name)

        def counted(*args):
            assert all(type(x) is np.ndarray for x in args)
            self.calls[name] += 1
            return answer(*args)

        setattr(self.batched_env.host_episodes, name, counted)

    @staticmethod
    def config(slots=0):
        return toy_agent.engine_config(max_turns=TURNS, group_size=GROUP_SIZE, slots=slots)

    def program(self, mesh, slots=0, options=None):
        config = self.config(slots)

        def play(params, ids, settings):
            return engine.rollout(params, toy_agent.MODEL.decoder, self.batched_env, config, KEY, ids, settings)[0]

        whole = {field.name: Spec() for field in dataclasses.fields(RolloutSettings)}
        rows = RolloutSettings(**whole | {"temperature": Spec(DATA)})
        sharded = maybe_shard_map(
            play, mesh, (Spec(), Spec(DATA), rows), Spec(DATA), axes=(DATA,), replicated_results=False
        )
        return jax.jit(sharded, compiler_options=options)

    def run(self, program, kind=Courier):
        self.kind = kind
        self.calls.clear()
        trajectory = jax.tree.map(np.asarray, program(policy(), IDS, SETTINGS))
        return trajectory, dict(self.calls)


def policy():
    """The toy agent, made to say the two sides; after a side it tends to continue or to close, then to end its turn."""
    params = toy_agent.talkative_params(14)["policy"]
    sides, more, close = (jnp.array(toy_agent.vocabulary(text)) for text in ("LeftRight", "||", "</answer>"))
    end = jnp.array([TOKENIZER.end_of_turn_id])
    table = (0.2 * params["lm_head"]).at[:3].set(0.0)
    # Row 0 is an offset; row 1 is read after a side, row 2 after a closing tag (see the embedding below).
    after_side = ((1, -2.0, sides), (1, 2.5, close), (1, 3.2, more))
    for row, odds, tokens in ((0, 3.0, sides), (0, 1.5, close), (0, 1.0, end), *after_side, (2, 3.0, end)):
        table = table.at[row, tokens].set(odds)
    embedding = params["embedding"].at[:, 1:3].set(0.0).at[sides, 1].set(3.0).at[close, 2].set(3.0)
    return params | {"lm_head": table, "embedding": embedding}
