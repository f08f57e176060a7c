"""What an agent of invented worlds does by the form of the question: `python benchmarks/searchqa_forms.py RECORD ...`.

RECORD are folders of `agentrl eval RUN --record RECORD`, e.g. one for each seed of a run. Printed are, for the sampled
episodes of all folders: exact match with its interval, executed searches, and two ways of being right without reading:
right without a search, and right though no observation had the answer.
"""

import re
import sys
from collections import defaultdict

import numpy as np

from agentrl_jax.evaluate.statistics import success_interval
from agentrl_jax.runs.rollout_records import RolloutRecord, read_record, record_path, recorded_iterations
from agentrl_jax.text.tokenizer import load_small
from envs_jax.searchqa import ANSWER, SEARCH
from envs_jax.searchqa.text import UNKNOWN

_QUESTION = re.compile(r"(?:who|where|when|which)[^?\n]*\?")
_ANSWER = re.compile(r"<answer>(.*?)</answer>")


def form_of(question: str) -> str:
    """The form of a question, from its words. They do not say whether a passage has the fact."""
    if question.startswith("which"):
        return "comparison"
    return "two hops" if re.search(r"the (birthplace|company|mayor|town|founder) of ", question) else "one fact"


def episodes(record: RolloutRecord) -> list[tuple[str, bool, int, bool, bool]]:
    """Question, success, searches, whether the answer was unknown, and whether it was shown, of each episode."""
    tokenizer, found = load_small(), []

    def text(tokens: np.ndarray, length: int) -> str:
        return tokenizer.decode(tokens[:length].tolist(), skip_special=False)

    for row, turns in enumerate(record.num_turns):
        shown = [text(record.observation[row, turn], record.observation_length[row, turn]) for turn in range(turns)]
        said = text(record.tokens[row, turns - 1], record.length[row, turns - 1])
        answer = (_ANSWER.findall(said) or [""])[0].strip()
        (question,) = _QUESTION.findall(shown[0])[:1]
        actions = record.actions[row, :turns, 0]
        seen = bool(answer) and any(answer in one for one in shown[1:])
        found.append(
            (question, bool(record.success[row].any()), int((actions == SEARCH).sum()), answer == UNKNOWN, seen)
        )
        assert (actions == ANSWER).sum() <= 1
    return found


def main(folders: list[str]) -> None:
    """Prints the table."""
    by_form = defaultdict(list)
    for folder in folders:
        for number in recorded_iterations(folder):
            record = read_record(record_path(folder, number))
            assert record.header.evaluation is not None, f"{folder} is no recorded evaluation"
            if record.header.evaluation.sample is None:
                continue
            for question, success, searches, unknown, seen in episodes(record):
                by_form[form_of(question)].append((success, searches, seen or unknown))
    by_form["all"] = [row for rows in list(by_form.values()) for row in rows]
    print(f"{'form':14}{'n':>6}  {'exact match':24}{'searches':>9}{'no search':>11}{'not shown':>11}")
    for form, rows in sorted(by_form.items()):
        success, searches, seen = (np.array(column) for column in zip(*rows))
        interval = success_interval(success.astype(float))
        low, mean, high = (100 * interval[key] for key in ("low", "mean", "high"))
        rates = f"{mean:5.1f} % [{low:.1f}, {high:.1f}]"
        guessed = 100 * (success & (searches == 0)).mean(), 100 * (success & ~seen).mean()
        print(f"{form:14}{len(rows):>6}  {rates:24}{searches.mean():>9.2f}{guessed[0]:>9.1f} %{guessed[1]:>9.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
