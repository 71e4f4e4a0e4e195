"""Faults of corpora, packing, conversations and tasks."""

from mutate import of

MUTANTS = [
    *of(
        "nanogka/data/packing.py",
        "tests/data/test_loader.py",
        ("(room, 1)) - 1  #", "(room - 1, 1)) - 1  #", "test_rows_equal_those_of_a_naive_packer"),
        (
            "self._pieces, (self._pieces[0][0], 1)) - 1",
            "self._pieces, (10**9, 1)) - 1",
            "test_rows_equal_those_of_a_naive_packer",
        ),
        (
            "offset + room - 1, rest",
            "offset + room, rest",
            "test_a_loader_from_a_state_gives_exactly_the_batches_after_it",
        ),
        (
            "self.dropped += len(rest)",
            "self.dropped += 1",
            "test_documents_skipped_rows_and_dropped_tokens_are_counted",
        ),
    ),
    *of(
        "nanogka/data/loader.py",
        "tests/data/test_loader.py",
        (
            "tokens[document][offset:]",
            "tokens[document]",
            "test_a_loader_from_a_state_gives_exactly_the_batches_after_it",
        ),
        (
            "permutation(len(numbers), self.settings.seed, *key)",
            "permutation(len(numbers), 0, *key)",
            "test_the_seed_decides_the_order_and_epochs_differ",
        ),
        (
            "permutation(len(numbers), self.settings.seed, *key)",
            "permutation(len(numbers), self.settings.seed)",
            "test_each_epoch_of_a_stream_has_the_documents_in_another_order",
        ),
        (" + (index < max_rows % settings.n_streams)", "", "test_validation_rows_do_not_depend_on_ranks_or_batch"),
        (
            'return {**states[0], "streams": {key: stream',
            'return {**states[0], "unread": {key: stream',
            "test_kills_and_changes_of_the_number_of_ranks_leave_each_token_of_an_epoch_once",
        ),
    ),
    *of(
        "nanogka/data/chat.py",
        "tests/data/test_chat.py",
        ("[drawn + len(row), epoch", "[drawn + 1, epoch", "test_shares_of_the_tokens_are_the_weights"),
        (
            "(loss_tokens / loss_tokens.mean())",
            "(loss_tokens * 0 + 1)",
            "test_ranks_and_micro_batches_share_out_the_rows_of_one",
        ),
    ),
    *of(
        "nanogka/data/conversation.py",
        "tests/data/test_conversation.py",
        (
            "for one in own_mask), is_target]",
            "for one in own_mask), False]",
            "test_only_the_assistants_words_and_the_end_of_its_turn_are_learned",
        ),
        ("[kind != OUTPUT] * len(own)", "[True] * len(own)", "test_a_tool_call_is_learned_and_its_output_is_not"),
        (
            "role == ASSISTANT and to_learn",
            "role == ASSISTANT",
            "test_a_reply_that_is_not_to_be_learned_is_context",
        ),
        (
            r'f"{system}\n\n{text}"',
            r'f"{system}\n{text}"',
            "test_the_system_message_stands_in_front_of_the_first_user_message",
        ),
    ),
    *of(
        "nanogka/data/conversation.py",
        "tests/generate/test_calculator.py",
        (" if token not in self._marks[PYTHON]]", "]", "test_a_session_lists_a_call_and_keeps_its_ids"),
    ),
    *of(
        "nanogka/data/conversation.py",
        "tests/data/test_tool_calls.py",
        (
            "self.render(conversation)[0][:-1]",
            "self.render(conversation)[0]",
            "test_a_prompt_after_a_result_continues_the_reply",
        ),
    ),
    *of(
        "nanogka/data/sharding.py",
        "tests/scripts/test_make_shards.py",
        (r'salt = f"{seed}\0" if seed else ""', 'salt = ""', "test_the_seed_decides_the_order"),
    ),
    *of(
        "nanogka/data/sharding.py",
        "tests/data/test_own_text.py",
        (
            "min(largest, max(smallest + 1,",
            "min(largest, max(0,",
            "test_few_documents_leave_at_least_one_in_each_split_and_fewer_than_two_are_an_error",
        ),
        ("0o700 if private else 0o777", "0o777", "test_the_copy_of_own_text_is_closed_to_other_users"),
        ("MAX_DOCUMENT_CHARS]", "MAX_DOCUMENT_CHARS - 1]", "test_a_document_beyond_the_limit_is_cut"),
    ),
    *of(
        "nanogka/data/permutation.py",
        "tests/data/test_corpus.py",
        ("np.uint64(27)", "np.uint64(28)", "test_the_bits_are_pinned"),
    ),
    *of(
        "nanogka/data/hub_corpora.py",
        "tests/data/test_hub_corpora.py",
        (
            'return not read or sha256_of(path) == record.get("sha256")',
            "return True",
            "test_a_damaged_download_is_removed_named_and_fetched_again",
        ),
        (
            "math.ceil(1.1 * tokens",
            "math.ceil(tokens",
            "test_a_budget_needs_its_tokens_with_a_tenth_to_spare_and_eight_shards_for_the_tokenizer",
        ),
        (
            'karpathy/climbmix-400b-shuffle", 6542)',
            'karpathy/climbmix-400b-shuffle", 6541)',
            "test_climbmix_has_the_constants_of_nanochat",
        ),
    ),
]
