import functools

import numpy as np
import pytest
import toy_agent
import yaml
from refusing import refusal

from agentrl_jax.config import decode, validate
from agentrl_jax.environments.levels import training_seed
from agentrl_jax.environments.start_check import check_start
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.python import Budget, service_of
from agentrl_jax.setup import build_inputs, stored_traits
from agentrl_jax.setup.level_pools import new_pools
from agentrl_jax.setup.scripted_play import play_all
from agentrl_jax.setup.service_demonstrations import response_text
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.reference import parse_response
from envs_jax.splits import Split

CONFIG = """
tasks: [{env: "python_worlds:Count", groups: 4}]
prompt: {max_turns: 4, max_actions_per_turn: 2, max_actions: 5, max_response_tokens: 24}
env: {observation_tokens: 24}
train: {validation_episodes: 4}
evaluation: {episodes: 12}
"""


def configured(name="Count", **changes):
    data = yaml.safe_load(CONFIG) | changes
    data["tasks"][0]["env"] = f"python_worlds:{name}"
    config = decode({**data, "algo": {"preset": "grpo"}})
    validate(config)
    return config


@pytest.fixture
def services(tmp_path):
    made = []

    def make(*arguments, **changes):
        made.append(Services(configured(*arguments, **changes), lambda: tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_levels_are_held_out_by_content_and_known_again_by_it(services):
    run = services()
    run.refuse_seen()
    (task,) = run.tasks.values()
    train, held_out = (run.batched_env(toy_agent.TOKENIZER, held_out=held) for held in (False, True))
    splits = level_splits(held_out).tasks[0]
    assert (len(splits.rows(Split.TEST)), len(splits.rows(Split.VALIDATION))) == (12, 4)
    assert held_out.levels(0) == 16
    assert train.levels(0) == 0

    def hashes(env, seeds):
        """What `levels.jsonl` would say of these levels."""
        identity = [(0, 0, 0, group, 0) for group in range(len(seeds))]
        everyone = np.ones(len(seeds), bool)
        env.host_episodes.reset(identity, seeds, everyone)
        nothing = np.zeros((len(seeds), 4), np.int32)
        zeros = np.zeros(len(seeds), np.int32)
        result, *_ = env.host_episodes.step(identity, zeros, zeros, 4, 5, nothing, zeros, everyone)
        assert not result.failed.any()
        return {tuple(found) for found in result.state_hash.tolist()}

    seen, tests = hashes(train, list(range(0, 4000, 40))), hashes(held_out, list(range(16)))
    assert len(tests) == 16
    assert not seen & tests
    content, bounds = task.service.content, task.levels.bounds
    contents = {content(training_seed(seed, content, bounds)) for seed in range(0, 4000, 40)}
    assert len(seen) == len(contents), "equal contents are one level"


def test_lines_are_played_within_the_budget(services):
    baselines = services().baselines(0, 3)
    assert baselines.optimal.tolist() == [1.0] * 3
    assert baselines.null.tolist() == [0.0] * 3
    assert baselines.turns["optimal"].tolist() == [2.0] * 3
    assert baselines.optimal_is == "scripted"
    run = services(prompt={"max_turns": 4, "max_actions_per_turn": 1, "max_actions": 2})
    assert run.baselines(0, 3).optimal.tolist() == [0.0] * 3, "three actions are needed"


def test_an_answer_of_a_scripted_policy_is_read_back(services):
    run = services()
    (task,) = run.tasks.values()
    (episode,) = play_all(task, task.service.oracle, task.held_out[:1], configured())
    assert (episode.actions, episode.solved) == (["up || up", "up"], True)
    env = run.batched_env(toy_agent.TOKENIZER, held_out=True)
    form = env.tasks[0].response_format
    for style in ("compact", "ragen"):
        text = response_text(configured().prompt.replace(style=style), episode.actions[0])
        assert parse_response(text.encode(), form).items == ("up", "up")


def test_after_its_end_an_episode_of_a_service_stays_as_it_is(services):
    service = get_service("python_worlds:Count")
    env = service.make(False)
    env.reset(0)
    last = env.step("up||up||UP||up")
    assert last.done
    assert service.solved(last)
    assert env.step("up") == last
    with pytest.raises(ValueError, match="item -1"):
        env.reset(-1)
    budget = service_of(services().tasks[0].workers, "Count", Budget(2, 2)).make(False)
    budget.reset(0)
    assert budget.step("up||up||up").info["truncated"] is True


def test_environments_that_cannot_be_repeated_are_refused(services):
    error = refusal(services, "Random")
    assert error.key == "Random.step"
    assert "deterministic = False" in str(error)
    pool = services().tasks[0].workers
    check_start(pool, (5,), 4)


def test_few_items_are_not_divided(services):
    run = services("Words")
    splits = level_splits(run.batched_env(toy_agent.TOKENIZER, held_out=True)).tasks[0]
    assert "5 items" in splits.undivided_reason
    assert len(splits.rows(Split.TEST)) == 5
    run.refuse_seen()
    listed = [{"env": "", "groups": 4, "items": "0-2", "held_out": "3", "validation": "4"}]
    run = services("Words", tasks=listed)
    assert run.seen_items([1]) == {0: 0}
    assert run.tasks[0].training == (0, 1, 2)
    listed[0]["held_out"] = "2,3"
    assert refusal(services("Words", tasks=listed).refuse_seen).value == [2]
    listed[0]["held_out"] = "5"
    assert "below 5" in str(refusal(services, "Words", tasks=listed))


def test_a_folder_keeps_what_prompts_need(services, tmp_path):
    run = services()
    traits = run.traits()["Count"]
    stored_traits.store_traits(tmp_path, {"Count": (traits, 0), "Lights": (traits, 77)})
    own = run.batched_env(toy_agent.TOKENIZER, held_out=True)
    engine = build_inputs.engine_config(configured(), toy_agent.TOKENIZER, group_size=1, slots=0)
    count, lights = configured(), configured(tasks=[{"env": "", "name": "Lights", "groups": 4}])
    length = functools.partial(stored_traits.stored_length, tokenizer=toy_agent.TOKENIZER, engine=engine)
    assert length(count, folder=tmp_path) == cache_length(own, engine)
    assert length(lights, folder=tmp_path) == 77
    (tmp_path / stored_traits.TRAITS_FILE).write_text('{"Count": {}}')
    assert "is damaged" in str(refusal(stored_traits.stored_traits, tmp_path))
    (tmp_path / stored_traits.TRAITS_FILE).write_text("{}")
    assert "does not have Count" in str(refusal(length, count, folder=tmp_path))


def test_an_api_model_reads_the_actions_and_plays():
    with service_task(TaskOptions(env="python_worlds:Count", episodes=2)) as task:
        episode = task.open(task.items[0], 0)
        system, user = episode.start()
        assert "Available actions: up, stay." in system[1]
        assert user[1].endswith(", at 0")
        (answer,) = episode.step("I count.\nAction: up || UP || down || up")
        assert (answer[1], episode.outcome().solved) == ("at 3", True)
        assert task.item_lines()["optimal"] == [1.0, 1.0]


@pytest.mark.parametrize("processes", [0, 1])
def test_an_environment_that_cannot_begin_is_refused(services, processes):
    for options, key in (
        ({"fault": "init"}, "Count.__init__"),
        ({"fault": "raise"}, "Count.step"),
        ({"x": 1}, "__init__"),
    ):
        tasks = [{"env": "", "groups": 4, "options": options}]
        error = refusal(services, tasks=tasks, env={"observation_tokens": 24, "processes": processes})
        assert error.key.endswith(key)


def test_seeds_are_no_fixed_set_of_levels(services):
    tasks = [{"env": "", "groups": 4, "sampling": {"kind": "distinct", "levels": 8}}]
    train = services(tasks=tasks).batched_env(toy_agent.TOKENIZER, held_out=False)
    with pytest.raises(ValueError, match="use draws") as error:
        new_pools(configured(tasks=tasks), train, level_splits(train))
    assert (error.value.key, error.value.value) == ("tasks.0.sampling.levels", 8)
