"""Schedules after a load; the right values are those of the schedule that was stored."""

import pytest

CASE = "case_schedule.py"


def test_the_stored_decay_phase_is_restored(run_case):
    changes = {"wsd_decay_steps": 10, "lr_wsd_decay_style": "cosine"}
    [(stored, loaded)] = run_case(CASE, "stored_and_loaded", changes, None)
    assert loaded == stored
    [(stored, loaded)] = run_case(CASE, "stored_and_loaded", changes, "wsd-schedule-not-stored")
    assert loaded[0] != pytest.approx(stored[0], rel=0.05)


def test_an_older_checkpoint_has_no_decay_phase(run_case):
    [(stored, _)] = run_case(CASE, "stored_and_loaded", {}, None)
    assert run_case(CASE, "loaded_from_an_older_checkpoint") == [stored]


def test_the_first_step_after_a_load_has_the_stored_weight_decay(run_case):
    changes = {"end_wd": 0.9, "start_wd": 0.5}
    [(stored, loaded)] = run_case(CASE, "stored_and_loaded", changes, None)
    # a linear increase from 0.1 to 0.3 over 20 steps
    assert loaded == stored == [stored[0], pytest.approx(0.1 + 0.2 * 17 / 20), 17]
    [(stored, loaded)] = run_case(CASE, "stored_and_loaded", changes, "weight-decay-after-load")
    assert loaded[1] == pytest.approx(0.5 + 0.4 * 17 / 20)


def test_a_second_load_does_not_add_steps(run_case):
    [(stored, loaded)] = run_case(CASE, "stored_and_loaded", {}, None, 2)
    assert loaded == stored
    [(_, loaded)] = run_case(CASE, "stored_and_loaded", {}, "weight-decay-after-load", 2)
    assert loaded[2] == 34


def test_an_overridden_schedule_has_the_configured_rates(run_case):
    [(new, loaded)] = run_case(CASE, "overridden", None)
    assert loaded == new == [pytest.approx(1e-4), new[1], 10]
    [(new, loaded)] = run_case(CASE, "overridden", "overridden-schedule-keeps-stored-rates")
    assert loaded == [pytest.approx(1e-3), new[1], 10]
