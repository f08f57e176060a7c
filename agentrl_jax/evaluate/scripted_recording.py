"""Records the episodes of scripted policies, in the files that the episodes of a run's evaluation are recorded in.

A scripted policy samples no tokens: its actions are written as responses with the small tokenizer of the package, and
everything that a policy says about tokens is NaN.

Shapes: `n` items or levels, `T` turns, `L` tokens of a response.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.level_set import level_set
from agentrl_jax.evaluate.recording import record_folder
from agentrl_jax.learner.recorded import RecordedScores
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import start_state
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.runs.rollout_records import Evaluation, Header, RolloutRecord, write_record
from agentrl_jax.services.action_parsing import ParsedAction
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environment import Service, StepResult
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.play_responses import demonstrate, play_responses
from agentrl_jax.setup.scripted_play import ScriptedEpisode
from agentrl_jax.setup.served_task import OPENINGS
from agentrl_jax.setup.service_demonstrations import Script, play_script, response_text
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.tokenizer import Tokenizer, load_small
from envs_jax import registry

Report = Callable[[str], None]

_GROUPS = 8
"""Groups of the recorded configuration, which is complete only if a run could be trained with it."""

_RESPONSE_TOKENS = 32
"""Most tokens of a response with one action of a compiled environment."""


def record_items(
    folder: str | os.PathLike[str],
    config: Config,
    plays: Sequence[Sequence[ScriptedEpisode]],
    evaluation: Evaluation,
    report: Report,
) -> None:
    """Writes episodes on a service: one file for each play of all items.

    The services are not asked again: the conversations are those that `plays` had.

    Args:
        folder: without records, see `recording.check_folder`.
        config: that the items were played with, see `scripted.connected`; its held-out items are those of `plays`.
        plays: for each play, the episode of each item.
        evaluation: what all episodes have in common.
        report: gets a line for every file.

    Raises:
        UserError: the folder cannot be written.
    """
    tokenizer = load_small()
    config = _with_room(config, plays, tokenizer)
    with record_folder(folder, config, groups=_GROUPS) as path:
        for number, episodes in enumerate(plays):
            services = Services(config, lambda: Path("."))
            try:
                (served,) = services.tasks.values()
                items = dict(zip(served.held_out, episodes, strict=True))
                service = dataclasses.replace(served.service, read=_action_of)
                services.tasks = {0: dataclasses.replace(served, service=service, pool=_Answered(items))}
                env = services.batched_env(tokenizer, held_out=True)
                played = play_script(config, env, jax.random.key(0), _script(config, episodes, tokenizer))
            finally:
                services.close()
            played = played.replace(ids=played.ids.replace(member=jnp.full_like(played.ids.member, number)))
            _write(path, played, _named_actions(service, config, episodes), config, evaluation, number, report)


def _with_room(config: Config, plays: Sequence[Sequence[ScriptedEpisode]], tokenizer: Tokenizer) -> Config:
    """The configuration with limits of tokens that cut no text."""
    episodes = [episode for play in plays for episode in play]
    shown = {answer.observation for episode in episodes for answer in episode.answers}
    written = {response_text(config.prompt, action) for episode in episodes for action in episode.actions}
    longest = (max((len(tokenizer.encode(text)) for text in texts), default=1) for texts in (shown, written))
    observation, response = longest
    return config.replace(
        env=config.env.replace(observation_tokens=max(observation, 1)),
        prompt=config.prompt.replace(max_response_tokens=max(response + 1, 2)),
    )


def _script(config: Config, episodes: Sequence[ScriptedEpisode], tokenizer: Tokenizer) -> Script:
    turns = config.prompt.max_turns
    tokens = np.zeros((len(episodes), turns, config.prompt.max_response_tokens), np.int32)
    length = np.zeros((len(episodes), turns), np.int32)
    for row, episode in enumerate(episodes):
        for turn, action in enumerate(episode.actions):
            ids = [*tokenizer.encode(response_text(config.prompt, action)), tokenizer.end_of_turn_id]
            tokens[row, turn, : len(ids)] = ids
            length[row, turn] = len(ids)
    rows = np.arange(len(episodes))
    return Script(task=np.zeros_like(rows), row=rows, tokens=tokens, length=length, imitated=length > 0)


def _action_of(response: str) -> ParsedAction:
    """The action of a response of `_script`, which was carried out as it is, whatever a service reads in responses."""
    return ParsedAction(response.removeprefix(OPENINGS[False]).strip())


class _Answered:
    """An `InstancePool` that repeats what a service has answered before."""

    def __init__(self, episodes: dict[int, ScriptedEpisode]):
        self._episodes = episodes

    def open(self, item: int, deadline: float) -> "_AnsweredLease":
        return _AnsweredLease(self._episodes[item])


class _AnsweredLease:
    """A `Lease` on a finished episode, whose actions are played in their order."""

    def __init__(self, episode: ScriptedEpisode):
        self.first, *left = episode.answers
        self._left = iter(left)

    def step(self, action: str, deadline: float) -> StepResult:
        return next(self._left)

    def screenshot(self, deadline: float) -> str:
        raise ServiceError("the episode is over")

    def leave(self, *, good: bool) -> None:
        return


def _named_actions(
    service: Service, config: Config, episodes: Sequence[ScriptedEpisode]
) -> Int[np.ndarray, "n T A"] | None:
    """The ids of the primitive actions of an environment in this process; None if they are not known."""
    if service.executed is None or config.env.url != "local":
        return None
    found = [service.executed(episode.item, episode.actions) for episode in episodes]
    most = max((len(ids) for turns in found for ids in turns), default=1)
    actions = np.full((len(episodes), config.prompt.max_turns, max(most, 1)), -1)
    for row, turns in enumerate(found):
        for turn, ids in enumerate(turns):
            actions[row, turn, : len(ids)] = ids
    return actions.astype(np.int32)


def play_levels(
    folder: str | os.PathLike[str] | None, policy: str, panel: panels.Panel, seed: int, report: Report
) -> float:
    """Plays every level of a compiled environment's panel once by a scripted policy, one action a turn.

    The levels, their keys and the random transitions are those of a run's evaluation on the panel.

    Args:
        folder: for a record of the episodes, new or empty, see `recording.check_folder`; None for none.
        policy: random, with actions from `seed`; oracle, the environment's reference solution, which ends where it
            knows no action; or null, whose responses name no action.
        panel: of a compiled environment with generated levels.
        seed: of random actions.
        report: gets a line about the file.

    Returns:
        The mean number of turns of an episode.

    Raises:
        UserError: the folder cannot be written.
    """
    plays = PanelPlays(panel)
    played = plays.play(policy, seed)
    mean_turns = float(np.asarray(played.num_turns).mean())
    if folder is None:
        return mean_turns
    evaluation = Evaluation(
        sample=0,
        seed=plays.levels.seed,
        split=int(plays.levels.split),
        run="",
        iteration=0,
        panel=panel.name,
        panel_sha256=panel.sha256,
        policy=policy,
    )
    with record_folder(folder, plays.config, groups=_GROUPS) as path:
        _write(path, played, None, plays.config, evaluation, 0, report)
    return mean_turns


class PanelPlays:
    """Plays of a compiled environment's panel by scripted policies, see `play_levels`; programs are compiled once."""

    def __init__(self, panel: panels.Panel):
        self._count, self._turns = len(panel), panel.max_actions
        prompt = PromptConfig(
            style="ragen", max_turns=self._turns, max_actions_per_turn=1, max_response_tokens=_RESPONSE_TOKENS
        )
        config = Config(tasks=(TaskConfig(env=panel.env, groups=1),), prompt=prompt)
        self.config = config = panels.on_panel(config, panel, "")
        self._tokenizer = load_small()
        self._batched_env = batched_env = build.build_compiled_env(config, self._tokenizer)
        self.levels = levels = level_set(config, batched_env, None)
        self._ids = levels.ids(0, len(panel), len(panel))
        self._split = jnp.asarray(levels.levels.split(levels.split))
        self._settings = build_inputs.rollout_settings(config, batched_env, len(panel), 1.0, split=self._split)
        context = context_of(config)
        respond = functools.partial(play_responses, batched_env, context=context)
        act = functools.partial(demonstrate, batched_env, _RESPONSE_TOKENS, context=context)
        self._respond, self._act = jit_once(respond, ("respond", respond)), jit_once(act, ("act", act))

    def play(self, policy: str, seed: int) -> Trajectory:
        """Every level once by the policy random, oracle or null."""
        if policy == "null":
            return self._null()
        chosen = self._reference if policy == "oracle" else self._random(seed)
        return self._act(self.levels.key, self._settings, self._ids, chosen[..., None])

    def _null(self) -> Trajectory:
        nothing = jnp.zeros((self._count, self._turns), jnp.int32)
        parsed = ParsedResponse(
            actions=nothing[..., None] - 1, num_valid=nothing, num_parsed=nothing, format_ok=nothing > 0
        )
        tokens = jnp.full_like(nothing, self._tokenizer.end_of_turn_id)[..., None]
        return self._respond(self.levels.key, self._settings, self._ids, tokens, nothing + 1, parsed)

    def _random(self, seed: int) -> Int[Array, "n T"]:
        actions, shape = self._batched_env.tasks[0].env.num_actions, (self._count, self._turns)
        return jnp.asarray(np.random.default_rng(seed).integers(actions, size=shape, dtype=np.int32))

    @functools.cached_property
    def _reference(self) -> Int[Array, "n T"]:
        """The actions of the reference solution in the states that it meets; -1 from where it knows none."""
        task = self._batched_env.tasks[0]
        env, params = task.env, task.env_params
        solve = registry.spec(task.name).solve
        assert solve is not None, "every environment of a panel has a reference solution"

        def start(key, level):
            return start_state(env, key, level, jnp.bool_(True), params=params, split=self._split)[0]

        starts = jax.jit(jax.vmap(start))(rng.level_key(self.levels.key, self._ids), self._ids.level)
        boards = self.levels.boards(self._count)
        reference = solve(env, params, boards, jax.device_get(starts), self._turns)
        noise = rng.noise_key(self.levels.key, self._ids, shared=self._batched_env.shared_noise)

        def episode(state, noise_key, actions):
            def step(carry, turn):
                state, known = carry
                at = jnp.minimum(turn, actions.shape[0] - 1)
                action = actions[at, reference.situation(state)].astype(jnp.int32)
                known &= action >= 0
                state = env.step_env(rng.action_key(noise_key, turn), state, jnp.maximum(action, 0), params)[1]
                return (state, known), jnp.where(known, action, -1)

            return jax.lax.scan(step, (state, jnp.bool_(True)), jnp.arange(self._turns))[1]

        return jax.jit(jax.vmap(episode))(starts, noise, jnp.asarray(reference.actions))


def _write(
    path: Path,
    played: Trajectory,
    actions: Int[np.ndarray, "n T A"] | None,
    config: Config,
    evaluation: Evaluation,
    play: int,
    report: Report,
) -> None:
    """Writes the file of one play; `actions` replace those of the trajectory."""
    rows: Any = hosts.fetch(played)
    unknown: Any = np.full(rows.response.tokens.shape, np.nan, np.float32)
    rows = rows.replace(response=rows.response.replace(logprob=unknown))
    if actions is not None:
        rows = rows.replace(turn=rows.turn.replace(actions=actions))
    header = Header(
        step=0,
        iteration=play + 1,
        roll_backs=0,
        tasks=tuple(task.label for task in config.tasks),
        group_size=1,
        episodes=len(rows.num_turns),
        horizon=config.prompt.max_turns,
        temperature=1.0,
        evaluation=dataclasses.replace(evaluation, sample=play),
    )
    record = RolloutRecord.of_trajectory(header, rows, RecordedScores(unknown, unknown))
    file = write_record(path, record)
    report(f"recorded {header.label}: {header.episodes} episodes in {file}")
