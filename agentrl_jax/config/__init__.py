"""The configuration of a run: one tree, read from YAML, checked, compared and saved.

    config = load_config("experiments/demo.yaml", ["--algo.objective.clip_high", "0.28"])

Precedence of values, highest first: the command line, the YAML file, the preset named by `algo.preset` (for `algo`
only), the defaults in `schema` and `algo`.
"""

from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.checks import validate
from agentrl_jax.config.imitation import ImitationConfig
from agentrl_jax.config.load import (
    decode,
    differences,
    load_config,
    load_resolved,
    save_resolved,
    to_dict,
)
from agentrl_jax.config.one_task import alone
from agentrl_jax.config.schema import (
    Config,
    EvalConfig,
    HostsConfig,
    MeshConfig,
    ModelConfig,
    PromptConfig,
    RolloutConfig,
    ServiceConfig,
    StartConfig,
    TaskConfig,
    TrainConfig,
)

__all__ = [
    "AlgoConfig",
    "Config",
    "EvalConfig",
    "HostsConfig",
    "ImitationConfig",
    "MeshConfig",
    "ModelConfig",
    "PromptConfig",
    "RolloutConfig",
    "ServiceConfig",
    "StartConfig",
    "TaskConfig",
    "TrainConfig",
    "alone",
    "decode",
    "differences",
    "load_config",
    "load_resolved",
    "save_resolved",
    "to_dict",
    "validate",
]
