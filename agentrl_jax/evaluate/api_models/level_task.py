"""Compiled environments as tasks of API models, in the words of a prompt style, with the levels that runs play."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config, EvalConfig, PromptConfig, TaskConfig
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate import retry
from agentrl_jax.evaluate.api_models.answers import without_thought
from agentrl_jax.evaluate.api_models.tasks import ApiTask, Outcome, TaskOptions
from agentrl_jax.evaluate.baselines import level_rates, mean_turns, success_intervals, within
from agentrl_jax.evaluate.level_set import LevelSet, level_set
from agentrl_jax.evaluate.play import compiled_game, on_device
from agentrl_jax.evaluate.results import STRICT
from agentrl_jax.evaluate.statistics import Clusters
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.retry import RetryEnv, RetryState
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.services.items import load_items
from agentrl_jax.setup import build, build_inputs
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.text.chat_template import Message
from agentrl_jax.text.conversation import messages_of
from agentrl_jax.text.reference import HostResponse, parse_response
from agentrl_jax.text.tokenizer import load_small
from envs_jax.budget import Baselines
from envs_jax.registry import spec

MOST_ITEMS = 2**14
"""Numbers of generated levels that can be named: all levels up to the largest are generated."""

EPISODES = 200
"""Levels that are played unless another number is asked for, as many as items of a service."""


def level_game(options: TaskOptions) -> "Game":
    """A compiled environment with the levels and the limits of some options, whichever items they name.

    Raises:
        UserError: there is no such environment, or the levels cannot be used.
    """
    env, levels = options.env, options.levels
    seed = options.seed if options.level_seed is None else options.level_seed
    prompt = PromptConfig(
        style=options.style,  # type: ignore[arg-type]
        think=options.think,
        forced_tag=False,  # the model writes it: an API inserts nothing
        max_turns=options.turns or PromptConfig().max_turns,
        max_actions=options.max_actions or spec(env).max_actions,
        max_actions_per_turn=options.actions_per_turn,
        max_response_tokens=max(options.max_tokens, 2),
    )
    config = Config(
        tasks=(TaskConfig(env=env, groups=1, levels=levels or "", options=dict(options.env_options)),),
        prompt=prompt,
        evaluation=EvalConfig() if seed is None else EvalConfig(seed=seed),
    )
    with refusals():
        batched_env = build.build_compiled_env(config, load_small())
        if batched_env.tasks[0].arguments is not None:
            raise UserError.of(
                "--env", env, "whose commands have free text, which models behind an API cannot play yet"
            )
        return Game(config, level_set(config, batched_env, levels), batched_env, options.attempts)


def level_task(options: TaskOptions) -> ApiTask:
    """The task of a compiled environment; item i is the level i of `agentrl eval RUN` with the same seed and levels.

    Raises:
        UserError: there is no such environment or item, or the levels cannot be used.
    """
    env, levels = options.env, options.levels
    game = level_game(options)
    prompt, chosen, batched_env = game.config.prompt, game.levels, game.batched_env
    with refusals():
        wanted = options.episodes or (EPISODES if levels is None else batched_env.levels(0))
        items = load_items(options.items, env) if options.items else tuple(range(chosen.number(wanted)))
    if len(set(items)) < len(items):
        raise UserError(
            f"--items {options.items}: an item is named twice; name each once", key="--items", value=options.items
        )
    if options.items:
        last, generated = max(items), chosen.rows is None and batched_env.tasks[0].env.has_levels
        most = MOST_ITEMS if generated and last >= MOST_ITEMS else chosen.number(last + 1)
        if last >= most:
            raise UserError(f"--items names {last}, expected numbers below {most}", key="--items", value=last)

    @functools.cache
    def baselines() -> Baselines | None:
        return chosen.baselines(items)

    def lines(plays: int, clusters: Clusters = None) -> dict[str, Any]:
        known = baselines()
        if known is None:
            return {}
        of_plays = known if plays == 1 else within(known, plays)
        turns = mean_turns(of_plays)
        found = success_intervals(of_plays, clusters) | {"optimal_is": known.optimal_is}
        return found | ({"baseline_turns": turns} if turns else {})

    def level(item: int) -> str:
        episode = LevelEpisode(game, item, 0)
        episode.start()
        return episode.level()

    return ApiTask(
        env=env,
        style=options.style,
        items=items,
        turns=prompt.max_turns,
        full_score=1.0,
        strict=STRICT in batched_env.info_keys,
        open=functools.partial(LevelEpisode, game),
        lines=lines,
        item_lines=lambda: {} if (known := baselines()) is None else level_rates(known),
        level=level,
        category=None if chosen.categories is None else chosen.categories.__getitem__,
        answer=None,
        facts={
            "think": options.think,
            "levels": levels,
            "options": dict(options.env_options),
            "seed_of_levels": chosen.seed,
            "max_actions": prompt.max_actions,
            "actions_per_turn": options.actions_per_turn,
        },
    )


class Game:
    """A compiled environment for single episodes, with the levels and the random transitions of `EvalSet.play`.

    With several attempts, texts and random transitions of a retry are those of a run, see `RetryEnv`.
    """

    def __init__(self, config: Config, levels: LevelSet, compiled: CompiledEnv, attempts: int = 1):
        batched_env: CompiledEnv | RetryEnv = compiled
        if attempts > 1:
            batched_env = retry.retry_env(compiled, config.prompt.max_turns, attempts)
        self.config, self.batched_env = config, batched_env
        self.levels, self.prefix = levels, batched_env.prefix[0].tolist()
        self.tokenizer = load_small()
        prompt, task = config.prompt, batched_env.tasks[0]
        self.grammar = task.response_format
        split = levels.levels.split(levels.split)
        self.horizon = attempts * prompt.max_turns
        self.settings = build_inputs.rollout_settings(config, batched_env, 1, 0.0, self.horizon, split=split)
        self.reset, self.step = compiled_game(batched_env)
        state_hash = jax.vmap(functools.partial(task.env.state_hash, params=task.env_params))
        self.state_hash = jit_once(state_hash, ("state_hash", task.env, task.env_params))

    def parse(self, reply: str) -> HostResponse:
        """The actions of a reply."""
        said = reply if self.grammar.think else without_thought(reply)
        return parse_response(said.encode("utf-8", "replace"), self.grammar)

    def messages(self, before: Sequence[int], message: Any) -> list[Message]:
        """What is shown, after the tokens `before`."""
        tokens, length = jax.device_get((message.tokens[0], message.length[0]))
        return messages_of(self.tokenizer, [*before, *tokens[:length].tolist()])


class LevelEpisode:
    """An episode of a compiled environment, in the words of a prompt style."""

    def __init__(self, game: Game, item: int, sample: int):
        self._game, self._item, self._sample = game, item, sample
        self._state: Any = None
        self._first: Any = None
        self._shown: list[Message] = []
        self._outcome = Outcome(False, False, 0.0, False)

    def start(self) -> list[Message]:
        """See `TextEpisode`."""
        game, levels = self._game, self._game.levels
        ids = levels.ids(self._item, 1, self._item + 1, sample=self._sample)
        self._state, message = game.reset(levels.key, game.settings, ids)
        started = self._state.start if isinstance(self._state, RetryState) else self._state
        self._first = started.envs[0]
        return game.messages(game.prefix, message)

    def level(self) -> str:
        """See `TextEpisode`."""
        (level,) = hexadecimal(np.asarray(self._game.state_hash(self._first)))
        return level

    def step(self, reply: str) -> list[Message]:
        """See `TextEpisode`."""
        game, before, attempt = self._game, self._outcome, self._attempt
        parsed = on_device(game.parse(reply), game.grammar)
        self._state, result, message = game.step(
            game.settings, self._state, empty_response(1, 1), parsed, jnp.ones(1, bool)
        )
        found = jax.device_get(result)
        if found.failed[0]:
            raise UserError(f"no level of item {self._item} was found; use larger levels", key="item", value=self._item)
        solved = before.solved or bool(found.success[0])
        strict = before.strict or bool(found.info[STRICT][0]) if STRICT in found.info else solved
        done = bool(found.terminated[0] or found.truncated[0]) or self._attempt > attempt
        self._outcome = Outcome(done, solved, before.score + float(found.reward[0]), strict)
        self._shown = game.messages((), message)
        return self._shown

    def again(self) -> list[Message]:
        """See `TextEpisode`. The environment has begun the attempt in the last step already."""
        self._outcome = Outcome(False, False, 0.0, False)
        return self._shown

    def outcome(self) -> Outcome:
        """See `TextEpisode`."""
        return self._outcome

    def close(self) -> None:
        """See `TextEpisode`."""

    @property
    def _attempt(self) -> int:
        return int(self._state.attempt[0]) if isinstance(self._state, RetryState) else 0
