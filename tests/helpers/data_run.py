"""A folder with data, and a run whose two stages learn from them."""

import json

from agentrl_jax.config import load_config
from agentrl_jax.train.run import train

SYSTEM, ENDS = "Push the box.", ("Up", "Down", "Left||Up", "Right", "Down||Down")
CONFIG = """
tasks: [{env: SimpleSokoban, groups: 1}]
prompt: {max_turns: 1, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: grpo}
stages:
  - {kind: sft, data: [FOLDER/talk.jsonl], batch: 4, epochs: 28, lr: 0.01, validation: 0.3}
  - {kind: dpo, data: [FOLDER/pairs.jsonl], batch: 3, epochs: 30, lr: 0.001}
train: {checkpoint_every: 1, keep: 9, validation_episodes: 4}
evaluation: {episodes: 4}
run_dir: FOLDER/run
"""


def said(role, content):
    return {"role": role, "content": content}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def trained(folder):
    """Writes data into the folder, and a run on them; returns the folder."""
    rows, pairs = [], []
    for number in range(8):
        prompt = [said("system", SYSTEM), said("user", f"{number} #_P_X_O#")]
        replies = [said("assistant", f"<answer>{ENDS[(number + k) % 5]}</answer>") for k in range(2)]
        rows.append({"messages": [*prompt, replies[0], said("user", "#_P#"), replies[1]]})
        if number < 5:
            pairs.append({"id": str(number), "prompt": prompt, "chosen": replies[:1], "rejected": replies[1:]})
    (folder / "talk.jsonl").write_text(lines(rows))
    (folder / "pairs.jsonl").write_text(lines(pairs))
    (folder / "data.yaml").write_text(CONFIG.replace("FOLDER", str(folder)))
    train(load_config(folder / "data.yaml"))
    return folder
