"""One task of a batch by itself."""

from agentrl_jax.config.schema import Config, PromptConfig, ServiceConfig


def alone(config: Config, index: int) -> Config:
    """The configuration of a run with one of its tasks, without what only tasks of other kinds read.

    Its turns are `prompt.max_turns`. Where its responses have no answer block, as those of tasks beside it have, its
    prompt has the style chat.
    """
    prompt, rollout = config.prompt.replace(max_turns=config.turns[index]), config.rollout
    kind, usual = config.kinds[index], ServiceConfig()
    unread = ServiceConfig.model_fields.keys() - kind.reads
    env = config.env.replace(**{name: getattr(usual, name) for name in unread})
    if kind.on_host:
        prompt = prompt.replace(observation_tokens=0, encoder="pieces")
        rollout = rollout.replace(shared_noise=False)
    if prompt.has_answer_block and not kind.has_answer_block:
        prompt = prompt.replace(style="chat", separator=PromptConfig().separator, stop_at_answer=False)
    task = config.tasks[index].replace(max_turns=None)
    return config.replace(tasks=(task,), prompt=prompt, env=env, rollout=rollout)
