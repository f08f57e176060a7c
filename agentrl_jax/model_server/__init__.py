"""A policy behind an OpenAI-compatible endpoint: `agentrl serve-model`.

Requests that wait together are sampled in one compiled program (`batcher`, `sampler`).
"""
