"""Every check across sections: the last value that is accepted, and the first that is refused.

A refusal names the key and the value of its row, or those that the row names last.
"""

import ast
import inspect

import pytest
import yaml
from refusing import refusal

from agentrl_jax.config import (
    checks,
    decode,
    distillation_checks,
    load,
    objective_checks,
    optim_checks,
    reward_checks,
    schedule_checks,
    stage_checks,
    task_checks,
    validate,
)
from agentrl_jax.errors import shown

GRPO = "algo: {preset: grpo}"
LORA = "model: {pretrained: smollm2-135m, lora: {rank: 8}}"
SERVICE = "{env: textcraft, groups: 8, items: 0-99, held_out: 0-9, validation: 0-9}"
SERVED = f"env: {{url: local}}\nprompt: {{style: chat}}\ntasks: [{SERVICE}]"
PYTHON = (
    "tasks: [{env: my_module:Guess, groups: 8, items: 0-7, held_out: 8-15, validation: 16-23, options: {a: 1}}, "
    "{env: my_module:Other, groups: 8}]\nenv: {processes: 2}\nprompt: {stop_at_answer: true}"
)
MIXED = f"tasks: [{SERVICE}, {{env: X, groups: 4}}, {{env: 'my_module:Guess', groups: 4}}]"
POOL = "tasks: [{env: X, groups: 4, sampling: {kind: distinct}}]"
SPREAD = "algo: {filter: none, advantage: {spread_weighted: true}}"
MEAN = "algo: {filter: none, advantage: {reward_normalization: mean}}"
HEATING = {"rollout.temperature": {"end": 0.5, "iterations": 5}}
RISING = {"entropy_coef": {"end": 0.5, "iterations": 5}}
VALUE_COEF = "algo: {schedules: {advantage.value_coef: {end: 2, iterations: 5}}}"
OWN = "algo: {preset: grpo, advantage: {kind: 'my_rules:mine', source: x}}"
AGGREGATIONS = "seq_mean_token_mean", "token_mean"
PARTS = "tasks: [{env: X, groups: 8}]\nalgo: {rewards: {tokens: {weight: 0.5}}}"
APART = "prompt: {format_penalty: 0}\nalgo: {filter: none, advantage: KIND, rewards: {tokens: tokens}, "
APART += "normalize_rewards: group}"
FADING = {"rewards.tokens.buffer": {"end": 1.0, "iterations": 5}}
FADING_TOO_FAR = {"rewards.tokens.buffer": {"end": 1.5, "iterations": 5}}
OVERSHOT = "algo.schedules.rewards.tokens.buffer.end is 1.5"
ONE = "prompt: {max_turns: 1}\nalgo: {preset: grpo}"
TWO = "tasks: [{env: X, groups: 4}, {env: Y, groups: 4}]"
SINGLE = "agent: single_turn"
IMITATION = "imitation: {levels: 8, steps: 50}"
SFT = {"kind": "sft", "data": ["a.jsonl"]}
TAUGHT = "algo: {preset: grpo, distillation: {kind: self}}"
SMALL = "tasks: [{env: X, groups: 4}]\nrollout: {group_size: 2}\nalgo: {filter: none}\ntrain: {validation_episodes: 4}"
ONE_TURN = f"{SMALL}\nprompt: {{max_turns: 1, max_response_tokens: 2}}"
NARROW = f"{SMALL}\nmodel: {{embed_dim: 8, heads: 1, kv_heads: 1, layers: 1, mlp_width: 8}}"
NARROW += "\nevaluation: {episodes: 4}\nimitation: {batch: 4}"

LIMITS = [
    # Sizes. The decoder is narrow where its cache would be refused first.
    (NARROW, "prompt.max_response_tokens", 209715, 209716, "prompt.max_turns x "),
    (ONE_TURN, "rollout.group_size", 2, 1 << 20, "groups x rollout.group_size is "),
    (ONE_TURN, "imitation.batch", 1 << 18, (1 << 18) + 1),
    (ONE_TURN, "train.validation_episodes", 1 << 18, (1 << 18) + 1),
    (ONE_TURN, "evaluation.episodes", 1 << 27, (1 << 27) + 1, "evaluation.episodes x "),
    (LORA, "model.lora.rank", 1 << 14, (1 << 14) + 1),
    # A layer has 16384 x (2 x 16384 + 3 x 384) parameters; the rows of 1,024 groups have 16384 x 80 x 2 x 64 numbers.
    ("model: {embed_dim: 16384, heads: 128, kv_heads: 1}", "model.layers", 1978, 1979, "model.layers x "),
    ("tasks: [{env: X, groups: 1024}]", "model.layers", 52428, 52429, "rows x tokens x "),
    # Tasks.
    ("tasks: [{env: X, groups: 4, name: W}, {env: W, groups: 4}]", "tasks.1.name", "", "W"),
    (POOL, "tasks.0.sampling.levels", 4, 3),
    (POOL, "algo.dynamic_sampling", 1, 2, "tasks.0.sampling is distinct"),
    ("prompt: {max_actions: 7}", "prompt.max_actions_per_turn", 7, 8),
    (TWO, "algo.balance_tasks", True, None),
    ("tasks: [{env: X, groups: 8}]", "algo.balance_tasks", False, True),
    ("tasks: [{env: X, groups: 8}]", "tasks.0.loss_weight", 1.0, 2.0),
    (f"{TWO}\nalgo: {{preset: grpo, advantage: {{whiten: true}}}}", "algo.whiten_by", "task", None),
    (f"{TWO}\nalgo: {{preset: grpo}}", "algo.whiten_by", "batch", "task"),
    # Services.
    ("", "prompt.style", "ragen", "chat"),
    (SERVED, "prompt.style", "bare", "ragen"),
    ("", "tasks.0.items", "", "0-99"),
    (SERVED, "tasks.0.items", "0-99", ""),
    (SERVED, "tasks.0.held_out", "0-9", ""),
    (f"{SERVED}\ntrain: {{validate_every: 0}}", "tasks.0.validation", "", "0-9"),
    (f"{SERVED}\ntrain: {{validate_every: 10}}", "tasks.0.validation", "0-9", ""),
    (SERVED, "train.validate_every", 1, 0, "tasks.0.validation"),
    ("", "env.score", "auto", "sum"),
    (SERVED, "prompt.observation_tokens", 0, 10),
    (SERVED, "prompt.encoder", "pieces", "canonical"),
    (SERVED, "prompt.separator", "||", "&&"),
    (SERVED, "rollout.shared_noise", False, True),
    (SERVED, "prompt.stop_at_answer", False, True),
    (SERVED, "algo.dynamic_sampling", 1, 2),
    (SERVED, "tasks.0.options", {}, {"slip": 0.1}),
    (SERVED, "env.token_file", "", "x"),
    (MIXED, "prompt.style", "compact", "chat"),
    (MIXED, "imitation.steps", 0, 50),
    # Python environments.
    (PYTHON, "tasks.0.items", "0-7", "", "tasks.0.held_out"),
    (PYTHON, "tasks.0.validation", "16-23", ""),
    (PYTHON, "tasks.0.levels", "", "file"),
    (PYTHON, "prompt.style", "compact", "chat"),
    (PYTHON, "env.url", "", "local"),
    (PYTHON, "env.score", "auto", "sum"),
    (PYTHON, "rollout.shared_noise", False, True),
    ("", "env.deadline", 60.0, 5.0),
    (SERVED, "env.processes", 0, 2),
    # Start.
    ("start: {run: x}", "start.checkpoint", "12", None),
    ("", "start.checkpoint", "last", "12"),
    ("start: {run: x}", "start.optimizer", True, None),
    ("imitation: {levels: 8, steps: 51}\nstart: {run: x}", "start.optimizer", False, True),
    ("train: {checkpoint_every: 4}", "train.keep_every", 8, 6),
    # Model.
    ("model: {pretrained: smollm2-135m}", "model.layers", 4, 3),
    ("model: {pretrained: smollm2-135m}", "model.tokenizer", "", "other"),
    ("model: {pretrained: org/name}", "model.online", True, None),
    ("", "model.online", False, True),
    ("model: {pretrained: org/name, online: true}", "model.revision", "main", None),
    ("model: {pretrained: org/name}", "model.revision", "", "main"),
    ("", "model.lora.rank", 0, 4),
    (LORA, "model.precision", "bfloat16", None),
    ("", "model.precision", "mixed", "bfloat16"),
    ("model: {precision: mixed}", "model.cache", "float32", None),
    ("", "model.cache", "activations", "float32"),
    ("model: {heads: 4}", "model.embed_dim", 136, 132),
    ("model: {heads: 4}", "model.kv_heads", 2, 3),
    # Rollout.
    ("", "rollout.temperature", 0.1, 0.0),
    ("", "rollout.slots", 128, 144),
    ("", "rollout.slots", 16, 8),
    ("tasks: [{env: X, groups: 2}]\nalgo: {filter: none}", "train.mutual_information_every", 5, None),
    ("tasks: [{env: X, groups: 1}]\nalgo: {filter: none, minibatches: 1}", "train.mutual_information_every", 0, 5),
    ("algo: {mismatch: replay}", "rollout.quantization", "none", "weights"),
    ("rollout: {quantization: weights}\nmodel: {precision: mixed}", "model.cache", "float32", None),
    ("rollout: {quantization: weights_and_cache}\nmodel: {precision: mixed}", "model.cache", "activations", "float32"),
    ("prompt: {max_turns: 2}", "agent.kind", "single_turn", None),
    ("prompt: {max_turns: 1}", "agent.kind", "full", "single_turn"),
    ("prompt: {max_turns: 3}\nagent: window", "agent.turns", 2, 3),
    ("agent: window", "prompt.encoder", "pieces", "canonical"),
    # The learning rule.
    (GRPO, "rollout.group_size", 2, 1, "algo.advantage is grpo"),
    (SPREAD, "rollout.group_size", 2, 1, "algo.advantage.spread_weighted is true"),
    ("algo: {filter: {kind: fraction, by: mean}}\nrollout: {group_size: 1}", "algo.filter.by", "length", None),
    ("algo: {filter: {kind: fraction, by: entropy_std}}", "rollout.group_size", 2, 1, "algo.filter.by is entropy_std"),
    ("algo: {filter: none}\nrollout: {group_size: 1}", "algo.dynamic_sampling", 1, 2),
    (MEAN.replace("mean", "mean, reward_grouping: task"), "rollout.group_size", 1, None),
    (MEAN, "rollout.group_size", 2, 1, "algo.advantage.reward_normalization is mean"),
    (SPREAD, "algo.filter_group_size", 2, 1, "algo.advantage.spread_weighted is true"),
    ("algo: {overlong_buffer: 0.5}", "algo.overlong_penalty", 2.0, None),
    ("", "algo.overlong_penalty", 1.0, 2.0),
    ("algo: {advantage: bi_level_gae}", "prompt.max_turns", 2, 1, "algo.advantage is bi_level_gae"),
    ("prompt: {max_turns: 1}", "algo.advantage.reward_placement", "episode", "turn"),
    ("prompt: {max_turns: 1}\nalgo: {preset: gigpo}", "algo.advantage.history", 0, 1),
    ("algo: {filter: {kind: top_k}}", "algo.filter.k", 7, 8),
    ("algo: {filter: {kind: top_p}}", "train.max_bad_updates", 2, 1, "algo.filter is top_p"),
    ("", "algo.filter_group_size", 1, 16),
    (GRPO, "algo.filter_group_size", 2, 1),
    (GRPO, "algo.filter_group_size", 15, 16),
    ("algo: {mismatch: replay}", "algo.dynamic_sampling", 1, 2),
    ("algo: {preset: rloo}", "algo.mismatch.ratio_from", "learner", "rollout"),
    ("", "algo.mismatch.ratio_from", "rollout", None),
    ("algo: {mismatch: {ratio_from: rollout}}", "algo.objective", "dppo_tv", None),
    ("algo: {mismatch: replay}", "algo.objective", "dppo_kl", None),
    ("", "algo.objective", "sapo", "dppo_tv"),
    ("algo: {mismatch: tis}", "algo.objective", "sapo", "dppo_kl"),
    ("algo: {objective: gmpo}", "algo.aggregation", "seq_mean_token_mean", "token_mean"),
    ("algo: {objective: gmpo}", "algo.tokens", "all", "top_entropy"),
    ("algo: {epochs: 2}", "algo.tokens", "kl_cov", None),
    ("algo: {epochs: 1, minibatches: 1, filter: none}", "algo.tokens", "clip_cov", "kl_cov"),
    ("algo: {entropy_target: 0.5}", "algo.entropy_step", 0.01, None),
    ("", "algo.entropy_step", 0.005, 0.01),
    ("algo: {entropy_target: 0.5}", "algo.schedules", {}, RISING, "algo.entropy_target is 0.5"),
    ("train: {iterations: 0}", "optim.average_rate", 0.0, 0.1),
    ("algo: {kl: fixed}", "algo.kl.coef", 0.001, 0.0),
    ("algo: {kl: fixed, schedules: {kl.coef: {end: 1, iterations: 5}}}", "algo.kl.coef", 0.0, None),
    ("algo: {preset: grpo, kl: {kind: fixed, estimator: k1}}", "algo.kl.apply_to", "loss", "reward"),
    ("algo: {kl: {kind: fixed, estimator: k1}}", "algo.kl.apply_to", "reward", None),
    ("algo: {schedules: {kl.coef: {end: 1, iterations: 5}}}", "algo.kl.kind", "fixed", "adaptive"),
    ("algo: {kl: adaptive}", "algo.kl.horizon", 25.7, 25.6),
    ("algo: {horizon: stepwise}", "algo.horizon.turns", [2, 5], [2, 6]),
    ("algo: {horizon: adaptive}", "algo.horizon.turns", [2, 3], [2]),
    ("algo: {horizon: stepwise}", "algo.horizon.turns", [4], [5]),
    (OWN, "algo.advantage.bootstrap_truncated", False, True),
    ("algo: {objective: {kind: 'my_rules:mine', source: x, unit: row}}", "algo.aggregation", *AGGREGATIONS),
    (
        "prompt: {max_turns: 1}\nalgo: {preset: grpo}",
        "algo.advantage",
        ["gae"],
        ["bi_level_gae"],
        "algo.advantage.0 is bi",
    ),
    # Settings of tasks.
    (TWO, "tasks.0.max_turns", 5, 6),
    (TWO.replace("4}", "4, max_turns: 3}"), "prompt.max_turns", 3, 4),
    (TWO.replace("4}", "4, temperature: 2.0}"), "algo.schedules", {}, HEATING, "algo.schedules.rollout.temperature"),
    # Parts of the reward.
    (f"{PARTS}", "algo.rewards.tokens.tasks", ["X"], ["Y"], "algo.rewards.tokens.tasks is Y"),
    (f"{PARTS}", "algo.rewards.tokens.weight", 1.0, 0.0),
    ("", "algo.rewards", {}, {"environment": "tokens"}, "algo.rewards.environment.kind is tokens"),
    (PARTS.replace("weight: 0.5", "kind: overlong"), "algo.schedules", FADING, FADING_TOO_FAR, OVERSHOT),
    ("", "algo.skip_truncated", ["turns"], ["turns", "turns"]),
    (APART.replace("KIND", "gae"), "rollout.group_size", 2, 1, "algo.normalize_rewards is group"),
    (APART.replace("KIND", "gae"), "algo.rewards", {"tokens": "tokens"}, {}, "algo.normalize_rewards is group"),
    (APART.replace("KIND", "gae"), "algo.overlong_buffer", 0.0, 0.2),
    (APART.replace("KIND", "gae"), "prompt.format_penalty", 0.0, -0.1),
    (APART.replace("KIND", "gae"), "algo.advantage.reward_placement", "episode", "turn"),
    (APART.replace("KIND", "rloo"), "algo.advantage", "rloo", "remax"),
    (APART.replace("KIND", "grpo"), "algo.advantage.normalize_by_std", False, True),
    # Schedules.
    (
        "algo: {schedules: {objective.clip_low: {end: 0.1, iterations: 5}}}",
        "algo.schedules.objective.clip_low.end",
        1.0,
        1.01,
    ),
    (
        "algo: {schedules: {objective.clip_low: {end: 0.1, iterations: 5}}}",
        "algo.schedules.objective.clip_low.end",
        0.1,
        0.2,
    ),
    (
        "algo: {schedules: {prompt.format_penalty: {end: -1, iterations: 5}}}",
        "algo.schedules.prompt.format_penalty.end",
        0.0,
        0.1,
    ),
    (
        "algo: {schedules: {rollout.temperature: {end: 2, iterations: 5}}}",
        "algo.schedules.rollout.temperature.end",
        1e-6,
        0.0,
    ),
    ("algo: {schedules: {entropy_coef: {end: 2, iterations: 5}}}", "algo.schedules.entropy_coef.end", 0.0, -0.1),
    (VALUE_COEF, "algo.advantage.kind", "gae", "grpo", "algo.schedules.advantage.value_coef.end is 2"),
    # Training.
    ("", "algo.filter.ratio", 0.125, 0.12),
    ("algo: {minibatches: 1}", "algo.grad_accum_steps", 32, 64, "algo.minibatches x algo.grad_accum_steps is 64"),
    ("algo: {minibatches: 8}", "algo.grad_accum_steps", 4, 3, "algo.minibatches x algo.grad_accum_steps is 24"),
    (f"{SINGLE}\nalgo: {{minibatches: 5}}", "prompt.max_turns", 5, 4, "algo.minibatches x algo.grad_accum_steps is 5"),
    ("algo: {packing: true}", "algo.length_buckets", 1, 2),
    ("optim: {decay: all}", "optim.weight_decay", 0.01, 0.0, "optim.decay is all"),
    (GRPO, "optim.critic_lr", None, 1e-3),
    ("algo: {preset: grpo, kl: {kind: fixed}}", "algo.kl.sync_mix", 1.0, 0.5),
    ("train: {validate_every: 0}", "train.best.metric", "validation/success", "actor/kl"),
    ("train: {validate_every: 0}", "train.stop.patience", 0, 3),
    ("train: {validate_every: 0}", "train.stop.at", None, 0.5),
    ("optim: {warmup: 2}", "optim.warmup_share", 0.0, 0.5),
    ("", "optim.groups", [{"match": "x", "lr_factor": 2.0}], [{"match": "x"}], "optim.groups.0.match is x"),
    (
        "",
        "optim.groups",
        [{"match": "x", "weight_decay": 0.0}],
        [{"match": "x", "lr_factor": 0.0, "weight_decay": 0.5}],
        "optim.groups.0.weight_decay is 0.5",
    ),
    ("optim: muon\ndevices: 2", "mesh.fsdp", 1, 2),
    ("optim: adafactor\ndevices: 2", "mesh.tensor", 1, 2),
    (GRPO, "train.critic_warmup", 0, 1),
    ("train: {iterations: 7}", "train.critic_warmup", 6, 7),
    ("imitation: {steps: 50}", "imitation.levels", 1, 0),
    # Stages.
    ("", "stages", [SFT, "rl"], [SFT, "rl", "rl"], "stages is"),
    ("", "stages", [SFT, "rl"], ["rl", SFT], "stages is"),
    (f"{IMITATION}\nstages: [imitation, rl]", "imitation.levels", 8, 0, "imitation.levels is 0"),
    (f"{IMITATION}\nstages: [imitation, rl]", "stages", ["imitation", "rl"], ["rl"], "imitation.levels is 8"),
    ("stages: [{kind: sft, data: [a]}]", "train.iterations", 0, 1),
    ("stages: [{kind: dpo, data: [a], loss: none}]", "stages.0.nll_coef", 0.5, 0.0),
    ("imitation: {levels: 8}\nstages: [{kind: evolve}]", "stages.0.steps", 5, 0),
    ("stages: [{kind: dpo, data: [a], steps: 5}]", "stages.0.levels", 0, 8),
    ("stages: [{kind: dpo, levels: 8}]", "stages.0.steps", 5, 0),
    (f"{SERVED}\nstages: [{{kind: dpo, steps: 5, data: [a]}}]", "stages.0.levels", 0, 8),
    ("stages: [{kind: sft}]", "stages.0.data", ["b.jsonl"], []),
    ("tasks: []", "stages", [SFT], [], "tasks is []"),
    ("tasks: []", "stages", [SFT], [SFT, "rl"], "tasks is []"),
    ("tasks: []\nstages: [{kind: dpo, data: [a], steps: 5}]", "stages.0.levels", 0, 8),
    ("tasks: []\nstages: [{kind: sft, data: [a]}]", "rollout.group_size", 16, 4),
    ("tasks: []\nstages: [{kind: sft, data: [a]}]", "algo.minibatches", 1, 2),
    ("imitation: {levels: 8}", "imitation.steps", 1, 0, "imitation.levels is 8"),
    (f"{SERVED}\n{IMITATION}", "imitation.noise", 0.1, None),
    (f"{SERVED}\n{IMITATION[:-1]}, noise: 0.1}}", "imitation.plans", "optimal", "random", "imitation.noise is 0.1"),
    (IMITATION, "imitation.schedule", "linear", None),
    ("", "imitation.schedule", "constant", "linear"),
    (IMITATION, "imitation.noise", 0.0, 0.1),
    ("imitation: {levels: 8, steps: 51, dagger_levels: 8}", "imitation.dagger_rounds", 2, 3),
    (f"{IMITATION[:-1]}, dagger_rounds: 1}}", "imitation.dagger_levels", 1, 0, "imitation.dagger_rounds is 1"),
    (IMITATION, "imitation.plans", "exploring", None),
    (IMITATION, "imitation.plans", "always_search", None),
    ("", "imitation.plans", "optimal", "exploring"),
    (f"{SERVED}\n{IMITATION}", "imitation.plans", "optimal", "always_search"),
    # Teachers, and plans in prompts.
    (TAUGHT, "algo.distillation.ratio_cap", 3.0, None),
    (TAUGHT.replace("self", "self, loss: full"), "algo.distillation.ratio_cap", 2.0, 3.0),
    (TAUGHT, "algo.distillation.ema_rate", 0.05, 0.1),
    (TAUGHT, "algo.distillation.gate_slope", 1.0, 2.0),
    (TAUGHT.replace("self", "self, context: none"), "algo.distillation.accept_weak_teacher", False, True),
    (TAUGHT, "algo.packing", False, True),
    (f"{TAUGHT.replace('self', 'self, context: wrong_plan')}\ntasks: [{{env: X}}]", "tasks.0.groups", 2, 1),
    (f"{SERVED}\n{TAUGHT}", "algo.distillation.context", "none", "plan"),
    (TAUGHT, "agent.kind", "full", "single_turn", "algo.distillation.context is plan"),
    (TAUGHT, "prompt.encoder", "pieces", "canonical", "algo.distillation.context is plan"),
    (IMITATION, "imitation.hinted", 0.5, None),
    ("", "imitation.hinted", 0.0, 0.5),
    (f"{SERVED}\n{IMITATION}", "imitation.hinted", 0.0, 0.5),
    (IMITATION, "imitation.images", 1, None),
    ("imitation: {levels: 8, steps: 50, plans: random}", "imitation.images", 0, 1),
    ("imitation: {levels: 8, steps: 50, plans: random}", "imitation.random_start", 0, 1),
    # Devices: 8 groups of 16, of which a quarter is kept, in minibatches of 8 rows.
    ("devices: 8\nmesh: {fsdp: 2, tensor: 2}", "mesh.sequence", 2, 3, "devices is 8"),
    ("algo: {filter: none}\nmesh: {fsdp: 2, rollout: wide}", "devices", 8, 16),
    ("devices: 2\nmesh: {fsdp: 2}", "mesh.rollout", "wide", None),
    ("", "mesh.rollout", "rows", "wide"),
    ("devices: 2\nalgo: {mismatch: replay}", "mesh.tensor", 1, 2, "algo.mismatch is replay"),
    ("devices: 2\nalgo: {mismatch: replay}", "mesh.sequence", 1, 2, "algo.mismatch is replay"),
    ("", "devices", 8, 3),
    ("algo: {minibatches: 8}", "devices", 4, 8),
    ("devices: 4", "rollout.slots", 32, 48),
    ("", "rollout.prefill_rows", 127, 128),
    ("rollout: {slots: 16}", "rollout.prefill_rows", 15, 16),
    ("algo: {filter: none}\nrollout: {slots: 1, group_size: 1}", "rollout.prefill_rows", 0, 1),
    ("devices: 2", "rollout.prefill_rows", 63, 64),
    ("devices: 2\nmesh: {fsdp: 2, rollout: wide}", "rollout.prefill_rows", 127, 128),
    # Hosts.
    ("hosts: {coordinator: auto}", "hosts.count", 0, 1),
    ("hosts: {coordinator: auto}", "hosts.index", None, 0, "hosts.count is 0"),
    ("hosts: {count: 2, index: 1}", "hosts.coordinator", "host:65535", "host:65536"),
    ("hosts: {count: 2, index: 1}", "hosts.coordinator", "host:1", "host:0"),
    ("hosts: {count: 2, index: 1}", "hosts.coordinator", "host:1", ":1"),
    ("hosts: {coordinator: 'host:1', count: 2}", "hosts.index", 1, 2, "hosts.count is 2"),
]


def with_value(base, key, value):
    data = yaml.safe_load(base) or {}
    load._put(data, key, value)
    return decode(data)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit[1]}={limit[3]}")
def test_the_limit_of_a_check(limit):
    base, key, accepted, refused, *named = limit
    validate(with_value(base, key, accepted), files=False)
    if refused is not None:
        error = refusal(validate, with_value(base, key, refused), files=False)
        value = list(error.value) if isinstance(error.value, tuple) else error.value
        if named:
            assert f"{error.key} is {shown(value)}".startswith(named[0])
            assert key.removesuffix(".kind") in str(error)
        else:
            assert (error.key, value) == (key.removesuffix(".kind"), refused)
        assert f"{error.key} is {shown(error.value)}, " in str(error)
        assert "\n" not in str(error)


MODULES = (
    checks,
    distillation_checks,
    objective_checks,
    optim_checks,
    reward_checks,
    schedule_checks,
    stage_checks,
    task_checks,
)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_check_has_a_row(module):
    lines, reached = {}, set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Yield):
            lines |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.lineno)
    for config in (with_value(base, key, refused) for base, key, _, refused, *_ in LIMITS if refused is not None):
        for _, generator in inspect.getmembers(module, inspect.isgeneratorfunction):
            if generator.__module__ != module.__name__:
                continue
            refusals = generator(config)
            reached |= {lines[refusals.gi_frame.f_lineno] for _ in refusals}
    assert sorted(set(lines.values()) - reached) == []
