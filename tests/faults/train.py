"""Faults of training: budget, optimizer, schedules, loop, checkpoints, logs and reinforcement learning."""

from mutate import of

LITERAL = "test_the_loops_updates_are_those_of_the_rule_written_out"
SCHEDULES = "test_julys_schedules_are_nanochats"

MUTANTS = [
    *of(
        "nanogka/train/optimizer.py",
        "tests/train/test_literal_optimizer.py",
        (
            "batch if rates.lr_scale is None else rates.lr_scale",
            "batch * (1 if rates.lr_scale is None else rates.lr_scale)",
            LITERAL,
        ),
        ("nesterov = torch._foreach_lerp(gradients, momenta, momentum)", "nesterov = momenta", LITERAL),
        ("rate = lr * max(1.0, rows / columns) ** 0.5", "rate = lr", LITERAL),
        ("keepdim=True), 1 - beta)", "keepdim=True), beta)", LITERAL),
        ("reduced * (norms / new_norms.clamp_min(1e-10))", "reduced", LITERAL),
        ("(1.01 if muon_eq else 1.02)", "1.1", LITERAL),
        ("update * p >= 0", "update * p > 0", "test_a_weight_whose_update_is_zero_decays"),
    ),
    *of(
        "nanogka/train/optimizer.py",
        "tests/train/test_optimizer.py",
        ("eps=1e-10", "eps=1e-8", "test_adamw_moves_a_weight_of_tiny_gradient_at_the_full_rate"),
        ("return (step + 1) / self.warmup_steps", "return step / self.warmup_steps", SCHEDULES),
        ("* left / warmdown", "* (left - 1) / warmdown", SCHEDULES),
        ("(1 + math.cos(math.pi * done)) / 2 if", "1 - done if", SCHEDULES),
        ("+ (last - risen) * fallen", "", SCHEDULES),
    ),
    *of(
        "nanogka/train/snapshots.py",
        "tests/train/test_optimizer.py",
        ('"weight_decay": 0.28', '"weight_decay": 0.2', "test_a_networks_settings_hold_where_no_flag_says_otherwise"),
        ("(0.85, 0.97, 0.90), 400", "(0.85, 0.97, 0.97), 400", SCHEDULES),
    ),
    *of(
        "nanogka/train/budget.py",
        "tests/train/test_optimizer.py",
        (
            "max(mixer.tokens_per_parameter",
            "min(mixer.tokens_per_parameter",
            "test_a_hybrid_has_the_longest_horizon_of_its_mixers",
        ),
        ("size**BATCH_EXPONENT", "size", "test_the_batch_grows_with_the_tokens_as_nanochats_does"),
        (
            "steps = round(target_flops",
            "steps = int(target_flops",
            "test_a_budget_of_flops_is_the_nearest_number_of_steps",
        ),
    ),
    *of(
        "nanogka/train/trainer.py",
        "tests/train/test_loop.py",
        (" / (1 - SMOOTHING**state.step)", "", "test_smoothed_loss_and_times_of_each_step_and_of_all"),
        ("state.seconds += values", "state.seconds = values", "test_smoothed_loss_and_times_of_each_step_and_of_all"),
        ("loader.data_wait - waited", "loader.data_wait", "test_smoothed_loss_and_times_of_each_step_and_of_all"),
    ),
    *of(
        "nanogka/train/trainer.py",
        "tests/train/test_rl.py",
        (
            " if batch.tokens is None else batch.tokens",
            "",
            "test_a_step_counts_the_tokens_of_the_replies_that_the_model_learned_from",
        ),
    ),
    *of(
        "nanogka/train/progress.py",
        "tests/train/test_progress.py",
        (
            "* (self.total - step) + evaluations",
            "* (self.total - step)",
            "test_the_time_left_is_that_of_the_steps_and_the_evaluations_to_come",
        ),
        ("(total - 1) // every", "total // every", "test_the_evaluations_to_come_are_those_that_the_loop_makes"),
    ),
    *of(
        "nanogka/train/run.py",
        "tests/train/test_loop.py",
        ("seed=settings.seed, ", "", "test_a_seed_decides_the_first_weights"),
    ),
    *of(
        "nanogka/train/pretraining.py",
        "tests/train/test_loop.py",
        (
            "plan.settings.packing, plan.settings.seed)",
            "plan.settings.packing)",
            "test_a_seed_decides_the_order_of_the_documents",
        ),
    ),
    *of(
        "nanogka/train/run_log.py",
        "tests/train/test_loop.py",
        ("values[best] < error]", "values[best] < 0]", "test_checkpoints_within_the_error_of_the_best_one_are_named"),
    ),
    *of(
        "nanogka/train/run_log.py",
        "tests/train/test_resume.py",
        ("if step not in logged]", "if step < 0]", "test_steps_that_a_log_has_lost_are_named_on_resume"),
    ),
    *of(
        "nanogka/train/async_checkpoint.py",
        "tests/train/test_checkpoint.py",
        (
            "if math.isfinite(self.scores.get(s, math.nan))",
            "if s in self.scores",
            "test_the_newest_and_the_best_are_kept",
        ),
        ("full if free < needed else ''", "''", "test_a_full_disk_is_named_as_the_cause_once"),
        ("if error is not exception[0]:", "if True:", "test_a_full_disk_is_named_as_the_cause_once"),
        (
            '.to("cpu", copy=True)',
            '.to("cpu")',
            "test_training_goes_on_while_the_disk_is_busy_and_what_it_changes_is_not_saved",
        ),
    ),
    *of(
        "nanogka/checkpoint.py",
        "tests/train/test_checkpoint.py",
        ("_fingerprint(path) != expected)", "False)", "test_any_damage_falls_back_to_the_checkpoint_before"),
        (
            "return sorted(found, key=step_of)",
            "return sorted(found)",
            "test_a_step_of_seven_digits_is_newer_than_one_of_six",
        ),
        (
            "elif tuple(value.shape) != expected[name]:",
            "elif False:",
            "test_weights_of_another_model_are_refused_with_every_difference_named",
        ),
    ),
    *of(
        "nanogka/train/resume.py",
        "tests/train/test_disk.py",
        (
            "room < least * size",
            "room < size",
            "test_a_run_starts_only_where_two_checkpoints_fit_and_warns_where_not_all_do",
        ),
        (" + held\n", "\n", "test_checkpoints_that_rotation_deletes_count_as_room"),
    ),
    *of(
        "nanogka/train/plan.py",
        "tests/train/test_settings.py",
        (' == "losses" and one.through is None', ' == "losses"', "test_a_run_is_compared_in_what_decides_its_losses"),
    ),
    *of(
        "nanogka/study/grid.py",
        "tests/train/test_settings.py",
        (
            'one.affects != "losses" or one.through in FINGERPRINTS',
            'one.affects != "losses" or one.through',
            "test_a_study_knows_a_run_by_its_budget_and_not_by_where_its_text_is",
        ),
    ),
    *of(
        "nanogka/train/base.py",
        "tests/train/test_chat.py",
        (
            'if same or name in ("", before.get("base")):',
            "if same:",
            "test_a_run_that_resumes_starts_from_the_base_that_it_had",
        ),
    ),
    *of(
        "nanogka/train/base.py",
        "tests/train/test_base.py",
        (
            "str(folder.absolute())",
            "folder.name",
            "test_a_base_outside_of_the_runs_folder_is_found_again_on_resume",
        ),
    ),
    *of(
        "nanogka/train/plan.py",
        "tests/train/test_base.py",
        (
            "settings.for_network(config.network)",
            'settings.for_network("february")',
            "test_every_training_takes_the_defaults_of_the_models_network",
        ),
    ),
    *of(
        "nanogka/train/run.py",
        "tests/train/test_base.py",
        ("    check_finite(weights, source)\n", "", "test_weights_that_are_not_finite_are_no_start"),
    ),
    *of(
        "nanogka/train/rl.py",
        "tests/train/test_rl.py",
        (
            "if fits(item := self.draw(rng)):",
            "if item := self.draw(rng):",
            "test_questions_that_are_too_long_are_left_out",
        ),
        ("self.learned |= passing > 0", "self.learned = True", "test_a_run_says_that_no_reply_was_better_than_another"),
    ),
    *of(
        "nanogka/train/trainer.py",
        "tests/train/test_nonfinite.py",
        (
            "            state.loader = batch.state\n            if finite",
            "            if finite",
            "test_a_signal_ends_a_run_that_skips_batches_and_its_last_step_is_saved",
        ),
    ),
    *of(
        "nanogka/train/autobatch.py",
        "tests/train/test_autobatch.py",
        (
            "if activations is None or held + activations < MEMORY_SHARE * memory:",
            "if True:",
            "test_the_first_try_is_the_largest_that_the_estimate_allows_on_80_gb",
        ),
    ),
    *of(
        "nanogka/train/sharded_optimizer.py",
        "tests/train/test_sharded_optimizer.py",
        (
            "entry = host_copy(dict(entry))",
            "entry = dict(entry)",
            "test_a_saved_state_does_not_change_with_the_optimizer",
        ),
        (
            "set(state) ^ set(self.parameters)",
            "set(state) - set(self.parameters)",
            "test_a_state_of_another_model_is_refused_with_the_parameter_named",
        ),
    ),
    *of(
        "nanogka/train/estimate.py",
        "tests/train/test_estimate.py",
        ("(W + 1) * T - W * (W + 1) / 2", "(W + 1) * T", "test_attention_counts_the_visible_pairs"),
        ("/ hardware.link if devices > 1", "/ 330e9 if devices > 1", "test_messages_are_priced_by_the_link"),
        ("A100: Shares(0.88, 0.0", "A100: Shares(710 / 989, 0.0", "test_published_steps_come_out"),
    ),
    *of(
        "nanogka/train/sharded_optimizer.py",
        "tests/train/test_sharded_optimizer.py",
        (
            "arriving = [self._send_weights(bucket) for bucket in buckets]",
            "arriving = [self._send_weights(bucket)() or (lambda: None) for bucket in buckets]",
            "test_a_message_is_under_way_while_the_next_bucket_is_made_and_the_numbers_stay",
        ),
    ),
    *of(
        "nanogka/model/fp8.py",
        "tests/model/test_fp8.py",
        (
            "/ torch.finfo(dtype).max ",
            "/ 200 ",
            "test_the_largest_element_is_exact_and_others_are_rounded",
        ),
        ("(2 * (y8.float()", "((y8.float()", "test_squared_relu_follows_from_its_8_bit_values"),
    ),
    *of(
        "nanogka/bench/first_hour.py",
        "tests/scripts/test_gpu_first.py",
        (
            "if process.exitcode < 0 and not late:",
            "if False:",
            "test_a_stage_that_the_kernel_kills_is_not_out_of_time",
        ),
    ),
    *of(
        "nanogka/train/estimate.py",
        "tests/train/test_estimate.py",
        (
            "per_device_hour * devices * self.seconds",
            "per_device_hour * self.seconds",
            "test_times_and_prices_of_the_documents_follow_from_the_counts",
        ),
    ),
    *of(
        "nanogka/common/runtime.py",
        "tests/train/test_estimate.py",
        ("{part}(?!\\w)", "{part}", "test_a_gpu_is_found_by_whole_words"),
        ("{OTHER_CHIPS}", "MIG", "test_a_gpu_is_found_by_whole_words"),
    ),
    *of(
        "nanogka/common/gpus.py",
        "tests/train/test_speedrun.py",
        ("if done.returncode == 0:", "if True:", "test_a_broken_driver_is_an_error_with_a_way_out"),
    ),
    *of(
        "nanogka/train/rl.py",
        "tests/train/test_rl.py",
        (
            "return 1 - math.comb(n - correct, k) / math.comb(n, k)",
            "return 1 - (1 - correct / n) ** k",
            "test_pass_at_k_is_the_mean_over_all_choices_of_k_replies",
        ),
        (
            "torch.where(learned, ids[1:], -1)",
            "ids[1:]",
            "test_a_batch_learns_what_the_model_wrote_alone",
        ),
        (
            "[reward - mean for reward in rewards]",
            "[reward for reward in rewards]",
            "test_the_gradient_is_the_policy_gradient_in_closed_form",
        ),
    ),
]
