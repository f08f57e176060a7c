"""The update on made-up trajectories of unequal lengths: what it must not depend on, and what it must do."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from made_up import (
    BASE,
    EPISODES,
    GROUP_SIZE,
    GROUPS,
    GRPO,
    KEY,
    MODEL,
    ONES,
    PLAIN,
    SAID,
    SEEN,
    TRAJECTORY,
    TURNS,
    assert_close,
    fresh_state,
    make_trajectory,
    settings,
)

from agentrl_jax.config.advantages import Gae, Rloo
from agentrl_jax.config.algo import FixedKl, FractionFilter
from agentrl_jax.learner.settings import UpdateSettings
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs


def on_policy(trajectory, params, model=MODEL):
    """The trajectory with the log-probabilities of the policy, as if it had sampled it."""
    rows = pack_trajectories(trajectory, "full")
    logprob = actor_critic.logprobs(params, model, rows.tokens, rows.position, ONES)
    logprob = jnp.where(trajectory.response_mask, logprob.reshape(trajectory.response.logprob.shape), 0.0)
    return trajectory.replace(response=trajectory.response.replace(logprob=logprob))


@pytest.fixture(scope="module")
def learn():
    """Function (trajectory, state, settings, key, model, optimizer, **changes of the config) -> (state, metrics)."""

    @functools.cache
    def program(model, tx, config):
        return jax.jit(
            functools.partial(update, model=model, config=config, tx=tx, shards=Shards()),
        )

    def run(trajectory=TRAJECTORY, state=None, numbers=None, *, key=KEY, model=MODEL, tx=PLAIN, **changes):
        state = fresh_state(model, tx=tx) if state is None else state
        numbers = settings() if numbers is None else numbers
        return program(model, tx, BASE.replace(**changes))(state, trajectory, ONES, key, numbers)

    run.program = program
    return run


@pytest.fixture(scope="module")
def base(learn):
    return learn()


def step_of(state, model=MODEL):
    """Returns what the update added to the initial parameters."""
    return jax.tree.map(jnp.subtract, state.params, fresh_state(model).params)


@pytest.mark.parametrize(("devices", "group_size"), [(2, GROUP_SIZE), (8, 2)])
def test_devices_change_nothing(learn, devices, group_size):
    """Half of the devices have long responses, half short ones, so means per device would be wrong."""
    programs, base = Programs(make_mesh(devices)), learn(group_size=group_size)
    program = programs.update(MODEL, BASE.replace(group_size=group_size), PLAIN)
    arguments = (fresh_state(), TRAJECTORY, ONES, KEY, settings())
    compiled = program.lower(*arguments).compile()
    state, metrics = compiled(*arguments)
    assert_close(step_of(base[0]), step_of(state))
    for name, value in base[1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_groups_that_devices_would_share_are_refused():
    program = Programs(make_mesh(8)).update(MODEL, BASE, PLAIN)
    with pytest.raises(ValueError, match=r"16 episodes in groups of 4 cannot be divided among 8 .*multiple of 32"):
        program(fresh_state(), TRAJECTORY, ONES, KEY, settings())


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_parts_equal_the_whole(learn, aggregation):
    whole, in_parts = (learn(aggregation=aggregation, grad_accum_steps=parts) for parts in (1, 4))
    assert_close(step_of(whole[0]), step_of(in_parts[0]))
    for name, value in whole[1].items():
        np.testing.assert_allclose(in_parts[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_part_is_a_share_of_the_rows(learn, monkeypatch):
    """What a larger `grad_accum_steps` is for: less is scored at once."""
    rows = set()
    score_tokens = actor_critic.score_tokens

    def scored(params, model, tokens, *rest):
        rows.add(tokens.shape[0])
        return score_tokens(params, model, tokens, *rest)

    monkeypatch.setattr(actor_critic, "score_tokens", scored)
    learn(grad_accum_steps=8)
    assert rows == {EPISODES // 8}


@pytest.mark.parametrize("minibatches", [1, 2])
def test_parts_of_their_own_length_equal_the_whole(learn, minibatches, monkeypatch):
    lengths = set()
    score_tokens = actor_critic.score_tokens

    def scored(params, model, tokens, *rest):
        lengths.add(tokens.shape[1])
        return score_tokens(params, model, tokens, *rest)

    monkeypatch.setattr(actor_critic, "score_tokens", scored)
    whole, cut = (learn(minibatches=minibatches, grad_accum_steps=2, length_buckets=count) for count in (1, 3))
    assert len(lengths) == 3
    assert_close(step_of(whole[0]), step_of(cut[0]))
    for name, value in whole[1].items():
        np.testing.assert_allclose(cut[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_padding_changes_nothing(learn, base):
    padded, _ = learn(make_trajectory(seen=SEEN + 4, said=SAID + 3))
    assert_close(step_of(base[0]), step_of(padded))


def test_what_was_not_sampled_is_not_read_as_such(learn, base):
    """Garbage in the padding of responses and observations affects no gradient."""
    t = TRAJECTORY
    response = t.response.replace(
        tokens=jnp.where(t.response_mask, t.response.tokens, 17),
        logprob=jnp.where(t.response_mask, t.response.logprob, -50.0),
    )
    unseen = jnp.arange(SEEN) >= t.observation_length[..., None]
    dirty, _ = learn(t.replace(response=response, observation=jnp.where(unseen, 11, t.observation)))
    assert_close(step_of(base[0]), step_of(dirty))


def test_order_of_groups_changes_nothing(learn, base):
    order = (np.array([2, 0, 3, 1])[:, None] * GROUP_SIZE + np.arange(GROUP_SIZE)).ravel()
    moved, _ = learn(jax.tree.map(lambda x: x[order], TRAJECTORY))
    assert_close(step_of(base[0]), step_of(moved))


def test_numbers_change_without_a_new_program(learn, base):
    program = learn.program(MODEL, PLAIN, BASE)
    before = program._cache_size()
    of_other_rules = {
        "kl_coef",
        "turn_gamma",
        "step_weight",
        "history_power",
        "filter_value",
        "kl_target",
        "kl_horizon",
        "freeze_policy",
        "overlong_penalty",
    }
    for name in set(UpdateSettings.__dataclass_fields__) - of_other_rules:
        low, high = (learn(numbers=settings(**{name: value}))[0].params for value in (0.001, 0.9))
        assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (low, high)))), name
    assert program._cache_size() == before


def test_rates_scale_their_own_part(learn, base):
    still, _ = learn(numbers=settings(lr=0.0))
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(step_of(still)["policy"]))
    assert_close(step_of(base[0])["critic"], step_of(still)["critic"])
    half, _ = learn(numbers=settings(lr=0.05))
    assert_close(jax.tree.map(lambda x: x / 2, step_of(base[0])["policy"]), step_of(half)["policy"], 1e-3)


def test_gradient_norm_is_bounded(learn, base):
    bounded, metrics = learn(numbers=settings(lr=1.0, critic_lr=1.0, max_grad_norm=0.01))
    np.testing.assert_allclose(metrics["actor/grad_norm"], base[1]["actor/grad_norm"], rtol=1e-5)
    for part in step_of(bounded).values():
        assert float(optax.tree.norm(part)) == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_update_that_is_not_finite_is_skipped_whole(learn, bad):
    start = fresh_state()
    reward = TRAJECTORY.turn.reward.at[3, 0].set(bad)
    broken = TRAJECTORY.replace(turn=TRAJECTORY.turn.replace(reward=reward))
    state, metrics = learn(broken, start)
    for old, new in zip(jax.tree.leaves(start.params), jax.tree.leaves(state.params)):
        np.testing.assert_array_equal(old, new)
    assert (int(state.bad_updates), int(state.gradient_steps), int(state.iteration)) == (1, 0, 1)
    assert metrics["update/skipped"] == 1
    again, _ = learn(broken, state)
    assert int(again.bad_updates) == 2
    good, metrics = learn(TRAJECTORY, again)
    assert (int(good.bad_updates), int(good.gradient_steps), float(metrics["update/skipped"])) == (0, 1, 0.0)


def test_the_longest_row_of_skipped_steps_is_reported(learn):
    """The loss is not finite in some minibatches only; a good step after them hides none of them."""
    model = dataclasses.replace(MODEL, critic="none")
    reward = TRAJECTORY.turn.reward.at[:GROUP_SIZE, 0].set(jnp.nan)  # one group of four
    broken = TRAJECTORY.replace(turn=TRAJECTORY.turn.replace(reward=reward))
    longest = set()
    for seed in range(4):
        key = jax.random.key(seed)
        state, metrics = learn(broken, fresh_state(model), model=model, key=key, minibatches=8, **GRPO)
        bad = "".join("x" if x else " " for x in ~np.isfinite(metrics["grad_norm"]))
        assert metrics["update/skipped"] == bad.count("x") > 0
        assert metrics["update/skipped_in_a_row"] == max(map(len, bad.split()))
        assert int(state.gradient_steps) == bad.count(" ")
        longest.add(int(metrics["update/skipped_in_a_row"]) - int(state.bad_updates))
    assert max(longest) > 0


def test_an_episode_whose_environment_broke_is_out_of_everything(learn):
    """GRPO compares the other episodes as if the group were smaller, and only the metric `failed` counts it."""
    lost = np.isin(np.arange(EPISODES), [1, 4, 6, 8, 9, 10, 11])  # no member of group 2 is left
    model = dataclasses.replace(MODEL, critic="none")
    start = fresh_state(model)
    trajectory = on_policy(TRAJECTORY, start.params)
    failed = jnp.zeros((EPISODES, TURNS), bool).at[:, 0].set(lost)
    trajectory = trajectory.replace(turn=trajectory.turn.replace(failed=failed))
    state, metrics = learn(trajectory, start, settings(entropy_coef=0.0, lr=1.0), model=model, **GRPO)

    t = jax.tree.map(np.asarray, TRAJECTORY)
    scores = (t.turn.reward - 0.1 * t.turn.format_error).sum(axis=1)
    advantage, stds = np.zeros(EPISODES), []
    for group in np.arange(EPISODES).reshape(GROUPS, GROUP_SIZE):
        there = group[~lost[group]]
        if there.size:
            stds.append(scores[there].std(ddof=1))
            advantage[there] = (scores[there] - scores[there].mean()) / (stds[-1] + 1e-6)
    rows = pack_trajectories(trajectory, "full")
    weight = advantage[:, None] / np.sum(t.response.length[~lost])

    def objective(policy):
        logprob = actor_critic.logprobs({"policy": policy}, model, rows.tokens, rows.position, ONES)
        return -jnp.sum(jnp.where(rows.response_mask, logprob * weight, 0.0))

    expected = jax.grad(objective)(start.params["policy"])
    assert_close(jax.tree.map(jnp.negative, expected), step_of(state, model)["policy"], 1e-4)
    assert metrics["rollout/in_group_std"] == pytest.approx(np.mean(stds), rel=1e-5)
    assert metrics["train/failed"] == pytest.approx(np.mean(lost))
    assert metrics["train/return"] == pytest.approx(scores[~lost].mean(), rel=1e-5)
    played = np.asarray(TRAJECTORY.turn_mask) & ~lost[:, None]
    assert metrics["train/valid_format"] == pytest.approx(1 - t.turn.format_error[played].mean(), rel=1e-5)
    assert metrics["train/response_tokens"] == pytest.approx(t.response.length[played].mean(), rel=1e-5)


@pytest.mark.parametrize("method", ["mean", "mean_std"])
def test_normalized_returns_do_not_see_broken_episodes(learn, method):
    lost = jnp.arange(EPISODES) % 5 == 0
    turn = TRAJECTORY.turn.replace(failed=jnp.zeros((EPISODES, TURNS), bool).at[:, 0].set(lost))
    spoiled = turn.replace(reward=jnp.where(lost[:, None], 1e3, turn.reward))
    one, other = (
        learn(TRAJECTORY.replace(turn=t), advantage=Gae(reward_normalization=method))[0] for t in (turn, spoiled)
    )
    assert_close(step_of(one), step_of(other), 0.0)


def test_filter_trains_on_the_groups_that_differ_most(learn):
    """Groups 0 and 3 vary most; the others affect no gradient. The groups that vary least are the other two."""
    spread = np.repeat([3.0, 0.0, 0.5, 2.0], GROUP_SIZE)[:, None] * np.tile([1.0, -1.0, 0.5, 0.0], GROUPS)[:, None]
    reward = jnp.asarray(np.concatenate([spread, np.zeros_like(spread)], axis=1), jnp.float32)
    turn = TRAJECTORY.turn.replace(reward=reward, format_error=jnp.zeros((EPISODES, TURNS), jnp.int32))
    trajectory = TRAJECTORY.replace(turn=turn)
    other = np.repeat([False, True, True, False], GROUP_SIZE)[:, None, None]

    def garbled(rows):
        tokens = jnp.where(rows, 1, trajectory.response.tokens)
        return trajectory.replace(response=trajectory.response.replace(tokens=tokens))

    kept, metrics = learn(trajectory, filter=FractionFilter(ratio=0.5))
    assert metrics["update/trained_tokens"] == np.sum(np.asarray(TRAJECTORY.response.length)[~other[:, 0, 0]])
    untouched, _ = learn(garbled(other), filter=FractionFilter(ratio=0.5))
    assert_close(step_of(kept), step_of(untouched), 0.0)
    touched, _ = learn(garbled(~other), filter=FractionFilter(ratio=0.5))
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, kept.params, touched.params))) > 1e-4
    _, reverse = learn(trajectory, filter=FractionFilter(ratio=0.5, largest=False))
    assert reverse["update/trained_tokens"] == np.sum(np.asarray(TRAJECTORY.response.length)[other[:, 0, 0]])


def test_equal_returns_teach_a_group_nothing(learn):
    """GRPO: the gradient of a batch with zero advantages is exactly zero."""
    flat = TRAJECTORY.turn.replace(
        reward=jnp.where(jnp.arange(TURNS) == 0, 2.5, jnp.zeros((EPISODES, TURNS))),
        format_error=jnp.zeros((EPISODES, TURNS), jnp.int32),
    )
    model = dataclasses.replace(MODEL, critic="none")
    state, metrics = learn(
        TRAJECTORY.replace(turn=flat), fresh_state(model), settings(entropy_coef=0.0), model=model, **GRPO
    )
    assert metrics["actor/grad_norm"] == 0
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(step_of(state, model)))
    assert metrics["rollout/zero_std_share"] == 1


def test_first_step_on_its_own_samples_is_the_policy_gradient(learn):
    """At ratio 1 nothing is clipped and the GRPO gradient is that of -mean(advantage x logprob)."""
    model = dataclasses.replace(MODEL, critic="none")
    start = fresh_state(model)
    trajectory = on_policy(TRAJECTORY, start.params)
    state, metrics = learn(trajectory, start, settings(entropy_coef=0.0, lr=1.0), model=model, **GRPO)
    assert metrics["actor/clip_fraction"] == 0
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["rollout/logprob_gap_mean"] < 1e-5
    t = jax.tree.map(np.asarray, trajectory)
    scores = (t.turn.reward - 0.1 * t.turn.format_error).sum(axis=1).reshape(GROUPS, GROUP_SIZE)
    advantage = (scores - scores.mean(1, keepdims=True)) / (scores.std(1, ddof=1, keepdims=True) + 1e-6)
    rows = pack_trajectories(trajectory, "full")

    def objective(policy):
        logprob = actor_critic.logprobs({"policy": policy}, model, rows.tokens, rows.position, ONES)
        return -jnp.sum(jnp.where(rows.response_mask, logprob * advantage.reshape(-1, 1), 0.0)) / np.sum(
            t.response.length
        )

    expected = jax.grad(objective)(start.params["policy"])
    assert_close(jax.tree.map(jnp.negative, expected), step_of(state, model)["policy"], 1e-4)


def test_no_distance_from_the_reference_is_no_kl(learn):
    """In the loss: with equal parameters k3 and its gradient are 0. In the reward: the coefficient has no effect."""
    start = fresh_state(reference=True)
    trajectory = on_policy(TRAJECTORY, start.params)
    for where, kind in (("loss", "k3"), ("reward", "k1")):
        free, _ = learn(trajectory, start, settings(kl_coef=0.0), kl=FixedKl(apply_to=where, estimator=kind))
        held, metrics = learn(trajectory, start, settings(kl_coef=5.0), kl=FixedKl(apply_to=where, estimator=kind))
        assert abs(float(metrics["actor/kl"])) < 1e-6
        assert_close(step_of(free), step_of(held), 1e-3)


@pytest.mark.parametrize(("where", "kind"), [("loss", "k3"), ("reward", "k1")])
def test_kl_holds_the_policy_back(learn, where, kind):
    start = fresh_state(reference=True)
    far = jax.tree.map(lambda x: 1.3 * x, start.params["policy"])
    moved = start.replace(params=start.params | {"policy": far})
    trajectory = on_policy(TRAJECTORY, moved.params)
    free, _ = learn(trajectory, moved, settings(kl_coef=0.0), kl=FixedKl(apply_to=where, estimator=kind))
    held, metrics = learn(trajectory, moved, settings(kl_coef=2.0), kl=FixedKl(apply_to=where, estimator=kind))
    assert abs(float(metrics["actor/kl"])) > 0.01  # the k1 estimate can have either sign
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, free.params, held.params))) > 1e-3


def test_rows_of_single_turns_train(learn):
    state, metrics = learn(context="single_turn")
    assert metrics["update/trained_tokens"] == np.sum(TRAJECTORY.response.length)
    assert float(metrics["actor/grad_norm"]) > 0
    assert int(state.gradient_steps) == 1


def test_epochs_and_minibatches_are_as_many_steps(learn):
    state, metrics = learn(epochs=2, minibatches=4)
    assert int(state.gradient_steps) == 8
    chex.assert_shape(metrics["grad_norm"], (8,))
    assert np.all(np.asarray(metrics["grad_norm"]) > 0)
    other, _ = learn(key=jax.random.key(9), epochs=2, minibatches=4)
    assert float(optax.tree.norm(jax.tree.map(jnp.subtract, state.params, other.params))) > 0
    same, _ = learn(epochs=2, minibatches=4)
    chex.assert_trees_all_equal(state, same)


def test_compiled_update_speaks_to_nobody(learn, base):
    program = learn.program(MODEL, PLAIN, BASE)
    module = program.lower(fresh_state(), TRAJECTORY, ONES, KEY, settings()).compile()
    assert len(module.runtime_executable().hlo_modules()) == 1
    for forbidden in ("callback", "infeed", "outfeed", " send(", " recv(", "host_transfer"):
        assert forbidden not in module.as_text(), forbidden


def test_while_the_critic_warms_up_the_policy_is_held(learn, base):
    """The loss of a shared critic also reaches the decoder, which belongs to the policy."""
    program = learn.program(MODEL, PLAIN, BASE)
    before = program._cache_size()
    held, metrics = learn(numbers=settings(freeze_policy=1.0))
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(step_of(held)["policy"]))
    assert_close(step_of(base[0])["critic"], step_of(held)["critic"])
    assert metrics["actor/grad_norm"] > 0
    assert program._cache_size() == before


def test_overlong_responses_cost_their_turn(learn):
    """Responses have at most five tokens; with a buffer of two fifths, a response of four costs half the penalty."""
    length = np.asarray(TRAJECTORY.response.length)
    share = np.clip((length - 3) / 2, 0.0, 1.0)
    earned = np.asarray(TRAJECTORY.turn.reward) - 0.1 * np.asarray(TRAJECTORY.turn.format_error)
    paid = jnp.asarray(np.where(TRAJECTORY.turn_mask, earned - 0.7 * share, 0.0), jnp.float32)
    turn = TRAJECTORY.turn.replace(reward=paid, format_error=0 * TRAJECTORY.turn.format_error)
    by_hand, _ = learn(TRAJECTORY.replace(turn=turn))
    punished, metrics = learn(numbers=settings(overlong_buffer=0.4, overlong_penalty=0.7))
    assert_close(step_of(by_hand), step_of(punished))
    assert metrics["rollout/overlong"] == pytest.approx(share[np.asarray(TRAJECTORY.turn_mask)].mean(), rel=1e-5)
    assert 0 < metrics["rollout/overlong"] < 1
    returns = np.where(TRAJECTORY.turn_mask, earned - 0.7 * share, 0.0).sum(axis=1)
    assert metrics["train/return"] == pytest.approx(returns[~np.asarray(TRAJECTORY.failed)].mean(), rel=1e-4)


def speaking(episodes):
    """The trajectory with responses in only so many episodes."""
    length = jnp.where(jnp.arange(EPISODES)[:, None] < episodes, TRAJECTORY.response.length, 0)
    return TRAJECTORY.replace(response=TRAJECTORY.response.replace(length=length))


def test_fewer_rows_than_minibatches_are_as_many_steps(learn):
    """Rows are distributed evenly; empty minibatches are left out and count neither as skipped nor in the means."""
    model = dataclasses.replace(MODEL, critic="none")
    few = {"model": model, "minibatches": 8, "advantage": Rloo()}
    state, metrics = learn(speaking(5), fresh_state(model), **few)
    assert int(state.gradient_steps) == 5
    assert (np.asarray(metrics["grad_norm"]) > 0).tolist() == [True] * 5 + [False] * 3
    assert (metrics["update/skipped"], metrics["update/skipped_in_a_row"], int(state.bad_updates)) == (0, 0, 0)
    assert metrics["actor/grad_norm"] == pytest.approx(np.asarray(metrics["grad_norm"])[:5].mean(), rel=1e-5)
    empty, metrics = learn(speaking(0), fresh_state(model), **few)
    assert (metrics["update/skipped"], int(empty.bad_updates), int(empty.gradient_steps)) == (1, 1, 0)
    for name in ("loss", "actor/entropy", "actor/grad_norm", "actor/grad_norm_max"):
        assert np.isnan(metrics[name]), name
    again, _ = learn(speaking(0), empty, **few)
    assert int(again.bad_updates) == 2
