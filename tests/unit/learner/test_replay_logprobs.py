import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
import toy_agent
import xla_settings
from made_up import BASE, GROUP_SIZE, GRPO, KEY, MODEL, ONES, PLAIN, SAID, TRAJECTORY, TURNS, fresh_state, settings

from agentrl_jax.config.algo import FixedKl
from agentrl_jax.config.mismatch import Replay
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import state as states
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.programs import Programs

ENGINE = {"max_turns": TURNS, "max_response_tokens": SAID, "group_size": GROUP_SIZE}


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (None, "mismatch"),
        ({"group_size": 2}, "mismatch"),
        ({"context": SINGLE_TURN}, "mismatch"),
        ({"slots": 64}, "slots"),
        ({"max_turns": TURNS + 1}, "turns"),
    ],
)
def test_a_rollout_of_another_shape_is_refused(engine, key):
    engine = None if engine is None else toy_agent.engine_config(**ENGINE | engine)
    config = BASE.replace(mismatch=Replay(), **GRPO)
    learn = functools.partial(update, model=MODEL, config=config, tx=PLAIN, shards=Shards(), engine=engine)
    with pytest.raises(BadValue) as refused:
        jax.eval_shape(learn, fresh_state(), TRAJECTORY, ONES, KEY, settings())
    assert refused.value.key == key


GROUPS = 8
EPISODES = GROUPS * toy_agent.GROUP_SIZE
IDS = toy_agent.mixed_ids(GROUPS, toy_agent.GROUP_SIZE)
TEMPERATURE = jnp.asarray(np.where(np.arange(EPISODES) % 3 == 0, 0.7, 1.0), jnp.float32)
DRAW = jax.random.key(7)
TOY = dataclasses.replace(toy_agent.MODEL, critic="none")
RULE = build_inputs.learner_config(toy_agent.CONFIG).replace(
    **made_up.GRPO, task_names=("short", "long"), kl=FixedKl(estimator="k3"), minibatches=1, mismatch=Replay()
)


class Iteration:
    """Rollout and update of the toy agent, with the machine code of both not optimized."""

    def __init__(self, devices, engine, *, fsdp=1, **rule):
        self.programs = Programs(make_mesh(devices, fsdp=fsdp))
        self.engine = toy_agent.engine_config(group_size=toy_agent.GROUP_SIZE, **engine)
        self.rule = RULE.replace(context=self.engine.context, **rule)
        params = actor_critic.init_params(jax.random.key(0), TOY)
        params |= {"policy": toy_agent.talkative_params(5)["policy"]}
        state = states.init_state(jax.random.key(0), TOY, made_up.PLAIN, states.Kept(reference=True))
        state = states.with_kept(state.replace(params=params), states.Kept(reference=True))
        self.state = jax.device_put(state, self.programs.placement(state, TOY.decoder))

    @functools.cached_property
    def trajectory(self):
        program = self.programs.rollout("rollout", TOY, toy_agent.BATCHED_ENV, self.engine)
        arguments = self.state.params, DRAW, IDS, toy_agent.settings(EPISODES, temperature=TEMPERATURE)
        return program.lower(*arguments).compile(xla_settings.SAME_BITS)(*arguments)[0]

    def learn(self, *, trajectory=None, **numbers):
        state = jax.tree.map(jnp.copy, self.state)  # the program donates it
        trajectory = self.trajectory if trajectory is None else trajectory
        settings = build_inputs.update_settings(toy_agent.CONFIG, 1.0)
        given = {name.replace("__", "."): jnp.float32(value) for name, value in numbers.items()}
        of_rule = {key: given.pop(key) for key in [*given] if "." in key}
        settings = settings.replace(**given, numbers={"kl.coef": jnp.float32(0.0), **settings.numbers, **of_rule})
        arguments = state, trajectory, TEMPERATURE, DRAW, settings
        program = self.programs.update(TOY, self.rule, made_up.PLAIN, self.engine)
        return jax.tree.map(np.asarray, program.lower(*arguments).compile(xla_settings.SAME_BITS)(*arguments))


REFILLED = {"slots": 4, "prefill_threshold": 0.5}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("devices", "fsdp", "engine"),
    [(1, 1, {}), (4, 1, {"context": SINGLE_TURN, **REFILLED}), (4, 2, REFILLED)],
)
def test_nothing_has_moved(devices, fsdp, engine):
    """Rollout and learner distribute rows differently, minibatches are shuffled, and shards are all-gathered."""
    several = Iteration(devices, engine, fsdp=fsdp, epochs=1, minibatches=2)
    _, metrics = several.learn(lr=0.0, critic_lr=0.0, kl__coef=0.3)
    assert metrics["update/trained_tokens"] > 50
    assert metrics["actor/ratio_mean"] == metrics["rollout/logprob_bit_equal"] == 1
    for name in ("actor/kl", "actor/ppo_kl", "rollout/logprob_gap_mean", "rollout/logprob_gap_max"):
        assert metrics[name] == 0, name


@pytest.mark.nightly
def test_packed_rows_are_replayed_on_several_devices():
    rule = {"epochs": 1, "grad_accum_steps": 2}
    plain, packed = (Iteration(2, {}, packing=packing, **rule) for packing in (False, True))
    after, metrics = plain.learn()
    of_bins, in_bins = packed.learn(trajectory=plain.trajectory)
    assert in_bins["rollout/logprob_bit_equal"] == metrics["rollout/logprob_bit_equal"] == 1
    for one, other in zip(*map(jax.tree.leaves, (after.params, of_bins.params))):
        np.testing.assert_allclose(other, one, atol=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(in_bins["actor/grad_norm"], rel=1e-4)
    assert any((x != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (after.params, plain.state.params))))
