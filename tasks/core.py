"""CORE (Li et al., 2024): the mean centered score of 22 tasks, with the prompts of nanochat's evaluation bundle.

The bundle's core.yaml defines the prompts of each task. Its eval_meta_data.csv gives the chance levels for centering.
Three of these levels differ from the chance of the items, which have four choices each: commonsense_qa and the LSAT
(20 %), and language identification (9.1 %). BoolQ's level is the share of its more common answer.

Sources: HellaSwag (Zellers et al., 2019), ARC (Clark et al., 2018), COPA (Roemmele et al., 2011), CommonsenseQA (Talmor
et al., 2019), PIQA (Bisk et al., 2019), OpenBookQA (Mihaylov et al., 2018), LAMBADA as OpenAI prepared it (Paperno et
al., 2016), Winograd (Levesque et al., 2012), WinoGrande (Sakaguchi et al., 2019), AGIEval's LSAT (Zhong et al., 2023),
SQuAD (Rajpurkar et al., 2016), CoQA (Reddy et al., 2018), BoolQ (Clark et al., 2019), BIG-bench (Srivastava et al.,
2022), and Jeopardy.
"""

CORE = (
    "hellaswag_zeroshot",
    "hellaswag",
    "jeopardy",
    "arc_easy",
    "arc_challenge",
    "copa",
    "commonsense_qa",
    "piqa",
    "openbook_qa",
    "lambada_openai",
    "winograd",
    "winogrande",
    "agi_eval_lsat_ar",
    "squad",
    "coqa",
    "boolq",
    "bigbench_qa_wikidata",
    "bigbench_dyck_languages",
    "bigbench_cs_algorithms",
    "bigbench_operators",
    "bigbench_repeat_copy_logic",
    "bigbench_language_identification",
)
