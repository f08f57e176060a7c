"""Every refusal of a configuration names its key and its value: by the schema, by the checks, and by the code."""

import ast
import inspect
import shlex
from pathlib import Path
from typing import get_args, get_origin

import pytest
import yaml

import agentrl_jax
import envs_jax
from agentrl_jax.config import Config, checks, decode, load
from agentrl_jax.config.keys import child_type, every_key, sections_of
from agentrl_jax.errors import UserError, shown

ITEMS = "groups: 8, items: 0-9, held_out: 10-19, validation: 20-29"
SERVED = f"--prompt.style chat --tasks '[{{env: textcraft, {ITEMS}}}]'"
MIXED = f"--prompt.style chat --tasks '[{{env: textcraft, {ITEMS}}}, {{env: Bandit, {ITEMS}}}]'"
ONE_TURN = "--algo.filter none --prompt.max_turns 1"
GRPO = "--algo.preset grpo"
ONE_GROUP = "--tasks.0.groups 1 --algo.filter none"
CACHE = "--model.precision mixed --model.cache float32"
TURN = "--algo.advantage.reward_placement turn"
IMITATION = "--imitation.levels 8 --imitation.steps 50"

REFUSED = f"""
tasks.1.name = X                          | --tasks '[{{env: X, groups: 4}}, {{env: X, groups: 4}}]'
tasks.0.levels = no/such/file.npy         | --tasks.0.levels no/such/file.npy
prompt.max_actions_per_turn = 5           | --prompt.max_actions 4
prompt.style = chat                       | --prompt.style chat
tasks.0.items = 0-9                       | --tasks.0.items 0-9
tasks.0.items = ''                        | {SERVED} --tasks.0.items ''
tasks.0.validation = ''                   | {SERVED} --tasks.0.validation ''
tasks.1.env = Bandit                      | {MIXED}
tasks.0.options = {{slip: 0.1}}           | {SERVED} --tasks.0.options '{{slip: 0.1}}'
env.workers = 8                           | --env.workers 8
env.token_file = x                        | {SERVED} --env.token_file x
prompt.observation_tokens = 9             | {SERVED} --prompt.observation_tokens 9
prompt.encoder = canonical                | {SERVED} --prompt.encoder canonical
rollout.shared_noise = true               | {SERVED} --rollout.shared_noise true
prompt.stop_at_answer = true              | {SERVED} --prompt.stop_at_answer true
algo.dynamic_sampling = 2                 | {SERVED} --algo.dynamic_sampling 2
model.layers = 2                          | --model.pretrained x --model.layers 2
model.online = true                       | --model.online true
model.revision = x                        | --model.pretrained x --model.revision x
model.lora.rank = 4                       | --model.lora.rank 4
model.precision = bfloat16                | --model.precision bfloat16
model.cache = float32                     | --model.cache float32
model.embed_dim = 128                     | --model.heads 3
model.kv_heads = 3                        | --model.kv_heads 3
rollout.temperature = 0                   | --rollout.temperature 0
rollout.slots = 144                       | --rollout.slots 144
rollout.slots = 9                         | --rollout.slots 9
train.mutual_information_every = 2        | --train.mutual_information_every 2 {ONE_GROUP}
rollout.quantization = weights            | --rollout.quantization weights --algo.mismatch replay
model.cache = float32                     | --rollout.quantization weights_and_cache {CACHE}
rollout.context = single_turn             | {ONE_TURN} --rollout.context single_turn
algo.advantage = grpo                     | --algo.advantage grpo --rollout.group_size 1 --algo.filter none
algo.filter.by = std                      | --rollout.group_size 1
algo.dynamic_sampling = 2                 | --algo.dynamic_sampling 2 --rollout.group_size 1 --algo.filter none
algo.advantage.spread_weighted = true     | --algo.advantage.spread_weighted true --algo.filter_group_size 1
algo.overlong_penalty = 2                 | --algo.overlong_penalty 2
algo.advantage = bi_level_gae             | {ONE_TURN} --algo.advantage bi_level_gae
algo.advantage.reward_placement = turn    | {ONE_TURN} --algo.advantage.reward_placement turn
algo.filter.k = 16                        | --algo.filter '{{kind: top_k, k: 16}}'
algo.filter = top_p                       | --algo.filter top_p --train.max_bad_updates 1
algo.filter_group_size = 17               | --algo.filter_group_size 17
algo.filter_group_size = 16               | --algo.filter_group_size 16
algo.filter_group_size = 1                | {GRPO} --algo.filter_group_size 1
algo.filter_group_size = 1                | --algo.filter_group_size 1 --algo.advantage.reward_normalization mean_std
algo.dynamic_sampling = 2                 | --algo.dynamic_sampling 2 --algo.mismatch replay
algo.mismatch.ratio_from = rollout        | --algo.preset rloo --algo.mismatch.ratio_from rollout
algo.kl.coef = 0                          | --algo.kl '{{kind: adaptive, coef: 0}}'
algo.kl.coef = 0                          | --algo.kl '{{kind: fixed, coef: 0}}'
algo.kl.apply_to = reward                 | {GRPO} --algo.kl '{{kind: fixed, apply_to: reward, estimator: k1}}'
algo.kl = adaptive                     | --algo.kl adaptive --algo.schedules '{{kl_coef: {{end: 1, iterations: 5}}}}'
algo.kl.horizon = 10                      | {GRPO} --algo.kl '{{kind: adaptive, target: 0.1, horizon: 10}}'
algo.horizon.turns = [5, 8, 10]           | --algo.preset scaling_inter
algo.horizon.turns = [3]                  | --algo.horizon '{{kind: adaptive, turns: [3]}}'
algo.horizon.turns = [5]                  | --algo.horizon '{{kind: stepwise, turns: [5]}}'
algo.schedules.value_coef.end = 1         | {GRPO} --algo.schedules '{{value_coef: {{end: 1, iterations: 5}}}}'
algo.schedules.temperature.end = 1        | --algo.schedules '{{temperature: {{end: 1, iterations: 5}}}}'
algo.schedules.clip_low.end = 1.5         | --algo.schedules '{{clip_low: {{end: 1.5, iterations: 5}}}}'
algo.filter.ratio = 0.1                   | --algo.filter.ratio 0.1
algo.minibatches x algo.grad_accum_steps = 5 | --algo.minibatches 5
algo.length_buckets = 2                   | --algo.packing true --algo.length_buckets 2
optim.decay = all                         | --optim.decay all --optim.weight_decay 0
optim.critic_lr = 1.0e-3                  | {GRPO} --optim.critic_lr 1e-3
train.critic_warmup = 2                   | {GRPO} --train.critic_warmup 2
train.critic_warmup = 200                 | --train.critic_warmup 200
imitation.levels = 8                      | --imitation.levels 8
imitation.schedule = linear               | --imitation.schedule linear
imitation.noise = 0.5                     | --imitation.noise 0.5
imitation.dagger_rounds = 1               | --imitation.dagger_rounds 1
imitation.dagger_rounds = 2               | {IMITATION} --imitation.dagger_rounds 2 --imitation.dagger_levels 8
imitation.plans = exploring               | --imitation.plans exploring
imitation.images = 1                      | {IMITATION} --imitation.plans random --imitation.images 1
devices = 3                               | --devices 3
devices = 3                               | --devices 3 --mesh.fsdp 2
devices = 16                              | --devices 16 --mesh.fsdp 2 --mesh.rollout wide --algo.filter none
devices = 8                               | --devices 8 --algo.minibatches 8
mesh.rollout = wide                       | --mesh.rollout wide
algo.mismatch = replay                    | --devices 2 --mesh.tensor 2 --algo.mismatch replay
rollout.slots = 128                       | --devices 2 --rollout.slots 128
rollout.prefill_rows = 128                | --rollout.prefill_rows 128
hosts.count = 2                           | --hosts.count 2
hosts.count = 2                           | --hosts.coordinator h:1 --hosts.count 2
hosts.coordinator = h                     | --hosts.coordinator h --hosts.count 2 --hosts.index 0
prompt.max_turns x prompt.max_response_tokens = 5242880 | --prompt.max_response_tokens 1048576
groups x rollout.group_size = 8388608     | --rollout.group_size 1048576
model.lora.rank = 2147483647              | --model.lora.rank 2147483647
algo.advantage.reward_normalization = mean | {TURN} --algo.advantage.reward_normalization mean
algo.advantage.reward_grouping = batch    | --algo.advantage.reward_grouping batch
algo.advantage.history_power = 2          | --algo.advantage gigpo --algo.advantage.history_power 2
algo.advantage.anchor = observation       | --algo.advantage '{{kind: gigpo, step_weight: 0, anchor: observation}}'
algo.kl.apply_to = reward                 | --algo.preset ppo --algo.kl.estimator k2
algo.filter.include_zero = false          | --algo.filter '{{kind: top_p, include_zero: false}}'
algo.horizon.turns = [3, 2]               | --algo.horizon '{{kind: stepwise, turns: [3, 2]}}'
algo.preset = best                        | --algo.preset best
algo.advantage.kind = ppo                 | --algo.advantage ppo
algo.advantage.gamma = 0.9                | --algo.advantage grpo --algo.advantage.gamma 0.9
algo.kl.coef = 0.1                        | --algo.kl.coef 0.1
algo.clip_hihg = null                     | --algo.clip_hihg 1
seed = [1                                 | --seed '[1'
"""
ROWS = [tuple(part.strip() for part in line.split("|")) for line in REFUSED.strip().splitlines()]


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "run.yaml"
    path.write_text("")
    return path


@pytest.mark.parametrize(("about", "words"), ROWS)
def test_a_refusal_carries_and_names_its_key_and_its_value(about, words, empty):
    key, _, value = about.partition(" = ")
    with pytest.raises(UserError) as caught:
        load.load_config(empty, shlex.split(words))
    expected = value if value == "[1" else yaml.safe_load(value)
    found = caught.value.value
    assert caught.value.key.removeprefix("--") == key
    assert (list(found) if isinstance(found, tuple) else found) == expected
    message = str(caught.value)
    assert key in message
    assert "\n" not in message
    assert expected is None or f"{key} is {shown(found)}, " in message


def test_every_check_has_a_row(empty, monkeypatch):
    """A check that no row of the table reaches is not tested."""
    lines, reached = {}, set()
    for node in ast.walk(ast.parse(inspect.getsource(checks))):
        if isinstance(node, ast.Yield):
            lines |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.lineno)
    generators = [function for _, function in inspect.getmembers(checks, inspect.isgeneratorfunction)]
    monkeypatch.setattr(load, "validate", lambda config: None)
    for _, words in ROWS:
        try:
            config = load.load_config(empty, shlex.split(words))
        except UserError:
            continue
        for generator in generators:
            refusals = generator(config)
            for _ in refusals:
                reached.add(lines[refusals.gi_frame.f_lineno])
    assert sorted(set(lines.values()) - reached) == []


def bad_value(kind):
    """A value that no field of this type takes: text where there is none, else a number."""
    return 7 if kind is str or str in get_args(kind) else "?"


@pytest.mark.parametrize("key", [key for key in every_key() if key not in ("algo.schedules", "tasks")])
def test_a_value_of_a_wrong_type_is_refused_for_every_key(key):
    """By the schema, with the section's kind that has the key."""
    above, _, name = key.rpartition(".")
    kind, data, node = Config, {}, None
    for step in filter(None, above.split(".")):
        kind = child_type(kind, step)
        node = (data if node is None else node).setdefault(step, {})
    parts = [part for part in sections_of(kind) if name in part.model_fields]
    field = child_type(kind, name)
    value = bad_value(field)
    node = data if node is None else node
    if len(sections_of(kind)) > 1 and name != "kind":
        node["kind"] = parts[0].model_fields["kind"].default
    node[name] = value
    with pytest.raises(UserError) as caught:
        decode(data)
    several = len(sections_of(field)) > 1  # a text is its kind
    assert (caught.value.key, caught.value.value) == (f"{key}.kind" if several else key, value)
    assert f"{caught.value.key} is {shown(value)}, expected " in str(caught.value)
    assert get_origin(field) is not dict


def calls():
    for package in (agentrl_jax, envs_jax):
        for file in sorted(Path(package.__file__).parent.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield file, node


REFUSALS = (
    *("UserError", "BadValue", "ValueError", "WeightsError", "CheckpointError", "TopologyError"),
    "MissingPackageError",
)
ELSEWHERE = ("why", "what", "error", "refused", "text", "given", "wrong", "message")
"""Parts of a message that were made before, and may name anything."""


def is_named(part, message):
    """Whether a message has a part: literally, by the same expressions, or possibly in what was made before."""
    found = {ast.unparse(node) for node in ast.walk(message) if isinstance(node, ast.expr)}
    if isinstance(message, (ast.Name, ast.Call)) or found & {*ELSEWHERE}:
        return True
    if isinstance(part, ast.Constant):
        return str(part.value) in ast.unparse(message)
    if isinstance(part, ast.Tuple):
        return all(is_named(each, message) for each in part.elts)
    values = getattr(part, "values", ())
    parts = [each.value for each in values if isinstance(each, ast.FormattedValue)]
    return all(ast.unparse(each) in found for each in parts) if parts else ast.unparse(part) in found


def flaw(call):
    """What is wrong with a call that makes a refusal; `of` and `at` write what they are given into the message."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if not isinstance(owner, ast.Name) or owner.id not in REFUSALS:
        return None
    if owner is not call.func:
        unnamed = call.func.attr == "at" and len(call.args) > 2 and not is_named(call.args[2], call.args[1])
        return "the message does not name the value" if unnamed else None
    given = dict(zip(("key", "value"), call.args[1:])) | {each.arg: each.value for each in call.keywords}
    if not {"key", None} & given.keys():
        return "no key"
    unnamed = [name for name in ("key", "value") if name in given and not is_named(given[name], call.args[0])]
    return f"the message does not name the {unnamed[0]}" if unnamed else None


def test_every_refusal_of_the_code_has_a_key_and_names_it():
    assert [f"{file}:{node.lineno}: {flaw(node)}" for file, node in calls() if flaw(node)] == []
