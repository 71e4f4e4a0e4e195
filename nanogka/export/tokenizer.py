"""The exported tokenizer: `tokenizer.json`, its configuration, and the chat template of our conversations.

Every text starts with the document token, as in training. In a conversation the template writes it.
Text in a conversation never becomes a special token. The template inserts U+FFFF into every `<|` of a message, so that
no special token matches, and the normalizer of the tokenizer removes it.
"""

import tokenizers
from tokenizers import Regex, normalizers, processors

from nanogka.tokenizer import BOS, Tokenizer

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
END, PAD = "<|assistant_end|>", "<|output_end|>"
MARK, HIDDEN_MARK = "<|", "<\uffff|"  # U+FFFF: a code point that is no character

_LINES = (
    "{{- bos_token }}",
    "{%- set turns = namespace(system='', count=0) %}",
    "{%- for message in messages %}",
    "{%- if message['content'] is not string %}{{- raise_exception('content: expected text') }}{%- endif %}",
    f"{{%- set text = message['content'] | replace('{MARK}', '{HIDDEN_MARK}') %}}",
    "{%- if message['role'] == 'system' and loop.first %}",
    "{%- set turns.system = text ~ '\\n\\n' %}",
    "{%- elif message['role'] == 'user' and turns.count % 2 == 0 %}",
    "{{- '<|user_start|>' ~ turns.system ~ text ~ '<|user_end|>' }}",
    "{%- set turns.system, turns.count = '', turns.count + 1 %}",
    "{%- elif message['role'] == 'assistant' and turns.count % 2 == 1 %}",
    "{{- '<|assistant_start|>' }}{% generation %}{{- text ~ '<|assistant_end|>' }}{% endgeneration %}",
    "{%- set turns.count = turns.count + 1 %}",
    "{%- else %}",
    "{{- raise_exception('messages: expected at most one system message, then user and assistant in turn') }}",
    "{%- endif %}",
    "{%- endfor %}",
    "{%- if turns.count == 0 %}{{- raise_exception('messages: expected at least one user message') }}{%- endif %}",
    "{%- if add_generation_prompt %}{{- '<|assistant_start|>' }}{%- endif %}",
)
CHAT_TEMPLATE = "\n".join(_LINES)


def exported_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer as an object of the `tokenizers` library; its `to_str()` is the file."""
    hf = tokenizer.to_hf()
    hf.normalizer = normalizers.Replace(Regex("(?<=<)\uffff(?=[|])"), "")
    hf.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.bos_id)]
    )
    return hf


def tokenizer_config(sequence_len: int, end: str) -> dict:
    """The content of `tokenizer_config.json`; `end` is the token that ends generated text.

    Padding is a token that no text holds. Fine-tuning does not score padding, so a model padded with its end token
    would never learn to end.
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
