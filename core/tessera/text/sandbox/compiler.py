"""Compiles a template so that each operation on a value goes through the environment; refuses what has no place in one.

Jinja's own compiler sends calls, attributes and (on request) arithmetic through the environment. Everything else that
runs Python on a template's values is added here: comparisons, literals, slices, `~`, filters, tests, printed text and
the entry of each block, which is where loops and macros meet the clock.
"""
# ruff: noqa: N802  (Jinja finds a visitor by the name of its node)

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser

_ALLOWED_NODES = frozenset(
    {
        nodes.Template, nodes.Output, nodes.TemplateData, nodes.Const, nodes.Name, nodes.NSRef, nodes.Tuple, nodes.List,
        nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem,
        nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare, nodes.Operand, nodes.Mul, nodes.Div, nodes.FloorDiv,
        nodes.Add, nodes.Sub, nodes.Mod, nodes.Pow, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.For,
        nodes.If, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Assign, nodes.AssignBlock,
        nodes.Break, nodes.Continue, nodes.Scope,
    }
)  # fmt: skip

# The `loop` variable, and a macro with its function: a template can keep each of them.
_BYTES_PER_LOOP = 512
_BYTES_PER_MACRO = 1024


def check_nodes(template: nodes.Template) -> None:
    """Refuse inheritance, imports and whatever a later Jinja adds: the compiler below covers exactly the allowed nodes.

    Raises TemplateSyntaxError.
    """
    for node in template.find_all(nodes.Node):
        if type(node) not in _ALLOWED_NODES:
            raise TemplateSyntaxError(f"'{type(node).__name__.lower()}' has no place in a chat template", node.lineno)


class GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks an assistant's text for training; here it is only a scope."""

    tags = {"generation"}  # noqa: RUF012  (the name and type that Jinja's Extension declares)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class BudgetedCodeGenerator(CodeGenerator):
    """Jinja's code generator; what it writes calls the methods of BudgetedEnvironment."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.tick(context)")
        super().blockvisit(nodes, frame)

    def _output_const_repr(self, group: Iterable[object]) -> str:
        return f"environment.literal(context, {super()._output_const_repr(group)})"

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self.writeline(f"environment.spend(context, {_BYTES_PER_LOOP})")
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:
        self.writeline(f"environment.spend(context, {_BYTES_PER_MACRO})")
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:
        self.writeline(f"environment.spend(context, {_BYTES_PER_MACRO})")
        super().visit_CallBlock(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate(context, (")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        self.write("(")
        self._visit_comparable(node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        self.write(f" {operators[node.op]} ")
        self._visit_comparable(node.expr, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.charge(context, ")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.charge(context, ")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.charge(context, {")
        for item in node.items:
            self._visit_comparable(item.key, frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("})")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.charge(context, ")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        if node.name not in self.environment.filters and not frame.soft_frame:
            self.fail(f"No filter named {node.name!r}.", node.lineno)
        self.write(f"environment.run_filter(context, {node.name!r}, ")
        if node.node is None:  # a filter block: its value is what the block has printed
            self.write(f"concat({frame.buffer})")
        else:
            self.visit(node.node, frame)
        self.signature(node, frame)
        self.write(")")

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        if node.name not in self.environment.tests and not frame.soft_frame:
            self.fail(f"No test named {node.name!r}.", node.lineno)
        self.write(f"environment.run_test(context, {node.name!r}, ")
        self.visit(node.node, frame)
        self.signature(node, frame)
        self.write(")")

    def _visit_comparable(self, node: nodes.Node, frame: Frame) -> None:
        self.write("environment.comparable(context, ")
        self.visit(node, frame)
        self.write(")")
