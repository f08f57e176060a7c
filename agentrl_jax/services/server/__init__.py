"""Environments over HTTP: `agentrl serve`."""
