"""Folders of evaluations of API models, as `agentrl eval --api` writes them against a fake server."""

from fake_api import FakeApi, completion

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions

SCRIPT = "<script>alert('item')</script><img src=x onerror=alert(1)>"
"""A reply of a model that wants to be a part of the page."""
BROKEN = "half \ud83d of a pair, \x07 and \u202e"
"""Text that is no Unicode text, and characters that a page must spell out; the client writes ? for the half."""
ITEMS = 5
SOLVED, CUT, REFUSED, UNFINISHED, HOSTILE = range(ITEMS)
"""What becomes of the items."""
LOGPROBS = [["Action:", -0.25], [" move down", -4.0]]


def _answer(walks):
    def answer(body):
        said = [message["content"] for message in body["messages"]]
        item = next(number for number, (start, _) in walks.items() if said[1] == start)
        turn = (len(said) - 2) // 2
        if item == SOLVED:
            reply = completion(f"Action: {walks[item][1][turn]}", reasoning_content=f"I think {SCRIPT}")
            reply["usage"]["completion_tokens_details"] = {"reasoning_tokens": 4}
            return reply
        if item == HOSTILE:
            if turn == 0:
                return completion(SCRIPT + "\nAction: " + BROKEN)
            reply = completion("Action: move down")
            reply["choices"][0]["logprobs"] = {"content": [{"token": t, "logprob": p} for t, p in LOGPROBS]}
            return reply
        if item == CUT:
            return completion("Thought: so lo", finish="length")
        if item == REFUSED:
            return completion("", refusal=f"I will not do that. {SCRIPT}")
        return (400, {}, b'{"error": {"message": "no"}}') if turn == 9 else (503, {}, b"{}") if turn else "Action: x"

    return answer


def write_folder(folder):
    """Evaluates a model on mazes, one item for every way in which an episode can go; returns the folder."""
    from agentrl_jax.services.catalog import get_service

    service, walks = get_service("maze"), {}
    for item in range(ITEMS):
        instance = service.make(False)
        shown = instance.reset(item).observation
        policy, actions, done, seen = service.oracle(item), [], False, shown
        while not done:
            actions.append(policy.act(seen))
            step = instance.step(actions[-1])
            done, seen = step.done, step.observation
        walks[item] = shown, actions
    options = TaskOptions(env="maze", items=f"0-{ITEMS - 1}", turns=30, concurrency=2)
    with FakeApi(_answer(walks)).running() as url:
        evaluate_api("model <b>x</b>", url, options, folder, retries=0)
    return folder
