"""Folders of runs with a recorded rollout of given responses, with made-up numbers of the learner."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import tiny_run
import yaml
from prompt_texts import given_responses

from agentrl_jax.config import decode, save_resolved
from agentrl_jax.learner.recorded import RecordedAdvantages, RecordedScores
from agentrl_jax.models.actor_critic import policy_decoder
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.runs.rollout_records import Header, RolloutRecord, write_record
from agentrl_jax.setup import build, build_inputs, build_model

GROUP_SIZE = 3

FULL = """
tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake, groups: 2, name: lake}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 4, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 3}
algo: {preset: starpo}
"""
SINGLE = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 9, max_response_tokens: 5, style: ragen, think: true}
model: {pretrained: MODEL}
agent: single_turn
rollout: {group_size: 3}
algo: {preset: starpo}
"""
"""The chat template of MODEL is that of `made_run`."""

RESPONSES = ("Right</answer><|end|>", "Down</answer><|end|>", 9 * "Up <b>")
"""What the members of a group say in every turn. One of the first two solves the levels of `tiny_run`; the third does
not end, and is cut at the maximum number of tokens."""


def write_run(folder: Path, text: str = FULL, iteration: int = 4) -> RolloutRecord:
    folder.mkdir()
    (folder / "levels.txt").write_text(tiny_run.LEVELS)
    config = decode(yaml.safe_load(text.replace("LEVELS", str(folder / "levels.txt"))), source="recorded run")
    save_resolved(config, folder / "config.yaml")
    pretrained = build_model.load_model(config.model)
    tokenizer = build_model.load_tokenizer(config.model, pretrained)
    model = build_model.build_model(config, tokenizer, pretrained)
    batched_env = build.build_compiled_env(config, tokenizer)
    engine = build_inputs.engine_config(config, tokenizer, group_size=GROUP_SIZE, slots=0)
    state = build_model.initial_state(config, model, pretrained)(jax.random.key(0))
    ids = build_inputs.training_ids(config)
    settings = build_inputs.rollout_settings(config, batched_env, len(ids.group), 1.0)
    texts = [[text] * config.prompt.max_turns for text in RESPONSES] * (len(ids.group) // GROUP_SIZE)
    given = given_responses(tokenizer, texts, config.prompt.max_response_tokens)

    @jax.jit
    def play(params):
        policy = policy_decoder(params, model)
        key = jax.random.key(1)
        return rollout(policy, model.decoder, batched_env, engine, key, ids, settings, responses=given)[0]

    played = jax.tree.map(np.asarray, play(state.merged_params()))
    sampled, logprob = np.asarray(played.response_mask), played.response.logprob
    tasks = tuple(task.label for task in config.tasks)
    sizes = {"group_size": GROUP_SIZE, "episodes": len(ids.group), "horizon": config.prompt.max_turns}
    header = Header(iteration + 1, iteration, 0, tasks, temperature=1.0, **sizes)
    learner_logprob = np.where(sampled, logprob + 0.01, 0).astype(np.float32)
    scores = RecordedScores(learner_logprob, np.full(logprob.shape, np.nan, np.float32))
    advantage = np.random.default_rng(2).normal(size=sampled.shape)
    advantages = RecordedAdvantages(np.where(sampled, advantage, 0).astype(np.float32), sampled)
    record = RolloutRecord.of_trajectory(header, played, scores, advantages)
    failed = record.failed.copy()
    failed[-1, 0] = True  # as if the environment of the last episode had failed
    record = dataclasses.replace(record, failed=failed, attempt=np.zeros_like(record.format_error))
    write_record(folder, record)
    return record
