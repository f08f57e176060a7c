"""Shows what the agent of a run did; `scenes` computes the boards of recorded episodes."""
