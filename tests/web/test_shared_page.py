"""What all pages share: the policy, the mark, and the hash of the code that draws them."""

import base64
import hashlib
import os
import re

from nanogka.web.page import document, fill, is_made_from


def test_the_policy_lets_a_pages_own_script_run_and_nothing_else(tmp_path):
    page = document("a <b>", "<p>{{title}}</p>", script="start();\n", allow="connect-src 'self'", made_from="x")
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1].split("; ")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert script.endswith("start();\n")
    assert {"default-src 'none'", "connect-src 'self'", f"script-src 'sha256-{digest}'"} <= {*policy}
    assert "<title>a &lt;b&gt;</title>" in page
    assert "<p>{{title}}</p>" in page  # what stands in a text is not filled in
    assert "script-src" not in document("a", "b")
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    assert (is_made_from(path, "x"), is_made_from(path, "y")) == (True, False)
    os.mkfifo(tmp_path / "pipe")
    for other in ("pipe", "none", "."):
        assert not is_made_from(tmp_path / other, "x")
    assert fill("{{a}} {{b}}", a="{{b}}", b="2") == "{{b}} 2"
