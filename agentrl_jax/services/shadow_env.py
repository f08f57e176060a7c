"""Shadow instances in this process, which replay a server's episode and give data that its protocol lacks."""

from collections.abc import Iterable

from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.environment import ItemError, ScriptedPolicy, Service, ServiceEnvironment


def located(service: Service, item: int, shown: str) -> int:
    """The local number of the item that a server has shown first under its number `item`.

    Raises:
        ServiceError: the server's item does not exist here.
    """
    if service.locate is None:
        return item
    try:
        if service.make(False).reset(item).observation == shown:
            return item
        return service.locate(shown)
    except ItemError as error:
        raise ServiceError(
            f"item {item} of {service.name} is another task on this server than here: {error}; leave it out, or play "
            "on a server of `agentrl serve`"
        ) from error


def play_along(service: Service, item: int, shown: str) -> ServiceEnvironment:
    """A local instance at the start of an item that a server has shown, given the server's item number.

    Raises:
        ServiceError: the server has shown another text.
    """
    number, instance = located(service, item, shown), service.make(False)
    if instance.reset(number).observation != shown and service.locate is None:
        raise ServiceError(
            f"item {item} of {service.name} is another task on this server than here, so that nobody can tell how far "
            "it is; set env.progress and imitation.noise to 0, or play on a server of `agentrl serve`"
        )
    return instance


class NoisyOracle:
    """An oracle that continues from any state a random policy leads to (DART, Laskey et al. 2017, arXiv 1703.09327)."""

    def __init__(self, service: Service, item: int, noise: Iterable[bool], seed: int):
        """Plays an item of a service with `advise`; in turn t the random policy with this seed acts if `noise[t]`."""
        assert service.advise is not None
        self._service, self._item, self._advise = service, item, service.advise
        self._noise = iter(noise)
        self._random: ScriptedPolicy = service.random(item, seed)
        self._beside: ServiceEnvironment | None = None

    def act(self, observation: str) -> str:
        """The random policy's action, or the oracle's advice.

        Raises:
            ServiceError: the item is another task on the server.
        """
        if self._beside is None:
            self._beside = play_along(self._service, self._item, observation)
        drawn = self._random.act(observation)
        action = drawn if next(self._noise) else self._advise(self._beside)
        self._beside.step(action)
        return action
