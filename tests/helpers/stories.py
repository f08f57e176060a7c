"""A fourth kind of environments, `story:LENGTH`, made of nothing but this file: say the words that you read."""

from agentrl_jax.environments.kinds import Kind
from agentrl_jax.services.action_parsing import first_action
from agentrl_jax.services.environment import ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.common import PlannedPolicy

ITEMS = 16


class Story(ServiceEnvironment):
    """Shows a word, and the next one once it is said."""

    def __init__(self, length):
        self.length = length

    def reset(self, item):
        if not 0 <= item < ITEMS:
            raise ItemError(f"there is no story {item}", item)
        self.item, self.said = item, 0
        return self._shown()

    def step(self, action):
        self.said += action == word(self.item, self.said)
        return self._shown()

    def _shown(self):
        over = self.said == self.length
        text = "The end" if over else f"Say {word(self.item, self.said)}"
        return StepResult(text, float(over), self.said / self.length, done=over)


def word(item, number):
    return f"{item}x{number}"


def story(name):
    length = int(name.partition(":")[2])
    words = [[word(item, number) for number in range(length)] for item in range(ITEMS)]
    return Service(
        name=name,
        make=lambda upstream: Story(length),
        items=ITEMS,
        instruction="Say the words.",
        read=first_action,
        turns=length + 2,
        solved=lambda answer: answer.done,
        success_rule="all words are said",
        oracle=lambda item: PlannedPolicy(words[item]),
        random=lambda item, seed: PlannedPolicy((), then=f"{seed}"),
        checked_items=ITEMS,
    )


KIND = Kind(title="stories", claims=lambda name, url: name.startswith("story:"), service=story)
