"""The update with a teacher that reads hints, against the same step written out."""

import dataclasses

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import GRPO, HINTS, KEY, NO_CRITIC, ONES, TRAJECTORY, assert_close, learn, settings
from taught import RULES, check_equal_contexts, started, taught

from agentrl_jax.algos import losses
from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import update as updates
from agentrl_jax.learner.row_scores import RowScores
from agentrl_jax.models.actor_critic import TokenScores
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.hints import with_hints
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs


def test_a_teacher_that_reads_the_same_teaches_exactly_nothing():
    check_equal_contexts("sampled")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_an_update_is_that_of_the_written_out_loss(rule):
    numbers = settings(distillation__rl_coef=0.25, distillation__coef=0.5, lr=1.0, distillation__ema_rate=0.25)
    found, metrics, moved = taught(rule, numbers)
    start = started(rule)
    rows = pack_trajectories(TRAJECTORY, FULL)
    reads = pack_trajectories(with_hints(TRAJECTORY, HINTS), FULL)
    mask = rows.response_mask
    policy = {"current": start.params["policy"], "ema": start.teacher, "reference": start.reference}[rule.teacher]

    def logits(policy, rows):
        from agentrl_jax.models import decoder

        hidden = decoder.forward(policy, NO_CRITIC.decoder, rows.tokens)
        before = jnp.take_along_axis(hidden, rows.position[..., None] - 1, axis=1)
        return decoder.logits(policy, before)

    token = jnp.take_along_axis(rows.tokens, rows.position, axis=1)
    np.testing.assert_array_equal(
        np.where(mask, token, 0), np.where(mask, jnp.take_along_axis(reads.tokens, reads.position, axis=1), 0)
    )

    def of_token(logits):
        return jnp.take_along_axis(jax.nn.log_softmax(logits), token[..., None], axis=-1)[..., 0]

    @jax.jit
    def gradient(params):
        teacher = logits(policy, reads)

        def loss(params):
            student = logits(params["policy"], rows)
            s, t = of_token(student), of_token(teacher)
            gap = jax.lax.stop_gradient(t - s)
            if rule.loss == "full":
                p = jax.nn.log_softmax(student)
                lost = jnp.sum(jnp.exp(p) * (p - jax.nn.log_softmax(teacher)), axis=-1)
            else:
                ratio = jax.lax.stop_gradient(jnp.exp(s - rows.logprob))
                lost = -gap * jnp.minimum(ratio, rule.ratio_cap) * s
            if rule.gate == "sdar":
                lost = lost / (1 + jnp.exp(-rule.gate_slope * gap))
            measured = jnp.sum(jnp.where(mask, jnp.abs(gap), 0)) / jnp.sum(mask)
            judged = mask & (rows.turn < HINTS.turns[:, None])
            return jnp.sum(jnp.where(judged, lost, 0.0)) / jnp.sum(mask), measured

        return jax.value_and_grad(loss, has_aux=True)(params)

    (_, gap), grads = gradient(start.params)
    plain, *_ = learn(state=started(rule), numbers=settings(lr=1.0), model=NO_CRITIC, **GRPO)
    of_rl = jax.tree.map(jnp.subtract, plain.params, start.params)
    expected = jax.tree.map(lambda rl, own: 0.25 * rl - 0.5 * own, of_rl, grads)
    assert_close(expected, moved, 1e-3)
    assert metrics["distill/gap"] == pytest.approx(float(gap), rel=1e-4)
    judged = np.asarray(mask & (rows.turn < HINTS.turns[:, None]))
    assert metrics["distill/taught"] == pytest.approx(judged.sum() / mask.sum())
    assert ("distill/gate" in metrics) == (rule.gate == "sdar")
    if rule.teacher == "ema":
        average = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, start.teacher, found.params["policy"])
        assert_close(average, found.teacher)
    else:
        assert found.teacher is None


def test_only_sampled_tokens_have_a_gradient():
    draw = np.random.default_rng(5)
    shape = TRAJECTORY.response.tokens.shape[0], made_up.TURNS * made_up.SAID
    mask = pack_trajectories(TRAJECTORY, FULL).response_mask
    arrays = [jnp.asarray(draw.normal(-1, 0.5, shape), jnp.float32) for _ in range(4)]
    nothing = jnp.zeros(shape)
    before = RowScores(nothing, nothing, arrays[2], None)

    def loss(logprob, divergence, rule):
        scores = TokenScores(logprob, nothing, nothing, None, arrays[1], divergence if rule.loss == "full" else None)
        of_tokens, _ = updates._distilled(rule, scores, logprob, before)
        return jnp.sum(of_tokens * losses.token_weights(mask, "token_mean", losses.count(mask), norm_length=1.0))

    for rule, number in ((RULES["sampled"], 0), (RULES["full"], 1)):
        slope = np.asarray(jax.grad(loss, argnums=number)(arrays[0], arrays[3], rule))
        assert not slope[~mask].any()
        assert slope[mask].all()


def test_hints_without_a_teacher_that_reads_them_are_refused():
    for rule, hints in ((SelfDistillation(), None), (SelfDistillation(context="none"), HINTS)):
        with pytest.raises(BadValue) as refused:
            taught(rule, hints=hints)
        assert refused.value.key == "algo.distillation"


def test_a_rule_whose_loss_has_no_ratio_has_one_for_its_teacher():
    from agentrl_jax.config.mismatch import NoCorrection
    from agentrl_jax.config.objectives import PolicyGradient

    config = made_up.BASE.replace(objective=PolicyGradient(), mismatch=NoCorrection(), epochs=2)
    assert config.old_logprobs == "same_pass"
    assert config.replace(distillation=SelfDistillation()).old_logprobs == "learner"
    assert config.replace(distillation=SelfDistillation(loss="full")).old_logprobs == "same_pass"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["sampled", "full"])
def test_microbatches_lengths_and_devices_change_nothing(name):
    rule = RULES[name]
    numbers = settings(distillation__rl_coef=0.5, lr=1.0)
    _, metrics, whole = taught(rule, numbers)
    _, parts, split = taught(rule, numbers, grad_accum_steps=4, length_buckets=3)
    assert_close(whole, split, 1e-3)
    config = made_up.BASE.replace(distillation=rule, **GRPO)
    program = Programs(make_mesh(4)).update(NO_CRITIC, config, made_up.PLAIN)
    spread, of_four = program(started(rule), TRAJECTORY, ONES, KEY, numbers, None, HINTS)
    assert_close(whole, jax.tree.map(jnp.subtract, spread.params, started(rule).params), 1e-3)
    for found in (parts, of_four):
        assert found["distill/kl"] == pytest.approx(float(metrics["distill/kl"]), rel=1e-4)


@pytest.mark.nightly
def test_the_adapter_of_a_frozen_decoder_is_taught():
    model = dataclasses.replace(NO_CRITIC, lora=LoraConfig(rank=2, alpha=4.0, targets=("query", "up")))
    rule = SelfDistillation(loss="full", teacher="ema")
    state, metrics, moved = taught(rule, model=model)
    assert float(metrics["distill/kl"]) > 0
    assert all(np.any(x) for x in jax.tree.leaves(moved["policy"]))
    assert jax.tree.structure(state.teacher) == jax.tree.structure(state.params["policy"])


@pytest.mark.nightly
def test_equal_distributions_teach_exactly_nothing():
    check_equal_contexts("full")
