"""Goals against figures."""

from __future__ import annotations

import pytest

import goals
import promises
import tables
from harness import Figure, Measurement, Session, Topic

TOPIC = Topic("latency", "write", 64)
WRITE = "mapping.write"


def measured(way, value, **fields):
    return Measurement(TOPIC, way, "method", [value], **fields)


def checked(words, *measurements, figures=(), simulated=False):
    session = Session(1, True, print, measurements=list(measurements), figures=list(figures))
    (found,) = [one for one in goals.check(session, simulated) if words in one["goal"]]
    return found


def verdict(words, *measurements, **options):
    found = checked(words, *measurements, **options)
    return found["verdict"], found["figure"]


class TestBound:
    @pytest.mark.parametrize(("value", "expected"), [(0.08, "met"), (0.0801, "missed")])
    def test_from_above(self, value, expected):
        found = verdict(
            "write 64 B: time that Python adds", measured(f"{WRITE} - C routine", value)
        )
        assert found == (expected, value)

    @pytest.mark.parametrize(("value", "expected"), [(0.3, "met"), (0.31, "missed")])
    def test_on_how_many_times_faster(self, value, expected):
        rivals = (
            measured("cuda.bindings, pageable", 6.0),
            measured("cuda.bindings, pinned", 7.0),
        )
        found, _ = verdict("times faster than cuMemcpyHtoD", measured(WRITE, value), *rivals)
        assert found == expected


class TestFigure:
    WORST = "engine/to the mapping/engine over best routine, at worst"

    def test_of_many_points_is_held_to_its_goal_and_says_where(self):
        found = checked(
            "engine to the mapping: slowest case, relative to the best",
            figures=[Figure(self.WORST, 0.94, "x", "64 B, mapping offset 1")],
        )
        assert (found["verdict"], found["figure"]) == ("missed", 0.94)
        assert found["where"] == "64 B, mapping offset 1"
        assert found["control"] is None

    def test_has_the_noise_of_the_same_points_beside_it(self):
        found = checked(
            "engine to the mapping: slowest case, relative to the best",
            figures=[
                Figure(self.WORST, 0.94, "x", "64 B"),
                Figure("engine/to the mapping/engine over itself, at worst", 0.955, "x"),
            ],
        )
        assert tables.measured(found) == "0.940 x (64 B); itself 0.955"


class TestNoFigure:
    def test_without_the_measurement(self):
        assert verdict("times faster than cuMemcpyHtoD") == ("not measured", None)

    def test_without_the_rival(self):
        assert verdict("times faster than cuMemcpyHtoD", measured(WRITE, 0.1)) == (
            "not measured",
            None,
        )

    def test_where_wrong_data_was_moved(self):
        wrong = measured(f"{WRITE} - C routine", 0.05, verified=False)
        assert verdict("write 64 B: time that Python adds", wrong) == ("not measured", None)

    def test_on_a_simulated_gpu(self):
        found = measured(f"{WRITE} - C routine", 0.05)
        assert verdict("write 64 B: time that Python adds", found, simulated=True) == (
            "not applicable (simulated GPU)",
            None,
        )

    def test_of_software_on_a_real_gpu(self):
        assert verdict("1,000 regions") == ("not applicable (real GPU)", None)


class TestSources:
    def test_are_ids_of_a_run(self, result):
        ids = {one["id"] for kind in ("measurements", "figures") for one in result[kind]}
        ids |= {  # a quick run gets fewer regions, and smaller ones
            "broker/1,000 regions in one call/gdrpy",
            "broker/list 4,000 regions/gdrpy ls",
            "broker/list 4,000 regions/gdrpy ls --json",
            "threads/to the mapping/64 MiB, 4 threads",
            "threads/from the mapping/64 MiB, 16 threads",
            *(
                f"copyengine/{operation}/{name}"
                for operation in ("write", "read")
                for name in (
                    "least GB/s from 64 MiB on",
                    "cuda.bindings over engine, at worst from 64 MiB on",
                    "256 MiB, engine, pageable",
                    "cuda.bindings over engine, 256 MiB",
                )
            ),
            "stepinputs/median by stores, relative to copies",  # of kernels
            *(one.source for one in promises.GOALS if one.source.startswith("rivalrings/")),
            # NVML knows no simulated GPU
            "libgdrapi/left by the cycles/BAR1",
            "libgdrapi/left by the cycles/GPU memory",
        }
        for goal in promises.GOALS:
            assert {goal.source, *goal.relative_to} <= ids
