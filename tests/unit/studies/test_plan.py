import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_run
from refusing import refusal
from sweeps import CONFIG, KV_HEADS, MACHINE, GivenCosts

from agentrl_jax.config import decode
from agentrl_jax.config.advantages import Remax
from agentrl_jax.errors import BadValue
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.peaks import PEAKS, Peaks, chip_name
from agentrl_jax.parallel.topology import GIB, HBM, TopologyError
from agentrl_jax.studies import abstract_run, phases
from agentrl_jax.studies.abstract_run import AbstractRun, ProgramPlan
from agentrl_jax.studies.costs import Cost, CostModel, compiled_rows, sent_bytes
from agentrl_jax.studies.phases import DECODE, OPTIMIZER, PREFILL, SCORE, UPDATE, PhaseBuilder
from agentrl_jax.studies.plan import make_plan
from agentrl_jax.studies.sweep import GREEDY, SEARCHED, Sweeper
from agentrl_jax.studies.sweep_report import as_json, as_table

COMPILED = ProgramPlan(0.0, 0, 0, 0, 0.0, 0.0, None, ())


def test_an_offloaded_optimizer_takes_no_memory_of_the_devices():
    """Of the same programs, which take minutes to compile otherwise, only the account is compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractRun, "compile", lambda self, report: {"rollout": COMPILED, "update": COMPILED})
        on, off = (make_plan(decode({"optim": {"offload": x}}), jax.devices()[:1], None) for x in (False, True))
    assert (off.optimizer, on.learner_only - off.learner_only) == (0, on.optimizer)
    assert on.optimizer > 0


def test_the_programs_are_those_of_the_run(monkeypatch):
    """Of ReMax, whose groups are played again where their returns are all the same."""
    results = []

    def shapes(program, *arguments):
        results.append(jax.eval_shape(program, *arguments))
        return COMPILED

    monkeypatch.setattr(abstract_run, "_compiled", shapes)
    run = {"tasks": [{"env": "Bandit", "groups": 4}], "prompt": {"max_turns": 1, "max_response_tokens": 4}}
    run |= {"rollout": {"group_size": 2}, "model": {"layers": 1, "embed_dim": 16}}
    config = decode(run | {"algo": {"preset": "remax", "minibatches": 1, "dynamic_sampling": 3}})
    assert list(make_plan(config, jax.devices()[:1]).programs) == ["rollout", "baseline", "update", "evaluation"]
    rollout, baseline, _, evaluation = results
    assert [found[0].ids.group.shape for found in (rollout, baseline, evaluation)] == [(8,), (4,), (128,)]
    assert rollout[1].measured  # of groups played again


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(BadValue) as unknown:
        make_plan(decode({}), jax.devices()[:1], "gpt")
    found = [unknown.value]
    for name, number in (("fsdp", 3), ("tensor", 5)):  # devices that would share no matrix
        found.append(refusal(AbstractRun, decode({"mesh": {name: number}}), make_mesh(jax.devices()[:1]), None))
    frozen = CONFIG.replace(model=CONFIG.model.replace(frozen_layers=1))
    found.append(refusal(Sweeper, frozen, jax.devices()[:1]))
    expected = [("model", "gpt"), ("mesh.fsdp", 3), ("mesh.tensor", 5), ("model.frozen_layers", 1)]
    assert [(error.key, error.value) for error in found] == expected
    assert HBM.keys() <= PEAKS.keys()
    with pytest.raises(TopologyError, match="cpu"):
        chip_name(jax.devices()[0])


def test_plan_at_the_command_line(tmp_path):
    file = tiny_run.write_config(tmp_path)
    refused = {"--topology v7:1 --model.embed_dim 16": "topology 'v7:1'", "--mesh.fsdp 99": "99 x 1 x 1"}
    refused |= {"--sweep": "device kind 'cpu'", "--compile 2": "--compile is 2"}
    for words, part in {**refused, "--devices banana": "--devices is", "--devices=8": "--devices is"}.items():
        assert part in tiny_run.refusal("plan", file, *words.split())


def given(**changes):
    config = CONFIG.replace(**{name: getattr(CONFIG, name).replace(**values) for name, values in changes.items()})
    made = Sweeper(config, jax.devices()[:4])
    made.costs = GivenCosts()
    return made


@pytest.fixture(scope="module")
def costs():
    return Sweeper(CONFIG, jax.devices()[:2]).costs


@pytest.fixture(scope="module")
def found():
    return given().rank(GIB, MACHINE, compiled=0)


def test_loops_of_known_length_are_written_out_and_compiled_for_some_numbers_of_rows():
    def program(x):
        return jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), y[0]), x, jnp.ones((3, 8, 8)))

    x = jnp.ones((2, 8))
    np.testing.assert_array_equal(phases.unrolled(program, x)(x)[1], program(x)[1])
    compiled = (jax.jit(f).lower(x).compile() for f in (program, phases.unrolled(program, x)))
    of_loop, of_unrolled = (one.cost_analysis()["flops"] for one in compiled)
    assert of_unrolled > 2.5 * of_loop  # the compiler counts the body of a loop once
    known = [(1, 4, (1,)), (3, 4, (2, 4)), (4, 4, (4,)), (5, 4, (2, 4)), (0, 4, (1, 2)), (0.5, 4, (1, 2))]
    for rows, largest, expected in [*known, (192, 256, (128, 256)), (7, 1, (1,))]:
        assert compiled_rows(rows, largest) == expected


def test_costs_never_fall_with_rows_or_layers(monkeypatch, costs):
    """The compiler may count less for a larger program, as it does here for 4 layers and for 2 rows."""

    def measured(self, name, rows, tensor, depth, remat):
        return np.full(len(Cost._fields), (10.0 - depth) * (5.0 if rows == 2 else 4.0 + rows))

    monkeypatch.setattr(CostModel, "_measured", measured)
    costs = CostModel(costs.run, jax.devices()[:1], lambda line: None)
    found = [costs.cost(SCORE, rows).accessed for rows in (0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 100)]
    assert found == sorted(found)
    assert found[1] > 0


@pytest.mark.nightly
def test_devices_share_the_matrices_and_add_up_activations(costs):
    alone, shared = (costs.cost(SCORE, 2, tensor=tensor) for tensor in (1, 2))
    assert shared.flops == pytest.approx(alone.flops / 2, rel=0.2)
    assert (alone.sent, shared.sent > 0) == (0.0, True)
    known = {"all-reduce": 150.0, "all-gather": 75.0, "reduce-scatter": 300.0, "collective-permute": 100.0}
    assert {kind: sent_bytes(hlo.Operation(kind, 100, 0), 4) for kind in known} == known


def test_a_decode_step_continues_episodes(costs):
    phase = PhaseBuilder(costs.run, jax.devices()[:1]).phase(DECODE, 4)
    after, state = jax.eval_shape(phase.program, *phase.arguments), phase.arguments[-1]
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
    assert after.position.shape == (4,)


def test_candidates_are_valid_and_ranked(found):
    assert [one.seconds for one in found.candidates] == sorted(one.seconds for one in found.candidates)
    meshes = {tuple(one.mesh.values()) for one in found.candidates}
    assert meshes >= {(1, 4, 1, 1), (2, 1, 1, 2)}
    assert not [mesh for mesh in meshes if mesh[3] > KV_HEADS]  # a head is never split
    assert all(np.prod(list(one.mesh.values())) == 4 for one in found.candidates)
    assert found.own.settings["algo.grad_accum_steps"] == 2
    assert (found.nearest, found.compiled_runs, found.candidates[0].exact) == (None, 0, False)
    names = [phase.name for phase in found.candidates[0].phases]
    assert names == ["reshard", PREFILL, DECODE, UPDATE, OPTIMIZER]  # one step without a critic scores nothing
    # More accumulation gathers more and stores less.
    sharded = [one for one in found.candidates if one.mesh["fsdp"] == 4 and one.config.rollout.slots == 0]
    by_steps = {one.config.algo.grad_accum_steps: one for one in sharded if not one.exact}
    assert len(by_steps) > 1
    few, many = by_steps[min(by_steps)], by_steps[max(by_steps)]
    sent = [next(x for x in one.phases if x.name == UPDATE).communication for one in (few, many)]
    assert sent[0] < sent[1]
    assert many.update_peak < few.update_peak


def test_held_out_episodes_count_where_they_are_more():
    few = given(train={"validation_episodes": 1}).rank(None, MACHINE, compiled=0)
    many = given(train={"validation_episodes": 256}, evaluation={"episodes": 256}).rank(None, MACHINE, compiled=0)
    for one, other in zip(few.candidates, many.candidates, strict=True):
        assert other.rollout_peak > one.rollout_peak
        assert other.seconds == one.seconds
    # So do the greedy episodes of ReMax.
    made = given(algo={"advantage": Remax()})
    replicated = [one for one in made.rank(None, MACHINE, compiled=0).candidates if one.mesh["data"] == 4]
    (alone,) = [one for one in replicated if (one.config.rollout.slots, one.config.algo.grad_accum_steps) == (0, 1)]
    greedy = next(phase for phase in alone.phases if phase.name == GREEDY)
    prefill, decode = (made.costs.cost(name, 2).flops for name in (PREFILL, DECODE))  # two of eight groups a replica
    assert greedy.compute == pytest.approx(2 * (prefill + 8 * decode) / MACHINE.flops)
    # The file's own mesh has an estimate where it wastes devices: two key-value heads are not shared by four.
    assert given(mesh={"tensor": 4}).rank(None, MACHINE, compiled=0).own.mesh["tensor"] == 4


def test_what_a_sweep_leaves_out_and_what_limits_a_phase_is_said():
    assert given().rank(None, MACHINE, compiled=0).notes == []
    found = given(algo={"packing": True, "length_buckets": 1, "dynamic_sampling": 5}).rank(None, MACHINE, compiled=0)
    assert [note.split(",")[0] for note in found.notes] == ["algo.packing is true", "algo.dynamic_sampling is 5"]
    assert as_table(found, None).renderables
    for field, limit in {"flops": "compute", "bandwidth": "memory", "link": "communication"}.items():
        machine = dataclasses.replace(Peaks(flops=1e30, bandwidth=1e30, link=1e30), **{field: 1.0})
        fixed = given().rank(None, machine, compiled=0)
        assert {x.limit for one in fixed.candidates for x in one.phases if x.seconds > 1} == {limit}


def test_the_nearest_that_fits_is_named_and_only_data_crosses_slices(found):
    sweeper, least = given(), min(one.peak for one in found.candidates)
    tight = sweeper.rank(int(0.97 * least), MACHINE, compiled=0)
    assert not any(one.fits for one in tight.candidates)
    assert tight.nearest.peak <= 0.97 * least
    changed = {key for key in SEARCHED if tight.nearest.settings[key] != tight.own.settings[key]}
    assert changed & {"model.remat", "optim.offload", "mesh.rollout"}
    hopeless = sweeper.rank(1, MACHINE, compiled=0)
    assert hopeless.nearest is None
    assert json.loads(json.dumps(as_json(hopeless, 1), allow_nan=False))["candidates"][0]["fits"] is False
    sweeper.slices = 2  # which only data crosses
    meshes = {tuple(one.mesh.values()) for one in sweeper.rank(GIB, MACHINE, compiled=0).candidates}
    assert meshes == {mesh for mesh in (tuple(one.mesh.values()) for one in found.candidates) if mesh[0] % 2 == 0}
    assert (2, 1, 1, 2) in meshes
