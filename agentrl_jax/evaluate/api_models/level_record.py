"""Episodes of API models in compiled environments as a record, whose actions their replies determine.

Shapes: `T` turns of an episode at most.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.evaluate.api_models.level_task import level_game
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.learner.recorded import RecordedScores
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.runs.rollout_records import Evaluation, Header, RolloutRecord
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.play_responses import play_responses
from agentrl_jax.text.chat_template import Message
from agentrl_jax.text.conversation import messages_of
from agentrl_jax.text.grammar import ParsedResponse

ROWS = 64
"""Most episodes of one record, which bounds the memory for it; fewer are filled up to as many."""


class Replies(NamedTuple):
    """The replies of an episode; an empty one does nothing."""

    item: int
    sample: int
    texts: Sequence[str]


def level_options(settings: Mapping[str, Any], attempts: int) -> TaskOptions:
    """The options of an evaluation in the words of a prompt style, from its settings; `KeyError` if they lack one."""
    body = settings["body"]
    most = body.get("max_completion_tokens") or body.get("max_tokens") or TaskOptions.max_tokens
    return TaskOptions(
        env=settings["env"],
        style=settings["style"],
        think=settings["think"],
        levels=settings["levels"],
        turns=settings["turns"],
        actions_per_turn=settings["actions_per_turn"],
        max_tokens=most,
        level_seed=settings["seed_of_levels"],
        env_options=tuple(settings["options"].items()),
        max_actions=settings["max_actions"],
        attempts=attempts,
    )


class LevelRecorder:
    """Plays replies again, many episodes at once; the program is compiled once."""

    def __init__(self, options: TaskOptions):
        """Raises a `UserError` if there is no such environment, or the levels cannot be used."""
        self._game = level_game(options)
        self.config = self._game.config
        respond = functools.partial(play_responses, self._game.batched_env, context=FULL)
        self._respond = jit_once(respond, ("respond", respond))

    def record(self, episodes: Sequence[Replies]) -> RolloutRecord:
        """The record of at most `ROWS` episodes; its responses have no tokens but their end."""
        game, levels, turns = self._game, self._game.levels, self._game.horizon
        filled = [episodes[row % len(episodes)] for row in range(ROWS)]
        each = [levels.ids(item, 1, item + 1, sample=sample) for item, sample, _ in filled]
        ids = jax.tree.map(lambda *x: jnp.concatenate(x), *each)
        shape = ROWS, turns
        actions = np.full((*shape, game.grammar.max_actions), -1, np.int32)
        valid, parsed, played = (np.zeros(shape, np.int32) for _ in range(3))
        good = np.zeros(shape, bool)
        for row, episode in enumerate(filled):
            for turn, text in enumerate(episode.texts[:turns]):
                found = game.parse(text)
                actions[row, turn, : found.num_valid] = found.actions
                valid[row, turn], parsed[row, turn], good[row, turn] = (
                    found.num_valid,
                    found.num_parsed,
                    found.format_ok,
                )
                played[row, turn] = 1
        tokens = np.full((*shape, 1), game.tokenizer.end_of_turn_id, np.int32)
        responses = ParsedResponse(actions=actions, num_valid=valid, num_parsed=parsed, format_ok=good)  # type: ignore[arg-type]
        all_rows = hosts.fetch(self._respond(levels.key, game.settings, ids, tokens, played, responses))
        rows = jax.tree.map(lambda x: x[: len(episodes)], all_rows)
        unknown: Any = np.full(rows.response.tokens.shape, np.nan, np.float32)
        header = Header(
            step=0,
            iteration=1,
            roll_backs=0,
            tasks=tuple(task.label for task in self.config.tasks),
            group_size=1,
            episodes=len(episodes),
            horizon=turns,
            temperature=1.0,
            evaluation=Evaluation(sample=0, seed=levels.seed, split=int(levels.split), run="", iteration=0),
        )
        return RolloutRecord.of_trajectory(header, rows, RecordedScores(unknown, unknown))

    def shown(self, record: RolloutRecord, row: int) -> list[list[Message]]:
        """The messages before each response of an episode."""
        prompt = record.prompt[row, : record.prompt_length[row]].tolist()
        turns = range(record.num_turns[row])
        read = [record.observation[row, turn, : record.observation_length[row, turn]].tolist() for turn in turns]
        return [
            messages_of(self._game.tokenizer, [*prompt, *ids] if turn == 0 else ids) for turn, ids in enumerate(read)
        ]
