from refusing import refusal

from agentrl_jax.offline.conversations import Conversation, Data, Message
from agentrl_jax.offline.export import write_pairs
from agentrl_jax.offline.own_pairs import own_pairs
from agentrl_jax.offline.read import read_pairs


def played(level, reply, reward, success=None, system="Act."):
    messages = Message("system", system), Message("user", level), Message("assistant", reply)
    return Conversation(messages, "toy", level, reward, reward > 0.5 if success is None else success)


def test_a_success_and_a_failure_on_a_level_are_a_pair(tmp_path):
    rows = [
        *(played("a", f"a{k}", reward) for k, reward in enumerate((0.0, 1.0, -0.5, 0.8))),
        *(played("b", f"b{k}", 1.0) for k in range(2)),  # no failure
        *(played("c", f"c{k}", 0.2) for k in range(2)),  # no success
        played("d", "d0", 1.0),
        played("d", "d1", 0.95, success=False),  # too near
    ]
    data = Data.of(rows, "run")
    (pair,) = own_pairs(data).pairs
    assert [pair.chosen[0].content, pair.rejected[0].content] == ["a1", "a2"]
    assert [message.content for message in pair.prompt] == ["Act.", "a"]
    assert own_pairs(data).dropped == {"level without a pair": 3}
    both = own_pairs(data, per_level=2)
    assert [(p.chosen[0].content, p.rejected[0].content) for p in both.pairs] == [("a1", "a2"), ("a3", "a0")]
    write_pairs(both, tmp_path / "pairs.jsonl")
    assert list(read_pairs([tmp_path / "pairs.jsonl"]).pairs) == list(both.pairs)
    assert refusal(own_pairs, Data.of(rows[4:8], "run")).key == "pairs"


def test_other_systems_are_other_levels():
    rows = [played("a", "x", 1.0), played("a", "y", 0.0, system="Act well.")]
    assert refusal(own_pairs, Data.of(rows, "run")).value == 0


def test_prompts_end_before_the_first_reply_that_was_sampled():
    given = Message("assistant", "OK", loss=False)
    rows = [
        Conversation(
            (Message("user", "manual"), given, Message("user", "a"), Message("assistant", said)),
            reward=r,
            success=r > 0,
        )
        for said, r in (("x", 1.0), ("y", 0.0))
    ]
    (pair,) = own_pairs(Data.of(rows, "run")).pairs
    assert len(pair.prompt) == 3
    assert pair.chosen == (Message("assistant", "x"),)
