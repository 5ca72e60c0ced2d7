"""Chat templates of the prompt formats that Megatron Core's SFT tokenizer knows by name. Standard library only.

`{% generation %}` marks the text of the assistant, which the loss covers. A role that a format does not have is an
error.
"""

import json
from collections.abc import Mapping

_OTHER_ROLE = (
    "{% else %}{{ raise_exception('the prompt format has no role ' + message.role) }}{% endif %}{% endfor %}"
)


def _template(*, system: str, user: str, assistant: str) -> str:
    return (
        "{% for message in messages %}{% set text = message.content.strip() %}"
        "{% if message.role == 'system' %}"
        + system
        + "{% elif message.role == 'user' %}"
        + user
        + "{% elif message.role == 'assistant' %}"
        + assistant
        + _OTHER_ROLE
    )


_NO_SWITCHES = "{{ message.content.replace('/think', '').replace('/no_think', '').strip() }}"

PROMPT_FORMATS: Mapping[str, str | None] = {
    "default": None,
    "identity": "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}{% endfor %}",
    "nemotron-h-aligned": _template(
        system="{{ '<SPECIAL_10>System\n' + text + '\n' }}",
        user="{{ '<SPECIAL_11>User\n' + text + '\n<SPECIAL_11>Assistant\n' }}",
        assistant="{% generation %}{{ text + '\n' }}{% endgeneration %}",
    ),
    "nemotron-nano-v2": _template(
        system="{{ '<SPECIAL_10>System\n' }}" + _NO_SWITCHES + "{{ '\n' }}",
        user="{{ '<SPECIAL_11>User\n' }}" + _NO_SWITCHES + "{{ '\n' }}",
        assistant="{{ '<SPECIAL_11>Assistant\n' }}"
        "{% generation %}{{ text + '\n<SPECIAL_12>\n' }}{% endgeneration %}",
    ),
}
"""Name of a prompt format -> its template; None: the template of the tokenizer's files."""


_TURNS = (
    "{{ system_start ~ 'System' ~ end_of_name }}"
    "{{ messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n') }}"
    "{{ end ~ start }}"
    "{% for turn in messages | rejectattr('role', 'equalto', 'system') %}"
    "{{ turn.role | capitalize ~ end_of_name }}"
    "{% if turn.role == 'assistant' and not loop.first %}"
    "{% generation %}{{ turn.content ~ end ~ start }}{% endgeneration %}"
    "{% else %}{{ turn.content ~ end ~ start }}{% endif %}{% endfor %}"
)


def turn_template(tokens: Mapping[str, str]) -> str:
    """Return the template of conversations as turns between tokens, as in Megatron-Bridge without a chat template.

    The loss covers the text of the assistant, the end of its turn, and the start of the next one, which ends the
    answer.

    Args:
        tokens: Texts by the names of `mb_data.finetuning.options.TURN_TOKENS`.
    """
    variables = {
        "system_start": "system_turn_start",
        "start": "turn_start",
        "end": "end_of_turn",
        "end_of_name": "end_of_name",
    }
    assigned = (f"{{% set {name} = {json.dumps(tokens[key])} %}}" for name, key in variables.items())
    return "".join(assigned) + _TURNS
