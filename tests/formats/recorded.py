"""Folders of runs with a recorded rollout: played by a random policy, with made-up numbers of the learner."""

from pathlib import Path

import jax
import numpy as np
import yaml

from agentrl_jax.config import decode, save_resolved
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.runs.rollout_records import Header, RolloutRecord, write_record
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs

GROUP_SIZE = 3

FULL = """
tasks: [{env: SimpleSokoban, groups: 2}, {env: FrozenLake, groups: 2, name: lake}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 4, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 3}
algo: {preset: starpo}
"""
SINGLE = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 9, max_response_tokens: 5, style: ragen, think: true}
model: {pretrained: MODEL}
rollout: {group_size: 3, context: single_turn}
algo: {preset: starpo}
"""
"""The chat template of MODEL is that of `made_run`."""


def write_run(folder: Path, text: str = FULL, iteration: int = 4) -> RolloutRecord:
    """Writes a run's folder with the record of one iteration; returns the record."""
    config = decode(yaml.safe_load(text), source="recorded run")
    folder.mkdir()
    save_resolved(config, folder / "config.yaml")
    pretrained = build.load_model(config.model)
    tokenizer = build.load_tokenizer(config.model, pretrained)
    model = build.build_model(config, tokenizer, pretrained)
    batched_env = build.build_compiled_env(config, tokenizer)
    engine = build.engine_config(config, tokenizer, group_size=GROUP_SIZE, slots=0)
    program = Programs(make_mesh(1)).rollout("rollout", model, batched_env, engine)
    state = build.initial_state(config, model, pretrained)(jax.random.key(0))
    ids = build.training_ids(config)
    settings = build.rollout_settings(config, batched_env, len(ids.group), 1.0)
    played = jax.tree.map(np.asarray, program(state.merged_params(), jax.random.key(1), ids, settings)[0])
    response, turn = played.response, played.turn
    random = np.random.default_rng(2)
    sampled = np.asarray(played.response_mask)
    failed = turn.failed.copy()
    failed[-1, 0] = True  # as if the environment of the last episode had failed
    header = Header(
        step=iteration + 1,
        iteration=iteration,
        roll_backs=0,
        tasks=tuple(task.label for task in config.tasks),
        group_size=GROUP_SIZE,
        episodes=len(ids.group),
        horizon=config.prompt.max_turns,
        temperature=1.0,
    )
    record = RolloutRecord(
        header=header,
        task=played.ids.task,
        group=played.ids.group,
        member=played.ids.member,
        level=played.ids.level,
        prompt=played.prompt,
        prompt_length=played.prompt_length,
        observation=played.observation,
        observation_length=played.observation_length,
        tokens=response.tokens,
        length=response.length,
        logprob=response.logprob,
        learner_logprob=np.full(response.logprob.shape, np.nan, np.float32),
        entropy=np.where(sampled, 0.1, 0).astype(np.float32),
        advantage=np.where(sampled, random.normal(size=sampled.shape), 0).astype(np.float32),
        trained=sampled,
        actions=turn.actions,
        reward=turn.reward,
        valid=turn.valid,
        format_error=turn.format_error,
        state_hash=turn.state_hash,
        terminated=turn.terminated,
        success=turn.success,
        failed=failed,
        num_turns=played.num_turns,
        truncation=played.truncation,
        overflow=played.overflow,
        final_observation=played.final_observation,
        final_observation_length=played.final_observation_length,
    )
    write_record(folder, record)
    return record
