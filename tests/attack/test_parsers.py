"""Random input for the parsers: each ends with a value or with the one kind of error that its callers catch."""

import json

import pytest
from generate_models import loaded_run, small_model

pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from nanogka.api import Model  # noqa: E402
from nanogka.common.cli import convert, parse  # noqa: E402
from nanogka.common.errors import Errors  # noqa: E402
from nanogka.common.files import parse_yaml  # noqa: E402
from nanogka.data.conversation import Conversation  # noqa: E402
from nanogka.serve.protocol import ApiError, Served, read_request  # noqa: E402
from nanogka.serve.settings import Limits  # noqa: E402
from nanogka.train.settings import TrainSettings  # noqa: E402

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
TAGS = ("!!bool", "!!int", "!!float", "!!timestamp", "!!binary", "!!set", "!!omap", "!!python/name:os.system", "!x", "")
yaml_lines = st.builds("{}: {} {}".format, st.text("abc&*[]{}", max_size=4), st.sampled_from(TAGS), st.text(max_size=8))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("user", "assistant", "system", "x")) | values, "content": values}),
    max_size=4,
)
fields = dict.fromkeys(("prompt", "stop", "n", "seed", "temperature", "max_tokens", "logprobs", "stream"), values)
requests = st.fixed_dictionaries({"messages": messages}, optional=fields | {"logit_bias": values})


def attempt(function, kind=ValueError):
    """(result, None), or (None, text of the error of this kind). Any other exception is a defect."""
    try:
        return function(), None
    except kind as error:
        return None, str(error)


@EXAMPLES
@given(st.lists(yaml_lines, max_size=4).map("\n".join) | st.text(max_size=40))
def test_yaml(text):
    _, error = attempt(lambda: parse_yaml(text, "config.yaml"))
    assert error is None or error.startswith("config.yaml: ")


@EXAMPLES
@given(st.text(max_size=12), st.sampled_from((int, float, bool)))
def test_values_of_flags(text, kind):
    found, error = attempt(lambda: convert("--x", text, kind))
    assert isinstance(found, kind) or error.startswith("--x: got ")


@EXAMPLES
@given(st.lists(st.sampled_from(("--depth", "--lr-scale", "--compile", "--dpeth")), max_size=4), st.text(max_size=6))
def test_command_lines(names, text):
    errors = Errors()
    found = parse(TrainSettings, [f"{name}={text}" for name in names], "tool", "A tool.", errors)
    assert isinstance(found, TrainSettings)
    assert {line.split(": ")[0] for line in errors.lines} <= set(names)


@EXAMPLES
@given(values | messages | st.fixed_dictionaries({"messages": messages | values}), st.booleans())
def test_conversations(document, complete):
    found, error = attempt(lambda: Conversation.from_json(document, complete=complete))
    assert error or Conversation.from_json(json.loads(json.dumps(found.to_json())), complete=complete) == found


@pytest.fixture(scope="module")
def served():
    return Served("tiny", Model(loaded_run(small_model(), "chat")), Limits())


@EXAMPLES
@given(document=values | requests, chat=st.booleans())
def test_requests(served, document, chat):
    request, error = attempt(lambda: read_request(document, served, chat), ApiError)
    assert error or request.prompts
