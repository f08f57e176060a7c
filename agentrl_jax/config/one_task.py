"""One task of a batch by itself."""

from agentrl_jax.config.schema import Config, PromptConfig, ServiceConfig

OF_HOST = ("observation_tokens", "deadline", "workers", "max_failed")
"""Keys of `env` that services and Python environments read."""
OF_SERVICES = ("score", "progress", "retries")
"""Keys of `env` that services alone read."""
OF_PYTHON = ("processes",)
"""Keys of `env` that Python environments alone read."""


def alone(config: Config, index: int) -> Config:
    """The configuration of a run with one of its tasks, without what only tasks of other kinds read.

    Services have no answer block: beside tasks that have one, their prompt has the style chat.
    """
    prompt, env, rollout, kind = config.prompt, config.env, config.rollout, config.kinds[index]
    usual = ServiceConfig()
    if kind == "compiled":
        env = usual
    else:
        prompt = prompt.replace(observation_tokens=0, encoder="pieces")
        rollout = rollout.replace(shared_noise=False)
    if kind == "python":
        env = env.replace(**{name: getattr(usual, name) for name in ("url", "token_file", *OF_SERVICES)})
    if kind == "service":
        env = env.replace(**{name: getattr(usual, name) for name in OF_PYTHON})
        if config.prompt.has_answer_block:
            prompt = prompt.replace(style="chat", separator=PromptConfig().separator, stop_at_answer=False)
    return config.replace(tasks=(config.tasks[index],), prompt=prompt, env=env, rollout=rollout)
