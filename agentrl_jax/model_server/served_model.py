"""What is served: a model, its tokenizer, and how a conversation becomes the prompt that its policy was trained on."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from agentrl_jax.config import Config
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.evaluate.chat import speaker
from agentrl_jax.model_server.sampler import Sampler
from agentrl_jax.models import actor_critic
from agentrl_jax.models.decoder import Params
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.runs.run_folder import is_run, read_config
from agentrl_jax.setup.policy import RunPolicy, load_policy
from agentrl_jax.setup.run_chat import run_chat, run_opening
from agentrl_jax.text.chat import Chat, chat_format
from agentrl_jax.text.conversation import Turn, turn_ids
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class ServedModel:
    """A decoder that answers conversations.

    Attributes:
        positions: maximum number of tokens of a conversation; None for no limit.
        opening: text that is inserted before every response, which counts as part of the response's text; empty for
            none.
        turns: turns that the policy was trained to see at a time, the current one included; 0 for all.
        grammar: the format of responses that end where their answer block closes, as in training; None if they do not.
        run: the folder of the run that the policy is from, without those above it; empty for a model that is no run's.
        step: the step of its checkpoint.
        iteration: the iterations of RL before the checkpoint.
    """

    name: str
    params: Params = dataclasses.field(repr=False)
    shape: DecoderConfig
    tokenizer: Tokenizer
    chat: Chat = dataclasses.field(repr=False)
    positions: int | None = None
    opening: str = ""
    turns: int = 0
    grammar: ResponseGrammar | None = None
    run: str = ""
    step: int | None = None
    iteration: int | None = None

    def origin(self) -> dict[str, Any]:
        """Run, step and iteration by name, for clients; empty if it is no run's policy."""
        return {"run": self.run, "step": self.step, "iteration": self.iteration} if self.run else {}

    def prompt_ids(self, turns: Sequence[Turn]) -> list[int]:
        """The tokens of a conversation up to the first token of the next response.

        A policy that was trained on so many turns reads the system message and the last turns only, as in training.

        Raises:
            ValueError: the roles are out of order, or the last message is not the user's.
        """
        if turns and turns[-1][0] != "user":
            raise BadValue(
                f"the last message is of the {turns[-1][0]}, expected one of the user",
                key="message",
                value=turns[-1][0],
            )
        if self.turns:
            last = [turn for turn in turns if turn[0] != "system"][1 - 2 * self.turns :]
            turns = [*(turn for turn in turns[:-1] if turn[0] == "system"), *last]
        return turn_ids(self.tokenizer, self.chat, turns, opening=self.opening)


def load_served(
    model: str,
    *,
    checkpoint: str = "last",
    name: str = "",
    opening: Literal["run", "none"] = "run",
    online: bool = False,
    revision: str | None = None,
) -> ServedModel:
    """Loads the policy of a run, or a pretrained model as `evaluate.chat.speaker` does.

    `name` is how clients call it; empty for the name of the folder. Conversations with a run have the run's own format:
    prompts of style compact leave out the ends of messages if the tokenizer allows it, with `opening` "run",
    responses begin with the text that `prompt.forced_tag` inserts, and with `prompt.stop_at_answer` they end with their
    answer block.

    Raises:
        UserError: the model or the checkpoint cannot be used.
    """
    name = name or Path(model).name or model
    with refusals():
        if not is_run(model):
            if checkpoint != "last":
                raise UserError.of("--checkpoint", checkpoint, f"but {model} is no run; leave it out")
            found = speaker(model, online=online, revision=revision)
            chat = chat_format(found.tokenizer, found.thinking)
            return ServedModel(name, found.params, found.shape, found.tokenizer, chat, found.positions)
        config = read_config(model)
        policy = load_policy(model, config, checkpoint)
        return served_policy(policy, config, model, name=name, opening=opening)


def served_policy(
    policy: RunPolicy,
    config: Config,
    run: str | os.PathLike[str],
    *,
    name: str,
    opening: Literal["run", "none"] = "run",
) -> ServedModel:
    """The policy of a run in a folder, as `load_served` loads it.

    Raises:
        ValueError: the run's tokenizer has no chat format, or not that of its responses.
    """
    chat = run_chat(config, policy.tokenizer)
    inserted = run_opening(config, chat) if opening == "run" else ""
    params = actor_critic.policy_decoder(policy.params, policy.model)
    grammar = None
    if config.prompt.stop_at_answer:
        think = config.prompt.think
        forced = bool(inserted) or chat.opens("<think>" if think else "<answer>")
        grammar = ResponseGrammar(actions=(), think=think, forced=forced)  # where it closes, whatever the actions
    return ServedModel(
        name,
        params,
        policy.model.decoder,
        policy.tokenizer,
        chat,
        policy.pretrained.max_positions if policy.pretrained else None,
        inserted,
        config.agent.limit,
        grammar,
        Path(os.path.abspath(run)).name,
        policy.step,
        policy.iteration,
    )


def make_sampler(model: ServedModel, *, context: int, max_tokens: int, max_batch: int) -> Sampler:
    """The sampler of a model, whose positions limit the context, as the context limits responses."""
    context = min(context, model.positions or context)
    grammars = () if model.grammar is None else (compile_grammar(model.grammar, model.tokenizer),)
    return Sampler(
        model.params,
        model.shape,
        model.tokenizer.stop_ids,
        context=context,
        max_tokens=min(max_tokens, context),
        max_rows=max_batch,
        grammars=grammars,
    )
