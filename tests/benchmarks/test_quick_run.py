"""What a run keeps of its measurements."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import detach
import latency
import promises
import tables
import transfers
from sweep import SIZE

RESULT_FIELDS = {
    "format": int,
    "note": str,
    "header": dict,
    "modules": list,
    "quick": bool,
    "seconds_per_comparison": float,
    "duration_s": float,
    "measurements": list,
    "absent": list,
    "sweeps": list,
    "figures": list,
    "distributions": list,
    "goals": list,
    "durations_s": dict,
}
HEADER_FIELDS = {
    "command": str,
    "date": str,
    "commit": str | None,
    "dirty": bool | None,
    "gpu": str,
    "simulated": bool,
    "pci": str,
    "pcie_link": str | None,
    "nvidia_driver": str | None,
    "cuda_driver": str,
    "backend": str,
    "mapping_type": str,
    "limits": dict,
    "limits_measured": bool,
    "cpu": str,
    "cpus": int,
    "kernel": str,
    "python": str,
    "gdrpy": str,
    "numpy": str,
    "cuda_bindings": str,
    "torch": str | None,
    "cupy": str | None,
    "numba_cuda": str | None,
    "vllm": str | None,
    "torch_memory_saver": str | None,
    "clock_resolution_ns": int,
    "copy_routines": dict,
}
MEASUREMENT_FIELDS = {
    "id": str,
    "module": str,
    "operation": str,
    "nbytes": int | None,
    "way": str,
    "unit": str,
    "method": str,
    "derived": bool,
    "verified": bool | None,
    "calls_per_sample": int,
    "count": int,
    "median": float,
    "min": float,
    "p99": float | None,
    "max": float,
    "samples": list,
}
SWEEP_FIELDS = {
    "id": str,
    "module": str,
    "operation": str,
    "unit": str,
    "methods": dict,
    "by": dict,
    "rounds": list,
    "median": dict,
    "ratios": dict,
    "wrong": list,
    "unverified": list,
}
GOAL_FIELDS = {
    "goal": str,
    "relation": str,
    "bound": int | float,
    "unit": str,
    "figure": float | None,
    "verdict": str,
    "where": str | None,
    "source": str,
    "relative_to": list,
    "control": float | None,
}


def assert_fields(found: dict[str, Any], fields: dict[str, Any]) -> None:
    assert found.keys() == fields.keys()
    assert [name for name, kind in fields.items() if not isinstance(found[name], kind)] == []


class TestSchema:
    def test_result_has_every_field(self, result):
        assert_fields(result, RESULT_FIELDS)

    def test_header_has_every_field(self, result):
        assert_fields(result["header"], HEADER_FIELDS)

    def test_measurements_have_every_field(self, result):
        for one in result["measurements"]:
            assert_fields(one, MEASUREMENT_FIELDS)

    def test_sweeps_have_every_field(self, result):
        for one in result["sweeps"]:
            spread = {"min": dict, "max": dict} if "min" in one else {}
            assert_fields(one, SWEEP_FIELDS | spread)

    def test_goals_have_every_field(self, held_to_goals):
        for goal in held_to_goals["goals"]:
            assert_fields(goal, GOAL_FIELDS)

    def test_ids_are_unique(self, result):
        ids = [one["id"] for one in result["measurements"]]
        assert len(set(ids)) == len(ids)

    def test_command_repeats_the_measurement_and_names_no_folder(self, result):
        assert result["header"]["command"] == (
            "GDRPY_BACKEND=nvrm GDRPY_SIM=1 python benchmarks/run.py --quick"
        )


class TestSamples:
    def test_are_there_and_are_not_too_many(self, result):
        for one in result["measurements"]:
            assert 2 <= len(one["samples"]) <= 100, one["id"]
            assert one["count"] == len(one["samples"])

    def test_of_what_was_timed_are_positive(self, result):
        assert [
            one["id"]
            for one in result["measurements"]
            if not one["derived"] and min(one["samples"]) <= 0
        ] == []

    def test_agree_with_the_statistics(self, result):
        for one in result["measurements"]:
            assert one["min"] == min(one["samples"])
            assert one["max"] == max(one["samples"])
            assert abs(one["median"] - statistics.median(one["samples"])) < 0.001
            if one["p99"] is not None:
                assert one["median"] <= one["p99"] <= one["max"]

    def test_of_rates_have_no_p99(self, result):
        rates = [one for one in result["measurements"] if one["unit"] == "kHz"]
        assert {one["p99"] for one in rates} == {None}


class TestQuickRun:
    def test_is_held_to_no_goals(self, quick_run):
        assert quick_run.result["goals"] == []
        assert tables.GOALS_TITLE not in quick_run.stdout


class TestCoverage:
    def test_each_latency_is_taken_from_python_and_from_c(self, result):
        ids = {one["id"] for one in result["measurements"]}
        for nbytes in latency.SIZES:
            for operation, way in (("write", latency.WRITE), ("read", latency.READ)):
                start = f"latency/{operation}/{nbytes}"
                assert {f"{start}/{way}", f"{start}/{latency.C_ROUTINE}"} <= ids
                assert f"{start}/{way} - {latency.C_ROUTINE}" in ids

    def test_what_moves_data_is_verified(self, result):
        unverified = {
            one["way"] if one["module"] != "attach" else one["operation"]
            for one in result["measurements"]
            if one["verified"] is not True
        }
        assert unverified == {
            latency.EMPTY_CALL,
            detach.UNMAP,
            detach.MAP,
            "alloc and close, 2 MiB",
            "export and close",
            "map and close, 4 KiB",
            "import numpy",
            "import gdrpy after numpy",
        }

    def test_sweeps_have_a_figure_of_every_way_at_every_point(self, result):
        for one in result["sweeps"]:
            points = len(one["rounds"])
            for columns in ("by", "median", "ratios"):
                assert all(len(column) == points > 0 for column in one[columns].values())
            assert one["median"].keys() == one["methods"].keys()

    def test_of_sweeps_is_verified(self, result):
        for one in result["sweeps"]:
            assert (one["wrong"], one["unverified"]) == ([], [])

    def test_transfers_are_made_at_every_size_in_every_way(self, result):
        found = {one["operation"]: one for one in result["sweeps"] if one["module"] == "transfers"}
        for operation, kinds in transfers.KINDS.items():
            one = found[operation]
            assert one["by"][SIZE] == list(transfers.QUICK_SIZES)
            for kind in kinds:
                for who in transfers.WAYS:
                    assert None not in one["median"][f"{who}, {kind}"]


class TestDistributions:
    def test_count_every_exchange_once(self, result):
        for one in result["distributions"]:
            assert sum(one["counts"]) == one["count"] > 0
            assert len(one["edges"]) == len(one["counts"]) + 1

    def test_agree_with_the_figures_that_goals_are_held_against(self, result):
        values = {one["id"]: one["value"] for one in result["figures"]}
        for one in result["distributions"]:
            assert values[one["id"]] == pytest.approx(one["median"], abs=0.001)


class TestAbsentRivals:
    def test_are_named_with_the_reason(self, result):
        reasons = {
            one["what"]: one["reason"]
            for one in result["absent"]
            if not one["what"].startswith(("copyengine: as user", "stepinputs: ", "rivalrings: "))
        }
        assert reasons.keys() == {"torch", "cupy", "numba"}
        assert set(reasons.values()) <= {"not installed", "cannot use the simulated GPU"}

    def test_have_no_measurements(self, result):
        ways = {one["way"] for one in result["measurements"]}
        ways |= {way for one in result["sweeps"] for way in one["methods"]}
        assert not any(way.startswith(("torch", "cupy", "numba")) for way in ways)

    def test_are_said_to_be_absent_below_the_tables(self, quick_run):
        assert "absent: torch: " in quick_run.stdout
        assert "absent: cupy: " in quick_run.stdout


class TestSimulatedGpu:
    def test_is_named_in_the_file_and_its_name(self, quick_run):
        assert quick_run.result["header"]["simulated"] is True
        assert "simulated GPU" in quick_run.result["note"]
        assert quick_run.path.name.startswith("simulated-gpu-")

    def test_is_held_to_the_goals_of_software_alone(self, held_to_goals):
        held = {
            one["goal"] for one in held_to_goals["goals"] if one["verdict"] in ("met", "missed")
        }
        software = {goal.words for goal in promises.GOALS if goal.simulated}
        # a quick run gets and lists a few regions
        assert held == {words for words in software if ",000 regions" not in words}

    def test_is_held_to_no_goal_of_hardware(self, held_to_goals):
        real = {goal.words for goal in promises.GOALS if not goal.simulated}
        assert {
            (one["verdict"], one["figure"]) for one in held_to_goals["goals"] if one["goal"] in real
        } == {("not applicable (simulated GPU)", None)}

    def test_is_named_on_the_terminal(self, quick_run):
        assert "measured on a simulated GPU" in quick_run.stdout
