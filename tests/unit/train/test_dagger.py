import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.level_set import LevelSet
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import start
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.train.dagger import Dagger, sampled_situations
from envs_jax import registry
from envs_jax.splits import Split

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: starpo_s, filter: {ratio: 0.5}}
imitation: {plans: optimal, levels: 16, steps: 100, batch: 8, dagger_rounds: 2, dagger_levels: 12}
train: {iterations: 1, validate_every: 0, validation_episodes: 8}
evaluation: {episodes: 8}
"""


def test_situations_are_sampled_from_all_turns_that_were_reached_by_actions():
    acted = np.array([[1, 1, 1, 0], [1, 0, 1, 1], [0, 0, 0, 0]])
    turn = SimpleNamespace(actions=np.where(acted[..., None], 1, -1))
    played = SimpleNamespace(turn=turn, num_turns=np.array([3, 4, 1]))
    every, four = ([*zip(*sampled_situations(played, n, np.random.default_rng(0)))] for n in (100, 4))
    # The second episode had no action in its second turn, which is the last one that a plan can take over in.
    assert every == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    assert len({*four}) == 4


def test_rounds_on_a_level_file_play_others_until_all_were_played():
    task = SimpleNamespace(rows=lambda split: np.arange(10, 15))
    levels = LevelSet(batched_env=None, prompt=None, task=0, levels=task, split=None, seed=0)
    parts = SimpleNamespace(config=SimpleNamespace(imitation=SimpleNamespace(dagger_levels=2)), key=jax.random.key(0))
    dagger = Dagger(parts, SimpleNamespace(validations=[levels]), Path(), print)
    played = [dagger._levels(number)[0].rows[:2].tolist() for number in (1, 2, 3)]
    assert played == [[10, 11], [12, 13], [14, 10]]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    home = tmp_path_factory.mktemp("dagger")
    return RunParts(load_config(tiny_run.write_config(home, CONFIG)), lambda: home)


@pytest.fixture
def make(parts, tmp_path, monkeypatch):
    """Makes rounds of a policy of random actions, and counts its plays; its demonstrations are not made rows."""

    def play(levels, params, count, temperature, between):
        between()
        make.played += 1
        assert (params, count, temperature, levels.split) == ("policy", 12, 1.0, Split.TRAIN)
        actions = np.random.default_rng(0).integers(0, 4, (count, 3, 2))
        won = np.arange(count) % 4 == 0
        return SimpleNamespace(turn=SimpleNamespace(actions=actions), num_turns=np.full(count, 3), success=won)

    def make():
        held_out = HeldOut.of_run(parts.config, parts.eval_env, parts.eval_splits, parts.evaluation)
        return Dagger(parts, held_out, tmp_path, lambda line: None)

    monkeypatch.setattr(EvalSet, "play", play)
    monkeypatch.setattr(start, "imitated_rows", lambda config, trajectory, imitated: (trajectory, imitated))
    make.played = 0
    return make


def test_plans_take_over_from_the_policy_and_are_kept(make, tmp_path):
    """They solve their levels, and only their own turns are imitated; a later process plays nothing again."""

    def between():
        if make.played:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        make().demonstrations(1, 1, "policy", between)
    assert (make.played, (tmp_path / "dagger").exists()) == (1, False)
    make.played, dagger = 0, make()
    assert [dagger.first_chunk(number) for number in (1, 2)] == [1, 2]
    assert [dagger.due(chunk) for chunk in range(4)] == [0, 1, 2, 2]
    (trajectory, imitated), _, metrics = dagger.demonstrations(1, 1, "policy", lambda: None)
    levels = level_ids(trajectory)
    file = tmp_path / "dagger" / "1.json"
    (plans,) = json.loads(file.read_text())["plans"]
    assert metrics == {"imitation/policy_success": 0.25, "imitation/dagger_plans": len(plans)}
    assert len(set(levels)) == len({level for level, *_ in plans}) > 3
    before = np.array([cut for _, cut, _ in plans])
    assert {0, 1} <= set(before)
    played = jax.tree.map(lambda x: np.asarray(x)[: len(plans)], trajectory)
    assert played.success.all()
    assert (played.num_turns > before).all()
    np.testing.assert_array_equal(imitated[: len(plans)], np.arange(3) >= before[:, None])
    acted = np.random.default_rng(0).integers(0, 4, (12, 3, 2))
    for row, (level, cut, _) in enumerate(plans):
        np.testing.assert_array_equal(played.turn.actions[row, :cut], acted[level, :cut])
    assert not np.asarray(trajectory.num_turns)[len(plans) :].any()

    (again, _), _, _ = make().demonstrations(1, 2, "policy", lambda: None)
    assert (make.played, level_ids(again)) == (1, levels)
    np.testing.assert_array_equal(again.response.tokens, trajectory.response.tokens)
    assert set(level_ids(make().demonstrations(2, 2, "policy", lambda: None)[1])).isdisjoint(levels)
    assert make.played == 2


def test_a_round_whose_file_is_gone_or_damaged_is_named(make, tmp_path):
    dagger, file = make(), tmp_path / "dagger" / "1.json"
    digest = dagger._digest(dagger._levels(1))
    assert refusal(dagger.demonstrations, 1, 2, "policy", lambda: None).key == str(file)
    file.parent.mkdir()
    for plans in ("", "[]", "[[[12, 0, [1]]]]", '[[[0, 0, ["x"]]]]', "[[]]"):
        of = "others" if plans == "[[]]" else digest
        file.write_text(f'{{"success": [0.5], "plans": {plans}, "levels": "{of}"}}')
        error = refusal(dagger.demonstrations, 1, 2, "policy", lambda: None)
        assert (error.key, make.played) == (str(file), 0)


def test_plans_that_look_around_are_searched_where_the_first_ones_do(make, parts, monkeypatch):
    spec, asked = registry.spec("SimpleSokoban"), []

    def exploring_after(env, params, levels, limit, first):
        asked.append(len(levels))
        return [None] * len(levels)

    known = dataclasses.replace(spec, exploring_after=exploring_after)
    monkeypatch.setattr(registry, "spec", lambda name: known)
    imitation = parts.config.imitation.replace(plans="exploring")
    monkeypatch.setattr(parts, "config", parts.config.replace(imitation=imitation))
    assert make().demonstrations(1, 1, "policy", lambda: None)[2]["imitation/dagger_plans"] == 0
    assert asked == [12]
