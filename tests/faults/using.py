"""Faults of what people do with a model: evaluate it, generate with it and serve it."""

from mutate import of

NAIVE = "test_predictions_and_losses_are_those_of_the_naive_evaluator"

MUTANTS = [
    *of(
        "nanogka/evaluate/core.py",
        "tests/evaluate/test_core.py",
        (
            "best = losses.index(min(losses))",
            "best = losses.index(max(losses))",
            "test_the_lowest_finite_loss_is_the_prediction_and_the_first_of_equals",
        ),
        (
            "score.mean_loss if math.isfinite(score.mean_loss) else math.inf",
            "score.mean_loss",
            "test_the_lowest_finite_loss_is_the_prediction_and_the_first_of_equals",
        ),
    ),
    *of(
        "nanogka/evaluate/loglikelihood.py",
        "tests/evaluate/test_core.py",
        ("float(loss.mean())", "float(loss.sum())", NAIVE),
        ("bool(hit.all())", "bool(hit.any())", "test_every_token_of_an_answer_must_be_the_argmax"),
    ),
    *of(
        "nanogka/evaluate/task.py",
        "tests/evaluate/test_core.py",
        ("place if place < index else place + 1 for", "place for", NAIVE),
        ("EXAMPLES_SEED + index)", "EXAMPLES_SEED)", NAIVE),
        ('item["context"].strip() + task.delimiter\n', 'item["context"] + task.delimiter\n', NAIVE),
    ),
    *of(
        "nanogka/evaluate/bpb.py",
        "tests/evaluate/test_bpb.py",
        (
            "torch.where(counted > 0, losses.float(), 0.0)",
            "losses.float()",
            "test_hand_computation_with_special_and_ignored_targets",
        ),
        ("(math.log(2) * self.bytes)", "self.bytes", "test_hand_computation_with_special_and_ignored_targets"),
    ),
    *of(
        "nanogka/evaluate/chat.py",
        "tests/evaluate/test_chat.py",
        ("float(found[-1].replace", "float(found[0].replace", "test_the_final_number"),
        ('f"- {choice}={letter}"', 'f"- {letter}={choice}"', "test_choices_are_rendered_as_in_nanochat"),
        (
            "if length < self.engine.context]",
            "if length <= self.engine.context]",
            "test_a_prompt_that_leaves_no_room_for_a_reply_gets_none",
        ),
        (
            "greedy = SamplingParams(temperature=0)",
            "greedy = SamplingParams(temperature=1)",
            "test_replies_are_the_greedy_ones_of_each_prompt_alone",
        ),
        ("int(logits[ids].argmax())", "0", "test_a_letter_is_the_most_likely_of_the_choices"),
    ),
    *of(
        "nanogka/evaluate/results.py",
        "tests/evaluate/test_results.py",
        ("/ (self.sample - 1))", "/ self.sample)", "test_centered_score_and_standard_error"),
        (
            "(self.accuracy - self.chance) / (1 - self.chance or math.inf)",
            "(self.accuracy - self.chance)",
            "test_centered_score_and_standard_error",
        ),
        (
            "if not names or not all(name in centered for name in names):",
            "if not names:",
            "test_core_needs_every_task_and_ignores_others",
        ),
    ),
    *of(
        "nanogka/generate/sampling.py",
        "tests/generate/test_sampling.py",
        (
            "logits / penalty, logits * penalty)",
            "logits / penalty, logits / penalty)",
            "test_the_penalty_pushes_seen_tokens_down",
        ),
        (
            "probabilities.cumsum(-1) - probabilities",
            "probabilities.cumsum(-1)",
            "test_the_distribution_is_the_defined_one",
        ),
        (
            "bar = params.min_p * probabilities.amax(-1, keepdim=True)",
            "bar = params.min_p",
            "test_the_distribution_is_the_defined_one",
        ),
        (
            "keepdim=True)) / params.temperature",
            "keepdim=True)) * params.temperature",
            "test_the_distribution_is_the_defined_one",
        ),
        ('f"{seed}/{sample}"', 'f"{seed + sample}"', "test_a_sample_depends_on_its_seed_and_number_alone"),
    ),
    *of(
        "nanogka/generate/sampling.py",
        "tests/generate/test_engine.py",
        (
            "params.presence_penalty * (count > 0)",
            "params.presence_penalty * (seen > 0)",
            "test_presence_and_frequency_penalties_count_what_the_reply_has",
        ),
    ),
    *of(
        "nanogka/generate/continuous.py",
        "tests/generate/test_engine.py",
        ("device=model.device)] = 1", "device=model.device)] = 0", "test_the_repetition_penalty_sees_the_prompt"),
        (
            "if self.tokens >= self.max_new_tokens:",
            "if self.tokens > self.max_new_tokens:",
            "test_each_end_has_its_reason",
        ),
    ),
    *of(
        "nanogka/generate/text.py",
        "tests/generate/test_text.py",
        (
            "text[: min(stops)]",
            "text[: max(stops)]",
            "test_a_token_with_two_stop_strings_ends_before_the_first_of_them",
        ),
        (
            "0 if final else self._unfinished(text)",
            "0",
            "test_characters_come_whole_and_text_ends_before_the_first_stop_string",
        ),
    ),
    *of(
        "nanogka/generate/calculator.py",
        "tests/generate/test_calculator.py",
        (
            "ast.FloorDiv: operator.floordiv",
            "ast.FloorDiv: operator.truediv",
            "test_an_allowed_expression_has_pythons_value",
        ),
        ("ast.Mod: operator.mod,", "ast.Mod: operator.mod, ast.Pow: operator.pow,", "test_anything_else_has_no_value"),
        (
            'expression = expression.replace(",", "")',
            "pass",
            "test_commas_in_numbers_and_blanks_around_the_expression_are_ignored",
        ),
    ),
    *of(
        "nanogka/generate/prompt.py",
        "tests/generate/test_session.py",
        (
            "min(max_tokens or context, context // 4)",
            "(max_tokens or 1)",
            "test_a_reply_of_any_length_gets_a_quarter_of_the_context",
        ),
        (
            "encode(with_system(system, first))",
            "encode(first)",
            "test_the_oldest_exchanges_are_left_out_and_the_system_prompt_stays",
        ),
    ),
    *of(
        "nanogka/generate/session.py",
        "tests/generate/test_session.py",
        (
            "seed=self.settings.seed + self.replies",
            "seed=self.settings.seed",
            "test_an_abandoned_reply_is_kept_as_far_as_it_came_and_retry_replaces_it",
        ),
    ),
    *of(
        "nanogka/serve/protocol.py",
        "tests/serve/test_protocol.py",
        (
            "self.max_tokens or served.limits.max_tokens or None",
            "self.max_tokens or None",
            "test_a_limit_of_tokens_holds_for_a_request_that_names_none",
        ),
        (
            "min(served.limits.max_tokens or COMPLETION_TOKENS, COMPLETION_TOKENS)",
            "COMPLETION_TOKENS",
            "test_a_limit_of_tokens_holds_for_a_request_that_names_none",
        ),
        (
            "served.limits.max_tokens or served.engine.context)",
            "value)",
            "test_more_tokens_than_the_limit_are_cut_to_it",
        ),
        ("if request.rows > served.limits.max_batch:", "if False:", "test_more_than_a_limit_is_refused_by_name"),
    ),
    *of(
        "nanogka/serve/scheduler.py",
        "tests/serve/test_scheduler.py",
        (
            "+ len(self._calls) >= self.max_queue",
            "+ len(self._calls) > self.max_queue",
            "test_calls_count_as_waiting_and_one_runs_between_two_steps",
        ),
        (
            "if requests and prompts * longest > PREFILL_TOKENS:",
            "if False:",
            "test_prompts_that_are_read_together_have_a_limit_padding_included",
        ),
        (
            "self._waiting.remove(request)",
            "pass",
            "test_an_aborted_request_that_waits_leaves_the_queue_and_is_never_generated",
        ),
    ),
    *of(
        "nanogka/serve/responses.py",
        "tests/serve/test_app.py",
        (
            "self._completion_tokens += 1",
            "self._completion_tokens += output.finish_reason is None",
            "test_usage_counts_the_token_that_stops_a_reply",
        ),
    ),
    *of(
        "nanogka/serve/metrics.py",
        "tests/serve/test_app.py",
        ("self.generated_tokens += len(part)", "self.generated_tokens += 1", "test_metrics_count_what_was_done"),
    ),
    *of(
        "nanogka/serve/attention.py",
        "tests/serve/test_attention.py",
        (
            "shown = self.served.model.run, ids[: self.longest]",
            "shown = self.served.model.run, ids",
            "test_a_page_has_as_many_tokens_as_its_memory_allows",
        ),
    ),
]
