"""Conversations under chat templates, compared with transformers and with masks that are marked by hand."""

import json
import pickle
from pathlib import Path

import pytest

from mb_data import (
    ByteTokenizer,
    DatasetBuildContext,
    ExtendedTokenizer,
    FinetuningDatasetConfig,
    TokenizerConfig,
    TokenizerError,
    load_saved_tokenizer,
    load_tokenizer,
    save_tokenizer,
    tokenize_samples,
)
from mb_data.chat.encoding import TokenizerWithTemplate, chat_templates_of, encode_chat
from mb_data.chat.rows import parse_conversation, parse_tool_schemas
from mb_data.chat.samples import ChatEncoder, mask_of_spans
from mb_data.chat.template import parse_chat_templates, read_chat_template
from mb_data.errors import BadDocumentError, ChatTemplateError, DataPathError
from mb_data.finetuning.options import read_options
from mb_data.finetuning.samples import LineEncoder

CHAT = {"chat": True, "use_hf_tokenizer_chat_template": True}
SPECIAL = (
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
    *("<s>", "</s>", "[INST]", "[/INST]", "<bos>", "<start_of_turn>", "<end_of_turn>", "<think>", "</think>"),
    *("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>"),
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}"""
TEMPLATES = {
    "chatml": CHATML,
    "llama3": """{{- bos_token }}
{%- if tools %}
    {{- '<|start_header_id|>system<|end_header_id|>\n\nTools: ' + tools | tojson + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {%- if message.tool_calls is defined %}
        {{- message.tool_calls[0].function | tojson }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}""",
    "qwen3": """{%- set ns = namespace(last=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' and loop.index0 > ns.last %}
        {{- '<think>\n' + (message.reasoning_content or '') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}""",
    "mistral": """{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}""",
    "gemma": """{{ bos_token }}{% for message in messages %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
}
"""Templates in the forms that families of models have. None of them marks what the assistant generates."""

USER, ANSWER = (
    {"role": "user", "content": "How much is 2 + 2?"},
    {"role": "assistant", "content": "Fünf 🙂 sind's."},
)
TALK = [
    USER,
    ANSWER,
    {"role": "user", "content": " Wirklich?  "},
    {"role": "assistant", "content": "Nein, 4."},
]
WITH_SYSTEM = [{"role": "system", "content": "Be short."}, *TALK]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Adds <numbers> & more", "parameters": {}},
    }
]
CALL = {
    "role": "assistant",
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
}


def talk_for(name):
    """Return a conversation that a template accepts and renders without changing earlier messages."""
    return {"mistral": TALK, "gemma": TALK, "qwen3": WITH_SYSTEM[:3]}.get(name, WITH_SYSTEM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of Hugging Face's form: byte-level BPE with the special tokens of all templates."""
    library = pytest.importorskip("tokenizers", reason="needs the tokenizers extra")
    from mb_data import train_bpe

    path = tmp_path_factory.mktemp("tokenizer")
    (path / "text.txt").write_text(json.dumps(WITH_SYSTEM, ensure_ascii=False) * 3)
    train_bpe([path / "text.txt"], vocab_size=300, out=path / "tokenizer.json")
    tokenizer = library.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "bos_token": "<s>",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture
def theirs(folder):
    return pytest.importorskip("transformers").PreTrainedTokenizerFast.from_pretrained(str(folder))


def with_template(folder, template):
    return TokenizerWithTemplate(load_tokenizer(folder), template)


def samples(tokenizer, row, **options):
    encoder = ChatEncoder.of(tokenizer, read_options(CHAT | options))
    return encoder(row, location="a.jsonl:1")


def marked(tokenizer, sample):
    """Return the text that the loss covers, with `...` for every other run."""
    runs, was = [], False
    for number, covered in zip(sample.ids, sample.loss_mask, strict=True):
        if covered and not was:
            runs.append([])
        if covered:
            runs[-1].append(number)
        was = covered
    return [tokenizer.decode(run) for run in runs]


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_transformers(folder, theirs, name):
    talk = talk_for(name)
    (ours,) = samples(with_template(folder, TEMPLATES[name]), {"messages": talk})
    expected = theirs.apply_chat_template(talk, chat_template=TEMPLATES[name], return_dict=True)
    assert ours.ids == expected["input_ids"]


def test_tools_and_calls_are_rendered_as_by_transformers(folder, theirs):
    talk = [USER, CALL, {"role": "tool", "content": "4"}, ANSWER]
    row = {"messages": [dict(each, name=None) for each in talk], "tools": json.dumps(TOOLS)}
    tokenizer = with_template(folder, TEMPLATES["llama3"])
    (ours,) = samples(tokenizer, row)
    expected = theirs.apply_chat_template(
        talk, tools=TOOLS, chat_template=TEMPLATES["llama3"], return_dict=True
    )
    assert ours.ids == expected["input_ids"]
    assert marked(tokenizer, ours) == [
        '{"name": "add", "arguments": {"a": 2}}<|eot_id|>',
        "Fünf 🙂 sind's.<|eot_id|>",
    ]
    assert samples(tokenizer, {"messages": talk}, tool_schemas=TOOLS)[0] == ours
    assert samples(tokenizer, {"messages": talk}, tool_schemas=json.dumps(TOOLS[0]))[0] == ours


def test_masks_of_generation_marks_are_those_of_transformers(folder, theirs):
    (ours,) = samples(with_template(folder, MARKED), {"messages": WITH_SYSTEM})
    expected = theirs.apply_chat_template(
        WITH_SYSTEM, chat_template=MARKED, return_dict=True, return_assistant_tokens_mask=True
    )
    assert ours.ids == expected["input_ids"]
    assert ours.loss_mask == [bool(each) for each in expected["assistant_masks"]]


@pytest.mark.parametrize("name", ["nemotron-h-aligned", "nemotron-nano-v2", "identity"])
def test_prompt_formats_are_those_of_megatron(folder, name):
    pytest.importorskip("transformers")
    module = pytest.importorskip("megatron.core.tokenizers.text.libraries.sft_tokenizer")
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(folder), tokenizer_prompt_format=name
    )
    talk = [{"role": "system", "content": " Be short. /no_think"}, *TALK]
    (ours,) = samples(load_tokenizer(section), {"messages": talk})
    ids, target = module.SFTTokenizer(str(folder), name).tokenize_conversation(
        talk, return_target=True, add_generation_prompt=False
    )
    assert ours.ids == ids.tolist()
    assert any(ours.loss_mask)
    if (
        name == "nemotron-h-aligned"
    ):  # the masks of the others differ: all tokens, or a fixed number of the prefix
        assert ours.loss_mask == (target != module.IGNORE_INDEX).tolist()


TURNS = {"chat": True}


def test_turns_without_a_chat_template():
    row = {
        "system": "Be short.",
        "conversations": [
            {"from": "User", "value": "Hi"},
            {"from": "Assistant", "value": "Hello"},
            {"from": "User", "value": "Bye"},
            {"from": "Assistant", "value": "See you"},
        ],
    }
    tokens = {
        "system_turn_start": "<0>",
        "turn_start": "<1>",
        "label_start": "<2>",
        "end_of_turn": "|",
        "end_of_name": ":",
    }
    encoder = ChatEncoder.of(ByteTokenizer(), read_options({**TURNS, "special_tokens": tokens}))
    (sample,) = encoder(row, location="a.jsonl:1")
    text = ByteTokenizer().decode(sample.ids)
    assert text == "<0>System:Be short.|<1>User:Hi|<1>Assistant:Hello|<1>User:Bye|<1>Assistant:See you|<1>"
    assert marked(ByteTokenizer(), sample) == ["Hello|<1>", "See you|<1>"]
    (default,) = ChatEncoder.of(ByteTokenizer(), read_options(TURNS))(row, location="a.jsonl:1")
    assert (
        ByteTokenizer()
        .decode(default.ids)
        .startswith("<extra_id_0>System\nBe short.\n<extra_id_1>User\nHi\n")
    )


@pytest.mark.parametrize("extra", [{"type": "VALUE_TO_TEXT"}, {"mask": "Assistant"}])
def test_labels_of_turns_are_rejected(extra):
    row = {
        "conversations": [{"from": "User", "value": "Hi"}, {"from": "Assistant", "value": "Hello"}],
        **extra,
    }
    with pytest.raises(BadDocumentError, match=r"a.jsonl:1: has type=.* and mask="):
        ChatEncoder.of(ByteTokenizer(), read_options(TURNS))(row, location="a.jsonl:1")


def test_a_prompt_format_rejects_a_role_that_it_does_not_have(folder):
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=str(folder),
        tokenizer_prompt_format="nemotron-h-aligned",
    )
    with pytest.raises(BadDocumentError, match="the prompt format has no role tool"):
        samples(load_tokenizer(section), {"messages": [*TALK, {"role": "tool", "content": "4"}, ANSWER]})


@pytest.mark.parametrize(
    ("name", "spans"),
    [
        ("chatml", ["Fünf 🙂 sind's.<|im_end|>", "Nein, 4.<|im_end|>"]),
        ("llama3", ["Fünf 🙂 sind's.<|eot_id|>", "Nein, 4.<|eot_id|>"]),
        ("qwen3", ["<think>\n\n</think>\n\nFünf 🙂 sind's.<|im_end|>"]),
        ("mistral", [" Fünf 🙂 sind's.</s>", " Nein, 4.</s>"]),
        ("gemma", ["Fünf 🙂 sind's.<end_of_turn>", "Nein, 4.<end_of_turn>"]),
    ],
)
def test_the_loss_without_marks_covers_what_the_assistant_generates(folder, name, spans):
    tokenizer = with_template(folder, TEMPLATES[name])
    (sample,) = samples(tokenizer, {"messages": talk_for(name)})
    assert marked(tokenizer, sample) == spans


def test_marks_and_differences_give_the_same_mask(folder):
    row = {"messages": WITH_SYSTEM}
    assert samples(with_template(folder, CHATML), row) == samples(with_template(folder, MARKED), row)


@pytest.mark.parametrize("template", [CHATML, MARKED])
def test_a_sample_of_each_turn_covers_its_last_message(folder, template):
    tokenizer = with_template(folder, template)
    found = samples(tokenizer, {"messages": WITH_SYSTEM}, sample_per_assistant_turn=True)
    assert [marked(tokenizer, each) for each in found] == [
        ["Fünf 🙂 sind's.<|im_end|>"],
        ["Nein, 4.<|im_end|>"],
    ]
    assert found[1].ids[: len(found[0].ids)] == found[0].ids


def test_a_template_that_rewrites_earlier_messages_needs_a_sample_of_each_turn(folder):
    tokenizer = with_template(folder, TEMPLATES["qwen3"])
    reasoned = [
        dict(each, reasoning_content="2 + 2") if each["role"] == "assistant" else each for each in TALK
    ]
    with pytest.raises(
        BadDocumentError, match=r"renders message 1 differently .*sample_per_assistant_turn=true"
    ):
        samples(tokenizer, {"messages": reasoned})
    found = samples(tokenizer, {"messages": reasoned}, sample_per_assistant_turn=True)
    assert [marked(tokenizer, each) for each in found] == [
        ["<think>\n2 + 2\n</think>\n\nFünf 🙂 sind's.<|im_end|>"],
        ["<think>\n2 + 2\n</think>\n\nNein, 4.<|im_end|>"],
    ]


def test_a_generation_prompt_that_does_not_begin_the_message_is_rejected(folder):
    template = CHATML.replace("assistant\n", "assistant\n<think>")
    with pytest.raises(BadDocumentError, match=r"a.jsonl:1: the generation prompt .*{% generation %}"):
        samples(with_template(folder, template), {"messages": TALK})


def test_the_loss_may_cover_the_prompts_too():
    tokenizer = TokenizerWithTemplate(ByteTokenizer(), CHATML)
    (sample,) = samples(tokenizer, {"messages": TALK}, answer_only_loss=False)
    assert all(sample.loss_mask)


def test_a_line_end_that_ends_an_answer_is_generated():
    tokenizer = TokenizerWithTemplate(
        ByteTokenizer(),
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
    )
    (sample,) = samples(tokenizer, {"messages": TALK[2:]})
    assert marked(tokenizer, sample) == ["Nein, 4.\n\n"]


def test_added_special_tokens_are_entries(folder, theirs):
    names = ["<|turn|>", "<|turn|>>"]
    template = CHATML.replace("<|im_end|>", "<|turn|>>").replace("<|im_start|>", "<|turn|>")
    ours = ExtendedTokenizer(with_template(folder, template), names)
    theirs.add_special_tokens({"additional_special_tokens": names})
    (sample,) = samples(ours, {"messages": TALK})
    assert (
        sample.ids == theirs.apply_chat_template(TALK, chat_template=template, return_dict=True)["input_ids"]
    )
    assert marked(ours, sample) == ["Fünf 🙂 sind's.<|turn|>>", "Nein, 4.<|turn|>>"]


def test_a_text_is_encoded_as_before_after_a_conversation(folder):
    tokenizer = pickle.loads(pickle.dumps(load_tokenizer(folder)))
    before = tokenizer.encode("<s>")
    ids, offsets = encode_chat(tokenizer, "<s>ä")
    assert (ids[0], offsets[0], offsets[-1]) == (tokenizer.token_id("<s>"), (0, 3), (3, 4))
    assert tokenizer.encode("<s>") == before != ids[:1]


SHARE_GPT = {
    "system": "Be short.",
    "tools": TOOLS,
    "conversations": [
        {"from": "Human", "value": "Hi"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "4."},
        {"from": "human", "value": "is left out"},
    ],
}


def test_share_gpt_is_read_as_messages():
    found = parse_conversation(SHARE_GPT, location="a:1")
    assert found.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}],
        },
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4."},
    ]
    assert (found.tools, found.answers) == (TOOLS, [2, 4])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, 'has neither messages nor conversations (found keys text). Write {"messages"'),
        ({"messages": "a"}, "messages is a str, not a list. Write a list"),
        ({"messages": ["a"]}, "messages[0] is a str, not an object. Write"),
        (
            {"messages": [{"role": "bot"}]},
            "messages[0].role is 'bot', which is not a known role. Write one of system",
        ),
        ({"messages": [{"role": "user"}]}, 'messages[0] has no content. Write "content"'),
        (
            {"messages": [USER]},
            "has no message of the assistant; there is nothing to train on. Remove the line",
        ),
        (
            {"messages": [USER, ANSWER | {"weight": 0}]},
            "messages[1].weight is 0; the loss covers all messages of the assistant",
        ),
        ({"messages": [USER, ANSWER | {"loss": False}]}, "messages[1].loss is False; the loss covers all"),
        ({"messages": [USER | {"trainable": 1}, ANSWER]}, "messages[0].trainable is 1; the loss covers all"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is neither a string nor"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "images and sounds are not supported",
        ),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "unpaired surrogate"),
        (
            {"conversations": [{"from": "cat", "value": "a"}]},
            "conversations[0].from is 'cat', which is not a known",
        ),
        ({"conversations": [{"from": "function_call", "value": "a"}]}, "is not the JSON of a function call"),
        ({"messages": TALK, "tools": "["}, "tools is not a list of JSON schemas. Write"),
    ],
)
def test_a_bad_row_is_named_with_a_fix(row, message):
    with pytest.raises(BadDocumentError) as error:
        parse_conversation(row, location="a.jsonl:7")
    assert str(error.value).startswith("a.jsonl:7: ")
    assert message in str(error.value)


GLM = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_the_first_token_of_the_next_message_ends_an_answer_without_an_end(folder, caplog):
    tokenizer = with_template(folder, GLM)
    (sample,) = samples(tokenizer, {"messages": TALK})
    assert marked(tokenizer, sample) == ["Fünf 🙂 sind's.<|im_start|>", "Nein, 4."]
    assert (
        caplog.messages
        == [line for line in caplog.messages if "does not learn where to end it" in line]
        != []
    )


def test_a_template_that_ends_answers_is_taken_without_a_warning(folder, caplog):
    samples(with_template(folder, CHATML), {"messages": TALK})
    samples(with_template(folder, TEMPLATES["mistral"]), {"messages": TALK})
    samples(with_template(folder, MARKED), {"messages": TALK})
    assert not caplog.messages


MARKS = {"weight": 1, "loss": True, "training": 1}


def test_keys_that_agree_with_the_loss_are_read():
    row = {"messages": [USER | {"weight": 1, "loss": False}, ANSWER | MARKS]}
    assert parse_conversation(row, location="a:1").messages == row["messages"]


@pytest.mark.parametrize("arguments", [{"a": 2}, '{"a": 2}'])
@pytest.mark.parametrize(
    "printed",
    [
        "{{ call.arguments | tojson }}",
        "{% for name, value in call.arguments | items %}{{ '{' ~ name | tojson ~ ': ' ~ value ~ '}' }}{% endfor %}",
        "{{ '' + call.arguments }}",
        "{{ call.arguments }}",
        "{{ call.arguments if call.arguments is string else call.arguments | tojson }}",
    ],
)
def test_a_template_gets_the_arguments_of_calls_in_the_form_that_it_reads(arguments, printed):
    template = (
        "{% for call in messages[-1].tool_calls %}{% set call = call.function %}" + printed + "{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    row = {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}
    tokenizer = TokenizerWithTemplate(ByteTokenizer(), template)
    (sample,) = samples(tokenizer, row, answer_only_loss=False)
    assert tokenizer.decode(sample.ids) == '{"a": 2}'


@pytest.mark.parametrize(
    "template",
    ["{{ messages[0].content | trim }}", "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"],
)
def test_a_template_gets_a_list_of_texts_in_the_form_that_it_reads(template):
    row = {"messages": [USER | {"content": [{"type": "text", "text": "Hi"}]}, ANSWER]}
    tokenizer = TokenizerWithTemplate(ByteTokenizer(), template)
    (sample,) = samples(tokenizer, row, answer_only_loss=False)
    assert tokenizer.decode(sample.ids) == "Hi"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[-1].tool_calls }}", "prints the arguments of tool calls, or lists of texts, as Python"),
        ("{{ raise_exception('no tools') }}", "the chat template rejects the conversation: no tools"),
    ],
)
def test_a_template_that_reads_no_form_is_rejected(template, message):
    with pytest.raises(BadDocumentError, match=message):
        samples(TokenizerWithTemplate(ByteTokenizer(), template), {"messages": [USER, CALL]})


def test_a_row_that_the_template_rejects_is_named(folder):
    with pytest.raises(
        BadDocumentError, match=r"a.jsonl:1: the chat template rejects .*Only user and assistant"
    ):
        samples(with_template(folder, TEMPLATES["mistral"]), {"messages": WITH_SYSTEM})


def test_a_template_that_requests_the_date_needs_one():
    template = "{% if not date is defined %}{% set date = strftime_now('%Y') %}{% endif %}{{ date }}" + CHATML
    tokenizer = TokenizerWithTemplate(ByteTokenizer(), template)
    with pytest.raises(BadDocumentError, match=r"requests the date .*chat_template_kwargs="):
        samples(tokenizer, {"messages": TALK})
    (sample,) = samples(tokenizer, {"messages": TALK}, chat_template_kwargs={"date": "1 May"})
    assert tokenizer.decode(sample.ids).startswith("1 May<|im_start|>")


def test_a_template_cannot_leave_its_sandbox():
    tokenizer = TokenizerWithTemplate(ByteTokenizer(), "{{ messages.append(1) }}")
    with pytest.raises(BadDocumentError, match="rejects the conversation"):
        samples(tokenizer, {"messages": TALK})


def test_a_text_that_is_no_template_is_rejected():
    with pytest.raises(ChatTemplateError, match=r"tokenizer.chat_template: is not a Jinja template \(line 1"):
        samples(TokenizerWithTemplate(ByteTokenizer(), "{% if %}"), {"messages": TALK})


def test_a_tokenizer_needs_a_template_and_special_tokens(monkeypatch):
    with pytest.raises(TokenizerError, match=r"has no chat template.*tokenizer.chat_template_path"):
        samples(ByteTokenizer(), {"messages": TALK})

    class Plain:
        vocab_size, eod, fingerprint = 257, 256, "plain"

    with pytest.raises(TokenizerError, match="a Plain cannot encode the special tokens"):
        samples(TokenizerWithTemplate(Plain(), CHATML), {"messages": TALK})
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    monkeypatch.delitem(__import__("sys").modules, "mb_data.chat.rendering", raising=False)
    with pytest.raises(ChatTemplateError, match=r'jinja2 is not installed.*pip install "mb-data\[chat\]"'):
        samples(TokenizerWithTemplate(ByteTokenizer(), CHATML), {"messages": TALK})


def test_templates_of_a_tokenizers_files(folder, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    tokenizer = load_tokenizer(tmp_path)
    found = chat_templates_of(tokenizer)
    assert (found.select(has_tools=True), dict(found.special_tokens)) == (
        CHATML,
        {"eos_token": "</s>", "bos_token": "<s>"},
    )
    (tmp_path / "saved").mkdir()
    save_tokenizer(tokenizer, tmp_path / "saved")
    assert chat_templates_of(load_saved_tokenizer(tmp_path / "saved", TokenizerConfig())) == found
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=str(tmp_path),
        chat_template=MARKED,
        vocab_extra_ids=2,
    )
    assert chat_templates_of(load_tokenizer(section)).templates == {"default": MARKED}
    assert load_tokenizer(section).fingerprint.startswith(tokenizer.fingerprint)


def test_the_files_of_transformers_carry_their_template(theirs, tmp_path):
    theirs.chat_template = {"default": CHATML, "tool_use": MARKED}
    theirs.save_pretrained(tmp_path)
    section = TokenizerConfig(
        tokenizer_type="HuggingFaceTokenizer",
        tokenizer_model=str(tmp_path),
        hf_tokenizer_kwargs={"bos_token": "<bos>"},
    )
    found = chat_templates_of(load_tokenizer(section))
    assert (found.select(has_tools=False), found.select(has_tools=True)) == (CHATML, MARKED)
    assert found.special_tokens["bos_token"] == "<bos>"


def test_named_templates_of_older_files():
    named = [{"name": "tool_use", "template": "a"}]
    settings = {"chat_template": named, "bos_token": {"content": "<s>"}, "add_bos_token": True}
    found = parse_chat_templates(settings, source=Path("c.json"))
    assert dict(found.special_tokens) == {"bos_token": "<s>"}
    assert (found.select(has_tools=True), found.select(has_tools=False)) == ("a", None)
    with pytest.raises(TokenizerError, match=r"c.json: chat_template is a int; it must be"):
        parse_chat_templates({"chat_template": 3}, source=Path("c.json"))


def test_a_conversation_without_tools_needs_the_default_template(tmp_path, folder):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    settings = {"eos_token": "</s>", "chat_template": [{"name": "tool_use", "template": "a"}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadDocumentError, match="there is no template named default"):
        samples(load_tokenizer(tmp_path), {"messages": TALK})


def test_template_files(tmp_path):
    (tmp_path / "a.jinja").write_text("a")
    (tmp_path / "a.json").write_text('{"chat_template": "b"}')
    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "b.jinja").write_bytes(b"\xff")
    assert read_chat_template("c", None) == "c"
    assert read_chat_template(None, str(tmp_path / "a.jinja")) == "a"
    assert read_chat_template(None, str(tmp_path / "a.json")) == "b"
    with pytest.raises(DataPathError, match=r"none.jinja: no such file"):
        read_chat_template(None, str(tmp_path / "none.jinja"))
    with pytest.raises(TokenizerError, match=r"b.json: is not a JSON object"):
        read_chat_template(None, str(tmp_path / "b.json"))
    with pytest.raises(TokenizerError, match=r"b.jinja: is not UTF-8"):
        read_chat_template(None, str(tmp_path / "b.jinja"))


def test_a_dataset_of_conversations(tmp_path):
    rows = [SHARE_GPT, {"messages": TALK}]
    (tmp_path / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = FinetuningDatasetConfig(
        400, dataset_root=str(tmp_path), cache_dir=str(tmp_path), num_workers=0, dataset_kwargs=CHAT
    )
    template = CHATML.replace("{{ message.content }}", "{{ message.content or message.tool_calls }}")
    tokenizer = load_tokenizer(TokenizerConfig(tokenizer_type="ByteTokenizer", chat_template=template))
    first = tokenize_samples(tmp_path / "training.jsonl", config=config, tokenizer=tokenizer)
    assert (len(first), first.count.cut) == (2, 0)
    other = TokenizerWithTemplate(tokenizer, "{% generation %}{{ messages[-1].content }}{% endgeneration %}")
    again = tokenize_samples(tmp_path / "training.jsonl", config=config, tokenizer=other)
    assert not again.reused
    assert tokenizer.decode(again.tokens.tolist()) == "4.Nein, 4."
    config.dataset_kwargs = CHAT | {"sample_per_assistant_turn": True}
    config.seq_length = 100
    context = DatasetBuildContext(train_samples=4, valid_samples=0, test_samples=0, tokenizer=tokenizer)
    train, _, _ = config.build_datasets(context)
    assert (train.samples.count.cut, train.samples.count.left_out) == (1, 2)
    assert {len(train[number]["tokens"]) for number in range(4)} <= {96, 100}


def test_workers_render_the_same_samples(folder):
    options = read_options(CHAT)
    encoder = LineEncoder.of(with_template(folder, CHATML), options, longest=99)
    assert pickle.loads(pickle.dumps(encoder)).chat({"messages": TALK}, location="") == encoder.chat(
        {"messages": TALK}, location=""
    )


def test_tokens_without_text_are_not_in_the_loss():
    assert mask_of_spans([(0, 2), (2, 2), (2, 5), (5, 6), (6, 7)], [(1, 3), (6, 7)]) == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_a_single_tool_is_a_list_of_one():
    assert parse_tool_schemas(json.dumps(TOOLS[0]), location="a") == TOOLS
    assert parse_tool_schemas(" ", location="a") is None
