"""The environment of `host_environment.py` as a service that a run can train on, by the routes of AgentGym's `todo`.

The answer to a step has the best reward of the episode so far; 1 is a success.
"""

import itertools
import re

import uvicorn
from fastapi import Body, FastAPI
from host_environment import SIDES, Courier

PORT = 8010

app = FastAPI()
numbers = itertools.count()
couriers: dict[int, Courier] = {}
observations: dict[int, str] = {}
rewards: dict[int, float] = {}


@app.post("/create")
def create() -> int:
    """Opens an instance; its number comes back as `env_idx`."""
    number = next(numbers)
    couriers[number] = Courier()
    return number


@app.post("/reset")
def reset(env_idx: int = Body(), id: int = Body()) -> str:
    """Starts the episode of an item, which is the seed here."""
    observations[env_idx] = f"{Courier.instruction} {couriers[env_idx].reset(id)}"
    rewards[env_idx] = 0.0
    return observations[env_idx]


@app.get("/observation")
def observation(env_idx: int) -> str:
    """The last observation, which the agent is shown first."""
    return observations[env_idx]


@app.post("/step")
def step(env_idx: int = Body(), action: str = Body()) -> dict:
    """Plays the whole response of the agent."""
    result = couriers[env_idx].step(action, re.findall("|".join(SIDES), action))
    observations[env_idx] = result.observation
    rewards[env_idx] += result.reward
    return {"observation": result.observation, "reward": rewards[env_idx], "done": result.terminated}


if __name__ == "__main__":
    uvicorn.run(app, port=PORT, log_level="warning")
