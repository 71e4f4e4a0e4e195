"""Reviewed one-line faults, each with the test that must catch it. `tests/mutate.py` runs them.

Add one with every new promise: break the code by hand, see the test fail, and write the fault down here. A fault must
change what a user gets, not only how it is computed.
"""

from mutate import Mutant as M

MUTANTS = [
    # ---- study ----
    M("nanogka/study/lead.py", "share = math.log(tokens /", "share = (tokens /", "tests/study/test_lead.py"),
    M(
        "nanogka/study/lead.py",
        "subject[loss] - control[loss]",
        "control[loss] - subject[loss]",
        "tests/study/test_lead.py",
    ),
    M(
        "nanogka/study/lead.py",
        "control_time / subject_time",
        "subject_time / control_time",
        "tests/study/test_lead.py",
    ),
    M(
        "nanogka/study/summary.py",
        "table.sem() * table.count()",
        "table.std() * table.count()",
        "tests/study/test_report.py::test_the_report_has_the_tables_and_the_plots",
    ),
    M("nanogka/study/lead.py", 'fewer["tokens"].idxmax()', 'fewer["tokens"].idxmin()', "tests/study/test_lead.py"),
    M("nanogka/study/lead.py", "parameters[0] / parameters[1]", "1.0", "tests/study/test_lead.py"),
    M("nanogka/study/lead.py", "SAME = 0.01", "SAME = 0.1", "tests/study/test_lead.py"),
    M("nanogka/study/summary.py", "student_quantile(seeds - 1)", "student_quantile(seeds)", "tests/study/test_lead.py"),
    # ---- data ----
    M(
        "nanogka/data/wheels.py",
        "(name not in VALIDATION, name)",
        "(name in VALIDATION, name)",
        "tests/data/test_wheels.py",
    ),
    M(
        "nanogka/data/docstrings.py",
        "in lines[1:] if line.strip()",
        "in lines if line.strip()",
        "tests/data/test_wheels.py",
    ),
    # ---- scripts/gka.py ----
    M("scripts/gka.py", "(distance < 0) |", "(distance < -1) |", "tests/scripts/test_gka.py"),
    M("scripts/gka.py", "* (12 / depth) ** 2", "* (12 / depth)", "tests/scripts/test_gka.py"),
    M("scripts/gka.py", "min(step / 300, 1)", "1", "tests/scripts/test_gka.py"),
    # ---- model ----
    M(
        "nanogka/model/measure.py",
        "counted = 3 * forward_flops",
        "counted = 2 * forward_flops",
        "tests/model/test_accounting.py",
    ),
    M("nanogka/model/measure.py", "> FLOPS_TOLERANCE:", "> 3:", "tests/study/test_runner.py"),
    M(
        "nanogka/model/mixers/dot_product.py",
        '"successor key", initial=k[:, :1]',
        '"successor key"',
        "tests/model/test_gpt.py",
    ),
    M(
        "nanogka/model/mixers/dot_product.py",
        "fill_(self.scale**-0.5)",
        "fill_(self.scale**-1)",
        "tests/model/test_gpt.py",
    ),
    # ---- evaluation, report, attention page ----
    M(
        "nanogka/evaluate/sandbox.py",
        "and reached.read() == word",
        "",
        "tests/evaluate/test_sandbox.py::test_a_program_that_ends_itself_before_its_tests_fails",
    ),
    M(
        "nanogka/evaluate/sandbox.py",
        '{{"__name__": "program"}}',
        '{{"__name__": "__main__"}}',
        "tests/evaluate/test_sandbox.py::test_a_programs_own_main_is_not_run",
    ),
    M(
        "nanogka/evaluate/bundle.py",
        "real.is_relative_to(os.path.realpath(str(folder)))",
        "file.is_relative_to(folder)",
        "tests/evaluate/test_bundle.py::test_a_bundle_reads_no_file_outside_of_its_folder",
    ),
    M(
        "nanogka/checkpoint.py",
        "if not torch.isfinite(value).all()",
        "if torch.isnan(value).all()",
        "tests/train/test_runs.py::test_weights_that_are_not_finite_are_refused_and_break_no_default",
    ),
    M("nanogka/evaluate/intervals.py", "count / (count - 1) * ", "", "tests/evaluate/test_intervals.py"),
    M(
        "nanogka/evaluate/intervals.py",
        "(nats - ratio * size)",
        "(nats - ratio * total / len(documents))",
        "tests/evaluate/test_intervals.py",
    ),
    M("nanogka/evaluate/intervals.py", "a - b for a, b", "a for a, b", "tests/evaluate/test_intervals.py"),
    M("nanogka/evaluate/intervals.py", " + (Z / (2 * count)) ** 2", "", "tests/evaluate/test_intervals.py"),
    M(
        "nanogka/evaluate/text.py",
        "replace(self.settings, epochs",
        "replace(self.settings, seed=0, epochs",
        "tests/evaluate/test_text.py",
    ),
    M("nanogka/evaluate/text.py", "min(max_rows, self.rows)", "max_rows", "tests/evaluate/test_text.py"),
    M(
        "nanogka/evaluate/run.py",
        "split=split, packing=learned.packing",
        "split=split",
        "tests/evaluate/test_text.py",
    ),
    M(
        "nanogka/evaluate/text.py",
        " if corpus.fingerprint == reading.corpus else None",
        "",
        "tests/evaluate/test_text.py",
    ),
    M(
        "nanogka/evaluate/text.py",
        'shards = None, run.fact("shards")',
        "shards = None, None",
        "tests/evaluate/test_text.py::test_the_text_of_a_run_is_found_at_every_checkpoint",
    ),
    M(
        "nanogka/evaluate/run.py",
        "[corpus.fingerprint, corpus.footers, dataclasses.asdict(learned)] if corpus else []",
        "[]",
        "tests/scripts/test_base_eval.py::test_other_text_at_the_same_path_and_other_code_are_measured_again",
    ),
    M(
        "nanogka/evaluate/chat.py",
        "[item.prompt, item.answer, item.letters, ",
        "[item.prompt, item.letters, ",
        "tests/scripts/test_chat_eval.py::test_a_question_that_is_judged_differently_is_asked_again",
    ),
    M(
        "nanogka/evaluate/chat.py",
        "[task.name, task.max_tokens, ",
        "[task.name, ",
        "tests/scripts/test_chat_eval.py::test_a_question_that_is_judged_differently_is_asked_again",
    ),
    M(
        "nanogka/runs.py",
        "if tokenizer.vocab_size > self.gpt_config.vocab_size:",
        "if False:",
        "tests/train/test_runs.py::test_a_tokenizer_with_more_ids_than_the_model_is_refused_and_breaks_no_default",
    ),
    M(
        "nanogka/runs.py",
        " and prefer in (None, found)",
        "",
        "tests/train/test_runs.py::test_the_latest_run_is_the_one_that_was_trained_last_whatever_the_times_of_its_files",
    ),
    M(
        "nanogka/data/packing.py",
        "self.placed.append((document, at,",
        "self.placed.append((document, at + 1,",
        "tests/data/test_loader.py::test_the_pieces_of_a_row_name_the_document_of_every_token",
    ),
    M(
        "nanogka/evaluate/results.py",
        "return self.distinct or self.items",
        "return self.items",
        "tests/evaluate/test_results.py",
    ),
    M(
        "nanogka/evaluate/chat.py",
        "item.key or item.prompt",
        "item.prompt",
        "tests/evaluate/test_chat.py::test_several_wordings_of_one_item_count_once",
    ),
    M(
        "nanogka/evaluate/loglikelihood.py",
        "limit if window is None else window",
        "window",
        "tests/evaluate/test_loglikelihood.py",
    ),
    M(
        "nanogka/plots/report.py",
        " and own[number][1] == theirs[number][1]",
        "",
        "tests/scripts/test_report.py::test_two_runs_are_compared_document_by_document",
    ),
    M(
        "nanogka/visualize/capture.py",
        "reach[:, :first] = 0",
        "pass",
        "tests/scripts/test_visualize.py::test_a_chat_model_reads_the_prompt_in_its_template_and_its_own_reply",
    ),
    # ---- conversations, chat, rewards ----
    M(
        "nanogka/data/chat.py",
        "masked_fill(packed < int(LOSS_BIT), -1)",
        "masked_fill((packed >= 0) & (packed < int(LOSS_BIT)), -1)",
        "tests/data/test_chat.py::test_a_literal_row_learns_its_marked_tokens_and_no_padding",
    ),
    M(
        "nanogka/data/chat.py",
        "documents, BUFFER, math.inf)",
        "documents, math.inf, math.inf)",
        "tests/data/test_chat.py::test_validation_reads_only_the_conversations_of_its_rows",
    ),
    M("nanogka/api.py", "if isinstance(messages, str):", "if False:", "tests/test_api.py"),
    M(
        "nanogka/train/rl.py",
        'random.Random(f"{settings.seed} {self.step}")',
        'random.Random(f"{settings.seed}")',
        "tests/train/test_rl.py::test_every_step_asks_other_questions",
    ),
    M(
        "nanogka/train/rl.py",
        "temperature=1,",
        "temperature=0.8,",
        "tests/train/test_rl.py::test_replies_come_from_the_distribution_that_learns",
    ),
    M(
        "tasks/skills.py",
        "fits = (self.split_of(item) == TRAIN) == (split == TRAIN)",
        "fits = True",
        "tests/tasks/test_skills.py",
    ),
    M("tasks/chat_data.py", "repr((name, seed, ", "repr((name, ", "tests/tasks/test_chat_data.py"),
    M("nanogka/train/chat.py", ", EXAMPLES: examples_text(questions)", "", "tests/train/test_chat.py"),
    M("tasks/dates.py", "400 if year % 100 == 0 else 4", "4", "tests/tasks/test_skills.py"),
]
