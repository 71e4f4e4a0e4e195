"""ARC: science questions of school exams (Clark et al., 2018).

2 376 easy items and 1 172 hard ones, from the evaluation bundle; scripts.chat_eval can also take them from the hub.
"""

from nanogka.evaluate.task import MULTIPLE_CHOICE, HubSource, Task


def from_hub(row: dict) -> dict:
    choices = row["choices"]
    gold = choices["label"].index(row["answerKey"])
    return {"query": f"Question: {row['question']}", "choices": list(choices["text"]), "gold": gold}


def _task(name: str, config: str, measures: str) -> Task:
    hub = HubSource("allenai/ai2_arc", config, "test", from_hub)
    return Task(name, MULTIPLE_CHOICE, 10, 0.25, f"world_knowledge/{name}.jsonl", "\nAnswer: ", measures, hub)


TASKS = (
    _task("arc_easy", "ARC-Easy", "science questions of school exams"),
    _task("arc_challenge", "ARC-Challenge", "science questions that retrieval and word co-occurrence get wrong"),
)
