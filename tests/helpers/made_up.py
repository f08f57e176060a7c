"""Made-up trajectories of unequal lengths, and a small training state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config.advantages import Grpo, Sum
from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.config.fields import TRACED
from agentrl_jax.config.filters import NoFilter
from agentrl_jax.config.keys import sections_of
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.learner import state as states
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.update import update
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import Join
from agentrl_jax.rollout.trajectory import EpisodeIds, Hints, Response, Trajectory, unplayed

GROUPS, GROUP_SIZE, TURNS, SEEN, SAID = 4, 4, 2, 3, 5
EPISODES = GROUPS * GROUP_SIZE
SHAPE = DecoderConfig(vocab_size=19, num_layers=1, embed_dim=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=12)
MODEL = ActorCritic(decoder=SHAPE, critic="shared")
NO_CRITIC = ActorCritic(decoder=SHAPE, critic="none")
PLAIN = Optimizer(*optax.sgd(1.0))
"""Steps equal the gradient; Adam would amplify rounding errors where a gradient is zero."""
KEY = jax.random.key(0)
BASE = LearnerConfig(
    task_names=("toy",),
    group_size=GROUP_SIZE,
    filter=NoFilter(),
    mismatch=NoCorrection(ratio_from="rollout"),
    aggregation="token_mean",
)
GRPO = {"advantage": Grpo()}


NUMBERS = dict.fromkeys(
    f"{name}.{number}"
    for name, field in UpdateRule.model_fields.items()
    for part in sections_of(field.annotation)
    for number, of in part.model_fields.items()
    if TRACED in of.metadata
)
NUMBERS |= dict.fromkeys(f"advantage.{name}" for name in Sum().traced())
"""Every traced number of every kind."""


def settings(**changes):
    """Numbers of the rule are given with two underscores for a dot."""
    numbers = dict.fromkeys(NUMBERS, 1.0) | {"objective.clip_low": 0.2, "objective.clip_high": 0.28, "kl.coef": 0.0}
    numbers |= {"advantage.turn_gamma": 0.95, "filter.p": 0.9, "kl.target": 0.1, "kl.horizon": 100.0}
    values = {"lr": 0.1, "critic_lr": 0.1, "max_grad_norm": 1e9, "entropy_coef": 0.01, "format_penalty": -0.1}
    values |= {"entropy_target": 0.5, "entropy_step": 0.001, "average_rate": 0.5}
    values |= {"freeze_policy": 0.0, "overlong_buffer": 0.0, "overlong_penalty": 1.0, "task_weight": np.ones(1)}
    for name, value in changes.items():
        (numbers if "__" in name else values)[name.replace("__", ".")] = value
    return jax.tree.map(jnp.float32, UpdateSettings(**values, numbers=numbers))


def fresh_state(model=MODEL, reference=False, tx=PLAIN):
    """A state at the start of learning, which a program may be given for good."""
    return jax.tree.map(jnp.copy, _first_state(model, reference, tx))


@functools.cache
def _first_state(model, reference, tx):
    """Small random numbers, so that no gradient is zero."""
    state = states.init_state(jax.random.key(1), model, tx)
    draw = np.random.default_rng(2)

    def normal(x):
        return jnp.asarray(0.1 * draw.standard_normal(x.shape) + (x.ndim == 1), x.dtype)

    params = jax.tree.map(normal, state.params)
    if "critic" in params:
        params["critic"]["bias"] = jnp.float32(0.1)
    state = state.replace(params=params, frozen_params=jax.tree.map(normal, state.frozen_params))
    return states.with_kept(state, states.Kept(reference=reference))


def _no_join(shape):
    zeros = np.zeros(shape, np.int32)
    return Join(restart=np.zeros(shape, bool), recall=None, lead=zeros, kind=zeros)


def make_trajectory(seed=0, seen=SEEN, said=SAID) -> Trajectory:
    """Episodes of one or two turns; the first have much longer responses than the last. Larger arrays add padding."""
    draw = np.random.default_rng(seed)
    num_turns = draw.integers(1, TURNS + 1, EPISODES)
    played = np.arange(TURNS) < num_turns[:, None]
    most = np.where(np.arange(EPISODES) < EPISODES // 2, SAID, 2)[:, None]
    length = np.where(played, draw.integers(1, most + 1, (EPISODES, TURNS)), 0)
    seen_length = np.where(played, draw.integers(1, SEEN + 1, (EPISODES, TURNS)), 0)
    observation = np.zeros((EPISODES, TURNS, seen), np.int32)
    observation[..., :SEEN] = draw.integers(0, 19, (EPISODES, TURNS, SEEN))
    tokens = np.zeros((EPISODES, TURNS, said), np.int32)
    tokens[..., :SAID] = draw.integers(0, 19, (EPISODES, TURNS, SAID))
    logprob = np.zeros((EPISODES, TURNS, said), np.float32)
    logprob[..., :SAID] = -3.0 + draw.normal(0, 0.3, (EPISODES, TURNS, SAID))
    reward = np.where(played, draw.normal(0, 1, (EPISODES, TURNS)), 0.0)
    empty = unplayed(EPISODES * TURNS, 2, (), np)
    turn = jax.tree.map(lambda x: x.reshape(EPISODES, TURNS, *x.shape[1:]), empty)
    error = np.where(played, draw.integers(0, 2, (EPISODES, TURNS)), 0)
    number = np.arange(EPISODES, dtype=np.int32)
    found = Trajectory(
        prompt=np.full((EPISODES, 2), 3, np.int32),
        prompt_length=np.full(EPISODES, 2, np.int32),
        observation=np.asarray(observation),
        observation_length=np.asarray(seen_length, np.int32),
        join=_no_join((EPISODES, TURNS)),
        response=Response(
            tokens=np.asarray(tokens),
            length=np.asarray(length, np.int32),
            logprob=np.asarray(logprob),
            ended=np.zeros((EPISODES, TURNS), bool),
        ),
        turn=turn.replace(reward=np.asarray(reward, np.float32), format_error=np.asarray(error, np.int32)),
        num_turns=np.asarray(num_turns, np.int32),
        ids=EpisodeIds(group=number // GROUP_SIZE, member=number % GROUP_SIZE, task=0 * number, level=0 * number - 1),
        overflow=np.zeros(EPISODES, bool),
        truncation=np.zeros(EPISODES, np.int32),
        final_observation=np.zeros((EPISODES, seen), np.int32),
        final_observation_length=np.zeros(EPISODES, np.int32),
        final_join=_no_join((EPISODES,)),
    )
    return jax.tree.map(jnp.asarray, found)


TRAJECTORY = make_trajectory()
GREEDY = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[1::GROUP_SIZE]), TRAJECTORY)
"""An episode of each group in the place of its greedy one."""
FINAL_LENGTH = np.arange(EPISODES) % 3
CUT_OFF = TRAJECTORY.replace(
    truncation=jnp.asarray(FINAL_LENGTH > 0, jnp.int32),
    final_observation=jnp.asarray(np.random.default_rng(7).integers(0, 19, (EPISODES, SEEN)), jnp.int32),
    final_observation_length=jnp.asarray(FINAL_LENGTH, jnp.int32),
)
"""Two of three episodes were truncated after an observation without a response."""
ONES = jnp.asarray(np.ones(EPISODES, np.float32))
HINTS = Hints(
    tokens=jnp.asarray(np.random.default_rng(3).integers(0, 19, (EPISODES, 4)), jnp.int32),
    length=jnp.asarray(np.arange(EPISODES, dtype=np.int32) % 5),
    at=jnp.asarray(np.ones(EPISODES, np.int32)),
    turns=jnp.asarray(np.arange(EPISODES, dtype=np.int32) % 3),
)
"""Of 0 to 4 tokens, between the two of the prefix, and about 0 to 2 turns."""
ROUNDING = 1e-7
"""Parameters are near 1, so a step, computed as their difference, is known to their last bit."""


def assert_close(a, b, relative=1e-5):
    """Every leaf agrees to `relative` of its norm."""
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b)):
        gap, size = np.linalg.norm(np.asarray(x - y)), np.linalg.norm(np.asarray(x))
        assert gap <= relative * size + ROUNDING * np.sqrt(np.size(x)), f"{jax.tree_util.keystr(path)}: {gap} of {size}"


@functools.cache
def program(model, tx, config):
    return jax.jit(functools.partial(update, model=model, config=config, tx=tx, shards=Shards()))


def learn(
    trajectory=TRAJECTORY,
    state=None,
    numbers=None,
    *,
    key=KEY,
    model=MODEL,
    tx=PLAIN,
    greedy=None,
    hints=None,
    **changes,
):
    state = fresh_state(model, tx=tx) if state is None else state
    numbers = settings() if numbers is None else numbers
    return program(model, tx, BASE.replace(**changes))(state, trajectory, ONES, key, numbers, greedy, hints)
