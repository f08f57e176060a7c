import jax
import numpy as np
import pytest
import yaml

from agentrl_jax.config import Config, ImitationConfig, PromptConfig, RolloutConfig, TaskConfig, decode
from agentrl_jax.errors import BadValue
from agentrl_jax.evaluate.seen import seen_levels
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.level_splits import TaskLevels, level_splits
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.services.shadow_env import NoisyOracle
from agentrl_jax.setup import build, build_model, service_demonstrations
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.setup.start import demonstration_rows, imitated_rows
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry
from envs_jax.splits import Split

LEVELS, TURNS, BUDGET = 32, 2, 3
PROMPT = PromptConfig(max_turns=TURNS, max_response_tokens=40, max_actions=BUDGET)


LAKE = "FrozenLake-deterministic"


def make_batched_env(*names, actions, levels=""):
    limits = {"max_turns": TURNS, "max_actions_per_turn": actions, "max_actions": BUDGET}
    tasks = tuple(TaskConfig(env=name, groups=1, levels=levels) for name in names)
    config = Config(tasks=tasks, prompt=PromptConfig(think=True, **limits))
    return build.build_compiled_env(config, load_small())


def demonstrated(batched_env, plans, context=FULL, levels=LEVELS, **options):
    imitation = ImitationConfig(plans=plans, levels=levels)
    inputs = batched_env, level_splits(batched_env), jax.random.key(3), PROMPT, imitation, context
    return jax.tree.map(np.asarray, setup_demonstrations.demonstrations(*inputs, **options))


@pytest.mark.nightly
def test_demonstrations_end_where_the_context_is_full():
    """Turns that fit are imitated as without a limit, and nothing after them is."""
    trajectory, imitated = demonstrated(make_batched_env(LAKE, actions=1), "random")
    whole = jax.tree.map(np.asarray, imitated_rows(Config(), trajectory, imitated))
    turns, length = trajectory.num_turns, whole.length
    assert set(turns) == {1, TURNS}
    limit = int(length[turns == TURNS].min()) - 1
    assert length[turns == 1].max() <= limit
    limited = Config(rollout=RolloutConfig(context_tokens=limit))
    cut = jax.tree.map(np.asarray, imitated_rows(limited, trajectory, imitated))
    uncut, left = (rows.response_mask.reshape(LEVELS, TURNS, -1) for rows in (whole, cut))
    np.testing.assert_array_equal(uncut[:, 0], left[:, 0])
    assert (uncut[:, 1].any(), left[:, 1].any()) == (True, False)
    assert cut.tokens.shape[1] == limit >= cut.length.max()
    read = [np.take_along_axis(x.tokens, cut.position, 1)[cut.response_mask] for x in (whole, cut)]
    np.testing.assert_array_equal(*read)


def test_planners_room_and_as_many_levels_are_asked_for(tmp_path):
    for name, room, imitation, key in (
        ("Bandit", 40, {"plans": "optimal"}, "Bandit"),
        ("Bandit", 3, {"plans": "random"}, "max_response_tokens"),
        ("FrozenLake", 40, {"random_start": 2}, "imitation.random_start"),
        ("FrozenLake", 40, {"dagger_rounds": 2}, "imitation.dagger_rounds"),
        ("SimpleSokoban", 40, {"random_start": 2}, "imitation.random_start"),
        ("FrozenLake", 40, {"plans": "exploring"}, "imitation.plans"),
        ("FrozenLake", 40, {"images": 2}, "imitation.images"),
    ):
        with pytest.raises(BadValue) as refused:
            setup_demonstrations.check_imitable(make_batched_env(name, actions=1), room, ImitationConfig(**imitation))
        assert refused.value.key == key
    setup_demonstrations.check_imitable(make_batched_env("Bandit", actions=1), 40, ImitationConfig(plans="random"))
    np.save(tmp_path / "pack.npy", np.array([[[3, 0, 2], [0, 0, 0], [0, 1, 0]]], np.int8))
    batched_env = make_batched_env(LAKE, actions=2, levels=str(tmp_path / "pack.npy"))
    with pytest.raises(BadValue, match="have only 1 different") as refused:
        demonstrated(batched_env, "optimal", levels=2)
    assert (refused.value.key, refused.value.value) == ("imitation.levels", 2)


def test_optimal_plans_are_of_different_training_levels(monkeypatch):
    """A long search shows progress, and its pieces give the same plans."""
    batched_env, lines = make_batched_env(LAKE, actions=2), []
    trajectory, _ = demonstrated(batched_env, "optimal", report=lines.append)
    assert len(set(level_ids(trajectory))) == LEVELS
    assert trajectory.success.all()
    task = batched_env.tasks[0]
    boards = registry.sample_levels(task.env, task.env_params, jax.random.split(jax.random.key(0), 512), Split.TEST)
    assert seen_levels(set(level_ids(trajectory)), [], TaskLevels(), task, boards)["seen_images"] == 0
    assert lines == []
    monkeypatch.setattr(setup_demonstrations, "PLANNED_AT_ONCE", LEVELS // 2)
    pieces, _ = demonstrated(batched_env, "optimal", report=lines.append)
    assert len(lines) > 1
    assert f"{LEVELS} of {LEVELS}" in lines[-1]
    jax.tree.map(np.testing.assert_array_equal, trajectory, pieces)


BALLS = 32


@pytest.fixture(scope="module")
def of_balls():
    prompt = PromptConfig(max_turns=6, max_actions_per_turn=2, max_actions=12, max_response_tokens=80)
    tasks = (TaskConfig(env="BabyAI-GoToRedBallNoDists", groups=1, options={"mode": "upstream"}),)
    batched_env = build.build_compiled_env(Config(tasks=tasks, prompt=prompt), load_small())

    def of_balls(**options):
        imitation = ImitationConfig(plans="optimal", levels=BALLS, **options)
        inputs = batched_env, level_splits(batched_env), jax.random.key(3), prompt, imitation, FULL
        return jax.tree.map(np.asarray, setup_demonstrations.demonstrations(*inputs))

    return of_balls


@pytest.mark.nightly
def test_plans_after_random_actions_solve_the_level_and_only_they_are_imitated(of_balls):
    """The random turns are part of the episode; no turn has both kinds of actions."""
    assert of_balls()[1].all()
    trajectory, imitated = of_balls(random_start=3)
    assert trajectory.success.all()
    assert not trajectory.turn.format_error[trajectory.turn_mask].any()
    before, actions = (~imitated).sum(axis=1), trajectory.turn.actions
    assert set(before) == {0, 1, 2}
    assert (trajectory.num_turns > before).all()
    assert {(actions[row, : before[row]] >= 0).sum() for row in range(BALLS)} == {0, 1, 2, 3}


@pytest.mark.nightly
def test_images_of_levels_are_solved_by_the_same_plans_and_are_new_training_levels(of_balls, monkeypatch):
    trajectory, imitated = of_balls(random_start=2, images=3)
    count = len(trajectory.num_turns)
    assert 2 * BALLS < count < 4 * BALLS  # a fifth is held out, and six colors of one ball repeat
    assert imitated.shape == (count, 6)
    assert trajectory.success.all()
    assert len(set(level_ids(trajectory))) == count
    held_out = np.array(Split.TEST)
    monkeypatch.setattr(setup_demonstrations, "splits_of_levels", lambda *args: np.full(len(args[2]), held_out))
    assert level_ids(of_balls(random_start=2, images=3)[0]) == level_ids(trajectory)[:BALLS]


@pytest.mark.nightly
def test_random_plans_are_uniform_and_said_as_the_grammar_reads_them():
    batched_env = make_batched_env("Bandit", LAKE, actions=2)
    trajectory, _ = demonstrated(batched_env, "random", SINGLE_TURN)
    task, actions = trajectory.ids.task, trajectory.turn.actions
    assert np.bincount(task).tolist() == [LEVELS] * 2
    for index, of_task in enumerate(batched_env.tasks):
        assert set(actions[task == index].flat) - {-1} == set(range(of_task.env.num_actions))
    assert not trajectory.turn.format_error[trajectory.turn_mask].any()
    for row in range(len(task)):
        response = trajectory.response.tokens[row, 0, : trajectory.response.length[row, 0]]
        text = load_small().decode(response.tolist())
        said = text.removeprefix("</think><answer>").removesuffix("</answer>").split("||")
        executed = [batched_env.tasks[task[row]].env.actions[a] for a in actions[row, 0] if a >= 0]
        assert said[: len(executed)] == executed
        assert 1 <= len(said) <= 2


SERVED = """
tasks: [{env: textcraft, groups: 2, items: 0-7, held_out: 12-13}]
prompt: {style: bare, max_turns: 8, max_response_tokens: 80}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, observation_tokens: 1400}
rollout: {group_size: 2, context_tokens: 3000}
imitation: {levels: 8, steps: 1, batch: 2, noise: 0.4}
train: {validation_episodes: 2}
"""


@pytest.mark.nightly
def test_turns_of_the_random_player_are_read_and_not_imitated(tmp_path, monkeypatch):
    config, imitated = decode(yaml.safe_load(SERVED)), {}

    class Recorded(NoisyOracle):
        def __init__(self, service, item, noise, seed):
            super().__init__(service, item, noise, seed)
            self.turns, self.of_item = enumerate(noise), imitated.setdefault(item, {})

        def act(self, observation):
            turn, at_random = next(self.turns)
            action = super().act(observation)
            self.of_item |= {} if at_random else {turn: f" {action}"}
            return action

    monkeypatch.setattr(service_demonstrations, "NoisyOracle", Recorded)
    tokenizer = build_model.load_tokenizer(config.model)
    services = Services(config, lambda: tmp_path)
    batched_env, _ = batched_envs(config, tokenizer, services)
    inputs = config, batched_env, level_splits(batched_env), tokenizer, services, jax.random.key(0)
    rows, taught = jax.tree.map(np.asarray, demonstration_rows(*inputs, report=print)[0]), []
    for tokens, position, sampled, turn in zip(rows.tokens, rows.position, rows.response_mask, rows.turn):
        said = {t: tokens[position[sampled & (turn == t)]][:-1].tolist() for t in np.unique(turn[sampled]).tolist()}
        taught.append({t: tokenizer.decode(ids) for t, ids in said.items()})
    assert len(taught) > 3
    assert all(turns in imitated.values() for turns in taught)
    assert any(max(turns) >= len(turns) for turns in taught), "no turn of a random player is among them"
