"""What the product needs to know of an environment before it is made: that is said by its kind, which its name tells.

This file alone knows which kinds there are. Others read a trait of a kind, or call one of its functions, which are
imported when they are called: this file needs the standard library only. `register` adds a kind.
"""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from agentrl_jax.environments.loading import is_compiled_path, is_path
from agentrl_jax.service_names import COMPILED_TOO, REMOTE_ONLY, TEXT_SERVICES

PYTHON_RULE = "the environment says so (HostStep.success)"
"""Rule of success of every Python environment."""

_ITEMS = frozenset(("items", "held_out", "validation"))
_HOST = frozenset(("observation_tokens", "deadline", "workers", "max_failed"))


def _lazy(path: str) -> Callable[..., Any]:
    """The function `module:name`, which is imported when it is called."""
    module, _, name = path.partition(":")
    return lambda *arguments, **named: getattr(importlib.import_module(module), name)(*arguments, **named)


_local_task = _lazy("agentrl_jax.setup.served_task:local_task")
_check_served = _lazy("agentrl_jax.evaluate.environment_checks:check_served")
_shown_in_service = _lazy("agentrl_jax.evaluate.panels:shown_in_service")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """What the environments of a kind have in common. The defaults are those of a service in this process.

    Attributes:
        title: what refusals call them.
        claims: whether an environment is of this kind, from its name and the address of the run's services (`env.url`).
        service: the `Service` of a name, which scripted policies, API models, checks and servers play; `ValueError` if
            it cannot be had.
        on_host: they run beside the compiled loop. The others are made by `envs_jax.make`.
        has_items: levels are numbered items; otherwise they are boards, or are generated.
        needs_items: the configuration has to name the items.
        has_answer_block: actions are in an answer block of the response; otherwise responses are plain text.
        takes: fields that they read of a task: of items, held_out, validation, levels and options.
        reads: keys that they read of `env`.
        stored: the user's classes, named by import paths. Readers of a run's folder do not import them, and know them
            by what the run has stored, see `setup.stored_traits`.
        names: all names, as far as they can be listed.
        knows: whether there is an environment of this name; True where only importing it can tell.
        success_rule: when an episode of a name counts as solved, in words; None: as its service says.
        max_actions: actions of an episode of a name, unless the user sets another budget.
        run_task: the `ServedTask` of a run, from (its services, the number of the task, what returns its folder).
        check: the `Report` of a self-check, from (name, seeds=, progress=).
        with_steps: a task, with options by which an episode may have so many steps, from (task, steps).
        shown: what is shown first on each level of a panel.
    """

    title: str
    claims: Callable[[str, str], bool]
    service: Callable[[str], Any]
    on_host: bool = True
    has_items: bool = True
    needs_items: bool = True
    has_answer_block: bool = False
    takes: frozenset[str] = _ITEMS
    reads: frozenset[str] = _HOST
    stored: bool = False
    names: Callable[[], tuple[str, ...]] = tuple
    knows: Callable[[str], bool] = lambda name: True
    success_rule: Callable[[str], str] | None = None
    max_actions: Callable[[str], int] = lambda name: 100
    run_task: Callable[..., Any] = _local_task
    check: Callable[..., Any] = _check_served
    with_steps: Callable[[Any, int], Any] = lambda task, steps: task
    shown: Callable[[Any], list[str]] = _shown_in_service

    @property
    def batch(self) -> tuple[bool, bool]:
        """Tasks of which this is equal are played by one `BatchedEnv`."""
        return self.on_host, self.has_answer_block


_spec = _lazy("envs_jax.registry:spec")
_COMPILED = Kind(
    title="compiled environments",
    claims=lambda name, url: True,
    service=_lazy("agentrl_jax.services.environments.compiled:compiled_service"),
    on_host=False,
    has_items=False,
    needs_items=False,
    has_answer_block=True,
    takes=frozenset(("levels", "options")),
    reads=frozenset(),
    names=_lazy("envs_jax.registry:registered"),
    knows=_lazy("envs_jax.registry:knows"),
    success_rule=lambda name: _spec(name).success_rule,
    max_actions=lambda name: _spec(name).max_actions,
    check=_lazy("agentrl_jax.evaluate.environment_checks:check_compiled"),
    with_steps=_lazy("agentrl_jax.evaluate.limits:with_steps"),
    shown=_lazy("agentrl_jax.evaluate.panels:shown_here"),
)
_SERVICE = Kind(
    title="services",
    claims=lambda name, url: bool(url) or name in TEXT_SERVICES,
    service=lambda name: importlib.import_module(f"agentrl_jax.services.environments.{name}.env").SERVICE,
    reads=_HOST | {"url", "token_file", "score", "progress", "retries"},
    names=lambda: TEXT_SERVICES,
    run_task=_lazy("agentrl_jax.setup.served_task:service_task"),
)
_REMOTE = dataclasses.replace(
    _SERVICE,
    claims=lambda name, url: name in REMOTE_ONLY and (name not in COMPILED_TOO or url not in ("", "local")),
    service=_lazy("agentrl_jax.services.environments.remote_only:remote_service"),
    names=tuple,
)
_COMPILED_PATH = dataclasses.replace(
    _COMPILED, claims=lambda name, url: is_compiled_path(name), stored=True, names=tuple
)
_PYTHON = Kind(
    title="Python environments",
    claims=lambda name, url: is_path(name),
    service=_lazy("agentrl_jax.services.environments.python:python_service"),
    needs_items=False,
    has_answer_block=True,
    takes=_ITEMS | {"options"},
    reads=_HOST | {"processes"},
    stored=True,
    success_rule=lambda name: PYTHON_RULE,
    run_task=_lazy("agentrl_jax.setup.python_task:python_task"),
)
_kinds = [_COMPILED, _SERVICE, _REMOTE, _COMPILED_PATH, _PYTHON]
"""From the last on, each is asked whether a name is of it."""


def register(kind: Kind) -> None:
    """Adds a kind, which is asked before all others whether a name is of it."""
    _kinds.append(kind)


def kind_of(name: str, url: str = "") -> Kind:
    """The kind of an environment, in a run whose services are at an address (`env.url`); empty: by itself."""
    return next(kind for kind in reversed(_kinds) if kind.claims(name, url))


def titles(kinds: tuple[Kind, ...]) -> str:
    """What refusals call kinds."""
    return " and ".join(dict.fromkeys(kind.title for kind in sorted(kinds, key=_kinds.index)))


def listed_names() -> tuple[str, ...]:
    """The names of all environments that can be listed."""
    return tuple(name for kind in reversed(_kinds) for name in kind.names())
