"""Trajectories as text for people to read. Training never uses these."""

from typing import Any

import numpy as np

from agentrl_jax.text.tokenizer import Tokenizer


def transcripts(rows: Any, tokenizer: Tokenizer, task_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The episodes of a `Trajectory` of NumPy arrays: task, group, return, success, and per turn the text of both."""
    return [_episode(rows, i, tokenizer, task_names) for i in range(rows.num_turns.shape[0])]


def _episode(rows: Any, index: int, tokenizer: Tokenizer, task_names: tuple[str, ...]) -> dict[str, Any]:
    def text(tokens: np.ndarray, length: np.ndarray) -> str:
        return tokenizer.decode(tokens[:length].tolist(), skip_special=False)

    turns = [
        {
            "observation": text(rows.observation[index, t], rows.observation_length[index, t]),
            "response": text(rows.response.tokens[index, t], rows.response.length[index, t]),
            "actions": [int(a) for a in rows.turn.actions[index, t] if a >= 0],
            "reward": float(rows.turn.reward[index, t]),
            "format_error": int(rows.turn.format_error[index, t]),
        }
        for t in range(rows.num_turns[index])
    ]
    return {
        "task": task_names[int(rows.ids.task[index])],
        "group": int(rows.ids.group[index]),
        "member": int(rows.ids.member[index]),
        "prompt": text(rows.prompt[index], rows.prompt_length[index]),
        "return": float(rows.turn.reward[index].sum()),
        "success": bool(rows.turn.success[index].any()),
        "turns": turns,
    }
