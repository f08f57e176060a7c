"""Optimizers with learning rate 1: each step is multiplied by the traced learning rates.

A tree of parameters is that of the policy or of the critic: a dict, whose leaves under "layers" are stacked, [N, ...].
"""

import fnmatch
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from agentrl_jax.config.optim import ParameterGroup
from agentrl_jax.errors import BadValue

MUON, ADAMW = "muon", "adamw"
_RMS = 0.2
"""Root mean square of a step of Muon, about that of AdamW (Liu et al. 2025, section 2.2)."""


class Optimizer(NamedTuple):
    """A gradient transformation of optax, and the parameters that it treats in other ways."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]
    groups: tuple[ParameterGroup, ...] = ()

    def trained(self, grads: Any) -> Any:
        """Gradients, with 0 for those of frozen parameters."""
        if not self.groups:
            return grads
        frozen = _of_groups(self.groups, grads, lambda group: group.lr_factor == 0, False)
        return jax.tree.map(lambda g, still: jnp.zeros_like(g) if still else g, grads, frozen)

    def check(self, entries: Iterable[Any]) -> None:
        """Refuses a group that matches no parameter of the trees.

        Raises:
            ValueError: names the parameters.
        """
        names = {name: None for tree in entries for name in jax.tree.leaves(_names(tree))}
        for index, group in enumerate(self.groups):
            if not fnmatch.filter(names, group.match):
                key, why = f"optim.groups.{index}.match", f"but parameters are {', '.join(names)}"
                raise BadValue.of(key, group.match, why)


# Kept, because programs are kept by what they were made of, and functions are equal only to themselves.
@functools.lru_cache(maxsize=64)
def optimizer(section: Any) -> Optimizer:
    """The optimizer of a member of the union `config.optim.Optim`, of which `of_program` counts."""
    tx, groups = OPTIMIZERS[section.kind](section), section.groups
    if not groups:
        return Optimizer(tx.init, tx.update)

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        factors = _of_groups(groups, updates, lambda group: group.lr_factor, 1.0)
        return jax.tree.map(lambda u, factor: u if factor == 1 else factor * u, updates, factors), state

    return Optimizer(tx.init, update, groups)


def decays(params: Any) -> Any:
    """Mask of the leaves with weight decay: all but norms and biases, by name, because stacked ones have two axes."""
    return jax.tree.map_with_path(lambda path, _: not str(path[-1].key).endswith(("norm", "bias")), params)


def muon_labels(params: Any) -> Any:
    """By leaf, `MUON` for the matrices of the layers, and `ADAMW` for all else."""

    def label(path: Any, leaf: Any) -> str:
        return MUON if str(path[0].key) == "layers" and jnp.ndim(leaf) == 3 else ADAMW

    return jax.tree.map_with_path(label, params)


def _descending(section: Any, direction: optax.GradientTransformation) -> optax.GradientTransformation:
    """Steps down a direction, with decoupled weight decay; without groups as `optax.adamw`, state included."""
    mask = decays if section.decay == "matrices" else None
    if not any(group.weight_decay is not None for group in section.groups):
        return optax.chain(direction, optax.add_decayed_weights(section.weight_decay, mask), optax.scale(-1.0))

    def decayed(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        usual = jax.tree.map(lambda x: section.weight_decay * x, decays(params) if mask else _like(params, 1.0))
        rates = _of_groups(section.groups, params, lambda group: group.weight_decay, usual)
        return jax.tree.map(lambda u, p, rate: u + rate * p, updates, params, rates), state

    return optax.chain(direction, optax.GradientTransformation(optax.init_empty_state, decayed), optax.scale(-1.0))


def _muon(section: Any) -> optax.GradientTransformation:
    # Not optax.contrib.muon, whose other parameters get Adam with Nesterov's momentum.

    def dimensions(params: Any) -> Any:
        return _like(params, contrib.MuonDimensionNumbers(1, 2))  # axis 0 is that of the layers

    orthogonal = contrib.scale_by_muon(
        beta=section.momentum,
        nesterov=section.nesterov,
        ns_steps=section.ns_steps,
        weight_dimension_numbers=dimensions,
    )
    sized = optax.stateless(lambda u, _: jax.tree.map(lambda x: _RMS * max(x.shape[1:]) ** 0.5 * x, u))
    kinds = {MUON: optax.chain(orthogonal, sized), ADAMW: optax.scale_by_adam(section.b1, section.b2)}
    return _descending(section, optax.partition(kinds, muon_labels))


def _adafactor(section: Any) -> optax.GradientTransformation:
    return _descending(
        section,
        _per_layer(
            optax.chain(
                optax.scale_by_factored_rms(decay_rate=section.decay_rate, min_dim_size_to_factor=section.min_dim),
                optax.clip_by_block_rms(section.clip_rms),
            )
        ),
    )


def _per_layer(tx: optax.GradientTransformation) -> optax.GradientTransformation:
    """A transformation that looks at whole matrices, for trees with stacked layers."""

    def init(params: Any) -> Any:
        return {name: jax.vmap(tx.init)(part) if name == "layers" else tx.init(part) for name, part in params.items()}

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        found = {
            name: (jax.vmap(tx.update) if name == "layers" else tx.update)(part, state[name], params[name])
            for name, part in updates.items()
        }
        return {name: each[0] for name, each in found.items()}, {name: each[1] for name, each in found.items()}

    return optax.GradientTransformation(init, update)


OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "adamw": lambda s: _descending(s, optax.scale_by_adam(s.b1, s.b2)),
    "lion": lambda s: _descending(s, optax.scale_by_lion(s.b1, s.b2)),
    "adafactor": _adafactor,
    "sgd": lambda s: _descending(s, optax.trace(s.momentum) if s.momentum else optax.identity()),
    "muon": _muon,
}
"""The transformation of each kind, from its section; functions of the user are added, see `learner.own`."""


def _like(tree: Any, value: Any) -> Any:
    return jax.tree.map(lambda _: value, tree)


def _names(tree: Any) -> Any:
    """By leaf, its name as groups match it."""
    return jax.tree.map_with_path(lambda path, _: "/".join(str(part.key) for part in path), tree)


def _of_groups(
    groups: tuple[ParameterGroup, ...], tree: Any, field: Callable[[ParameterGroup], Any], usual: Any
) -> Any:
    """By leaf, a number of the first group that matches it; `usual`, one or a tree, where none does or it has none."""

    def number(name: str, otherwise: Any) -> Any:
        found = next((field(group) for group in groups if fnmatch.fnmatchcase(name, group.match)), None)
        return otherwise if found is None else found

    return jax.tree.map(number, _names(tree), usual if isinstance(usual, dict) else _like(tree, usual))
