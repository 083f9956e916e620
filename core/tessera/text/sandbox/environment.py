"""The Jinja environment in which a chat template is compiled and runs within a budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Any

from jinja2 import pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tessera.text.sandbox import growth
from tessera.text.sandbox.budget import Budget, LazyItems, LimitExceededError, TemplateLimits
from tessera.text.sandbox.compiler import BudgetedCodeGenerator, GenerationTag, check_nodes
from tessera.text.sandbox.filters import (
    DEEP_TESTS,
    FILTERS_ALLOWED,
    ITERATING,
    MATERIALISING,
    SELECTING,
    check_filter,
    goes_deep,
)
from tessera.text.sandbox.functions import FUNCTIONS, TemplateFunction
from tessera.text.sandbox.methods import SPLITTING, StrFormat, check_method, is_allowed_attribute

_MAX_INT_BITS = 4096
_BYTES_PER_GENERATOR = 512
# Not the views of a dict: as sets they would hash what they hold.
_OPERANDS = (str, int, float, list, tuple, dict, Undefined, type(None))


class BudgetedContext(Context):
    """The variables of one rendering, and its budget."""

    budget: Budget


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja with the settings, filters and functions chat templates expect, each operation checked before it runs.

    The methods up to `is_safe_attribute` are called by the code that BudgetedCodeGenerator writes.
    """

    code_generator_class = BudgetedCodeGenerator
    context_class = BudgetedContext
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        # Optimizing would run filters while the template is compiled, where no budget exists.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            optimized=False,
            finalize=_finalize,
        )
        self.filters = dict(FILTERS_ALLOWED)
        self.globals = dict(FUNCTIONS)

    def load(self, source: str) -> Template:
        """Compile a template. Raises TemplateSyntaxError, or whatever Python says to code that nests too deeply."""
        tree = self.parse(source)
        check_nodes(tree)
        return self.from_string(tree)

    def render(self, template: Template, variables: Mapping[str, Any], limits: TemplateLimits) -> str:
        """Raises LimitExceededError, or whatever the template's own code raises."""
        context = template.new_context(dict(variables))
        assert isinstance(context, BudgetedContext)
        context.budget = Budget(limits)
        pieces: list[str] = []
        num_chars = 0
        for piece in template.root_render_func(context):
            num_chars += len(piece)
            if num_chars > limits.output_chars:
                raise LimitExceededError(f"it writes more than {limits.output_chars} characters")
            pieces.append(piece)
        return "".join(pieces)

    def tick(self, context: BudgetedContext) -> None:
        context.budget.tick()

    def spend(self, context: BudgetedContext, num_bytes: int) -> None:
        context.budget.spend(num_bytes)

    def literal(self, context: BudgetedContext, text: str) -> str:
        return context.budget.charge(text)

    def charge(self, context: BudgetedContext, value: Any) -> Any:
        return context.budget.charge(value)

    def comparable(self, context: BudgetedContext, value: Any) -> Any:
        if type(value) is not str:
            context.budget.weigh(value)
        return value

    def concatenate(self, context: BudgetedContext, values: Sequence[Any]) -> str:
        budget = context.budget
        texts = [budget.text(value) for value in values]
        budget.require_text(sum(map(len, texts)))
        return budget.charge("".join(texts))

    def run_filter(self, context: BudgetedContext, name: str, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.call_filter(name, value, args, kwargs, context)

    def run_test(self, context: BudgetedContext, name: str, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.call_test(name, value, args, kwargs, context)

    def call_filter(
        self,
        name: str,
        value: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        context: Context | None = None,
        eval_ctx: EvalContext | None = None,
    ) -> Any:
        assert isinstance(context, BudgetedContext)
        budget = context.budget
        budget.tick()
        args, kwargs = tuple(args or ()), kwargs or {}
        if value and name in MATERIALISING:
            value = list(LazyItems(budget, iter(value)))
        if goes_deep(name):
            for operand in (value, *args, *kwargs.values()):
                budget.weigh(operand)
        check_filter(name, budget, value, args, kwargs)
        if value and name in ITERATING and not isinstance(value, LazyItems):
            value = LazyItems(budget, iter(value))
        result = super().call_filter(name, value, args, kwargs, context, eval_ctx)
        if isinstance(result, GeneratorType):
            budget.spend(_BYTES_PER_GENERATOR)
            return LazyItems(budget, result)
        if result is value or name in SELECTING:
            return result
        return budget.charge(result, growth.BYTES_PER_PIECE if isinstance(result, list) else 0)

    def call_test(
        self,
        name: str,
        value: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        context: Context | None = None,
        eval_ctx: EvalContext | None = None,
    ) -> Any:
        assert isinstance(context, BudgetedContext)
        context.budget.tick()
        if name in DEEP_TESTS:
            for operand in (value, *(args or ())):
                context.budget.weigh(operand)
        return super().call_test(name, value, args, kwargs, context, eval_ctx)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, BudgetedContext)
        budget = context.budget
        budget.tick()
        _check_operation(budget, operator, left, right)
        return budget.charge(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(context, BudgetedContext)
        budget = context.budget
        budget.tick()
        if isinstance(obj, (TemplateFunction, StrFormat)):
            return budget.charge(context.call(obj, budget, *args, **kwargs))
        if isinstance(obj, (BuiltinMethodType, MethodType)):
            return _call_method(context, obj, args, kwargs)
        if not isinstance(obj, (Macro, LoopContext, Undefined)):
            raise SecurityError(f"a value of type {type(obj).__name__!r} cannot be called in a chat template")
        return budget.charge(context.call(obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return super().is_safe_attribute(obj, attr, value) and is_allowed_attribute(obj, attr)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if not isinstance(value, (BuiltinMethodType, MethodType)) or not isinstance(value.__self__, str):
            return None
        if value.__name__ not in ("format", "format_map"):
            return None
        return StrFormat(self, value.__self__, takes_mapping=value.__name__ == "format_map")

    def getitem(self, obj: Any, argument: Any) -> Any:
        # No value of a chat has tuples for keys, and the hash of a tuple is as deep as the tuple.
        if isinstance(argument, tuple):
            return self.undefined(obj=obj, name="tuple")
        return super().getitem(obj, argument)


@pass_context
def _finalize(context: BudgetedContext, value: Any) -> str:
    """What `{{ value }}` prints."""
    return context.budget.charge(context.budget.text(value))


def _call_method(context: BudgetedContext, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    budget, owner, name = context.budget, method.__self__, method.__name__
    if not is_allowed_attribute(owner, name):
        raise SecurityError(f"{name!r} of a value of type {type(owner).__name__!r} cannot be called in a chat template")
    if isinstance(owner, str) and name == "join" and args:
        args = (list(LazyItems(budget, iter(args[0]))), *args[1:])
    # What Jinja's compiler passes along for functions that want the whole context.
    own_kwargs = {key: kwargs[key] for key in kwargs if key not in ("_loop_vars", "_block_vars")}
    check_method(budget, owner, name, args, own_kwargs)
    result = context.call(method, *args, **kwargs)
    if name == "get":  # a value that existed before
        return result
    return budget.charge(result, growth.BYTES_PER_PIECE if name in SPLITTING else 0)


def _check_operation(budget: Budget, operator: str, left: Any, right: Any) -> None:
    for operand in (left, right):
        if not isinstance(operand, _OPERANDS):
            raise TypeError(f"{operator!r} does not work with a value of type {type(operand).__name__!r}")
        if isinstance(operand, int) and operand.bit_length() > _MAX_INT_BITS:
            raise LimitExceededError("it computes with an integer that is too large")
    if operator == "+":
        if isinstance(left, str):
            budget.require_text(growth.of_joined(left, right))
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            budget.require(8 * (len(left) + len(right)))
    elif operator == "*":
        _check_repetition(budget, left, right)
        _check_repetition(budget, right, left)
    elif operator == "%" and isinstance(left, str):
        budget.require_text(growth.of_percent_format(budget, left, right))
    elif operator == "**":
        _check_power(left, right)


def _check_repetition(budget: Budget, value: Any, times: Any) -> None:
    if not isinstance(times, int):
        return
    if isinstance(value, str):
        budget.require_text(len(value) * times)
    elif isinstance(value, (list, tuple)):
        budget.require(8 * len(value) * times)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_INT_BITS:
        raise LimitExceededError("it computes an integer that is too large")
