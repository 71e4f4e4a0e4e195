"""The six BIG-bench tasks of CORE (Srivastava et al., 2022), from the evaluation bundle.

The chance level of language identification is the one nanochat scores with (9.1 %); its items have four choices each.
"""

from nanogka.evaluate import Task


def _task(name: str, folder: str, measures: str, type_: str = "language_modeling", chance: float = 0.0) -> Task:
    name = f"bigbench_{name}"
    return Task(name, type_, shots=10, chance=chance, path=f"{folder}/{name}.jsonl", measures=measures)


TASKS = (
    _task("qa_wikidata", "world_knowledge", "facts of Wikidata, as sentences to complete"),
    _task("dyck_languages", "symbolic_problem_solving", "closing nested brackets"),
    _task("cs_algorithms", "symbolic_problem_solving", "running two small algorithms by heart"),
    _task("operators", "symbolic_problem_solving", "applying an operator defined in the question"),
    _task("repeat_copy_logic", "symbolic_problem_solving", "repeating words as told"),
    _task(
        "language_identification",
        "language_understanding",
        "naming the language of a sentence",
        type_="multiple_choice",
        chance=0.091,
    ),
)
