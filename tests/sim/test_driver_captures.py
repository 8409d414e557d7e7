"""What the simulation promises of captures into CUDA graphs: see test_driver_contract.py.

Mode by mode as a real driver was seen to behave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from cuda_calls import Cuda

pytestmark = pytest.mark.gpu


class TestCaptures:
    GLOBAL, THREAD_LOCAL, RELAXED = range(3)

    @pytest.fixture
    def event(self, cuda: Cuda) -> Any:
        event = cuda.event(2)
        cuda("cuEventRecord", event, cuda.stream())
        cuda("cuEventSynchronize", event)
        return event

    def mode(self, cuda: Cuda, mode: int) -> Any:
        return cuda.driver.CUstreamCaptureMode(mode)

    def begin(self, cuda: Cuda, stream: Any, mode: int) -> None:
        cuda("cuStreamBeginCapture", stream, self.mode(cuda, mode))

    def status(self, cuda: Cuda, stream: Any) -> str:
        name: str = cuda("cuStreamIsCapturing", stream).name
        return name.removeprefix("CU_STREAM_CAPTURE_STATUS_")

    def outcome(
        self, cuda: Cuda, mode: int, ask: Callable[[], str], *, relaxed: bool, elsewhere: bool
    ) -> tuple[str, str]:
        """What a call answers while a stream is captured, and what the end of the capture does."""
        stream, answers = cuda.stream(), []
        context = cuda("cuCtxGetCurrent")

        def run() -> None:
            cuda("cuCtxSetCurrent", context)
            wanted = self.mode(cuda, self.RELAXED if relaxed else self.GLOBAL)
            before = cuda("cuThreadExchangeStreamCaptureMode", wanted)
            answers.append(ask())
            cuda("cuThreadExchangeStreamCaptureMode", before)

        self.begin(cuda, stream, mode)
        if elsewhere:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        else:
            run()
        result, graph = cuda.driver.cuStreamEndCapture(stream)
        if result.name == "CUDA_SUCCESS":
            cuda("cuGraphDestroy", graph)
        (answer,) = answers
        return answer, result.name.removeprefix("CUDA_ERROR_")

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("relaxed", [False, True])
    @pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
    def test_questions_about_a_whole_context_ruin_each(
        self, cuda: Cuda, mode: int, relaxed: bool, elsewhere: bool
    ) -> None:
        context, event = cuda("cuCtxGetCurrent"), cuda.event(2)
        for ask in (
            lambda: cuda.error("cuCtxRecordEvent", context, event),
            lambda: cuda.error("cuCtxSynchronize"),
        ):
            found = self.outcome(cuda, mode, ask, relaxed=relaxed, elsewhere=elsewhere)
            assert found == ("STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED")

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("relaxed", [False, True])
    @pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
    def test_unsafe_calls_ruin_a_global_one_unless_the_thread_is_relaxed(
        self, cuda: Cuda, event: Any, mode: int, relaxed: bool, elsewhere: bool
    ) -> None:
        other = cuda.stream()
        host = [int(cuda("cuMemHostAlloc", 4096, 0)) for _ in range(3)]

        def allocate() -> str:
            result, pointer = cuda.driver.cuMemAlloc(4096)
            if result.name == "CUDA_SUCCESS":
                cuda.later("cuMemFree", pointer)
            return str(result.name.removeprefix("CUDA_ERROR_"))

        def allocate_host() -> str:
            result, pointer = cuda.driver.cuMemHostAlloc(4096, 0)
            if result.name == "CUDA_SUCCESS":
                cuda.later("cuMemFreeHost", int(pointer))
            return str(result.name.removeprefix("CUDA_ERROR_"))

        fine = mode == self.RELAXED or relaxed
        for ask in (
            lambda: cuda.error("cuEventQuery", event),
            lambda: cuda.error("cuEventSynchronize", event),
            lambda: cuda.error("cuStreamQuery", other),
            allocate,
            allocate_host,
            lambda: cuda.error("cuMemFreeHost", host[-1]),
        ):
            found = self.outcome(cuda, mode, ask, relaxed=relaxed, elsewhere=elsewhere)
            assert found == (
                ("CUDA_SUCCESS", "CUDA_SUCCESS")
                if fine
                else ("STREAM_CAPTURE_UNSUPPORTED", "STREAM_CAPTURE_INVALIDATED")
            )
        for pointer in host[: -1 if fine else None]:
            cuda("cuMemFreeHost", pointer)

    @pytest.mark.parametrize("elsewhere", [False, True])
    @pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
    def test_other_calls_leave_it_alone(self, cuda: Cuda, mode: int, elsewhere: bool) -> None:
        event, other, pointer = cuda.event(2), cuda.stream(), cuda.mapped()
        buffer = bytearray(64)
        for ask in (
            lambda: cuda.error("cuEventRecord", event, 0),
            lambda: cuda.error("cuEventRecord", event, other),
            lambda: cuda.error("cuStreamIsCapturing", 0),
            lambda: cuda.error("cuMemcpyDtoH", buffer, pointer, 64),
            lambda: cuda.error("cuMemcpyDtoHAsync", buffer, pointer, 64, other),
            lambda: cuda.error("cuMemGetInfo"),
            lambda: "CUDA_SUCCESS" if cuda.mapped() else "",
        ):
            found = self.outcome(cuda, mode, ask, relaxed=False, elsewhere=elsewhere)
            assert found == ("CUDA_SUCCESS", "CUDA_SUCCESS")

    @pytest.mark.parametrize(
        ("elsewhere", "answer"), [(False, "STREAM_CAPTURE_UNSUPPORTED"), (True, "CUDA_SUCCESS")]
    )
    def test_one_of_a_thread_forbids_unsafe_calls_to_that_thread(
        self, cuda: Cuda, event: Any, elsewhere: bool, answer: str
    ) -> None:
        found = self.outcome(
            cuda,
            self.THREAD_LOCAL,
            lambda: cuda.error("cuEventQuery", event),
            relaxed=False,
            elsewhere=elsewhere,
        )
        assert found[0] == answer

    def test_the_state_of_a_stream_is_told(self, cuda: Cuda) -> None:
        stream = cuda.stream()
        states = [self.status(cuda, stream)]
        self.begin(cuda, stream, self.GLOBAL)
        states.append(self.status(cuda, stream))
        assert cuda.error("cuCtxSynchronize") == "STREAM_CAPTURE_UNSUPPORTED"
        states.append(self.status(cuda, stream))
        assert cuda.error("cuStreamEndCapture", stream) == "STREAM_CAPTURE_INVALIDATED"
        states.append(self.status(cuda, stream))
        assert states == ["NONE", "ACTIVE", "INVALIDATED", "NONE"]

    def test_the_legacy_stream_cannot_be_captured(self, cuda: Cuda) -> None:
        mode = self.mode(cuda, self.GLOBAL)
        assert cuda.error("cuStreamBeginCapture", 0, mode) == "STREAM_CAPTURE_UNSUPPORTED"

    def test_one_cannot_begin_twice(self, cuda: Cuda) -> None:
        stream, mode = cuda.stream(), self.mode(cuda, self.RELAXED)
        assert cuda.error("cuStreamEndCapture", stream) == "ILLEGAL_STATE"
        self.begin(cuda, stream, self.RELAXED)
        assert cuda.error("cuStreamBeginCapture", stream, mode) == "ILLEGAL_STATE"
        cuda("cuGraphDestroy", cuda("cuStreamEndCapture", stream))

    def test_one_of_a_blocking_stream_is_told_of_the_legacy_one(self, cuda: Cuda) -> None:
        stream = cuda.stream(0)
        self.begin(cuda, stream, self.GLOBAL)
        assert cuda.error("cuStreamIsCapturing", 0) == "STREAM_CAPTURE_IMPLICIT"
        assert self.status(cuda, stream) == "ACTIVE"
        cuda("cuGraphDestroy", cuda("cuStreamEndCapture", stream))
        assert self.status(cuda, 0) == "NONE"

    def test_another_thread_ends_any_but_gets_a_relaxed_one_alone(self, cuda: Cuda) -> None:
        streams, answers = [cuda.stream(), cuda.stream()], []
        for stream, mode in zip(streams, (self.GLOBAL, self.RELAXED), strict=True):
            self.begin(cuda, stream, mode)

        def end() -> None:
            for stream in streams:
                result, graph = cuda.driver.cuStreamEndCapture(stream)
                answers.append(result.name)
                if result.name == "CUDA_SUCCESS":
                    cuda("cuGraphDestroy", graph)

        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
        assert answers == ["CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "CUDA_SUCCESS"]
        assert cuda.error("cuStreamEndCapture", streams[0]) == "ILLEGAL_STATE"
