"""The documents: their commands name scripts and flags that exist, their links lead somewhere, and their code runs."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest
import torch

from nanogka.common import nanochat
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.model.spec import MIXERS, register_mixer

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += [ROOT / "docs/research/images.md", ROOT / "docs/research/mixture.md"]
NANOCHAT = set(nanochat.SCRIPTS)  # names that a table translates


def commands(text: str) -> list[tuple[str, list[str]]]:
    """(script, flags) of each `python -m scripts.NAME …` in a document."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"scripts\.launch [^\n`]*?(?=-m scripts)", "", text)  # its flags are torch's
    found = []
    for line in re.findall(r"(?:-m )?\bscripts\.(\w+)((?: [^\n`|]*)?)", text):
        words = re.split(r"\s{2,}#|\s{3,}", line[1])[0]
        found.append((line[0], re.findall(r"(?<=\s)--[a-z][\w-]+", words)))
    return found


def help_of(script: str) -> str:
    """The text of `--help`."""
    words = script.split()
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        importlib.import_module(f"scripts.{words[0]}").main([*words[1:], "--help"])
    return out.getvalue()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_name_scripts_and_flags_that_exist(document):
    for script, flags in commands(document.read_text(encoding="utf-8")):
        if script in NANOCHAT:
            continue
        assert (ROOT / "scripts" / f"{script}.py").is_file(), f"{document.name}: scripts.{script}"
        if not flags or script == "bench":
            continue
        known = help_of(script)
        missing = [flag for flag in flags if flag not in known and flag.replace("--no-", "--") not in known]
        assert not missing, f"{document.name}: scripts.{script} has no {missing}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document):
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link and not link.startswith("#")]
    missing = [link for link in links if not (document.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_the_variables_of_speedrun_in_documents_exist():
    known = (ROOT / "speedrun.sh").read_text(encoding="utf-8")
    for document in DOCUMENTS:
        for line in re.findall(r"^.*bash speedrun\.sh", document.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(line.partition("bash speedrun.sh")[0].strip("`| "), comments=True, posix=False)
            names = [word.partition("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
            assert [name for name in names if name not in known and not name.startswith("HF_")] == [], document.name


def test_outputs_in_documents_have_the_steps_of_the_default_run():
    script = (ROOT / "speedrun.sh").read_text(encoding="utf-8")
    base, chat = (
        re.search(r"DEPTH > 3 \? \d+ : (\d+)", script),
        re.search(r"DEPTH > 2 \? (\d+) : \d+", script),
    )
    steps = {"d3-successor": base[1], "d3-successor-chat": chat[1]}
    found = {
        (document.name, name, step)
        for document in DOCUMENTS
        for name, step in re.findall(r"\b(d3-[\w-]+), step (\d+)", document.read_text(encoding="utf-8"))
    }
    assert len(found) >= 3
    assert {one for one in found if one[2] != steps[one[1]]} == set()


def test_the_example_of_a_mixer_trains_decodes_and_has_its_option(monkeypatch):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/new-mixer.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    monkeypatch.setattr("nanogka.model.spec.MIXERS", dict(MIXERS))
    for name in list(MIXERS):
        monkeypatch.setitem(MIXERS, name, MIXERS[name])  # put back what the registration below adds
    space: dict = {}
    exec(code, space)
    register_mixer(space["ContentMixer"])
    try:
        shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "sequence_len": 16, "vocab_size": 40}
        outputs = {}
        for name, pattern, options in (
            ("content", "C", {}),
            ("rotated", "C", {"content_rotary": True}),
            ("gaussian", "G", {}),
        ):
            torch.manual_seed(0)
            model = GPT(GPTConfig(mixer_pattern=pattern, options=options, **shape))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) / 10)
            ids = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(2))
            outputs[name] = model(ids)
            cache = model.new_cache(2, 12)
            steps = [ids[:, :7], *(ids[:, i : i + 1] for i in range(7, 12))]
            decoded = torch.cat([model(step, cache=cache) for step in steps], 1)
            torch.testing.assert_close(decoded, outputs[name], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(outputs["rotated"], outputs["gaussian"])
        assert (outputs["content"] - outputs["gaussian"]).abs().max() > 1e-3
    finally:
        MIXERS.pop("content", None)


def test_readmes_numbers_of_the_small_models_are_those_of_the_results():
    readme, results = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/RESULTS.md"))
    rows = re.findall(r"^\| (\w+) \| ([\d.]+)(?: to ([\d.]+))? \| [\d. to]+ \| [\d.]+ \|$", results, re.MULTILINE)
    scores = {skill: sorted({float(low), float(high or low)}) for skill, low, high in rows}
    refused = " to ".join(f"{end:.0f}" for end in scores.pop("near_misses"))
    promised = [end for skill, ends in scores.items() if skill != "limits" for end in ends]
    assert len(scores) == 9
    text = " ".join(readme.split())
    assert f"{min(promised):.0f} to {max(promised):.0f} % of held-out questions are right" in text
    assert f"{refused} % of those that resemble its skills" in text
    shape = {"sequence_len": 512, "vocab_size": 1024}
    sizes = [model_costs(GPTConfig.from_depth(3, name, **shape)).total_parameters for name in ("successor", "gaussian")]
    assert f"| parameters | {sizes[0]:,} | {sizes[1]:,} |" in results
    assert f"({sizes[0] / 1e6:.0f} M parameters" in text
