"""Safe parsing of untrusted YAML: plain values only, with limits on the size after aliases are expanded."""

import json
import re
from typing import Any

import yaml

from agentrl_jax.errors import shortened, text_flaw

MAX_BYTES = 1 << 18
"""Largest size of a file, in bytes."""

MAX_NODES = 50_000
"""Maximum number of keys, values and lists in a text, counted once for each time an alias repeats them."""

_MAX_NUMBER = 64
"""Maximum number of characters in a number."""

_PREFIX = "tag:yaml.org,2002:"
_NUMBERS = (_PREFIX + "int", _PREFIX + "float")
_PLAIN = frozenset(_PREFIX + kind for kind in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "value"))


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with size limits; it reads 1e-3 as a number and refuses duplicate keys.

    Integers are decimal or begin with 0x. Dates are read as text. Tags other than those of plain values are refused.
    """

    def __init__(self, text: str):
        super().__init__(text)
        self._nodes = 0
        self._sizes: dict[int, int] = {}  # values in a finished node, by its id

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Composes the next node of the text and counts its values."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise _error(f"what is called &{event.anchor} holds a part of itself", event.start_mark)
            self._count(self._sizes[id(node)], event.start_mark)
            return node
        before, mark = self._nodes, self.peek_event().start_mark
        self._count(1, mark)
        node = super().compose_node(parent, index)
        if node.tag not in _PLAIN:
            raise _error(f"the tag {node.tag!r} is not that of a plain value", mark)
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
            raise _error(f"a number of {len(node.value)} characters; expected at most {_MAX_NUMBER}", mark)
        if isinstance(node, yaml.ScalarNode) and (flaw := text_flaw(node.value)):
            raise _error(f"text with {flaw}", mark)
        self._sizes[id(node)] = self._nodes - before
        return node

    def _count(self, more: int, mark: Any) -> None:
        self._nodes += more
        if self._nodes > MAX_NODES:
            raise _error(f"more than {MAX_NODES} values, with those that aliases repeat", mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Constructs a mapping and refuses duplicate keys."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, dict | list):
                raise _error("a key is a list or a mapping", key_node.start_mark)
            if key in seen:
                raise _error(f"the key {key!r} is given twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN and tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 reads 010 as 8 and 1:30 as 90. These stay text, which is refused where a number is expected.
Loader.add_implicit_resolver(
    _PREFIX + "int", re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
Loader.add_implicit_resolver(
    _PREFIX + "float",
    re.compile(
        r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
# YAML 1.1 requires a dot in a number with an exponent; people write 1e-3.
_EXPONENT = re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$")
Loader.add_implicit_resolver(_PREFIX + "float", _EXPONENT, list("-+0123456789"))


def parse(text: str) -> Any:
    """Parses a text into mappings, lists, text, numbers, booleans and None; no object occurs in it twice.

    Raises a `yaml.YAMLError` if the text is not YAML, or exceeds a limit of this module.
    """
    if len(text) > MAX_BYTES:
        raise yaml.YAMLError(f"longer than {MAX_BYTES} characters")
    loader = Loader(text)
    try:
        # The way through JSON copies objects that aliases share.
        return json.loads(json.dumps(loader.get_single_data()))
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # PyYAML does not catch errors of Python's own conversions.
        raise _error(f"a value that cannot be read ({shortened(error)})", loader.get_mark()) from error
    finally:
        loader.dispose()


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
