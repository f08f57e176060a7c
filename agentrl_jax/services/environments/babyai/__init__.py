"""BabyAI with the levels and rules of AgentGym; see `services.environments`."""
