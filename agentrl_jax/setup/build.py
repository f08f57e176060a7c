"""Builds the components of a run from its configuration. Nothing is compiled here."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Int

from agentrl_jax.config import Config, ModelConfig, PromptConfig, TaskConfig
from agentrl_jax.config.algo import UpdateRule
from agentrl_jax.config.defaults import length_buckets
from agentrl_jax.config.fields import Section
from agentrl_jax.config.rates import rates
from agentrl_jax.config.schema import MeshConfig
from agentrl_jax.errors import UserError
from agentrl_jax.learner import state
from agentrl_jax.learner.settings import LearnerConfig, UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.models import quantized
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.io.hf_config import PretrainedConfig
from agentrl_jax.models.io.load import Pretrained, load_pretrained
from agentrl_jax.models.io.stacked import Placement
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import layout
from agentrl_jax.rollout.engine_config import EngineConfig, cache_length
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, CompiledEnv, Task
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.level_files import make_env
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.prompt import compile_prompt
from agentrl_jax.text.styles import FEEDBACK, get_style
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split

ROLLOUT_RULES = {"rows": layout.ROLLOUT, "wide": layout.WIDE_ROLLOUT}
"""Sharding rules of a rollout, by their name in the configuration."""


def load_model(config: ModelConfig, sharding: Placement = None, *, weights: bool = True) -> Pretrained | None:
    """Loads the pretrained model that is named, if any, with parameters in the dtype of frozen parameters.

    Without `weights` it has no parameters, only its configuration and the files of its tokenizer.
    """
    if not config.pretrained:
        return None
    return load_pretrained(
        config.pretrained,
        dtype="bfloat16" if config.precision == "bfloat16" else "float32",
        sharding=sharding,
        online=config.online,
        revision=config.revision or None,
        weights=weights,
    )


def tokenizer_files(config: ModelConfig, pretrained: Pretrained | None = None) -> Mapping[str, bytes]:
    """Returns the tokenizer files of the pretrained model or of the configured path, else of the shipped tokenizer."""
    if pretrained is not None:
        return pretrained.files
    return tokenizers.read(config.tokenizer) if config.tokenizer else tokenizers.small_files()


def load_tokenizer(config: ModelConfig, pretrained: Pretrained | None = None) -> Tokenizer:
    """Loads the tokenizer from `tokenizer_files`."""
    source = config.pretrained or config.tokenizer or "the shipped tokenizer"
    tokenizer = tokenizers.from_files(tokenizer_files(config, pretrained), source)
    return tokenizers.padded(tokenizer, pretrained.config.decoder.vocab_size) if pretrained else tokenizer


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
    observed = jax.eval_shape(lambda key: env.describe(env.reset_env(key, params)[1], params), jax.random.key(0))
    compiled = compile_prompt(
        get_style(prompt.style),
        instruction=env.instruction,
        legend=env.legend,
        actions=env.actions,
        pieces=env.pieces,
        piece_limits=env.piece_limits,
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
    )
    form = response_grammar(env.actions, prompt)
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


def build_model(
    config: Config, tokenizer: Tokenizer, pretrained: Pretrained | None = None, *, shared_prefix_len: int = 0
) -> ActorCritic:
    """Builds policy and critic (GRPO has none). For a learner, pass the batched environment's `shared_prefix_len`."""
    c = config.model
    activations = "float32" if c.precision == "float32" else "bfloat16"
    shape = pretrained.config.decoder if pretrained else _fresh_shape(c, tokenizer.vocab_size)
    lora = LoraConfig(rank=c.lora.rank, alpha=c.lora.alpha, targets=c.lora.targets) if c.lora.rank else None
    cache_dtype = "" if c.cache == "activations" else c.cache
    return ActorCritic(
        decoder=dataclasses.replace(shape, dtype=activations, cache_dtype=cache_dtype, attention=c.attention),
        critic=c.critic if config.algo.advantage.has_critic else "none",
        shared_prefix_len=shared_prefix_len,
        lora=lora,
        frozen_layers=c.frozen_layers,
        remat=c.remat,
    )


def rollout_model(config: Config, model: ActorCritic) -> ActorCritic:
    """The model as it plays training episodes, quantized if `rollout.quantization` says so."""
    changed: dict[str, Any] = dict.fromkeys(quantized.INTEGERS[config.rollout.quantization], "int8")
    return dataclasses.replace(model, decoder=dataclasses.replace(model.decoder, **changed))


def _fresh_shape(c: ModelConfig, vocab_size: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=vocab_size,
        num_layers=c.layers,
        embed_dim=c.embed_dim,
        num_heads=c.heads,
        num_kv_heads=c.kv_heads,
        head_dim=c.embed_dim // c.heads,
        mlp_width=c.mlp_width,
        rope_theta=c.rope_theta,
        norm_eps=c.norm_eps,
        tied_embeddings=c.tied_embeddings,
    )


def initial_state(
    config: Config,
    model: ActorCritic,
    pretrained: Pretrained | None,
    place: Callable[[TrainState], Any] = lambda shapes: None,
) -> Callable[[jax.Array], TrainState]:
    """Returns a function from a key to the initial training state.

    It takes over (donates) the parameters of `pretrained` instead of copying them, so it can be called only once.
    `place` returns the shardings of a state from its shapes; None leaves them to the compiler.
    """
    tx, reference, teacher = build_optimizer(config), needs_reference(config), needs_teacher(config)

    def start(key, decoder):
        return state.init_state(key, model, tx, reference, decoder, teacher)

    given = None if pretrained is None else pretrained.params
    shardings = place(jax.eval_shape(start, jax.random.key(0), given))
    parts = ("initial_state", model, tx, reference, teacher, jax.tree.flatten(shardings))
    compiled = jit_once(start, parts, donate_argnums=1, out_shardings=shardings)

    def run(key):
        with warnings.catch_warnings():
            # A stack of layers that is split in two cannot be reused; it is freed instead.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            return compiled(key, given)

    return run


def engine_config(config: Config, tokenizer: Tokenizer, *, group_size: int, slots: int) -> EngineConfig:
    """Builds the static configuration of the rollout engine."""
    return EngineConfig(
        max_turns=config.prompt.max_turns,
        max_response_tokens=config.prompt.max_response_tokens,
        group_size=group_size,
        slots=slots,
        prefill_threshold=config.rollout.prefill_threshold,
        context=context_of(config),
        stop_at_answer=config.prompt.stop_at_answer,
        end_of_turn=tokenizer.stop_ids,
        chunk=config.rollout.prefill_chunk,
        prefill_rows=config.rollout.prefill_rows,
        context_tokens=config.rollout.context_tokens,
    )


def check_divided(mesh: MeshConfig, shape: DecoderConfig) -> None:
    """Refuses devices that would share a decoder's matrices, but share none, because nothing can be divided by them.

    Raises:
        UserError: `mesh.fsdp` does not divide the embedding, or `mesh.tensor` neither the heads nor the inner size of
            the feed-forward layer.
    """
    if shape.embed_dim % mesh.fsdp:
        raise UserError.of(
            "mesh.fsdp",
            mesh.fsdp,
            f"which does not divide the embedding of {shape.embed_dim}, so that every device would hold all "
            "parameters; use a divisor",
        )
    if shape.num_heads % mesh.tensor and shape.mlp_width % mesh.tensor:
        raise UserError.of(
            "mesh.tensor",
            mesh.tensor,
            f"which divides neither the model's {shape.num_heads} heads nor its feed-forward layers of "
            f"{shape.mlp_width}, so that every device would compute all of it; use a divisor",
        )


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


def needs_reference(config: Config) -> bool:
    """Whether the training state holds a frozen reference policy, for the KL divergence or as a teacher."""
    teaches = _teacher(config) == "reference"
    return config.algo.kl.kind != "none" or config.train.mutual_information_every > 0 or teaches


def needs_teacher(config: Config) -> bool:
    """Whether the training state holds a moving average of the policy."""
    return _teacher(config) == "ema"


def _teacher(config: Config) -> str:
    return config.algo.distillation.teacher if config.algo.distillation.kind == "self" else ""


def learner_config(config: Config, *, recorded_episodes: int = 0, hint_at: int = 0) -> LearnerConfig:
    """Builds the static configuration of the learner; `hint_at` is the least of the tasks'."""
    rule: dict[str, Any] = {name: getattr(config.algo, name) for name in UpdateRule.model_fields}
    rule = {name: value.static() if isinstance(value, Section) else value for name, value in rule.items()}
    rule["length_buckets"] = length_buckets(config)
    return LearnerConfig.model_construct(
        None,
        task_names=tuple(task.label for task in config.tasks),
        group_size=config.rollout.group_size,
        context=context_of(config),
        context_tokens=config.rollout.context_tokens,
        recorded_episodes=recorded_episodes,
        hint_at=hint_at if config.algo.distillation.kind == "self" else 0,
        **rule,
    )


def build_optimizer(config: Config) -> optax.GradientTransformation:
    """Builds AdamW with learning rate 1, see `state.optimizer`."""
    return state.optimizer(config.optim.b1, config.optim.b2, config.optim.weight_decay, config.optim.decay)


def training_ids(config: Config) -> EpisodeIds:
    """Ids of the E training episodes: tasks in contiguous ranges, then groups; the group's key gives the level."""
    count, group_size = config.groups, config.rollout.group_size
    task = np.repeat(np.arange(len(config.tasks)), [task.groups for task in config.tasks])
    return episode_ids(
        group=np.repeat(np.arange(count), group_size),
        member=np.tile(np.arange(group_size), count),
        task=np.repeat(task, group_size),
        level=np.full(count * group_size, -1),
    )


def evaluation_ids(
    numbers: Int[np.ndarray, " n"], task: int, rows: Int[np.ndarray, " n"] | None = None, *, sample: int = 0
) -> EpisodeIds:
    """Ids of a task's episodes by their numbers, one per level: sampled levels, or `rows` of the task's pack.

    Every `sample` is another episode on the same levels.
    """
    level = np.full(len(numbers), -1) if rows is None else rows
    member, of_task = np.full(len(numbers), sample), np.full(len(numbers), task)
    return episode_ids(group=numbers, member=member, task=of_task, level=level)


def episode_ids(*, group: Any, member: Any, task: Any, level: Any) -> EpisodeIds:
    """Builds `EpisodeIds` from integers or integer arrays."""
    return EpisodeIds(*(jnp.asarray(x, jnp.int32) for x in (group, member, task, level)))


def rollout_settings(
    config: Config,
    batched_env: TaskEnv,
    episodes: int,
    temperature: float,
    horizon: int | None = None,
    *,
    iteration: int = 0,
    split: jax.Array | int = Split.ANY,
) -> RolloutSettings:
    """Builds the traced settings of a rollout; the default horizon is prompt.max_turns.

    `split` comes from `LevelSplits.of`; by default episodes are on any level.
    """
    return RolloutSettings(
        split=jnp.asarray(split, jnp.int32),
        format_penalty=jnp.float32(schedules(config)["format_penalty"](iteration)),
        overlong_buffer=jnp.float32(config.algo.overlong_buffer),
        overlong_penalty=jnp.float32(config.algo.overlong_penalty),
        temperature=jnp.full(episodes, temperature, jnp.float32),
        horizon=jnp.int32(config.prompt.max_turns if horizon is None else horizon),
        # A response in plain text is one action.
        max_actions=jnp.int32(config.prompt.max_actions if config.prompt.has_answer_block else config.prompt.max_turns),
        env_params=batched_env.env_params,
    )


def learning_rates(config: Config) -> optax.Schedule:
    """Returns the schedule of the learning-rate factor, by iteration."""
    total = max(config.train.iterations, 1)
    after: dict[str, optax.Schedule] = {
        "constant": optax.constant_schedule(1.0),
        "linear": optax.linear_schedule(1.0, 0.0, total),
        "cosine": optax.cosine_decay_schedule(1.0, total),
    }
    warm = optax.linear_schedule(0.0, 1.0, max(config.optim.warmup, 1)) if config.optim.warmup else None
    chosen = after[config.optim.schedule]
    return (lambda i: warm(i + 1) * chosen(i)) if warm else chosen


def schedules(config: Config) -> dict[str, optax.Schedule]:
    """Each value that `algo.schedules` can change, as a function of the iteration."""
    start = config.schedule_starts()
    schedules: dict[str, optax.Schedule] = {name: optax.constant_schedule(value) for name, value in start.items()}
    for name, change in config.algo.schedules.items():
        if change.shape == "linear":
            schedules[name] = optax.linear_schedule(start[name], change.end, change.iterations)
        else:
            falling = optax.cosine_decay_schedule(1.0, change.iterations)
            schedules[name] = lambda i, a=start[name], b=change.end, f=falling: b + (a - b) * f(i)
    return schedules


def update_settings(config: Config, factor: float, iteration: int = 0) -> UpdateSettings:
    """Builds the traced settings of the update of an iteration; `factor` is the value of `learning_rates`."""
    algo, chosen = config.algo, rates(config)
    values = dict.fromkeys(UpdateSettings.__dataclass_fields__, 0.0)
    values["filter_value"] = next(iter(algo.filter.traced().values()), 0.0)
    values |= {name: schedule(iteration) for name, schedule in schedules(config).items() if name != "temperature"}
    values |= {
        "lr": chosen.policy * factor,
        "critic_lr": chosen.critic * factor,
        "max_grad_norm": config.optim.max_grad_norm,
        "freeze_policy": iteration < config.train.critic_warmup,
        "overlong_buffer": algo.overlong_buffer,
        "overlong_penalty": algo.overlong_penalty,
    }
    return UpdateSettings(**{name: jnp.float32(value) for name, value in values.items()})
