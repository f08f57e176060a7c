"""The command `agentrl`: a file for each of its commands; `main` only dispatches."""
