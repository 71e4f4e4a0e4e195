"""Reports as pages: what they hold and what no text in them can make them hold."""

import base64

import pytest

from nanogka.common.formatting import plain
from nanogka.plots.html import html_page

SECRET = b"the key that a page must not hold"


@pytest.mark.parametrize(
    "path", ["{0}/secret.png", "../secret.png", "plots/../../secret.png", "secret", "plots/link.png"]
)
def test_only_pictures_of_the_reports_folder_are_embedded(tmp_path, path):
    folder = tmp_path / "run"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "curves.png").write_bytes(b"curves")
    for secret in (tmp_path / "secret.png", folder / "secret"):
        secret.write_bytes(SECRET)
    (folder / "plots" / "link.png").symlink_to(tmp_path / "secret.png")
    page = html_page(f"![c](plots/curves.png) ![x]({path.format(tmp_path)})", "title", folder)
    assert base64.b64encode(b"curves").decode() in page
    assert base64.b64encode(SECRET).decode() not in page


@pytest.mark.parametrize("text", ["a\\b", "`x` ``", "![x](y.png)", "[x](y) [z]", "<b>&amp;", "*a* **b**"])
def test_plain_text_is_shown_as_it_is(text):
    page = html_page(plain(text), "title", None)
    expected = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert f"<p>{expected}</p>" in page
