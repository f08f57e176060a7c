"""Host environments in the engine: the same loop, one callback per turn, and failures that affect only their row."""

import collections
import dataclasses
import importlib.util
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
import xla_settings
from jax.sharding import PartitionSpec as Spec
from paths import ROOT
from prompt_texts import message_text, prefix_text

from agentrl_jax.learner import state
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.mesh import DATA, make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout import engine, rng
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.host import PART_BYTES, HostEnv, _call
from agentrl_jax.rollout.envs.host_environment import host_task
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.rollout.trajectory import RolloutSettings
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ResponseGrammar
from agentrl_jax.text.reference import parse_response

TURNS, GROUP_SIZE, EPISODES, BUDGET, DEADLINE = 4, 2, 16, 3, 2.0
TOKENIZER = toy_agent.TOKENIZER
KEY = jax.random.key(3)
SETTINGS = RolloutSettings(
    temperature=jnp.ones(EPISODES), horizon=jnp.int32(TURNS), max_actions=jnp.int32(BUDGET), env_params=()
)
IDS = build.episode_ids(
    group=np.arange(EPISODES) // GROUP_SIZE,
    member=np.arange(EPISODES) % GROUP_SIZE,
    task=np.zeros(EPISODES),
    # The first groups have fixed levels, so that tests know their seeds; the key decides the others.
    level=np.where(np.arange(EPISODES) < 10, np.arange(EPISODES) // GROUP_SIZE, -1),
)


def load_example():
    path = ROOT / "experiments" / "host_environment.py"
    spec = importlib.util.spec_from_file_location("host_environment_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Courier


Courier = load_example()
GRAMMAR = ResponseGrammar(actions=Courier.actions, think=False, forced=True, max_actions=2)


class Stage:
    """A host batched environment that counts calls, and whose environments can be changed without compiling again."""

    def __init__(self):
        self.kind = Courier
        self.calls = collections.Counter()
        task = host_task(
            "Courier",
            lambda: self.kind(),
            instruction=Courier.instruction,
            response_format=GRAMMAR,
            tokenizer=TOKENIZER,
            style="ragen",
            observation_tokens=40,
            max_turns=TURNS,
            max_actions=BUDGET,
            response_words=8,
            info_keys=Courier.info_keys,
        )
        self.task = task
        self.batched_env = HostEnv((task,), TOKENIZER, deadline=DEADLINE)
        for name in ("reset", "step"):
            self._count(name)

    def _count(self, name):
        answer = getattr(self.batched_env.host_episodes, name)

        def counted(*args):
            assert all(type(x) is np.ndarray for x in args)
            self.calls[name] += 1
            return answer(*args)

        setattr(self.batched_env.host_episodes, name, counted)

    @staticmethod
    def config(slots=0):
        return EngineConfig(
            max_turns=TURNS,
            max_response_tokens=toy_agent.MAX_RESPONSE_TOKENS,
            group_size=GROUP_SIZE,
            slots=slots,
            prefill_threshold=1.0,
            context="full",
            stop_at_answer=False,
            end_of_turn=TOKENIZER.stop_ids,
        )

    def program(self, mesh, slots=0):
        config = self.config(slots)

        def play(params, ids, settings):
            return engine.rollout(params, toy_agent.MODEL.decoder, self.batched_env, config, KEY, ids, settings)[0]

        whole = {field.name: Spec() for field in dataclasses.fields(RolloutSettings)}
        rows = RolloutSettings(**whole | {"temperature": Spec(DATA)})
        sharded = maybe_shard_map(
            play, mesh, (Spec(), Spec(DATA), rows), Spec(DATA), axes=(DATA,), replicated_results=False
        )
        return jax.jit(sharded, compiler_options=xla_settings.SAME_BITS)

    def run(self, program, kind=Courier):
        self.kind = kind
        self.calls.clear()
        trajectory = jax.tree.map(np.asarray, program(policy(), IDS, SETTINGS))
        return trajectory, dict(self.calls)


def policy():
    """The toy agent, made to say the two sides; after a side it tends to continue or to close, then to end its turn."""
    params = toy_agent.talkative_params(14)["policy"]
    sides, more, close = (jnp.array(toy_agent.vocabulary(text)) for text in ("LeftRight", "||", "</answer>"))
    end = jnp.array([TOKENIZER.end_of_turn_id])
    table = (0.2 * params["lm_head"]).at[:3].set(0.0)
    # Row 0 is an offset; row 1 is read after a side, row 2 after a closing tag (see the embedding below).
    after_side = ((1, -2.0, sides), (1, 2.5, close), (1, 3.2, more))
    for row, odds, tokens in ((0, 3.0, sides), (0, 1.5, close), (0, 1.0, end), *after_side, (2, 3.0, end)):
        table = table.at[row, tokens].set(odds)
    embedding = params["embedding"].at[:, 1:3].set(0.0).at[sides, 1].set(3.0).at[close, 2].set(3.0)
    return params | {"lm_head": table, "embedding": embedding}


@pytest.fixture(scope="module")
def stage():
    return Stage()


@pytest.fixture(scope="module")
def program(stage):
    return stage.program(make_mesh(1))


@pytest.fixture(scope="module")
def played(stage, program):
    return stage.run(program)


def responses_of(trajectory, row):
    return [
        TOKENIZER.decode_bytes(trajectory.response.tokens[row, t, : trajectory.response.length[row, t]].tolist())
        for t in range(trajectory.num_turns[row])
    ]


def text_of(tokens, length):
    return TOKENIZER.decode(tokens[:length].tolist(), skip_special=False)


def test_a_trajectory_is_what_plain_python_plays(stage, played):
    trajectory, _ = played
    kinds = collections.Counter()
    drawn = np.asarray(jax.random.key_data(rng.level_key(KEY, IDS)))[:, 1]
    assert not trajectory.turn.failed.any()
    assert not trajectory.overflow.any()
    for row in range(EPISODES):
        env = Courier()
        level = int(IDS.level[row])
        seen = env.reset(level if level >= 0 else int(drawn[row]))
        prefix = text_of(trajectory.prompt[row], trajectory.prompt_length[row])
        assert prefix == prefix_text(stage.task.prompt, TOKENIZER)
        used, reward, ended, over = 0, 0.0, False, False
        for t, data in enumerate(responses_of(trajectory, row)):
            assert not over
            expected = message_text(
                stage.task.prompt,
                seen,
                turn=t,
                actions_left=BUDGET - used,
                reward=float(np.float32(reward)),
                first=t == 0,
                response_ended=ended,
            )
            assert text_of(trajectory.observation[row, t], trajectory.observation_length[row, t]) == expected
            response = parse_response(data, GRAMMAR)
            executed = list(response.actions)[: BUDGET - used]
            step = env.step("<answer>" + data.decode("utf-8", "replace"), [Courier.actions[a] for a in executed])
            used += len(executed)
            turn = jax.tree.map(lambda x, row=row, t=t: x[row, t], trajectory.turn)
            assert turn.actions.tolist() == executed + [-1] * (2 - len(executed))
            assert turn.reward == np.float32(step.reward)
            assert turn.valid == (response.num_valid > 0)
            assert turn.format_error == (response.num_valid == 0 or response.num_valid < response.num_parsed)
            assert turn.terminated == step.terminated
            assert turn.truncated == (not step.terminated and used >= BUDGET)
            assert turn.success == step.success
            assert turn.info["delivered"] == np.float32(step.info.get("delivered", 0.0))
            over = step.terminated or used >= BUDGET
            seen, reward, ended = step.observation, step.reward, bool(trajectory.response.ended[row, t])
            kinds.update({"valid": turn.valid, "error": turn.format_error, "end": turn.terminated})
            kinds.update({"cut": turn.truncated, "success": turn.success})
        assert over or trajectory.num_turns[row] == TURNS
    assert min(kinds.values()) > 0, kinds


def test_members_of_a_group_start_alike_and_groups_do_not(played):
    first = played[0].observation[:, 0].reshape(EPISODES // GROUP_SIZE, GROUP_SIZE, -1)
    assert (first == first[:, :1]).all()
    assert len({row.tobytes() for row in first[:, 0]}) > 1
    hashes = played[0].turn.state_hash[:, 0]
    assert [tuple(a) == tuple(b) for a, b in zip(hashes[::2], hashes[1::2])] == [True] * (EPISODES // GROUP_SIZE)


def test_one_callback_a_turn(stage, program, played):
    trajectory, calls = played
    assert calls == {"reset": 1, "step": trajectory.num_turns.max()}
    assert len(stage.batched_env.host_episodes._episodes) == 0
    text = program.lower(policy(), IDS, SETTINGS).as_text()
    assert text.count("stablehlo.custom_call @xla_ffi_python_cpu_callback") == 2  # one call for reset, one for step


def test_the_same_rollout_again_is_equal_in_every_bit(stage, program, played):
    again, _ = stage.run(program)
    chex.assert_trees_all_equal(again, played[0])


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_devices_do_not_matter(stage, played, devices):
    trajectory, calls = stage.run(stage.program(make_mesh(devices)))
    assert calls["reset"] == devices
    assert calls["step"] == played[0].num_turns.reshape(devices, -1).max(axis=1).sum()
    assert_equal(trajectory, played[0])


def test_slots_do_not_matter_and_every_episode_starts_once(stage, played):
    started = []

    class Counted(Courier):
        def reset(self, seed):
            started.append(seed)
            return super().reset(seed)

    trajectory, _ = stage.run(stage.program(make_mesh(1), slots=4), Counted)
    assert len(started) == EPISODES
    assert len(stage.batched_env.host_episodes._episodes) == 0
    assert_equal(trajectory, played[0])


def assert_equal(trajectory, other):
    """Equal, except that log-probabilities may differ by the rounding between two programs."""
    np.testing.assert_allclose(trajectory.response.logprob, other.response.logprob, rtol=1e-4, atol=1e-4)
    response = dataclasses.replace(trajectory.response, logprob=other.response.logprob)
    trajectory = dataclasses.replace(trajectory, response=response)
    chex.assert_trees_all_equal(trajectory, other)


@pytest.fixture(scope="module")
def troubled(stage, program, played):
    """The same episodes with some broken environments: the rows that must fail, and the trajectory."""
    target = {row: responses_of(played[0], row)[0] for row in range(EPISODES)}
    assert target[2] != target[3]
    release = threading.Event()

    class Troubled(Courier):
        def reset(self, seed):
            self.seed, self.asked = seed, 0
            if seed == 0:
                raise RuntimeError("no such shop")
            return super().reset(seed)

        def step(self, response, actions):
            step = super().step(response, actions)
            self.asked += 1
            data = response.removeprefix("<answer>").encode()
            if self.seed == 1 and self.asked == 1 and data == target[2]:  # only one member of the group
                raise SystemExit("the shop has closed")
            if self.seed == 2:
                release.wait()
            if self.seed == 3:
                return dataclasses.replace(step, reward=float("nan"))
            if self.seed == 4:
                return dataclasses.replace(step, info={"weather": 1.0})
            return step

    result, _ = stage.run(program, Troubled)
    release.set()
    return np.array([0, 1, 2, 4, 5, 6, 7, 8, 9]), result


def test_a_row_that_breaks_fails_alone(stage, played, troubled):
    rows, trajectory = troubled
    assert np.flatnonzero(trajectory.turn.failed.any(axis=1)).tolist() == rows.tolist()
    assert trajectory.turn.failed[rows, 0].all()
    assert (trajectory.num_turns[rows] == 1).all()
    assert (trajectory.turn.reward[rows] == 0).all()
    others = np.setdiff1d(np.arange(EPISODES), rows)
    chosen = (jax.tree.map(lambda x: x[others], t) for t in (trajectory, played[0]))
    chex.assert_trees_all_equal(*chosen)
    assert len(stage.batched_env.host_episodes._episodes) == 0


def test_a_replay_asks_no_environment(stage, played, troubled):
    """It equals the rollout bit for bit, also in rows whose environment broke, and makes no callback."""
    replay = jax.jit(
        lambda params, trajectory: replay_logprobs(
            params, toy_agent.MODEL.decoder, stage.config(), trajectory, SETTINGS.temperature, tasks=1
        ),
        compiler_options=xla_settings.SAME_BITS,
    )
    stage.calls.clear()
    for trajectory in (played[0], troubled[1]):
        np.testing.assert_array_equal(replay(policy(), trajectory), trajectory.response.logprob)
    assert not stage.calls


def test_the_learner_takes_such_a_trajectory(troubled):
    _, trajectory = troubled
    config = toy_agent.CONFIG
    rule = build.learner_config(config).replace(group_size=GROUP_SIZE, task_names=("Courier",), minibatches=1)
    tx = build.build_optimizer(config)
    start = state.init_state(jax.random.key(0), toy_agent.MODEL, tx, reference=False)
    start = dataclasses.replace(start, params=start.params | {"policy": policy()})

    def learn(start, trajectory):
        settings = build.update_settings(config, 1.0)
        return update(
            start,
            trajectory,
            SETTINGS.temperature,
            KEY,
            settings,
            model=toy_agent.MODEL,
            config=rule,
            tx=tx,
            shards=Shards(1),
        )

    after, metrics = jax.jit(learn)(start, trajectory)
    assert int(after.gradient_steps) > 0
    assert metrics["update/skipped"] == 0
    assert all(np.isfinite(value).all() for value in metrics.values())
    assert metrics["train/failed"] == pytest.approx(9 / EPISODES)


def test_large_arguments_do_not_stall_many_devices():
    """Hangs forever if an argument above 100 KiB is transferred in one piece."""
    rows, width = 64, 2 * PART_BYTES // 64
    received = []

    def host(big, small):
        received.append((big.shape, int(big.sum())))
        return np.asarray(big[:, 0] + small)

    def loop(x):
        def body(carry):
            x, turn = carry
            big = jnp.broadcast_to(x[:, None], (x.shape[0], width))
            return _call(host, jax.ShapeDtypeStruct(x.shape, jnp.int32), big, jnp.ones_like(x)), turn + 1

        return jax.lax.while_loop(lambda carry: carry[1] < 20, body, (x, 0))[0]

    mesh = make_mesh()
    function = jax.jit(maybe_shard_map(loop, mesh, Spec(DATA), Spec(DATA), axes=(DATA,), replicated_results=False))
    total = rows * mesh.size
    assert function(jnp.zeros(total, jnp.int32)).tolist() == [20] * total
    assert len(received) == 20 * mesh.size
    assert {shape for shape, _ in received} == {(rows, width)}
    assert sorted(received)[-1][1] == 19 * rows * width


@pytest.mark.parametrize(
    ("options", "message"), [({"deadline": 0.0}, "deadline"), ({"deadline": 1.0, "workers": 0}, "workers")]
)
def test_limits_are_checked(stage, options, message):
    with pytest.raises(ValueError, match=message):
        HostEnv((stage.task,), TOKENIZER, **options)
