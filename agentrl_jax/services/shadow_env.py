"""Shadow instances in this process, which replay a server's episode and give data that its protocol lacks."""

from collections.abc import Iterable

from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environment import ItemError, ScriptedPolicy, Service, ServiceEnvironment


def local_item(service: Service, item: int, shown: str) -> int:
    """The local number of a server's item, which it has `shown`; `ServiceError` if there is no such item here."""
    if service.locate is None:
        return item
    try:
        return item if service.make(False).reset(item).observation == shown else service.locate(shown)
    except ItemError as error:
        raise _other_task(service, item, f"{error}; leave it out") from error


def start_shadow(service: Service, item: int, shown: str) -> ServiceEnvironment:
    """A local instance at the start of a server's item, which it has `shown`; `ServiceError` if it is not here."""
    number, instance = local_item(service, item, shown), service.make(False)
    if instance.reset(number).observation != shown and service.locate is None:
        raise _other_task(service, item, "its progress is unknown; set env.progress and imitation.noise to 0")
    return instance


def _other_task(service: Service, item: int, advice: str) -> ServiceError:
    where = f"item {item} of {service.name} is another task on this server than here"
    return ServiceError(f"{where}: {advice}, or play on a server of `agentrl serve`")


class NoisyOracle:
    """An oracle that continues from any state a random policy leads to (DART, Laskey et al. 2017, arXiv 1703.09327)."""

    def __init__(self, service: Service, item: int, noise: Iterable[bool], seed: int):
        """Plays an item of a service with `advise`; in turn t the random policy with this seed acts if `noise[t]`."""
        assert service.advise is not None
        self._service, self._item, self._advise = service, item, service.advise
        self._noise = iter(noise)
        self._random: ScriptedPolicy = service.random(item, seed)
        self._shadow: ServiceEnvironment | None = None

    def act(self, observation: str) -> str:
        """The random policy's action, or the oracle's advice; `ServiceError` if the server plays another task."""
        if self._shadow is None:
            self._shadow = start_shadow(self._service, self._item, observation)
        random_action = self._random.act(observation)
        action = random_action if next(self._noise) else self._advise(self._shadow)
        self._shadow.step(action)
        return action
