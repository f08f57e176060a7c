"""Text and tokens: `tokenizer`, `chat`, `pieces` (fragments of an environment to tokens), `prompt`, `styles`,
`grammar` (responses to actions, on the device), `reference` (the same on the host), `canonical` (the encoder of a
tokenizer's own rule) and `conversation`.
"""
