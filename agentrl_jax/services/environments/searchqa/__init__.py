"""Questions that are answered by searching a corpus, as AgentGym-RL's DeepSearch and Search-R1 ask them."""
