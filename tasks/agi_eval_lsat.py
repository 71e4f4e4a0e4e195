"""AGIEval, LSAT analytical reasoning: logic games of the law school admission test (Zhong et al., 2023).

230 items answered by letter, from the evaluation bundle. The chance level is the one nanochat scores with (20 %).
"""

from nanogka.evaluate import Task

TASKS = (
    Task(
        "agi_eval_lsat_ar",
        "multiple_choice",
        shots=3,
        chance=0.2,
        path="symbolic_problem_solving/agi_eval_lsat_ar.jsonl",
        measures="logic games with several constraints",
    ),
)
