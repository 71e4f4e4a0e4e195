"""What all pages share: the policy, the mark, and the hash of the code that draws them."""

import base64
import hashlib
import re
import sys

from nanogka.web.page import code_of, document, fill, is_made_from


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
    assert fill("{{a}} {{b}}", a="{{b}}", b="2") == "{{b}} 2"


def test_the_hash_of_code_follows_every_file_of_the_packages(tmp_path, monkeypatch):
    (tmp_path / "drawing_code").mkdir()
    file = tmp_path / "drawing_code" / "style.css"
    (tmp_path / "drawing_code" / "__init__.py").write_text("")
    file.write_text("red")
    monkeypatch.syspath_prepend(tmp_path)
    before = code_of("drawing_code")
    assert code_of("drawing_code") == before != code_of()
    file.write_text("blue")
    assert code_of("drawing_code") != before
    sys.modules.pop("drawing_code", None)
