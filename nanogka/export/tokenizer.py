"""The exported tokenizer: `tokenizer.json`, its configuration, the chat template, and how to read a reply.

Every text starts with the document token, as in training. In a conversation the template writes it.
Text in a conversation never becomes a special token. The template inserts U+FFFF into every name of one in a message,
so that it does not match, and the normalizer of the tokenizer removes it. So a text that already has U+FFFF between `<`
and `|` loses it. Unicode reserves this code point for such internal use. Other text stays as it is, because
transformers looks for it in the rendered conversation when a reply is to be continued.

The calculator is a tool in the form that other programs know: a message of the assistant with `tool_calls`, then one
with the role `tool`. Both belong to one reply, which the next message of the assistant continues.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, normalizers, processors

from nanogka.data.tool_calls import ARGUMENT, CALL_END, CALL_START, FUNCTION
from nanogka.tokenizer import BOS, SPECIAL_TOKENS, Tokenizer

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
START, END, PAD = "<|assistant_start|>", "<|assistant_end|>", "<|output_end|>"

# U+FFFF: a code point that is no character.
_HIDE = " | ".join(f"replace('{name}', '{name.replace('<', '<' + chr(0xFFFF))}')" for name in SPECIAL_TOKENS)
_CALL = f"a single call of {FUNCTION} with an object as arguments that holds the text {ARGUMENT}"
_LINES = (
    "{{- bos_token }}",
    "{%- for tool in tools or [] %}",
    f"{{%- if (tool['function'] or tool)['name'] != '{FUNCTION}' %}}",
    f"{{{{- raise_exception('tools: expected the function {FUNCTION} alone') }}}}",
    "{%- endif %}",
    "{%- endfor %}",
    # `state` of a reply: empty, `call` if a result must come next, `output` after the result.
    "{%- set turns = namespace(system='', count=0, state='') %}",
    "{%- for message in messages %}",
    "{%- set calls, content = message['tool_calls'] or [], message['content'] %}",
    "{%- if calls and not content %}{%- set content = '' %}{%- endif %}",
    "{%- if content is not string %}{{- raise_exception('content: expected text') }}{%- endif %}",
    f"{{%- set text = content | {_HIDE} %}}",
    "{%- if message['role'] == 'system' and loop.first %}",
    "{%- set turns.system = text ~ '\\n\\n' %}",
    "{%- elif message['role'] == 'user' and turns.count % 2 == 0 %}",
    "{{- '<|user_start|>' ~ turns.system ~ text ~ '<|user_end|>' }}",
    "{%- set turns.system, turns.count = '', turns.count + 1 %}",
    "{%- elif message['role'] == 'assistant' and turns.count % 2 == 1 and turns.state != 'call' %}",
    f"{{{{- '{START}' if not turns.state else '' }}}}",
    "{%- if calls %}",
    "{%- set call = calls[0]['function'] or calls[0] %}",
    f"{{%- set expression = call['arguments']['{ARGUMENT}'] %}}",
    f"{{%- if calls | length > 1 or call['name'] != '{FUNCTION}' or expression is not string %}}",
    f"{{{{- raise_exception('tool_calls: expected {_CALL}') }}}}",
    "{%- endif %}",
    f"{{%- set call = '{CALL_START}' ~ (expression | {_HIDE}) ~ '{CALL_END}' %}}",
    "{%- set turns.state = 'call' %}{% generation %}{{- text ~ call }}{% endgeneration %}",
    "{%- else %}",
    "{%- set turns.state, turns.count = '', turns.count + 1 %}",
    f"{{% generation %}}{{{{- text ~ '{END}' }}}}{{% endgeneration %}}",
    "{%- endif %}",
    "{%- elif message['role'] == 'tool' and turns.state == 'call' %}",
    # Without a result the model continues, as in our engine.
    "{{- '<|output_start|>' ~ text ~ '<|output_end|>' if text else '' }}",
    "{%- set turns.state = 'output' %}",
    "{%- else %}",
    "{{- raise_exception('messages: expected at most one system message, then user and assistant in turn, "
    "and a tool message after tool_calls') }}",
    "{%- endif %}",
    "{%- endfor %}",
    "{%- if turns.count == 0 %}{{- raise_exception('messages: expected at least one user message') }}{%- endif %}",
    "{%- if add_generation_prompt %}",
    "{%- if turns.state == 'call' %}{{- raise_exception('messages: expected a tool message at the end') }}{%- endif %}",
    f"{{{{- '{START}' if not turns.state else '' }}}}",
    "{%- endif %}",
)
CHAT_TEMPLATE = "\n".join(_LINES)


def reply_ends(special: Iterable[str] = SPECIAL_TOKENS) -> list[str]:
    """Those of the `special` tokens that end a chat model's text: all but the one that begins a call.

    Our engine runs the calculator and continues. Here a reply ends with its call, and its reader runs the calculator.
    """
    return [END, *(name for name in special if name not in (END, CALL_START))]


def exported_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer as an object of the `tokenizers` library; its `to_str()` is the file."""
    hf = tokenizer.to_hf()
    hf.normalizer = normalizers.Replace(Regex("(?<=<)\uffff(?=[|])"), "")
    hf.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.bos_id)]
    )
    return hf


def tokenizer_config(sequence_len: int, end: str) -> dict:
    """The content of `tokenizer_config.json`; `end` is the token that ends generated text, a chat model's `END`.

    Padding is a token that no text holds. Fine-tuning does not score padding, so a model padded with its end token
    would never learn to end. There is no `response_template`: with one, transformers returns special tokens as text
    wherever it does not read a new message, as for `return_full_text=False`.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": end,
        "pad_token": PAD,
        "padding_side": "left",
        "model_max_length": sequence_len,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": CHAT_TEMPLATE,
    }
