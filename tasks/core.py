"""The 22 tasks of CORE (Li et al., 2024), as nanochat's evaluation bundle asks them.

`chance` is the level that nanochat centers a score with. Three of these are not those of the bundle's items, which have
four choices each: commonsense_qa and the LSAT (20 %), language identification (9.1 %). BoolQ's is the share of its
commoner answer.

Sources: HellaSwag (Zellers et al., 2019), ARC (Clark et al., 2018), COPA (Roemmele et al., 2011), CommonsenseQA (Talmor
et al., 2019), PIQA (Bisk et al., 2019), OpenBookQA (Mihaylov et al., 2018), LAMBADA as OpenAI prepared it (Paperno et
al., 2016), Winograd (Levesque et al., 2012), WinoGrande (Sakaguchi et al., 2019), AGIEval's LSAT (Zhong et al., 2023),
SQuAD (Rajpurkar et al., 2016), CoQA (Reddy et al., 2018), BoolQ (Clark et al., 2019), BIG-bench (Srivastava et al.,
2022), and Jeopardy.
"""

from nanogka.evaluate.task import LANGUAGE_MODELING as LM
from nanogka.evaluate.task import MULTIPLE_CHOICE as MC
from nanogka.evaluate.task import SCHEMA, Task
from tasks import arc

SCENE = "which of four endings follows a description of an everyday scene"
WORLD, COMMON, LANGUAGE = "world_knowledge", "commonsense_reasoning", "language_understanding"
SYMBOLS, READING = "symbolic_problem_solving", "reading_comprehension"
BESIDE, BELOW = " ", "\nAnswer: "  # the delimiter: the answer continues the query, or stands in a line of its own

# name, type, examples in the prompt, chance, the items' file, delimiter, subject
TASKS = (
    Task("hellaswag_zeroshot", MC, 0, 0.25, f"{LANGUAGE}/hellaswag.jsonl", BESIDE, SCENE),
    Task("hellaswag", MC, 10, 0.25, f"{LANGUAGE}/hellaswag.jsonl", BESIDE, SCENE),
    Task("jeopardy", LM, 10, 0.0, f"{WORLD}/jeopardy_all.jsonl", BELOW, "clues on history, literature, words, science"),
    *arc.TASKS,
    Task("copa", MC, 0, 0.5, f"{COMMON}/copa.jsonl", BESIDE, "the likelier cause or effect of an event"),
    Task("commonsense_qa", MC, 10, 0.2, f"{COMMON}/commonsense_qa.jsonl", BESIDE, "everyday knowledge"),
    Task("piqa", MC, 10, 0.5, f"{COMMON}/piqa.jsonl", BELOW, "which of two ways of doing something works"),
    Task("openbook_qa", MC, 0, 0.25, f"{COMMON}/openbook_qa.jsonl", BESIDE, "elementary science facts put to use"),
    Task("lambada_openai", LM, 0, 0.0, f"{LANGUAGE}/lambada_openai.jsonl", BESIDE, "the last word of a long passage"),
    Task("winograd", SCHEMA, 0, 0.5, f"{LANGUAGE}/winograd_wsc.jsonl", BESIDE, "what a pronoun stands for"),
    Task("winogrande", SCHEMA, 0, 0.5, f"{LANGUAGE}/winogrande.jsonl", BESIDE, "the same, without word association"),
    Task("agi_eval_lsat_ar", MC, 3, 0.2, f"{SYMBOLS}/agi_eval_lsat_ar.jsonl", BESIDE, "logic games"),
    Task("squad", LM, 10, 0.0, f"{READING}/squad.jsonl", BESIDE, "finding an answer in a passage"),
    Task("coqa", LM, 0, 0.0, f"{READING}/coqa.jsonl", BESIDE, "the last of a series of questions about a story"),
    Task("boolq", MC, 10, 0.62, f"{READING}/boolq.jsonl", BELOW, "yes/no questions about a passage"),
    *(
        Task(f"bigbench_{name}", type_, 10, chance, f"{folder}/bigbench_{name}.jsonl", BESIDE, measures)
        for name, type_, chance, folder, measures in (
            ("qa_wikidata", LM, 0.0, WORLD, "facts of Wikidata, as sentences to complete"),
            ("dyck_languages", LM, 0.0, SYMBOLS, "closing nested brackets"),
            ("cs_algorithms", LM, 0.0, SYMBOLS, "running two small algorithms by heart"),
            ("operators", LM, 0.0, SYMBOLS, "applying an operator defined in the question"),
            ("repeat_copy_logic", LM, 0.0, SYMBOLS, "repeating words as told"),
            ("language_identification", MC, 0.091, LANGUAGE, "naming the language of a sentence"),
        )
    ),
)
