"""Chat templates in the styles of well-known models, written for these tests, and conversations for them."""
# ruff: noqa: E501  (lines of templates are what they are)

from __future__ import annotations

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

CHATML = """{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday: " + date_string + "\n\n" }}
{{- system_message ~ "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] | trim }}
    {%- else %}
        {%- for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""

INST = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(turns=0) %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- set ns.turns = ns.turns + 1 %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"] + eos_token }}
    {%- endif %}
{%- endfor %}
{{- '<!-- %d turns, %s -->' | format(ns.turns, loop_messages | map(attribute='role') | unique | join(',')) }}
"""

TURNS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{- '<start_of_turn>' + role + '\n' }}
{%- if role == 'model' %}{% generation %}{{ message['content'] | trim }}{% endgeneration %}
{%- else %}{{ message['content'] | trim }}{% endif %}
{{- '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

TOOLS = """{%- macro describe(tool) %}
{{- '- ' ~ tool.name ~ ': ' ~ tool.description | default('no description', true) ~ '\n' }}
{%- for name, spec in tool.parameters.properties | items %}
{{- '  ' ~ name ~ ' (' ~ spec.type ~ ('' if name in tool.parameters.required else ', optional') ~ ')\n' }}
{%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{ '\n' }}{{ tool | tojson }}{{ '\n' ~ describe(tool.function) }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{ '\n' + message.content }}{% endif %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
            {{- '\n<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' ~ call.arguments | tojson ~ '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- elif message.role == 'system' %}{% continue %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

REASONING = """{%- set ns = namespace(last_user=-1, has_tool=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == 'user' and ns.last_user < 0 %}{% set ns.last_user = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is defined and message.reasoning_content is string %}
        {%- set thought = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- '<|' ~ message.role ~ '|>' }}
    {%- if thought and loop.index0 > ns.last_user %}{{ '<think>' ~ thought ~ '</think>' }}{% endif %}
    {{- content.replace('<|', '< |') ~ eos_token }}
{%- endfor %}
{%- if documents %}{{ documents | map(attribute='title') | map('upper') | list | tojson(indent=2) }}{% endif %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

SHAPES = {"chatml": CHATML, "headers": HEADERS, "inst": INST, "turns": TURNS, "tools": TOOLS, "reasoning": REASONING}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather at a <place> & "time"',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
USER = {"role": "user", "content": "  What's the weather in Zürich? <b>&amp;</b> 😀\n"}
ANSWER = {"role": "assistant", "content": "Let me see.\n<think>\nhm\n</think>\n\nIt rains."}
SYSTEM = {"role": "system", "content": "Answer {{ briefly }}."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": '{"rain": true}'}
THOUGHT = {"role": "assistant", "content": "Yes.", "reasoning": "So it rains.\n"}

CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, USER],
    "system_turns": [SYSTEM, USER, ANSWER, USER],
    "call": [USER, CALL, RESULT, RESULT, ANSWER],
    "thought": [USER, THOUGHT, USER, THOUGHT],
}
