"""Questions with right answers, and the reader of their files, see `envs_jax.searchqa.question_files`."""

import os
from collections.abc import Mapping, Sequence

from agentrl_jax.errors import refusals
from agentrl_jax.services.environments.searchqa.answers import normalized
from envs_jax.searchqa import question_files
from envs_jax.searchqa.question_files import Question as Question


def read_questions(path: str | os.PathLike[str], passages: Mapping[str, int]) -> Sequence[Question]:
    """As `question_files.read_questions`; answers of which exact match leaves nothing are left out.

    Raises:
        UserError: where that raises BadValue.
    """
    with refusals():
        return question_files.read_questions(path, passages, lambda texts: [bool(normalized(each)) for each in texts])
