"""The user's rules at the start of a run: imported, filled in, checked, and put into the tables of their kinds."""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

from agentrl_jax.config import Config, validate
from agentrl_jax.config.load import expected
from agentrl_jax.config.own import OwnKind, OwnObjective
from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.learner import own
from agentrl_jax.parallel import hosts
from agentrl_jax.setup.own_checks import check
from agentrl_jax.setup.own_sources import COPIES, copy_sources, import_rules, source_of

_checked: set[tuple[str, OwnKind]] = set()


def with_own_rules(config: Config, *, unchanged: bool = False) -> Config:
    """The configuration with the user's rules imported and checked, their numbers complete, and their code's digest.

    A configuration without own rules is returned as it is. Call it before anything is built of the configuration, on
    all hosts.

    Raises:
        UserError: a function cannot be imported or is not as `rules.rule` says, its numbers are not as it declares, or
            its code is not the same on all hosts, or, with `unchanged`, not that which a run has stored.
    """
    found = {}
    with refusals():
        for key, section in config.own_kinds.items():
            found[key] = own_section(key, section)
            if unchanged and found[key].source != section.source:
                why = f"whose code is not that of the run; its folder has a copy in {COPIES}"
                raise BadValue.of(key, section.kind, why)
    if not found:
        return config
    if len({*hosts.gather(" ".join(part.source for part in found.values()))}) > 1:
        kinds = " and ".join(part.kind for part in found.values())
        why = "differs between hosts; copy it from one to the others"
        raise UserError(f"{next(iter(found))}: the code of {kinds} {why}", key=next(iter(found)))
    config = config.with_kinds(found)
    validate(config, files=not unchanged)  # `load_config` leaves that to this function
    return config


def own_section(key: str, section: OwnKind) -> OwnKind:
    """A section at a key, as in `with_own_rules`.

    Raises:
        ValueError: as `with_own_rules`.
    """
    module = import_rules(key, section.kind, stored=bool(section.source))
    rule = _rule_of(key, section, module)
    values = _values(key, section, rule)
    numbers = {name: float(value) for name, value in values.items() if name in rule.floats}
    static = {name: value for name, value in values.items() if name not in rule.floats}
    section = section.replace(needs=rule.needs, numbers=numbers, static=static, source=source_of(module))
    if isinstance(section, OwnObjective):
        section = section.replace(unit=rule.unit)
    if (key, section) not in _checked:
        check(key, section, rule)
        _checked.add((key, section))
    own.register(section.kind, rule)
    return section


def copy_own_rules(folder: Path, config: Config) -> None:
    """Writes the code of the rules of such a configuration into the folder of a run."""
    modules = [import_rules(key, part.kind, stored=False) for key, part in config.own_kinds.items()]
    copy_sources(folder, modules)


def _rule_of(key: str, section: OwnKind, module: ModuleType) -> own.Rule:
    name = section.kind.partition(":")[2]
    rule = getattr(module, name, None)
    if rule is None:
        raise BadValue.of(key, section.kind, f"but {module.__name__} has no {name}")
    if not isinstance(rule, own.Rule):
        why = f"which is no rule; write @rule() above the function {name}, from agentrl_jax.rules"
        raise BadValue.of(key, section.kind, why)
    if rule.inputs is not (wanted := own.INPUTS[type(section)]):
        why = f"which is {own.KINDS[rule.inputs]}; expected {own.KINDS[wanted]}"
        raise BadValue.of(key, section.kind, why)
    return rule


def _values(key: str, section: OwnKind, rule: own.Rule) -> dict[str, Any]:
    """The parameters, those that are not given at their defaults."""
    required = inspect.Parameter.empty
    fields: dict[str, Any] = {
        name: (kind, ... if default is required else default) for name, (kind, default) in rule.parameters.items()
    }
    settings = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
    model = create_model("Parameters", __config__=settings, **fields)
    try:
        return dict(model.model_validate(section.parameters))
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            known = ", ".join(rule.parameters) or "none"
            why = f"but {section.kind} has no such parameter; it has {known}"
            raise BadValue.of(f"{key}.{name}", problem["input"], why) from None
        if problem["type"] == "missing":
            raise BadValue(f"the key {key}.{name} is missing; give it a value", key=f"{key}.{name}") from None
        raise BadValue.of(f"{key}.{name}", problem["input"], f"expected {expected(problem)}") from None
