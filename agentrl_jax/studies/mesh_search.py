"""The meshes and batch sizes that a sweep considers, and the rows that they give each device."""

import itertools
import math
from collections.abc import Iterator

from agentrl_jax.config import Config, validate
from agentrl_jax.config.schema import MeshConfig
from agentrl_jax.errors import UserError
from agentrl_jax.models import block_attention
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.setup.build_model import check_divided
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.costs import divisors


def configs(config: Config, run: AbstractRun, slices: int) -> Iterator[Config]:
    """The valid configurations with other meshes and batch sizes; of several slices, only `data` crosses them."""
    meshes = list(_meshes(config, run, slices))
    if config.mesh not in meshes and _may_be_used(config, run.model.decoder, slices):
        meshes.append(config.mesh)
    for mesh in meshes:
        yield from _batches(config.replace(mesh=mesh), run)


def _meshes(config: Config, run: AbstractRun, slices: int) -> Iterator[MeshConfig]:
    """Those that waste no device."""
    shape, of_slice, length = run.model.decoder, config.device_count // slices, run.batch.tokens.shape[1]
    for tensor, sequence in itertools.product(divisors(of_slice), repeat=2):
        # A head is never split; a matrix that does not divide is not sharded, which wastes the devices.
        if shape.num_kv_heads % tensor or shape.mlp_width % tensor:
            continue
        # A piece of a row shorter than a block of queries is not worth its collectives.
        if of_slice % (tensor * sequence) or (1 < sequence != config.mesh.sequence and _short(length, sequence)):
            continue
        for fsdp in divisors(of_slice // (tensor * sequence)):
            if shape.embed_dim % fsdp == 0 and (fsdp > 1 or config.mesh.rollout == "rows"):
                yield config.mesh.replace(fsdp=fsdp, sequence=sequence, tensor=tensor)


def _may_be_used(config: Config, shape: DecoderConfig, slices: int) -> bool:
    """Whether a run accepts the file's own mesh, which may waste devices."""
    try:
        check_divided(config.mesh, shape)
    except UserError:
        return False
    return config.device_count // slices % math.prod(config.mesh.axes().values()) == 0


def _short(length: int, sequence: int) -> bool:
    return length < 2 * sequence * block_attention.BLOCK


def _batches(config: Config, run: AbstractRun) -> Iterator[Config]:
    """The valid configurations with other slots and gradient accumulation, the file's own included."""
    groups, group_size = config.groups, config.rollout.group_size
    replicas, learners = replicas_of(config), learners_of(config)
    minibatch = run.trained // (config.algo.minibatches * learners)
    steps = {config.algo.grad_accum_steps} | {n for n in divisors(max(minibatch, 1)) if n & (n - 1) == 0}
    parts = [parts for parts in (2, 4) if groups % (replicas * parts) == 0]
    slots = {config.rollout.slots, 0} | {groups // replicas // n * group_size for n in parts}
    for accumulation, size in itertools.product(sorted(steps), sorted(slots)):
        algo = config.algo.replace(grad_accum_steps=accumulation)
        made = config.replace(algo=algo, rollout=config.rollout.replace(slots=size))
        try:
            validate(made, files=False)
        except UserError:
            continue
        yield made


def wider_configs(config: Config, run: AbstractRun, slices: int) -> Iterator[Config]:
    """As `configs`, with every way to save memory."""
    remats, offloads = {config.model.remat, "full"}, {config.optim.offload, True}
    for remat, offload, rollout in itertools.product(sorted(remats), sorted(offloads), ("rows", "wide")):
        changed = config.replace(
            model=config.model.replace(remat=remat),
            optim=config.optim.replace(offload=offload),
            mesh=config.mesh.replace(rollout=rollout),
        )
        yield from configs(changed, run, slices)


def replicas_of(config: Config) -> int:
    """Number of rollout replicas."""
    return config.device_count // (config.mesh.tensor * (config.mesh.fsdp if config.mesh.rollout == "wide" else 1))


def learners_of(config: Config) -> int:
    """Number of shares into which the rows of an update are divided."""
    return config.device_count // (config.mesh.sequence * config.mesh.tensor)
