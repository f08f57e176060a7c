"""From a configuration to objects: `parts.RunParts` has all of a run's.

`build` makes one thing each (model, tokenizer, environments, settings), `programs` compiles, `demonstrations` and
`service_demonstrations` say what is imitated, `service_tasks` starts services, `policy` loads a trained policy.
"""
