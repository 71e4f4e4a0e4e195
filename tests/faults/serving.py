"""Faults of the server, of its schedules, and of the forms of text and conversations that are read."""

from mutate import of

MUTANTS = [
    *of(
        "nanogka/serve/scheduler.py",
        "tests/serve/test_scheduler.py",
        (
            "        if len(self._waiting) + len(self._calls) >= self.max_queue:",
            "        if len(self._waiting) >= self.max_queue:",
            "test_calls_count_as_waiting_and_one_runs_between_two_steps",
        ),
        (
            "        if not future.set_running_or_notify_cancel():\n            return\n",
            "",
            "test_a_cancelled_call_is_never_made_and_harms_nobody",
        ),
        (
            "            if future.set_running_or_notify_cancel():\n                future.set_exception",
            "            if True:\n                future.set_exception",
            "test_closing_tells_calls_that_wait_cancelled_ones_included",
        ),
    ),
    *of(
        "nanogka/serve/scheduler.py",
        "tests/serve/test_attention.py",
        (
            "        if future.cancelled():\n",
            "        if False:\n",
            "test_pages_wait_in_the_bounded_queue_and_leave_it_with_their_client",
        ),
    ),
    *of(
        "nanogka/serve/protocol.py",
        "tests/serve/test_app.py",
        (
            "prompt_of(engine.tokenizer, self.messages, engine.context,",
            "prompt_of(engine.tokenizer, self.messages, 9 * engine.context,",
            "test_a_text_that_cannot_fit_is_refused_or_cut_before_it_is_tokenized",
        ),
        (
            "        if self.tools:  # the engine",
            "        if False:  # the engine",
            "test_a_client_that_offers_the_calculator_makes_the_call_and_gets_the_same_reply",
        ),
        (
            '    if info.data.get("tool_choice") == "none":\n        return False\n',
            "",
            "test_tools_that_are_not_used_and_those_that_are_unknown",
        ),
    ),
    *of(
        "nanogka/serve/network.py",
        "tests/serve/test_app.py",
        (
            'PlainTextResponse(fault, 400, {"Connection": "close"})',
            "PlainTextResponse(fault, 400)",
            "test_what_is_behind_a_refused_request_is_not_read",
        ),
    ),
    *of(
        "nanogka/serve/app.py",
        "tests/serve/test_network.py",
        (
            "        asyncio.get_running_loop().set_exception_handler(AcceptErrors())\n",
            "",
            "test_a_server_without_free_files_writes_a_line_and_recovers",
        ),
    ),
    *of(
        "nanogka/generate/prompt.py",
        "tests/serve/test_app.py",
        (
            "template.start_id, *begun]",
            "template.start_id]",
            "test_a_client_that_offers_the_calculator_makes_the_call_and_gets_the_same_reply",
        ),
    ),
    *of(
        "nanogka/serve/responses.py",
        "tests/serve/test_app.py",
        (
            "output.part == PYTHON and output.token == self._call_end",
            "output.part == PYTHON and output.finish_reason",
            "test_a_call_that_is_cut_off_is_not_a_call",
        ),
        (
            "            choice.reported.append(output)\n            return []",
            "            return []",
            "test_an_echo_has_an_entry_for_every_token_also_for_one_that_ends_the_text",
        ),
    ),
    *of(
        "nanogka/data/conversation.py",
        "tests/data/test_tool_calls.py",
        (
            "            return self.render(conversation)[0][:-1]  #",
            "            return self.render(conversation)[0]  #",
            "test_a_prompt_after_a_result_continues_the_reply",
        ),
    ),
    *of(
        "nanogka/generate/scoring.py",
        "tests/serve/test_app.py",
        (
            "following = tokens[0, start + 1 : start + 1 + CHUNK]",
            "following = tokens[0, start : start + CHUNK][: len(ids) - 1]",
            "test_an_echo_scores_continuations_as_a_plain_forward_pass_does",
        ),
        (
            "hidden[start : start + len(following)]",
            "hidden[: len(following)]",
            "test_an_echo_scores_continuations_as_a_plain_forward_pass_does",
        ),
    ),
    *of(
        "nanogka/data/__init__.py",
        "tests/data/test_own_text.py",
        (
            " and (len(files) > 1 or read_manifest(path) is not None)",
            "",
            "test_a_folder_with_one_parquet_file_is_split_like_text_unless_its_manifest_says_that_shards_are_missing",
        ),
        (
            "len(files) > 1 or read_manifest(path) is not None",
            "len(files) > 1",
            "test_a_folder_with_one_parquet_file_is_split_like_text_unless_its_manifest_says_that_shards_are_missing",
        ),
    ),
    *of(
        "nanogka/data/own_text.py",
        "tests/data/test_own_text.py",
        ("note=count)", "note='')", "test_what_a_folder_has_besides_its_text_is_counted"),
    ),
    *of(
        "nanogka/study/plan.py",
        "tests/study/test_runner.py",
        (
            'isinstance(row, dict) and isinstance(row.get("settings"), dict)',
            "isinstance(row, dict)",
            "test_lines_that_are_no_rows_are_skipped_with_a_note",
        ),
    ),
    *of(
        "nanogka/data/chat_forms.py",
        "tests/data/test_chat.py",
        (
            '{"instruction", "output"} <= set(keys)',
            '{"instruction", "output"} == set(keys)',
            "test_every_known_form_is_read_from_every_kind_of_file",
        ),
    ),
    *of(
        "nanogka/data/own_text.py",
        "tests/data/test_own_text.py",
        (
            "for file in reversed(files)",
            "for file in files",
            "test_a_file_with_two_names_is_read_once_and_other_entries",
        ),
        (
            "len(line) > MAX_JSON_BYTES",
            "len(line) > 10 * MAX_JSON_BYTES",
            "test_a_line_without_end_is_refused_before_it_fills_memory",
        ),
    ),
    *of(
        "nanogka/serve/scheduler.py",
        "tests/serve/test_schedules.py",
        ("requests.append(self._waiting.popleft())", "requests.append(self._waiting.pop())", "test_schedules"),
        (
            "            self._batch = self.engine.batch()  # the state of the old one is undefined\n",
            "",
            "test_schedules",
        ),
        ("                self._aborted.append(request)\n", "", "test_schedules"),
        ("free -= requests[-1].rows", "free -= 1", "test_schedules"),
    ),
    *of(
        "nanogka/serve/page.css",
        "tests/serve/test_page.py",
        (
            "margin: 0 auto 0 0; flex: 1 1 0; min-width: 0; white-space: nowrap; overflow: hidden;",
            "margin: 0 auto 0 0; overflow-wrap: anywhere;",
            "test_a_run_without_examples_shows_none_and_the_header_is_one_line",
        ),
    ),
    *of(
        "nanogka/serve/app.py",
        "tests/serve/test_page.py",
        (
            "self.served.model.run.examples",
            "[]",
            "test_an_example_begins_a_chat_that_stays_over_a_reload",
        ),
    ),
]
