"""Settings of the algorithm on several devices: either one sentence refuses them, or an iteration can be traced.

Tracing finds what does not fit together, such as values that are the same on all devices beside others that are not;
nothing is compiled.
"""

import functools
import random
from types import SimpleNamespace

import jax
import pytest
from changed_settings import BASE, Setting, every_setting, put, read

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.setup import build, start
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import IterationPrograms, iterate
from agentrl_jax.train.run import Run

MESHES = ({"devices": 4, "mesh.fsdp": 2}, {"devices": 2, "mesh.sequence": 2}, {"devices": 2, "mesh.tensor": 2})
GROUPS = {"tasks": [{**task, "groups": 4} for task in BASE["tasks"]], "train.trajectories_every": 0}
CORRECTIONS = [Setting("algo.mismatch.kind", kind) for kind in ("replay", "tis")]
SAMPLE = 6
"""Settings of a case, beside corrections of log-probabilities."""


def trace(config):
    """Traces rollout and update of the first iteration; returns the shapes of the state before and after it."""
    run = Run(config)
    horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
    run.progress = SimpleNamespace(roll_backs=SimpleNamespace(count=0), horizon=horizon)
    parts, programs = run.parts, run.parts.programs
    placement = functools.partial(programs.placement, shape=parts.model.decoder)
    state = jax.eval_shape(build.initial_state(config, parts.model, None, placement), jax.random.key(0))
    begin = functools.partial(start.begin_learning, tx=parts.tx, reference=build.needs_reference(config))
    state, raw = jax.eval_shape(begin, state), programs.compiled
    chosen = IterationPrograms(raw["rollout"], raw["update"], raw.get("baseline"), config.rollout.group_size)
    inputs = run._inputs(0)
    return state, jax.eval_shape(lambda state: iterate(state, inputs, chosen)[0], state)


def shapes(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype), state)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_an_iteration_can_be_traced_or_is_refused(mesh, packing):
    chosen, sentences = [*CORRECTIONS, *random.Random(str(mesh)).sample(every_setting(), SAMPLE)], []
    traced = 0
    for setting in chosen:
        words = {"algo.packing": packing, "algo.grad_accum_steps": 2, **GROUPS, **mesh}
        try:
            with refusals():
                before, after = trace(read(put(BASE, words | setting.needs | {setting.name: setting.value})))
        except UserError as error:
            sentences.append(str(error))
        else:
            assert shapes(after) == shapes(before), setting
            traced += 1
        jax.clear_caches()
    assert not [sentence for sentence in sentences if "\n" in sentence]
    assert traced > SAMPLE / 2
