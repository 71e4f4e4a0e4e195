"""Every script names all its bad flags at once, a line each, before anything is read or written."""

import importlib

import pytest

BAD = {  # the script's words, and flags with values in turn; DIR is a folder with a file in it
    "bench attention": "--lengths 64,x --window -1 --contestants mine --dtype int8",
    "bench generate": "--depth 0 --contexts 5,x --batch-sizes 0 --repeats 0",
    "bench train": "--depth 0 --batch 0 --device nowhere",
    "bench serve": "--url localhost --requests 0 --concurrency 1, --max-tokens 0",
    "base_train": "--seed -1 --num-iterations many --compile maybe --warmdown-ratio 2 --run a/b --core-max-per-task 0",
    "base_eval": "--eval tasks,dance --device gpu --dtype int8 --max-per-task 0 --split-tokens many "
    "--batch-tokens -1 --predictions /no/p.jsonl --output DIR/none/out.json",
    "chat_cli": "--prompt \u3000 --system \u3000 --temperature -1 --top-k -2 --top-p 0 --min-p 2 --max-tokens -1 "
    "--seed -1 --device abacus --dtype int8 --run nowhere --step -3 --repetition-penalty 1e-320",
    "export": "--run nowhere --out DIR --push-to-hub a/b/c",
    "model_info": "--depth 1e12 --attention cosine --sequence-len 1 --window-pattern SX --vocab-size 0 "
    "--total-batch-size -3 --target-param-data-ratio -2",
    "serve": "--max-batch 0 --port 70000 --max-n 99 --allowed-hosts a*b --run nowhere",
    "study": "--grid DIR/nothing.yaml --workers 0",
    "report": "--run none-such --compare nor-this",
    "tok_train": "--data DIR/no --vocab-size 1e17 --doc-cap 0 --max-chars x",
    "visualize": "--run none --compare nor --prompt  --tokens 0 --passage -1",  # the prompt is empty
}


@pytest.mark.parametrize("script", BAD)
def test_every_bad_flag_is_named_at_once_and_nothing_is_written(script, base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    name, *words = script.split(" ")
    bad = [word.replace("DIR", str(tmp_path)) for word in BAD[script].split(" ")]
    assert importlib.import_module(f"scripts.{name}").main([*words, *bad]) == 2
    captured = capsys.readouterr()
    named = [
        line.split(": got ")[0].split(": ")[-1].lstrip("-").replace("_", "-") for line in captured.err.splitlines()
    ]
    assert sorted(named) == sorted(flag.lstrip("-") for flag in bad[::2])
    assert captured.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
