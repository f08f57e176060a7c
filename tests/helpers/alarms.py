"""Alarms and falls of a series that is given as a whole."""

from agentrl_jax.algos import change
from agentrl_jax.algos.collapse_watch import CollapseWatch


def raised(rows):
    watch, found = CollapseWatch(), ()
    for row in rows:
        found = watch.add(row)
    return found


def falls(values, counts=None, **rule):
    return change.falls(change.FallRule(**rule), values, counts)
