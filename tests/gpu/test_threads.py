"""Programs in several threads on one GPU: each gets its own numbers, and its own errors."""

from __future__ import annotations

from tests.cuda.test_threads import (  # noqa: F401  # pytest runs what stands here
    impatient,
    test_an_index_that_one_program_got_wrong_is_told_to_that_one_alone,
    test_an_index_that_one_program_got_wrong_keeps_no_other_from_its_updates,
    test_runs_of_one_program_in_threads_give_each_its_own,
    test_trainers_in_threads_end_where_they_end_alone,
)
