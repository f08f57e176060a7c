"""From a configuration to its tasks in compiled environments, and checks of them. Nothing is compiled here.

`build_model` builds the model, `build_inputs` what programs are given.
"""

import functools
from typing import Any

import jax

from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.parallel import layout
from agentrl_jax.rollout.engine_config import EngineConfig, cache_length
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, CompiledEnv, Task
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.text.arguments import compile_arguments
from agentrl_jax.text.grammar import CommandGrammar, ResponseGrammar, compile_grammar
from agentrl_jax.text.prompt import compile_prompt
from agentrl_jax.text.styles import FEEDBACK, get_style
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split
from envs_jax.token_environment import TokenEnvironment

ROLLOUT_RULES = {"rows": layout.ROLLOUT, "wide": layout.WIDE_ROLLOUT}
"""Sharding rules of a rollout, by their name in the configuration."""


def build_task(config: TaskConfig, prompt: PromptConfig, tokenizer: Tokenizer) -> Task:
    """Builds a task of a compiled environment; raises as `level_files.make_env`."""
    return make_task(config.env, *make_env(config), prompt, tokenizer)


def make_task(
    name: str, env: TextEnvironment, params: Any, prompt: PromptConfig, tokenizer: Tokenizer, *, feedback: str = ""
) -> Task:
    """Adds prompt and grammar to an environment and its parameters; it need not be registered.

    `feedback` is what the prompt says at the beginning of a retry; an observation that is cut at a number of tokens
    has as many more in it.
    """
    form = environment_grammar(env, prompt)
    observed = jax.eval_shape(lambda key: env.describe(env.reset_env(key, params)[1], params), jax.random.key(0))
    compiled = compile_prompt(
        get_style(prompt.style),
        instruction=env.instruction,
        legend=env.legend,
        actions=env.actions,
        pieces=env.pieces,
        piece_limits=env.piece_limits,
        piece_groups=env.piece_groups,
        observation_pieces=observed.shape[0],
        think=prompt.think,
        forced=prompt.forced_tag,
        separator=prompt.separator,
        max_actions_budget=prompt.max_actions,
        max_turns=prompt.max_turns,
        response_words=prompt.max_response_tokens,
        tokenizer=tokenizer,
        encoder=prompt.encoder,
        lists_actions=env.lists_actions,
        feedback=feedback,
        commands=form.listed if isinstance(form, CommandGrammar) else (),
    )
    if prompt.observation_tokens:
        most = min(prompt.observation_tokens + len(tokenizer.encode(feedback)), compiled.max_message_tokens)
        compiled = compiled.replace(max_message_tokens=most)
    return Task(
        name=name,
        env=env,
        env_params=params,
        prompt=compiled,
        grammar=compile_grammar(form, tokenizer),
        response_format=form,
        with_feedback=functools.partial(make_task, name, env, params, prompt, tokenizer, feedback=FEEDBACK),
        arguments=compile_arguments(form, tokenizer) if isinstance(form, CommandGrammar) else None,
    )


def environment_grammar(env: TextEnvironment, prompt: PromptConfig) -> ResponseGrammar | CommandGrammar:
    """The format of responses to an environment."""
    if not isinstance(env, TokenEnvironment):
        return response_grammar(env.actions, prompt)
    return CommandGrammar(
        actions=env.actions,
        templates=env.command_templates,
        think=prompt.think,
        forced=prompt.forced_tag,
        max_actions=prompt.max_actions_per_turn,
    )


def response_grammar(actions: tuple[str, ...], prompt: PromptConfig) -> ResponseGrammar:
    """The format of responses in tags, with actions of these names."""
    return ResponseGrammar(
        actions=actions,
        think=prompt.think,
        forced=prompt.forced_tag,
        separator=prompt.separator,
        max_actions=prompt.max_actions_per_turn,
    )


def build_compiled_env(config: Config, tokenizer: Tokenizer) -> CompiledEnv:
    """Builds the batched environment of compiled tasks; raises UserError if a task is none."""
    for index, (task, kind) in enumerate(zip(config.tasks, config.kinds)):
        if kind.on_host:
            why = "which runs on the host; this works with compiled environments only"
            raise UserError.of(f"tasks.{index}.env", task.env, why)
    tasks = tuple(build_task(task, config.prompt, tokenizer) for task in config.tasks)
    return CompiledEnv(tasks=tasks, shared_noise=config.rollout.shared_noise)


def check_trainable(config: Config, splits: LevelSplits) -> None:
    """Refuses compiled tasks whose level file holds no level that may be trained on.

    Raises:
        UserError: all levels of a task's file are test levels in any case (`TextEnvironment.test_levels`).
    """
    for task, kind, levels in zip(config.tasks, config.kinds, splits.tasks):
        if not kind.on_host and (rows := levels.rows(Split.TRAIN)) is not None and not rows.size:
            raise UserError(
                f"tasks: {task.label} has no level to train on: all levels of {task.levels} are test levels, which "
                "its environment names and no run trains on; give others",
                key="tasks",
                value=task.levels,
            )


def check_positions(
    pretrained: PretrainedConfig | None, batched_env: BatchedEnv, engine: EngineConfig, *, bootstrap: bool = False
) -> None:
    """Refuses contexts that are longer than the positions that the pretrained model, if any, was trained on.

    Sliding windows are no limit: their layers do not look further back in a longer text. With `bootstrap`, the critic
    reads truncated episodes up to their final observation (`algo.advantage.bootstrap_truncated`), which follows the
    longest full context, or replaces the observation of a single turn.

    Raises:
        UserError: the longest context of a rollout does not fit.
    """
    longest = cache_length(batched_env, engine)
    whole = not engine.context.fresh
    final = batched_env.observation_tokens if bootstrap and whole else 0
    if pretrained is not None and longest + final > pretrained.max_positions:
        shorter = ", set agent to single_turn or window" if whole and engine.max_turns > 1 else ""
        beyond = f", and bootstrap_truncated reads a final observation of {final} after it" if final else ""
        raise UserError(
            f"the longest context of a rollout has {longest} tokens{beyond}, but the pretrained model has only "
            f"{pretrained.max_positions} positions (max_position_embeddings); lower prompt.max_turns or "
            f"prompt.max_response_tokens{shorter}, or use a model with more positions",
            key="prompt.max_turns",
            value=longest,
        )
