"""The refusal of an action, whose key and value a test looks at."""

import pytest

from agentrl_jax.errors import UserError


def refusal(action, *arguments, **options) -> UserError:
    with pytest.raises(UserError) as error:
        action(*arguments, **options)
    return error.value
