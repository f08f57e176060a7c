"""The text environments that AgentGym serves: a folder each, which nothing else names.

`env` has the environment with its `SERVICE`, `protocol` its `ROUTES` and how its client reads a response (`READ`), and
`scenes` the `Reader` that reads scenes from its texts. A folder with these three is an environment by its name.

The modules beside them serve all others: compiled ones, Python ones, and those that only AgentGym's servers play.
"""
