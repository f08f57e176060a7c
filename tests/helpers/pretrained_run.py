"""A run that starts from the tiny pretrained model of `made_run`."""

from made_run import write_model  # noqa: F401

RUN = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {pretrained: MODEL, critic: separate, CHANGES}
rollout: {group_size: 2}
algo: {preset: starpo}
optim: {lr: 0.01}
imitation: {levels: 4, steps: 5, batch: 4, lr: 0.03}
train: {iterations: 2, checkpoint_every: 1, validate_every: 2, validation_episodes: 4}
evaluation: {episodes: 4}
"""
CHANGES = {
    "lora": "lora: {rank: 2, targets: [query, down]}, precision: bfloat16",
    "upper": "lora: {rank: 2, targets: [query, down]}, frozen_layers: 1",
    "frozen": "frozen_layers: 1, remat: dots",
    "whole": "precision: mixed",
}


def config(model, kind):
    return RUN.replace("MODEL", str(model)).replace("CHANGES", CHANGES[kind])
