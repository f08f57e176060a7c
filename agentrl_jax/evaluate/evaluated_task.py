"""The task that an evaluation of a run plays: from its own configuration, options of the command, or a panel."""

from agentrl_jax.config import Config, TaskConfig, alone
from agentrl_jax.config.checks import check_sizes
from agentrl_jax.environments.kinds import kind_of, titles
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate import panels
from agentrl_jax.setup import build, build_inputs, build_model


def with_task(config: Config, run: str, env: str | None, levels: str | None, panel: str | None) -> Config:
    """The configuration of a run with the one task to evaluate: on a panel, or on given levels or its own.

    Raises:
        UserError: the run cannot play it, or there is no such panel.
    """
    if panel is not None:
        return panels.on_panel(config, panels.get_panel(panel), run)
    known = [task.env for task in config.tasks]
    generated = [index for index, kind in enumerate(config.kinds) if not kind.has_items]
    if not known:
        config = config.replace(tasks=(_first_task(config, run, env),))
    elif env is None or env in known:
        config = alone(config, 0 if env is None else known.index(env))
    elif kind_of(env).has_items or not generated:
        raise UserError(
            f"--env {env}: {run} was trained on {titles(config.kinds)} and has items of {', '.join(known)} only",
            key="--env",
            value=env,
        )
    else:
        config = alone(config, generated[0]).replace(tasks=(TaskConfig(env=env, groups=1),))
        config = config.replace(prompt=config.prompt.replace(max_actions=kind_of(env).max_actions(env)))
    if levels is None:
        return config
    if config.kinds[0].has_items:
        raise UserError.at(run, f"was trained on {titles(config.kinds)}, which have items; leave out --levels")
    return config.replace(tasks=(config.tasks[0].replace(levels=levels),))


def _first_task(config: Config, run: str, env: str | None) -> TaskConfig:
    """The task of `--env`, for a run that learned from data alone."""
    if env is None:
        raise UserError.at(run, "learned from data alone and has no task; name an environment by --env")
    kind, style = kind_of(env), config.prompt.style
    if kind.has_items or kind.has_answer_block != config.prompt.has_answer_block:
        needed = "compact or ragen" if kind.has_answer_block else "chat"
        why = f"but {run} learned from data alone, with prompt.style {style}; expected a compiled environment, and"
        raise UserError.of("--env", env, f"{why} a run with style {needed}")
    return TaskConfig(env=env, groups=1)


def check_playable(config: Config) -> None:
    """Refuses a task of compiled environments that the run of a configuration cannot play, before its model is loaded.

    Raises:
        UserError: its tokenizer cannot write the texts, the levels cannot be used, or the model has too few positions.
    """
    check_sizes(config)
    if config.on_host:
        return
    with refusals():
        pretrained = build_model.load_model(config.model, weights=False)
        tokenizer = build_model.load_tokenizer(config.model, pretrained)
        batched_env = build.build_compiled_env(config, tokenizer)
        engine = build_inputs.engine_config(config, tokenizer, group_size=1, slots=0)
        build.check_positions(None if pretrained is None else pretrained.config, batched_env, engine)
