"""Checks of sizes in a configuration: products whose arrays would overflow 32-bit indices or any machine's memory."""

from agentrl_jax.config.schema import Config
from agentrl_jax.errors import UserError

MAX_CONTEXT = 1 << 20
"""Maximum sampled tokens of one episode."""

MAX_EPISODES = 1 << 18
"""Maximum episodes that are played or imitated at once. Each takes a row of the cache, even with short responses."""

MAX_TOKENS = 1 << 28
"""Maximum sampled tokens of one batch; DAPO's (512 groups of 16 responses of 20,480 tokens) have 0.63 of it."""

MAX_PARAMETERS = 1 << 40
"""Maximum parameters of a new decoder; the largest published ones have fewer."""

MAX_CACHED = 1 << 43
"""Maximum numbers in the KV cache of a rollout of a new decoder."""

MAX_RANK = 1 << 14
"""Maximum rank of an adapter."""


def check_sizes(config: Config) -> None:
    """Refuses sizes that fit no machine.

    Raises:
        UserError: names the keys, their product and the limit.
    """
    prompt, rollout, model = config.prompt, config.rollout, config.model
    episodes = sum(task.groups for task in config.tasks) * rollout.group_size
    context = prompt.max_turns * prompt.max_response_tokens
    _at_most(context, MAX_CONTEXT, "prompt.max_turns x prompt.max_response_tokens", "tokens")
    for number, keys in (
        (episodes, "groups x rollout.group_size"),
        (config.train.validation_episodes, "train.validation_episodes"),
        (config.imitation.batch, "imitation.batch"),
    ):
        _at_most(number, MAX_EPISODES, keys, "episodes")
    for number, keys in (
        (episodes, "groups x rollout.group_size"),
        (config.train.validation_episodes, "train.validation_episodes"),
        (config.evaluation.episodes, "evaluation.episodes"),
        (config.imitation.batch, "imitation.batch"),
    ):
        _at_most(number * context, MAX_TOKENS, f"{keys} x prompt.max_turns x prompt.max_response_tokens", "tokens")
    _at_most(model.lora.rank, MAX_RANK, "model.lora.rank", "columns")
    if model.pretrained:
        return
    layer = model.embed_dim * (2 * model.embed_dim + 3 * model.mlp_width)
    _at_most(
        model.layers * layer,
        MAX_PARAMETERS,
        "model.layers x model.embed_dim x (2 x model.embed_dim + 3 x model.mlp_width)",
        "parameters",
    )
    rows = rollout.slots or episodes
    longest = rollout.context_tokens or (prompt.max_response_tokens if rollout.context == "single_turn" else context)
    _at_most(
        rows * longest * model.layers * 2 * model.kv_heads * (model.embed_dim // model.heads),
        MAX_CACHED,
        "rows x tokens x model.layers x 2 x model.kv_heads x (model.embed_dim / model.heads)",
        "cached numbers",
    )


def _at_most(number: int, limit: int, keys: str, unit: str) -> None:
    if number > limit:
        raise UserError(f"{keys} is {number} {unit}, expected at most {limit}; lower one of these keys")
