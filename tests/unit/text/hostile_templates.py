"""Templates that try to take time, memory or the process, by what they abuse."""
# ruff: noqa: E501  (a template is one line)

from __future__ import annotations

# For as long as the limit lasts.
NESTED = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}BODY{% endfor %}{% endfor %}{% endfor %}"
# A list that holds itself twice, thirty levels deep: small in memory, endless to walk.
LAUGHS = "{% set ns = namespace(x='ha') %}{% for i in range(30) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
TUPLES = "{% set ns = namespace(x=()) %}{% for i in range(3000) %}{% set ns.x = (ns.x,) %}{% endfor %}"
BIG = "{% set s = 'aaaaaaaaaa' * 70000 %}"
GROW = "{% set ns = namespace(x=X) %}{% for i in range(60) %}{% set ns.x = Y %}{% endfor %}"

HOSTILE = {
    "nested_loops": NESTED.replace("BODY", ""),
    "nested_loops_output": NESTED.replace("BODY", "x"),
    "nested_loops_filter": NESTED.replace("BODY", "{{ 'x' | upper }}"),
    "loop_over_range_list": "{% set l = range(99999) | list %}" + NESTED.replace("range(99999)", "l"),
    "loop_filter": "{% for a in range(99999) %}{% for b in range(99999) if false %}x{% endfor %}{% endfor %}",
    "range_bomb": "{{ range(10 ** 12) | list }}",
    "range_lists": "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, range(99999) | list] %}{% endfor %}",
    "string_times": "{{ 'a' * 10 ** 9 }}",
    "times_string": "{{ 10 ** 9 * 'a' }}",
    "string_times_literal": "{{ 'a' * 1000000000 }}",
    "list_times": "{{ ([1] * 10 ** 9) | length }}",
    "tuple_times": "{{ ((1, 2) * 10 ** 9) | length }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power_loop": GROW.replace("X", "10").replace("Y", "ns.x * ns.x"),
    "power_negative_round": "{{ 5 | round(-1000000000) }}",
    "power_round": "{{ 5 | round(1000000000, 'ceil') }}",
    "doubling": GROW.replace("X", "'ab'").replace("Y", "ns.x + ns.x"),
    "doubling_tilde": GROW.replace("X", "'ab'").replace("Y", "ns.x ~ ns.x"),
    "doubling_list": GROW.replace("X", "[1]").replace("Y", "ns.x + ns.x"),
    "doubling_join": GROW.replace("X", "'ab'").replace("Y", "[ns.x, ns.x] | join"),
    "doubling_join_method": GROW.replace("X", "'ab'").replace("Y", "ns.x.join(['a', 'b', 'c'])"),
    "doubling_replace": GROW.replace("X", "'ab'").replace("Y", "ns.x.replace('', ns.x)"),
    "doubling_replace_filter": GROW.replace("X", "'aa'").replace("Y", "ns.x | replace('a', 'aa')"),
    "doubling_format": GROW.replace("X", "'ab'").replace("Y", "'{0}{0}'.format(ns.x)"),
    "doubling_percent": GROW.replace("X", "'ab'").replace("Y", "'%s%s' % (ns.x, ns.x)"),
    "doubling_percent_key": GROW.replace("X", "'ab'").replace("Y", "'%(k)s%(k)s' % {'k': ns.x}"),
    "doubling_set_block": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40 + "{{ x }}",
    "doubling_macro": GROW.replace("X", "'ab'").replace("Y", "twice(ns.x)").replace(
        "{% set ns", "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns", 1
    ),
    "doubling_escape": GROW.replace("X", "'&' * 1000").replace("Y", "(ns.x | forceescape) + ns.x"),
    "doubling_urlencode": GROW.replace("X", "'%' * 1000").replace("Y", "(ns.x | urlencode) + ns.x"),
    "doubling_safe": GROW.replace("X", "'&' * 1000").replace("Y", "('' | safe) + ('' ~ ns.x) ~ ns.x"),
    "doubling_upper": "{% set s = '\u0390' * 6000000 %}{{ s.upper() | length }}",
    "doubling_tojson": GROW.replace("X", "'\\\\'").replace("Y", "ns.x | tojson"),
    "doubling_sum": GROW.replace("X", "[1]").replace("Y", "[ns.x, ns.x] | sum(start=[])"),
    "filter_block": "{% filter replace('a', 'a' * 1000) %}{% filter replace('a', 'a' * 1000) %}{{ 'a' * 1000 }}{% endfilter %}{% endfilter %}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "center_literal": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "rjust": "{{ 'a'.rjust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "indent": "{{ 'a\\nb' | indent(10 ** 9) }}",
    "indent_lines": BIG + "{{ s | replace('a', '\\n') | indent(1000, true, true) }}",
    "format_width": "{{ '{:1000000000}'.format(1) }}",
    "format_width_argument": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "format_precision": "{{ '{:.1000000000f}'.format(1.5) }}",
    "percent_width": "{{ '%1000000000d' % 1 }}",
    "percent_star": "{{ '%*d' % (10 ** 9, 1) }}",
    "percent_precision": "{{ '%.1000000000f' % 1.5 }}",
    "percent_key_width": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "percent_filter": "{{ '%1000000000d' | format(1) }}",
    "join_separator": BIG + "{{ range(99999) | join(s) }}",
    "batch_fill": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "json_indent": "{{ [1] | tojson(indent=10 ** 9) }}",
    "json_separators": BIG + "{{ range(999) | list | tojson(separators=(s, s)) }}",
    "laughs_print": LAUGHS + "{{ ns.x }}",
    "laughs_tilde": LAUGHS + "{{ ns.x ~ '' }}",
    "laughs_json": LAUGHS + "{{ ns.x | tojson }}",
    "laughs_compare": LAUGHS.replace("ns.x, ns.x", "ns.x, ns.x, i") + "{% set a = ns.x %}" + LAUGHS.replace(
        "ns.x, ns.x", "ns.x, ns.x, i"
    ) + "{{ a == ns.x }}",
    "laughs_test": LAUGHS + "{{ ns.x is eq ns.x }}",
    "laughs_in": LAUGHS + "{{ 'z' in [ns.x] and ns.x in [[ns.x]] }}",
    "laughs_sort": LAUGHS + "{{ [ns.x, ns.x] | sort }}",
    "laughs_join": LAUGHS + "{{ ns.x | join }}",
    "laughs_format": LAUGHS + "{{ '{}'.format(ns.x) }}",
    "laughs_percent": LAUGHS + "{{ '%s' % (ns.x,) }}",
    "laughs_upper": LAUGHS + "{{ ns.x | upper }}",
    "laughs_string": LAUGHS + "{{ ns.x | string }}",
    "laughs_raise": LAUGHS + "{{ raise_exception(ns.x) }}",
    "laughs_count": LAUGHS + "{{ [ns.x].count(ns.x) }}",
    "laughs_changed": "{% for i in [1, 2] %}" + LAUGHS + "{{ loop.changed(ns.x) }}{% endfor %}",
    "deep_tuple_key": TUPLES + "{{ {ns.x: 1} | length }}",
    "deep_tuple_get": TUPLES + "{{ {}.get(ns.x) }}",
    "deep_tuple_item": TUPLES + "{{ {}[ns.x].x }}",
    "deep_tuple_in": TUPLES + "{{ ns.x in {} }}",
    "deep_tuple_unique": TUPLES + "{{ [ns.x, 1] | unique | list }}",
    "deep_tuple_dict": TUPLES + "{{ dict([(ns.x, 1)]) | length }}",
    "deep_tuple_group": TUPLES + "{{ [ns.x] | groupby(0) | list }}",
    "deep_list_print": TUPLES.replace("(ns.x,)", "[ns.x]") + "{{ ns.x }}",
    "deep_generators": "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x | map('abs') %}{% endfor %}{{ ns.x | list }}",
    "hash_collisions": "{{ range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) | unique | list | length }}",
    "hash_collisions_dict": "{% set ns = namespace(x=[]) %}{% for i in range(0, 99999 * (2 ** 61 - 1), 2 ** 61 - 1) %}"
    "{% set ns.x = ns.x + [(i, 1)] %}{% endfor %}{{ dict(ns.x) | length }}",
    "macro_recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "macro_tree": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro_tree_output": "{% macro f(n) %}xx{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "loop_recursion": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "caller_recursion": "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}{{ g() }}",
    "output_flood": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "output_flood_variable": "{% set s = 'x' * 100000 %}{% for i in range(99999) %}{{ s }}{% endfor %}",
    "buffer_flood": "{% macro f() %}{% for i in range(99999) %}" + "x" * 2000 + "{% endfor %}{% endmacro %}{{ f() | length }}",
    "split_flood": BIG + "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, s.split('a')] %}{% endfor %}",
    "list_of_text": BIG + "{{ s | list | length }}{{ s | list | length }}{{ s | list | length }}",
    "backward_search": BIG + "{{ s.rfind('ab' + s[:350000]) }}",
    "backward_split": BIG + "{{ s.rsplit('ab' + s[:350000]) }}",
    "strip_set": BIG + "{{ s.strip('b' * 100000 + 'a') | length }}",
    "trim_set": BIG + "{{ s | trim('b' * 100000 + 'a') | length }}",
    "title_flood": BIG + "{{ (s | replace('a', ' ')) | title | length }}",
    "wordcount_flood": BIG + "{% for i in range(99999) %}{{ s | wordcount }}{% endfor %}",
    "many_upper": BIG + "{% for i in range(99999) %}{% set t = s | upper %}{% endfor %}",
    "many_compare": BIG + "{% for i in range(99999) %}{% if s == s + 'x' %}{% endif %}{% endfor %}",
    "many_slices": BIG + "{% for i in range(99999) %}{% set t = s[1:] %}{% endfor %}",
    "many_dates": "{% for i in range(99999) %}{{ strftime_now('%A' * 100) | length }}{% endfor %}",
    "long_date": "{{ strftime_now('%A' * 100000) | length }}",
    "sort_same": BIG + "{{ ([s] * 90000) | sort | length }}",
    "int_of_text": "{{ ('7' * 500000) | int(0, 7) }}",
    "float_of_text": "{{ ('7' * 500000) | float }}",
    "hex_int": "{{ (('f' * 4000) | int(0, 16)) ** 999 }}",
    "keep_alive": "{% set ns = namespace(x=none) %}{% for i in range(99999) %}{% set ns.x = [ns.x, 'x' * 90000] %}{% endfor %}",
    "keep_integers": "{% set ns = namespace(x=none) %}{% set h = 'f' * 4000 %}" + NESTED.replace(
        "BODY", "{% set ns.x = [ns.x, h | int(0, 16)] %}"
    ),
    "keep_generators": "{% set ns = namespace(x=none) %}" + NESTED.replace(
        "BODY", "{% set ns.x = [ns.x, [1] | map('abs')] %}"
    ),
    "keep_namespaces": "{% set ns = namespace(x=none) %}" + NESTED.replace(
        "BODY", "{% set ns.x = [ns.x, namespace()] %}"
    ),
    "keep_macros": "{% set ns = namespace(x=none) %}" + NESTED.replace(
        "BODY", "{% macro m() %}{% endmacro %}{% set ns.x = [ns.x, m] %}"
    ),
    "keep_loops": "{% set ns = namespace(x=none) %}" + NESTED.replace(
        "BODY", "{% for d in [1] %}{% set ns.x = [ns.x, loop] %}{% endfor %}"
    ),
    "views": "{{ {1: 2}.items() - {1: 2}.items() }}",
}  # fmt: skip

# What must not be reachable, and what is no part of a chat template.
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr_filter": "{{ '' | attr('__class__') }}{{ ('' | attr('__class__')).mro() }}",
    "format_attribute": "{{ '{0.__class__.__init__}'.format(messages) }}{{ '{0.__class__.mro}'.format('').x }}",
    "map_attribute": "{{ ['a'] | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "function_globals": "{{ raise_exception.__call__.__globals__ }}",
    "function_private": "{{ namespace._function.__globals__ }}",
    "budget": "{{ self._TemplateReference__context.budget.tick() }}",
    "int_method": "{{ (1).to_bytes(1000000000, 'big') }}",
    "str_encode": "{{ 'a'.encode().fromhex }}{{ 'a'.encode() }}",
    "str_translate": "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "list_append": "{{ messages.append(messages) }}",
    "dict_update": "{{ messages[0].update({'role': 'x'}) }}",
    "call_number": "{{ 5() }}",
    "call_lazy": "{{ (messages | map('string'))() }}",
    "markup_format": "{{ ('{0}' | safe).format(1) }}",
    "lipsum": "{{ lipsum(n=10) }}",
    "cycler_globals": "{{ cycler.__init__.__globals__ }}",
    "environment": "{{ environment.globals }}{{ environment.x.y }}",
    "context": "{{ context.budget }}{{ context.x.y }}",
}

# Refused when loaded.
MALFORMED = {
    "syntax": "{% if %}",
    "unclosed": "{% for m in messages %}{{ m.content }}",
    "unknown_filter": "{{ messages | urlize }}",
    "unknown_test": "{{ messages is hacked }}",
    "unknown_tag": "{% do messages.append(1) %}",
    "include": "{% include 'secret.txt' %}",
    "import": "{% import 'x' as y %}",
    "from_import": "{% from 'x' import y %}",
    "extends": "{% extends 'base' %}",
    "block": "{% block a %}{% endblock %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "deep_brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep_lists": "{{ " + "[" * 300 + "]" * 300 + " }}",
    "long_sum": "{{ " + " + ".join(["1"] * 5000) + " }}",
    "deep_blocks": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "long_number": "{{ " + "9" * 9000 + " }}",
    "too_long": "x" * 300_000,
}
