"""What a bandit looks like: its arms, and the reward of the one that was pulled."""

from typing import Any

from envs_jax.bandit.env import Bandit, BanditParams
from envs_jax.scenes import Scene, text_scene


def scene(env: Bandit, state: Any, params: BanditParams) -> Scene:
    """Returns the scene of one state, see `envs_jax.scenes`."""
    shown, chosen = [int(arm) for arm in state.shown], int(state.chosen)
    lines = [f"{env.actions[arm]}: {'high' if arm % 2 else 'low'} arm" for arm in shown]
    if chosen < 0:
        lines.append("No arm was pulled yet.")
    elif chosen in shown:
        lines.append(f"{env.actions[chosen]} was pulled, reward {float(state.reward):g}.")
    else:
        lines.append(f"{env.actions[chosen]} is not one of the two arms.")
    return text_scene(lines)
