"""From a configuration to objects: `parts.RunParts` has all of a run's.

`build` makes tasks of compiled environments, `build_model` the model and its first state, `build_inputs` what programs
are given (settings, ids); `programs` compiles, `demonstrations` and `service_demonstrations` say what is imitated,
`service_tasks` has the tasks that are played on the host (`served_task`, `python_task`), `stored_traits` says what
readers of a run's folder need of them, `policy` loads a trained policy.
"""
