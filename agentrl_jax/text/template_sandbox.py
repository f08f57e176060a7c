"""Jinja templates that others wrote, with bounds on the work and on the memory that they take.

Jinja's sandbox keeps a template from running code, but not from `'a' * 10**10`, `|center(10**10)` or loops inside
loops. Here every operation that could grow is charged before or after it runs: iterations and calls at `STEP`, values
at their weight, which is characters of text and `ENTRY` for each entry of a list or mapping. An operation that would
make something too heavy is refused before it is made. Host only.
"""

import collections
import re
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes, runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace, _PassArg, pass_context
from jinja2.visitor import NodeTransformer

MAX_VALUE = 1 << 22
"""Weight of one value."""

MAX_WORK = 1 << 26
"""Weight of everything that one rendering makes and reads."""

STEP = 256
"""Weight of an iteration or a call."""

ENTRY = 16
"""Weight of an entry of a list or mapping, beside its own."""

_MAX_DEPTH = 32
_MAX_BITS = 4096
_MAX_PRECISION = 64
_METER = " meter"  # no template can spell a name with a space
_PAID, _JOINED, _STEPS = " paid", " joined", " steps"
_WIDTH = re.compile(r"\d{4}|\*")
_NESTED = re.compile(r"\{[^{}]*\{")
_CONTAINERS: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_UNGROWING = frozenset({"attr", "d", "default", "float", "int", "max", "min"})
"""Filters whose result does not grow with the numbers that they are given."""


class Meter:
    """What one rendering may still do."""

    def __init__(self) -> None:
        self._left = MAX_WORK
        self._known: dict[int, tuple[Any, int, int]] = {}  # (the value, so that its id stays its own; weight; depth)

    def charge(self, weight: int) -> None:
        """Takes work off what is left; raises `SecurityError` where nothing is."""
        self._left -= weight
        if self._left < 0:
            raise SecurityError(f"it does more work than {MAX_WORK // STEP} steps, or makes as much text")

    def pay(self, value: Any) -> Any:
        """Charges a value's weight and returns the value."""
        weight = self.weigh(value)[0]
        if weight > MAX_VALUE:
            raise SecurityError(f"it makes a value of more than {MAX_VALUE} characters")
        self.charge(weight + 1)
        return value

    def weigh(self, value: Any) -> tuple[int, int]:
        """Weight of a value as text, with everything inside as often as it is repeated; and how deep it is nested."""
        if isinstance(value, str | bytes):
            return len(value), 0
        if isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise SecurityError(f"it makes a number of more than {_MAX_BITS} bits")
            return 1, 0
        if isinstance(value, range):
            return (ENTRY + 8) * len(value), 1
        if not isinstance(value, _CONTAINERS):
            return 1, 0
        known = self._known.get(id(value))
        if known is not None:
            return known[1:]
        entries = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)  # type: ignore[call-overload]
        parts = [self.weigh(entry) for entry in entries]
        weight = sum(part[0] + ENTRY for part in parts)
        depth = 1 + max((part[1] for part in parts), default=0)
        if depth > _MAX_DEPTH:
            raise SecurityError(f"it nests lists more than {_MAX_DEPTH} deep")
        self._known[id(value)] = value, weight, depth
        return weight, depth

    def settle(self, value: Any) -> Any:
        """Charges a value; what can be read only once becomes a list, so that its weight is known."""
        return self.pay(list(self.steps(value, 0)) if isinstance(value, collections.abc.Iterator) else value)

    def check_product(self, value: Any, others: list[Any]) -> None:
        """Refuses an operation whose result may be as long as a value times the largest of others."""
        sizes = [abs(other) if isinstance(other, int) else self.weigh(other)[0] for other in others]
        if self.weigh(value)[0] * (1 + max(sizes, default=0)) > MAX_WORK:
            raise SecurityError(f"it asks for more than {MAX_WORK} characters")

    def check_format(self, text: str, values: list[Any]) -> None:
        """Refuses formats with wide fields."""
        if _WIDTH.search(text) or _NESTED.search(text):
            raise SecurityError("it formats into a field of more than 999 characters")
        self.check_product(text, [*values, 999 if re.search(r"\d", text) else 0])

    def steps(self, value: Any, cost: int) -> Iterator[Any]:
        """The entries of a value, each charged."""
        for entry in value:
            self.charge(STEP + cost)
            yield entry


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates are rendered with a `Meter`, see `variables`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        self.literals = 0
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        self.filters = {name: _bounded_filter(name, function) for name, function in self.filters.items()}
        self.tests = {name: _bounded_test(function) for name, function in self.tests.items()}  # type: ignore[arg-type]
        self.filters |= {_PAID: _paid, _JOINED: _joined, _STEPS: _steps}

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Adds a filter, bounded like the others."""
        self.filters[name] = _bounded_filter(name, function)

    @staticmethod
    def variables() -> dict[str, Any]:
        """What a rendering has to be given beside the template's own variables."""
        return {_METER: Meter()}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Charges().visit(super()._parse(source, name, filename))
        self.literals = _literals(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right`."""
        meter = _meter(context)
        if operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
                raise SecurityError(f"it makes a number of more than {_MAX_BITS} bits")
        elif operator == "%" and isinstance(left, str | bytes):
            meter.check_format(left if isinstance(left, str) else left.decode("latin-1"), [right])
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(value, int | float):
                    meter.check_product(value, [times])
        return meter.pay(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls what a template calls."""
        meter = _meter(__context)
        meter.charge(STEP)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        args = tuple(map(meter.settle, args))
        kwargs = {name: meter.settle(value) for name, value in kwargs.items()}
        values = [*args, *kwargs.values()]
        if isinstance(__obj, runtime.Macro | runtime.BlockReference):
            meter.charge(__self.literals)
        elif isinstance(owner, str):
            meter.pay(owner)
            name = getattr(__obj, "__name__", "")
            if name in ("format", "format_map"):
                meter.check_format(owner, values)
            elif name in ("translate", "maketrans"):
                raise SecurityError(f"it calls str.{name}")
            else:
                meter.check_product(owner, values)
        elif isinstance(owner, int | float | bytes):
            raise SecurityError(f"it calls a method of {type(owner).__name__}")
        elif isinstance(owner, _CONTAINERS):
            meter.pay(owner)
        return meter.pay(super().call(__context, __obj, *args, **kwargs))


class _Namespace(Namespace):
    """A namespace that is no part of any text, so that what it holds is counted where it is used."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Charges(NodeTransformer):  # the names of its methods are those of Jinja
    """Puts a charge around every expression that makes or reads something large without a call."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Counts iterations."""
        if node.recursive:
            raise jinja2.TemplateSyntaxError("a recursive loop; use a macro", node.lineno)
        self.generic_visit(node)
        node.iter = _charged(node.iter, _STEPS, nodes.Const(sum(map(_literals, node.body))))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        """Charges what is compared."""
        self.generic_visit(node)
        node.expr = _charged(node.expr, _PAID)
        for operand in node.ops:
            operand.expr = _charged(operand.expr, _PAID)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Charges text that is put together."""
        self.generic_visit(node)
        return _charged(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _JOINED)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Charges slices."""
        self.generic_visit(node)
        return _charged(node, _PAID) if isinstance(node.arg, nodes.Slice) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Charges tuples."""
        self.generic_visit(node)
        return _charged(node, _PAID) if node.ctx == "load" else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """Charges lists."""
        return _charged(self.generic_visit(node), _PAID)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        """Charges mappings."""
        return _charged(self.generic_visit(node), _PAID)


def _charged(node: Any, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _literals(tree: nodes.Node) -> int:
    """Characters of the text that stands in a template."""
    own = len(tree.data) if isinstance(tree, nodes.TemplateData) else 0
    return own + sum(len(node.data) for node in tree.find_all(nodes.TemplateData))


def _meter(context: Any) -> Meter:
    return context.parent[_METER]


@pass_context
def _paid(context: Any, value: Any) -> Any:
    return _meter(context).pay(value)


@pass_context
def _joined(context: Any, parts: tuple[Any, ...]) -> str:
    _meter(context).pay(parts)
    return "".join(map(str, parts))


@pass_context
def _steps(context: Any, value: Any, cost: int) -> Iterator[Any]:
    return _meter(context).steps(value, cost)


@pass_context
def _finalize(context: Any, value: Any) -> Any:
    return _meter(context).pay(value)


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that charges what it reads and makes, and refuses arguments that make much out of little."""

    @_with_context(function)
    def bounded(inner: tuple[Any, ...], meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = meter.settle(value)
        args = tuple(map(meter.settle, args))
        others = [*args, *kwargs.values()]
        for each in kwargs.values():
            meter.pay(each)
        if name == "format":
            meter.check_format(str(value), others)
        elif name == "round" and any(isinstance(other, int) and abs(other) > _MAX_PRECISION for other in others):
            raise SecurityError(f"it rounds to more than {_MAX_PRECISION} digits")
        elif name == "sum" and not all(isinstance(other, int | float | str | None) for other in others):
            raise SecurityError("it adds up lists")
        elif name not in _UNGROWING:
            meter.check_product(value, others)
        meter.charge(STEP)
        made = function(*inner, value, *args, **kwargs)
        return meter.steps(made, 0) if isinstance(made, collections.abc.Iterator) else meter.pay(made)

    return bounded


def _bounded_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test that charges what it reads."""

    @_with_context(function)
    def bounded(inner: tuple[Any, ...], meter: Meter, *args: Any, **kwargs: Any) -> Any:
        for each in (*args, *kwargs.values()):
            meter.pay(each)
        return function(*inner, *args, **kwargs)

    return bounded


def _with_context(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes (what `function` is to be given first, the meter, arguments) -> value a function of Jinja's context."""
    wants = _PassArg.from_obj(function)

    def decorate(bounded: Callable[..., Any]) -> Callable[..., Any]:
        @pass_context
        def run(context: Any, *args: Any, **kwargs: Any) -> Any:
            inner = {
                None: (),
                _PassArg.context: (context,),
                _PassArg.eval_context: (context.eval_ctx,),
                _PassArg.environment: (context.environment,),
            }[wants]
            return bounded(inner, _meter(context), *args, **kwargs)

        return run

    return decorate
