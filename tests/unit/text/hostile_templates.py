"""Templates that try to take time, memory or the process, by what they abuse, and those that reach for more than their
values."""
# ruff: noqa: E501  (a template is one line)

from __future__ import annotations

NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}BODY{% endfor %}{% endfor %}{% endfor %}"
# A list that holds itself twice, thirty levels deep: small in memory, endless to walk.
LAUGHS = "{% set ns = namespace(x='ha') %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
DEEP = "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = NESTED %}{% endfor %}"
TUPLES = DEEP.replace("NESTED", "(" * 20 + "ns.x" + ",)" * 20)
BIG = "{% set s = 'aaaaaaaaaa' * 70000 %}"
GROW = "{% set ns = namespace(x=X) %}{% for i in range(60) %}{% set ns.x = Y %}{% endfor %}"

# More memory than there is for a job.
TOO_LARGE = {
    "string_times": "{{ 'a' * 10 ** 10 }}",
    "list_times": "{{ ([1] * 10 ** 10) | length }}",
    "doubling": GROW.replace("X", "'ab'").replace("Y", "ns.x + ns.x"),
    "doubling_join": GROW.replace("X", "'ab'").replace("Y", "[ns.x, ns.x] | join"),
    "doubling_replace": GROW.replace("X", "'ab'").replace("Y", "ns.x.replace('', ns.x)"),
    "doubling_format": GROW.replace("X", "'ab'").replace("Y", "'{0}{0}'.format(ns.x)"),
    "doubling_set_block": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40 + "{{ x }}",
    "doubling_macro": GROW.replace("X", "'ab'").replace("Y", "twice(ns.x)").replace(
        "{% set ns", "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns", 1
    ),
    "center": "{{ 'a' | center(10 ** 10) }}",
    "zfill": "{{ 'a'.zfill(10 ** 10) }}",
    "format_width": "{{ '%1000000000d' % 1 }}{{ '%1000000000d' % 1 }}",
    "join_separator": BIG + "{{ range(99999) | join(s) }}",
    "batch_fill": "{{ [1] | batch(10 ** 10, 'x') | list }}",
    "json_indent": "{{ [1] | tojson(indent=10 ** 10) }}",
    "int_method": "{{ (1).to_bytes(10000000000, 'big') }}",
    "output_flood": BIG + "{% for i in range(99999) %}{{ s }}{% endfor %}",
    "keep_alive": "{% set ns = namespace(x=none) %}{% for i in range(99999) %}{% set ns.x = [ns.x, 'x' * (90000 + i)] %}{% endfor %}",
}  # fmt: skip

# More time.
TOO_SLOW = {
    "nested_loops": NESTED.replace("BODY", ""),
    "power": "{{ 10 ** (10 ** 10) }}",
    "laughs_compare": LAUGHS + "{% set a = ns.x %}" + LAUGHS + "{{ a == ns.x }}",
    "backward_search": BIG + "{{ s.rfind('ab' + s[:350000]) }}",
}

# What Python and Jinja stop themselves.
STOPPED = {
    "range_bomb": "{{ range(10 ** 12) | list }}",
    "macro_recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "loop_recursion": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "caller_recursion": "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
    "deep_list_print": DEEP.replace("NESTED", "[ns.x]") + "{{ ns.x }}",
    "int_of_text": "{{ ('7' * 5000) | int(0, 10) + none }}",
}

# The hash of a deep tuple recurses in C without a check and ends the process.
CRASHING = {"deep_tuple_key": TUPLES + "{{ {ns.x: 1} | length }}"}

# What must not be reachable.
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr_filter": "{{ '' | attr('__class__') }}{{ ('' | attr('__class__')).mro() }}",
    "format_attribute": "{{ '{0.__class__.__init__}'.format(messages) }}{{ '{0.__class__.mro}'.format('').x }}",
    "map_attribute": "{{ ['a'] | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "function_globals": "{{ raise_exception.__call__.__globals__ }}",
    "function_private": "{{ namespace._function.__globals__ }}",
    "budget": "{{ self._TemplateReference__context.budget.tick() }}",
    "list_append": "{{ messages.append(messages) }}",
    "dict_update": "{{ messages[0].update({'role': 'x'}) }}",
    "call_number": "{{ 5() }}",
    "call_lazy": "{{ (messages | map('string'))() }}",
    "cycler_globals": "{{ cycler.__init__.__globals__ }}",
    "environment": "{{ environment.globals }}{{ environment.x.y }}",
    "context": "{{ context.budget }}{{ context.x.y }}",
}

# Refused when loaded.
MALFORMED = {
    "syntax": "{% if %}",
    "unclosed": "{% for m in messages %}{{ m.content }}",
    "unknown_filter": "{{ messages | hacked }}",
    "unknown_test": "{{ messages is hacked }}",
    "unknown_tag": "{% do messages.append(1) %}",
    "include": "{% include 'secret.txt' %}",
    "import": "{% import 'x' as y %}",
    "from_import": "{% from 'x' import y %}",
    "extends": "{% extends 'base' %}",
    "deep_brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep_lists": "{{ " + "[" * 300 + "]" * 300 + " }}",
    "long_sum": "{{ " + " + ".join(["1"] * 5000) + " }}",
    "deep_blocks": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "long_number": "{{ " + "9" * 9000 + " }}",
    "too_long": "x" * 300_000,
}
