"""Faults of what leaves a run: exports, studies, plots, pages, benchmarks and the models of images."""

from mutate import of

MUTANTS = [
    *of(
        "nanogka/export/tokenizer.py",
        "tests/export/test_tokenizer.py",
        (r"text ~ '\\n\\n'", r"text ~ '\\n'", "test_a_conversation_has_our_ids_whatever_it_says"),
        ('"<\\uffff|"', '"<|"', "test_a_conversation_has_our_ids_whatever_it_says"),
    ),
    *of(
        "nanogka/export/folder.py",
        "tests/export/test_folder.py",
        (
            "reply_ends(special) if replies else [end]",
            "[end]",
            "test_the_configuration_tells_other_programs_windows_ends_and_the_dtype_of_the_head",
        ),
        (
            'config["head_dtype"] = "float32"',
            'config["head_dtype"] = "bfloat16"',
            "test_the_configuration_tells_other_programs_windows_ends_and_the_dtype_of_the_head",
        ),
        (
            "if old.exists() and not folder.exists():",
            "if False:",
            "test_an_interrupted_replacement_leaves_the_old_or_the_new_export",
        ),
    ),
    *of(
        "nanogka/export/card.py",
        "tests/export/test_folder.py",
        (
            'line["step"] <= run.step]',
            'line["step"] < run.step]',
            "test_the_card_tells_data_budget_scores_and_bandwidths",
        ),
    ),
    *of(
        "nanogka/export/remote_code/modeling_nanogka.py",
        "tests/export/test_modeling.py",
        (
            "if layer <= len(self.blocks) // 2",
            "if layer < len(self.blocks) // 2",
            "test_logits_are_ours_whole_and_in_pieces",
        ),
    ),
    *of(
        "nanogka/export/remote_code/attention_nanogka.py",
        "tests/export/test_modeling.py",
        ("seen &= distance <= window", "seen &= distance < window", "test_logits_are_ours_whole_and_in_pieces"),
    ),
    *of(
        "nanogka/export/vllm/layers.py",
        "tests/export/test_vllm.py",
        (
            "None if window is None else window + 1,",
            "None if window is None else window,",
            "test_the_plugin_loads_an_export_and_computes_our_logits",
        ),
    ),
    *of(
        "nanogka/study/plan.py",
        "tests/study/test_plan.py",
        (
            'math.inf if row["val_bpb"] is None else row["val_bpb"]',
            '0 if row["val_bpb"] is None else row["val_bpb"]',
            "test_a_rate_that_diverged_is_not_chosen_and_a_family_with_none_left_is_told",
        ),
        (
            "min(losses, key=losses.__getitem__, default=None)",
            "max(losses, key=losses.__getitem__, default=None)",
            "test_rates_come_first_then_the_other_seeds_at_the_best_of_each_family_and_nothing_twice",
        ),
    ),
    *of(
        "nanogka/plots/trained_run.py",
        "tests/plots/test_trained_run.py",
        ('one.affects != "losses" or one.through}', "one.through}", "test_settings_that_differ_are_found"),
    ),
    *of(
        "nanogka/plots/compression.py",
        "tests/plots/test_compression.py",
        (
            "8 * len(result) / len(data)",
            "len(result) / len(data)",
            "test_bits_per_byte_are_those_of_the_concatenated_text_up_to_a_limit",
        ),
        (
            "if len(data) >= max_bytes:",
            "if len(data) > max_bytes:",
            "test_bits_per_byte_are_those_of_the_concatenated_text_up_to_a_limit",
        ),
    ),
    *of(
        "nanogka/plots/html.py",
        "tests/plots/test_html.py",
        (" and path.is_relative_to(folder.resolve())", "", "test_only_pictures_of_the_reports_folder_are_embedded"),
    ),
    *of(
        "nanogka/visualize/analysis.py",
        "tests/visualize/test_analysis.py",
        (
            "entr(weights).sum(-1).exp()",
            "entr(weights).sum(-1)",
            "test_the_effective_context_of_a_uniform_row_is_its_length_and_of_an_identity_1",
        ),
        ("(kept + identity) / 2 @ reached", "kept @ reached", "test_rollout_is_the_product_of_its_layers"),
        (
            "for back in (period - 1, period))",
            "for back in (period, period - 1))",
            "test_a_head_that_looks_behind_the_earlier_occurrence_is_an_induction_head",
        ),
        (
            "(positions[:, None] - positions).abs()",
            "(positions[:, None] + positions)",
            "test_distances_are_counted_in_positions",
        ),
    ),
    *of(
        "nanogka/visualize/capture.py",
        "tests/visualize/test_capture.py",
        (
            "following[:, None])[:, 0] / math.log(2)",
            "following[:, None])[:, 0]",
            "test_surprise_sums_to_the_evaluators_loss_and_the_last_layer_predicts_as_the_model",
        ),
        (
            "reach[..., 0] = 0",
            "pass",
            "test_the_clearest_look_back_is_the_heaviest_far_weight_but_not_on_the_first_token",
        ),
    ),
    *of(
        "nanogka/model/layers.py",
        "tests/visualize/test_capture.py",
        (
            "logits = logits - norms / (2 * self.temperature",
            "logits = logits - norms / (self.temperature",
            "test_weights_and_logits_are_the_papers_kernel",
        ),
    ),
    *of(
        "nanogka/page/weights.py",
        "tests/page/test_page.py",
        (
            "np.abs(rows).max(1) / np.float32(127)",
            "np.abs(rows).max(1) / np.float32(64)",
            "test_rounding_keeps_half_a_step_and_is_reported",
        ),
    ),
    *of(
        "nanogka/page/worker.js",
        "tests/page/test_engine.py",
        (
            "context - Math.min(most, context >> 2)",
            "context",
            "test_a_reply_has_room_although_the_conversation_fills_the_context",
        ),
        (
            "largest) / temperature)",
            "largest) / Math.sqrt(temperature))",
            "test_sampling_at_half_the_temperature_squares_the_probabilities",
        ),
        (
            "bytes += tokenizer.bytes(id).length;",
            "bytes += 1;",
            "test_the_score_is_in_bits_per_byte_of_the_text",
        ),
        (
            "if (written?.key === key)",
            "if (written)",
            "test_a_text_written_after_a_change_of_the_first_layer_is_that_of_the_changed_model",
        ),
    ),
    *of(
        "nanogka/page/calculator.js",
        "tests/page/test_engine.py",
        ("    quotient -= 1;\n", "", "test_the_calculator_never_gives_another_value_than_python"),
    ),
    *of(
        "nanogka/page/tokenizer.js",
        "tests/page/test_engine.py",
        (
            "text = text.slice(0, (most + 64) * this.longest);",
            "",
            "test_only_the_part_of_a_text_that_can_matter_is_tokenized",
        ),
    ),
    *of(
        "nanogka/plots/report.py",
        "tests/scripts/test_report.py",
        (
            'task.get("distinct") or task.get("items")',
            'task.get("items")',
            "test_the_chat_models_scores_and_replies_stand_in_the_report",
        ),
        ("rate / (peak * devices)", "rate / peak", "test_the_share_of_the_peak_is_that_of_all_devices"),
        (
            "95 % from {found.low:+.4f} to {found.high:+.4f}",
            "95 % from {found.high:+.4f} to {found.low:+.4f}",
            "test_two_runs_are_compared_document_by_document",
        ),
    ),
    *of(
        "nanogka/plots/style.py",
        "tests/plots/test_figures.py",
        (
            "    atomic_write(path, content.getvalue())\n",
            "    path.write_bytes(content.getvalue())\n",
            "test_a_figure_is_complete_or_the_old_one_stays",
        ),
    ),
    *of(
        "nanogka/page/build.py",
        "tests/page/test_page.py",
        ('if layer["kind"] not in SUPPORTED:', "if False:", "test_a_model_that_a_page_cannot_compute_is_refused"),
    ),
    *of(
        "nanogka/bench/attention.py",
        "tests/bench/test_bench.py",
        ("(W + 1) * self.length - W * (W + 1) / 2", "(W + 1) * self.length", "test_flops_count_the_visible_pairs"),
        ("min(self.window, self.length - 1)", "self.window - 1", "test_flops_count_the_visible_pairs"),
    ),
    *of(
        "nanogka/vision/accounting.py",
        "tests/vision/test_models.py",
        (
            "products += 2 * tokens**2 * model.embed_dim",
            "products += tokens**2 * model.embed_dim",
            "test_costs_are_those_of_the_papers_table",
        ),
    ),
    *of(
        "nanogka/vision/attention.py",
        "tests/vision/test_attention.py",
        (
            "self.bandwidth, causal=False)\n\n    def weights",
            "self.bandwidth, causal=True)\n\n    def weights",
            "test_forward_and_gradients_are_the_papers",
        ),
        ("return a * x + b, c * x + d", "return a * x + b, a * x + d", "test_forward_and_gradients_are_the_papers"),
        (
            "x = x.to(torch.get_autocast_dtype(x.device.type))",
            "pass",
            "test_under_autocast_the_error_is_that_of_rounding_the_result",
        ),
    ),
]
