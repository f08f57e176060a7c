"""Results of checks, as plain data."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Status = Literal["pass", "fail", "skipped"]


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of one check.

    Attributes:
        name: what is checked, such as "reward_range".
        status: "skipped" if there was nothing to check, for the given `reason`.
        numbers: what was found, as JSON data.
        reason: one sentence for a check that failed or was skipped, else empty.
        counterexample: the first case that breaks the rule, as JSON data: `seed`, `policy`, `actions` (their names, up
            to the action that breaks it) and `found`; None if there is none.
    """

    name: str
    status: Status
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""
    counterexample: Mapping[str, Any] | None = None


def verdict(
    name: str, reason: str, numbers: Mapping[str, Any], counterexample: Mapping[str, Any] | None = None
) -> Result:
    """Returns a failure for this reason, or a pass if the reason is empty."""
    return Result(name, "fail" if reason else "pass", numbers, reason, counterexample if reason else None)


def skipped(name: str, reason: str) -> Result:
    """Returns the result of a check that had nothing to check."""
    return Result(name, "skipped", reason=reason)


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of all checks of one environment.

    Attributes:
        env: name of the environment.
        kind: "compiled", or "service" for an environment of `agentrl_jax.services`.
        episodes: different seeds, or items of a service, that were played.
        seconds: wall-clock time, with compilation.
        results: one per check.
        difficulty: for each length of a shortest solution in actions (None: none is known) the number of `levels`
            and the success of uniform `random` actions on them.
    """

    env: str
    kind: Literal["compiled", "service"]
    episodes: int
    seconds: float
    results: Sequence[Result]
    difficulty: Sequence[Mapping[str, Any]] = ()

    @property
    def status(self) -> Status:
        """ "fail" if a check failed, "skipped" if all were skipped, else "pass"."""
        found = {result.status for result in self.results}
        return "fail" if "fail" in found else "pass" if "pass" in found else "skipped"

    def as_json(self) -> dict[str, Any]:
        """Returns the report as JSON data; numbers that are not finite become text."""
        data = {"env": self.env, "kind": self.kind, "status": self.status, "episodes": self.episodes}
        data |= {"seconds": round(self.seconds, 1), "checks": [dataclasses.asdict(result) for result in self.results]}
        return _finite(data | {"difficulty": list(self.difficulty)})


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
