"""Models behind an OpenAI-compatible API as agents: `agentrl eval --api` (`evaluate_api` in `evaluate`)."""
