"""The sums of the metrics, over several requests."""

import pytest

pytest.importorskip("starlette")

from nanogka.serve import metrics as metrics_module  # noqa: E402
from nanogka.serve.metrics import Metrics  # noqa: E402


def test_times_to_the_first_token_are_summed_over_requests(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(metrics_module.time, "monotonic", lambda: now[0])
    metrics = Metrics()
    first = metrics.admit(5)
    now[0] += 0.25
    second = metrics.admit(7)
    now[0] += 0.5
    first(["token", "token"])  # after 0.75 s
    now[0] += 2
    second(ValueError())  # no token
    second(["token"])  # after 2.5 s
    first(["token"])  # not the first
    samples = dict(line.rsplit(" ", 1) for line in metrics.text({"running": 3, "waiting": 1}).splitlines())
    assert float(samples["nanogka_first_token_seconds_sum"]) == 0.75 + 2.5
    assert samples["nanogka_first_token_seconds_count"] == "2"
    assert samples["nanogka_prompt_tokens_total"] == "12"
    assert samples["nanogka_generated_tokens_total"] == "4"
    assert (samples["nanogka_running_texts"], samples["nanogka_waiting_requests"]) == ("3", "1")
