"""Environments as HTTP services, by the protocol of AgentGym: `client`, `server`, `environments`, and `bridge`,
which makes a host environment of a service. `catalog.get_service` finds one by name.
"""
