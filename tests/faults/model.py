"""Faults of the operator, the network, its loss and its cache, of kernels and of what all packages share."""

from mutate import of

MUTANTS = [
    *of(
        "nanogka/attention/softmax.py",
        "tests/attention/test_gaussian.py",
        ("seen = distance >= 0\n", "seen = distance >= -1\n", "test_reference_agrees_with_numpy"),
        ("seen & (distance <= window)", "seen & (distance < window)", "test_reference_agrees_with_numpy"),
        ("return distance.abs() <= window", "return distance.abs() < window", "test_reference_agrees_with_numpy"),
        ("window >= length - 1 else", "window >= length - 2 else", "test_reference_agrees_with_numpy"),
        (
            "device=q.device) + window\n",
            "device=q.device) + window - 1\n",
            "test_fused_agrees_with_reference_in_float64",
        ),
        (
            "positions, positions, window, causal))",
            "positions, positions, window))",
            "test_fused_agrees_with_reference_in_float64",
        ),
        ("max(0, start - window)", "max(0, start - window + 1)", "test_fused_agrees_with_reference_in_float64"),
        ("short = T <= SHORT and", "short = True or", "test_memory_grows_linearly_with_the_length"),
        ("alpha=scale)", "alpha=1.1 * scale)", "test_low_precision_error_is_that_of_the_plain_version"),
    ),
    *of(
        "nanogka/attention/reference.py",
        "tests/attention/test_gaussian.py",
        ("(2 * sigma.square())", "sigma.square()", "test_reference_agrees_with_numpy"),
    ),
    *of(
        "nanogka/attention/gaussian.py",
        "tests/attention/test_gaussian.py",
        (
            "square().sum(-1, keepdim=True) / 2",
            "square().sum(-1, keepdim=True)",
            "test_fused_agrees_with_reference_in_float64",
        ),
        (
            "bandwidth.to(wide).square()[:, None]",
            "bandwidth.to(wide)[:, None]",
            "test_fused_agrees_with_reference_in_float64",
        ),
    ),
    *of(
        "nanogka/attention/rotary.py",
        "tests/model/test_gpt.py",
        (
            "first * cos + second * sin, second * cos - first * sin",
            "first * cos - second * sin, second * cos + first * sin",
            "test_forward_and_gradients_are_the_mathematics_written_out",
        ),
    ),
    *of(
        "nanogka/attention/mixture.py",
        "tests/attention/test_mixture.py",
        ("constants = log_weights + ", "constants = ", "test_the_linear_form_is_the_literal_one_in_float64"),
        ("memories[:, :, :-1]\n", "memories[:, :, 1:]\n", "test_the_linear_form_is_the_literal_one_in_float64"),
    ),
    *of(
        "nanogka/model/gpt.py",
        "tests/model/test_gpt.py",
        (
            "resid_lambdas[layer] * x + x0_lambdas[layer] * x0",
            "resid_lambdas[layer] * x",
            "test_forward_and_gradients_are_the_mathematics_written_out",
        ),
        (
            "if layer <= self.config.n_layer // 2",
            "if layer < self.config.n_layer // 2",
            "test_forward_and_gradients_are_the_mathematics_written_out",
        ),
        (
            "self.lm_head.weight, 0.001)",
            "self.lm_head.weight, 0.01)",
            "test_initial_values_are_nanochats_and_the_seeds",
        ),
        (
            "isinstance(module, Linear | Embedding):",
            "isinstance(module, Linear):",
            "test_conversion_rounds_matrices_and_tables_and_nothing_else",
        ),
    ),
    *of(
        "nanogka/model/layers.py",
        "tests/model/test_gpt.py",
        (
            "self.head_dim**0.25).log_()",
            "self.head_dim**0.5).log_()",
            "test_initial_values_are_nanochats_and_the_seeds",
        ),
        (
            "self.snapshot.gate_range * torch.sigmoid",
            "torch.sigmoid",
            "test_forward_and_gradients_are_the_mathematics_written_out",
        ),
    ),
    *of(
        "nanogka/model/layers.py",
        "tests/model/test_accounting.py",
        (
            "return 12 * self.config.n_embd",
            "return 6 * self.config.n_embd",
            "test_depth_20_costs_what_the_paper_and_nanochats_code_say_in_every_digit",
        ),
        (
            "self.window + 1 + lookback)",
            "self.window + lookback)",
            "test_a_layer_caches_its_window_and_the_token_itself",
        ),
    ),
    *of(
        "nanogka/model/layers.py",
        "tests/train/test_literal_optimizer.py",
        (
            'return BANDWIDTH if name == "log_bandwidth"',
            'return VECTOR if name == "log_bandwidth"',
            "test_the_loops_updates_are_those_of_the_rule_written_out",
        ),
    ),
    *of(
        "nanogka/model/accounting.py",
        "tests/model/test_accounting.py",
        (
            "flops_per_token=6 * multiplying",
            "flops_per_token=2 * multiplying",
            "test_depth_20_costs_what_the_paper_and_nanochats_code_say_in_every_digit",
        ),
        (
            "if group in (MATRIX, UNEMBEDDING)",
            "if group in (MATRIX,)",
            "test_depth_20_costs_what_the_paper_and_nanochats_code_say_in_every_digit",
        ),
    ),
    *of(
        "nanogka/model/config.py",
        "tests/model/test_config.py",
        ("n_head = -(-(depth", "n_head = +(+(depth", "test_width_is_64_a_layer_in_whole_heads_of_128"),
        ("windows[-1] = None", "windows[0] = None", "test_window_pattern_is_tiled_and_the_last_layer_is_full"),
    ),
    *of(
        "nanogka/model/loss.py",
        "tests/model/test_loss.py",
        ("hidden, targets = hidden[scored], targets[scored]", "pass", "test_only_rows_with_a_target_pass_the_head"),
        ("p.addcmul_(p, t.square_(), value=-1)", "p", "test_equals_the_plain_loss_in_float64"),
        (
            "row_weight = torch.where(targets == IGNORED, 0, row_weight.to(losses.dtype))",
            "row_weight = row_weight.to(losses.dtype)",
            "test_equals_the_plain_loss_in_float64",
        ),
        (".sum() / (targets != IGNORED).sum()", ".mean()", "test_equals_the_plain_loss_in_float64"),
    ),
    *of(
        "nanogka/model/kv_cache.py",
        "tests/model/test_kv_cache.py",
        ("if row != place:", "if row < place:", "test_rows_that_are_appended_and_moved_decode_as_if_alone"),
        (
            "allocated = max(after, first + first // 2)",
            "allocated = after",
            "test_a_row_that_joins_or_ends_moves_its_own_memory_and_growth_that_of_one_layer_at_a_time",
        ),
        (
            "if len(layer[0]) < after:",
            "if True:",
            "test_a_row_that_joins_or_ends_moves_its_own_memory_and_growth_that_of_one_layer_at_a_time",
        ),
        ("slots[:, older] = self.last_slot", "pass", "test_recomputed_keys_give_the_same_logits"),
        (
            "self.window + 1 + self.cache.lookback",
            "self.window + self.cache.lookback",
            "test_any_chunks_give_the_logits_of_the_whole",
        ),
    ),
    *of(
        "nanogka/model/mixers/successor.py",
        "tests/model/test_kv_cache.py",
        ("self.lookback = int(self.successor_keys)", "self.lookback = 0", "test_recomputed_keys_give_the_same_logits"),
        ("ids = 4 if", "ids = 8 if", "test_bytes_are_those_of_the_accounting"),
    ),
    *of(
        "nanogka/kernels/triton_loss.py",
        "tests/kernels/test_triton_loss.py",
        ("weight * share * (1 - tanh * tanh)", "weight * share", "test_losses_and_gradients_are_those_of_float64"),
    ),
    *of(
        "nanogka/backends.py",
        "tests/test_backends.py",
        (
            "-1 if window is None else window, 0)",
            "-1 if window is None else window, -1)",
            "test_attention_on_a_gpu_is_the_operator_given_what_varlen_attn_promises",
        ),
        (
            '("FA4", "FA3", "FA2")',
            '("FA3", "FA4", "FA2")',
            "test_the_newest_flash_attention_that_is_right_is_used_and_told",
        ),
    ),
    *of(
        "nanogka/common/files.py",
        "tests/common/test_files.py",
        (
            "os.fchmod(file.fileno(), 0o600)",
            "os.fchmod(file.fileno(), 0o644)",
            "test_a_private_file_is_its_owners_alone_from_the_start",
        ),
        ("time.time() - LEFTOVER_SECONDS", "time.time()", "test_atomic_write_deletes_only_old_leftovers"),
        (
            'partial = path.with_name(f".{path.name}',
            'partial = path or (f".{path.name}',
            "test_atomic_write_keeps_the_old_file_on_a_full_disk",
        ),
    ),
    *of(
        "nanogka/common/distributed.py",
        "tests/common/test_distributed.py",
        (
            'torch.device("cuda", self.local_rank)',
            'torch.device("cuda", self.rank)',
            "test_each_rank_has_the_gpu_of_its_number_on_its_node",
        ),
        ("if all(rank in missing for rank in range(self.rank)):", "if False:", "test_ranks_that_do_not_come_are_named"),
    ),
]
