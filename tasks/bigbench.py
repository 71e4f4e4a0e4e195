"""The six BIG-bench tasks of CORE (Srivastava et al., 2022), from the evaluation bundle.

The chance level of language identification is the one nanochat scores with (9.1 %); its items have four choices each.
"""

from nanogka.evaluate.task import Task

TASKS = (
    Task(
        "bigbench_qa_wikidata",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="world_knowledge/bigbench_qa_wikidata.jsonl",
        measures="facts of Wikidata, as sentences to complete",
    ),
    Task(
        "bigbench_dyck_languages",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="symbolic_problem_solving/bigbench_dyck_languages.jsonl",
        measures="closing nested brackets",
    ),
    Task(
        "bigbench_cs_algorithms",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="symbolic_problem_solving/bigbench_cs_algorithms.jsonl",
        measures="running two small algorithms by heart",
    ),
    Task(
        "bigbench_operators",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="symbolic_problem_solving/bigbench_operators.jsonl",
        measures="applying an operator defined in the question",
    ),
    Task(
        "bigbench_repeat_copy_logic",
        "language_modeling",
        shots=10,
        chance=0.0,
        path="symbolic_problem_solving/bigbench_repeat_copy_logic.jsonl",
        measures="repeating words as told",
    ),
    Task(
        "bigbench_language_identification",
        "multiple_choice",
        shots=10,
        chance=0.091,
        path="language_understanding/bigbench_language_identification.jsonl",
        measures="naming the language of a sentence",
    ),
)
