"""A tiny agent in two quick tasks, with responses of varying length, shared by the tests of engine and learner.

Its parameters are random, not trained: an offset of the logits makes it say action names, the closing tag and the end
of turn, with probabilities that depend on everything it has read, so that a wrong cache or position is noticed.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.config import AlgoConfig, Config, ModelConfig, PromptConfig, RolloutConfig, TaskConfig
from agentrl_jax.config.advantages import Gae
from agentrl_jax.config.filters import FractionFilter
from agentrl_jax.models import actor_critic
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, Task
from agentrl_jax.setup import build, build_inputs, build_model
from agentrl_jax.text.tokenizer import load_small, padded
from envs_jax.environment import EnvParams, EnvState, TextEnvironment

GROUP_SIZE = 4
TURNS = 3
MAX_RESPONSE_TOKENS = 7
TOKENIZER = load_small()
END = TOKENIZER.end_of_turn_id
vocabulary = TOKENIZER.encode


@struct.dataclass
class LadderState(EnvState):
    height: jax.Array
    goal: jax.Array
    slipped: jax.Array


class Ladder(TextEnvironment):
    """Climb to a rung; an upward step slips with probability 0.3. Reward -0.5 per action, 3 on arrival."""

    actions = ("Up", "Down")
    pieces = (*"0123456789", " of ", " slipped")
    instruction = "Climb."

    def __init__(self, steps: int, legend: tuple[tuple[str, str], ...] = ()):
        self.steps, self.legend = steps, legend

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=jnp.int32(self.steps))

    def reset_env(self, key: jax.Array, params: EnvParams):
        goal = jax.random.randint(key, (), 1, 10)
        no = jnp.bool_(False)
        return goal, LadderState(time=jnp.int32(0), terminated=no, height=jnp.int32(0), goal=goal, slipped=no)

    def step_env(self, key: jax.Array, state: LadderState, action: jax.Array, params: EnvParams):
        active = ~self.is_done(state, params)
        slipped = (action == 0) & (jax.random.bits(key) % 10 < 3)
        height = jnp.clip(state.height + jnp.where(action == 0, 1 - slipped, -1), 0, 9)
        there = active & (height == state.goal)
        after = LadderState(
            time=state.time + 1, terminated=there, height=height.astype(jnp.int32), goal=state.goal, slipped=slipped
        )
        state = jax.tree.map(lambda a, b: jnp.where(active, a, b), after, state)
        reward = jnp.where(active, -0.5 + 3.0 * there, 0.0)
        return state.height, state, reward, state.terminated, {"success": state.terminated, "height": state.height}

    def describe(self, state: LadderState, params: EnvParams) -> jax.Array:
        return jnp.stack([state.height, 10, state.goal, jnp.where(state.slipped, 11, -1)])

    def success(self, state: LadderState, params: EnvParams) -> jax.Array:
        return state.terminated


CONFIG = Config(
    tasks=(TaskConfig(env="Short", groups=8), TaskConfig(env="Long", groups=8)),
    prompt=PromptConfig(
        max_turns=TURNS, max_actions_per_turn=2, max_actions=5, max_response_tokens=MAX_RESPONSE_TOKENS
    ),
    model=ModelConfig(layers=1, embed_dim=16, heads=2, kv_heads=1, mlp_width=24, tied_embeddings=False),
    rollout=RolloutConfig(group_size=GROUP_SIZE),
    algo=AlgoConfig(filter=FractionFilter(ratio=0.5), advantage=Gae(whiten=False)),
)


def make_task(name: str, steps: int, prompt: PromptConfig, legend: tuple[tuple[str, str], ...] = ()) -> Task:
    env = Ladder(steps, legend)
    return build.make_task(name, env, env.default_params, prompt, TOKENIZER)


def make_batched_env(**changes: Any) -> CompiledEnv:
    """Both tasks, with `changes` to the prompt configuration, `shared_noise`, and the `legends` of the tasks."""
    shared_noise, legends = changes.pop("shared_noise", False), changes.pop("legends", ((), ()))
    prompt = CONFIG.prompt.replace(**changes)
    names = (("Short", 1), ("Long", 100))
    tasks = tuple(make_task(name, steps, prompt, legend) for (name, steps), legend in zip(names, legends))
    return CompiledEnv(tasks=tasks, shared_noise=shared_noise)


BATCHED_ENV = make_batched_env()
MODEL = build_model.build_model(CONFIG, TOKENIZER)
SHARED = build_model.build_model(
    CONFIG.replace(model=CONFIG.model.replace(heads=4, kv_heads=2)), padded(TOKENIZER, 480)
)
"""A model whose heads and whose vocabulary several devices can share; 473 tokens could not be shared."""


def talkative_params(seed: int, model: actor_critic.ActorCritic = MODEL):
    """Parameters of an agent that mostly says tokens of the response format."""
    params = actor_critic.init_params(jax.random.key(seed), model)
    policy = params["policy"]
    draw = np.random.default_rng(seed)

    def normal(leaf, scale):
        return jnp.asarray(scale * draw.standard_normal(leaf.shape), jnp.float32)

    # The tokens read must influence the response, but not dominate the offset.
    scales = {name: 0.12 if name in ("output", "down") else 0.24 for name in policy["layers"]}
    layers = {name: leaf if leaf.ndim == 2 else normal(leaf, scales[name]) for name, leaf in policy["layers"].items()}
    embedding = normal(policy["embedding"], 0.5).at[:, 0].set(3.0)
    bias = np.zeros(model.decoder.vocab_size, np.float32)
    for odds, text in ((8.0, "UpDown"), (6.5, "||"), (8.5, "</answer>")):
        bias[vocabulary(text)] = odds
    bias[END] = 8.0
    # The first entry of the hidden state stays large, so that its weights act as an offset of the logits.
    lm_head = normal(policy["lm_head"], 0.12).at[0].set(bias / 2)
    return params | {"policy": policy | {"layers": layers, "embedding": embedding, "lm_head": lm_head}}


def mixed_ids(groups: int, group_size: int):
    group = np.repeat(np.arange(groups), group_size)
    return build_inputs.episode_ids(
        group=group, member=np.tile(np.arange(group_size), groups), task=group % 2, level=np.full(len(group), -1)
    )


def settings(episodes: int, **changes: Any):
    """With room for any number of turns of a task, so that one may have fewer without another program."""
    found = build_inputs.rollout_settings(CONFIG, BATCHED_ENV, episodes, 1.0)
    return found.replace(**{"task_turns": jnp.array([99, 99])} | changes)


def engine_config(**changes: Any):
    """The engine's static settings: a turn barrier, one slot per episode, the whole conversation."""
    plain = build_inputs.engine_config(CONFIG, TOKENIZER, group_size=1, slots=0)
    return dataclasses.replace(plain, **changes)


def text_of(tokens: Any, length: Any) -> str:
    return TOKENIZER.decode(tokens[:length].tolist(), skip_special=False)


def rows(tree: Any, index: Any):
    return jax.tree.map(lambda x: np.asarray(x)[np.asarray(index)], tree)  # indexing by JAX compiles for each leaf
