"""Preference pairs from the policy's own episodes: a success and a failure on the same level."""

from collections.abc import Iterator

from agentrl_jax.errors import UserError
from agentrl_jax.offline.conversations import Conversation, Data, Pairs, PreferencePair

LEAST_GAP = 0.1
"""Of the rewards of a pair, as in AgentGym."""


def own_pairs(data: Data, *, per_level: int = 1) -> Pairs:
    """Pairs of successful and failed episodes that begin alike, up to `per_level` for each beginning.

    The best success is paired with the worst failure, the next best with the next worst. Both have rewards that differ
    by `LEAST_GAP` at least. The prompt is what comes before the first reply that was sampled.

    Raises:
        UserError: no level has both.
    """
    by_start: dict[str, list[Conversation]] = {}
    for conversation in data.conversations:
        by_start.setdefault(conversation.content(), []).append(conversation)
    found = [pair for start in by_start.values() for pair in _of_level(start, per_level)]
    if not found:
        raise UserError.of(
            "pairs", 0, f"of {data.name}: no level was played with success and without; record more episodes"
        )
    return Pairs.of(
        found, data.name, {"level without a pair": len(by_start) - len({p.id.split("/")[0] for p in found})}
    )


def _of_level(played: list[Conversation], per_level: int) -> Iterator[PreferencePair]:
    def reward(conversation: Conversation) -> float:
        return conversation.reward or 0.0

    best = sorted((each for each in played if each.success), key=reward, reverse=True)
    worst = sorted((each for each in played if each.success is False), key=reward)
    for number, (chosen, rejected) in enumerate(zip(best[:per_level], worst)):
        first = next(index for index, message in enumerate(chosen.messages) if message.loss)
        if reward(chosen) - reward(rejected) >= LEAST_GAP and chosen.messages[:first] == rejected.messages[:first]:
            yield PreferencePair(
                chosen.messages[:first],
                chosen.messages[first:],
                rejected.messages[first:],
                id=f"{chosen.content()}/{number}",
                task=chosen.task,
                item=chosen.item,
                source=chosen.source,
            )
