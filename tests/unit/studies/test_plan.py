"""Plans against known sizes of small runs, and the published model shapes compiled for an abstract TPU."""

import jax
import pytest
import tiny_run

from agentrl_jax.config import decode
from agentrl_jax.errors import BadValue, UserError
from agentrl_jax.models import decoder
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.studies import abstract_run
from agentrl_jax.studies.abstract_run import AbstractRun, ProgramPlan
from agentrl_jax.studies.plan import make_plan

MILLIONS = {
    **{"smollm2-135m": 134.5, "qwen2.5-0.5b": 494.0, "qwen2.5-1.5b": 1543.7, "qwen2.5-3b": 3085.9},
    **{"qwen2.5-7b": 7615.6, "qwen3-0.6b": 596.0, "qwen3-1.7b": 1720.6, "qwen3-4b": 4022.5, "qwen3-8b": 8190.7},
    **{"llama-3.2-1b": 1235.8, "llama-3.2-3b": 3212.7, "llama-3.1-8b": 8030.3},
}


@pytest.mark.parametrize("name", MILLIONS)
def test_published_shapes_have_the_published_numbers_of_parameters(name):
    shapes = jax.eval_shape(lambda key: decoder.init_params(key, PUBLISHED[name]), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) / 1e6 == pytest.approx(MILLIONS[name], abs=0.06)


def test_an_offloaded_optimizer_takes_no_memory_of_the_devices():
    """Of the same programs, which take minutes to compile otherwise, only the account is compared."""
    compiled = ProgramPlan(0.0, 0, 0, 0, 0.0, 0.0, None, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractRun, "compile", lambda self, report: {"rollout": compiled, "update": compiled})
        on, off = (make_plan(decode({"optim": {"offload": x}}), jax.devices()[:1], None) for x in (False, True))
    assert (off.optimizer, on.learner_only - off.learner_only) == (0, on.optimizer)
    assert on.optimizer > 0


@pytest.mark.parametrize(
    ("algo", "names"),
    [
        ({"preset": "remax", "minibatches": 1}, ["rollout", "baseline", "update", "evaluation"]),
        ({"preset": "dapo", "minibatches": 1, "dynamic_sampling": 3}, ["rollout", "update", "evaluation"]),
    ],
    ids=["remax", "dapo"],
)
def test_the_programs_are_those_of_the_run(monkeypatch, algo, names):
    results = []

    def shapes(program, *arguments):
        results.append(jax.eval_shape(program, *arguments))
        return ProgramPlan(0.0, 0, 0, 0, 0.0, 0.0, None, ())

    monkeypatch.setattr(abstract_run, "_compiled", shapes)
    run = {"tasks": [{"env": "Bandit", "groups": 4}], "prompt": {"max_turns": 1, "max_response_tokens": 4}}
    config = decode(run | {"rollout": {"group_size": 2}, "model": {"layers": 1, "embed_dim": 16}, "algo": algo})
    plan = make_plan(config, jax.devices()[:1])
    assert list(plan.programs) == names
    found = dict(zip(names, results))
    assert found["rollout"][0].ids.group.shape == (8,)
    assert bool(found["rollout"][1].measured) == (config.algo.dynamic_sampling > 1)  # of groups played again
    assert found["evaluation"][0].ids.group.shape == (128,)
    if "baseline" in found:
        assert found["baseline"][0].ids.group.shape == (4,)


def test_an_unknown_shape_is_refused():
    with pytest.raises(BadValue) as refused:
        make_plan(decode({}), jax.devices()[:1], "gpt")
    assert (refused.value.key, refused.value.value) == ("model", "gpt")


def test_plan_at_the_command_line(tmp_path):
    file = tiny_run.write_config(tmp_path)
    refused = {"--topology v7:1 --model.embed_dim 16": "topology 'v7:1'", "--mesh.fsdp 99": "99 x 1 x 1"}
    for words, part in {**refused, "--devices banana": "--devices is", "--devices=8": "--devices is"}.items():
        code, _, err = tiny_run.command("plan", file, *words.split())
        assert (code, err.count("\n")) == (2, 1)
        assert part in err


@pytest.mark.parametrize(("name", "number"), [("fsdp", 3), ("tensor", 5)])
def test_devices_that_would_share_no_matrix_are_refused(name, number):
    with pytest.raises(UserError) as refused:
        AbstractRun(decode({"mesh": {name: number}}), make_mesh(jax.devices()[:1]), None)
    assert (refused.value.key, refused.value.value) == (f"mesh.{name}", number)
