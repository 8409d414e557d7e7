"""Steps that give things back."""

from __future__ import annotations

import _testcapi
import gc
import os
import subprocess
import sys

import pytest

from gdrpy._core._mapping import Undo


def fail(message):
    raise ValueError(message)


@pytest.fixture
def done():
    """What steps have done, in order."""
    return []


class TestUndo:
    def test_runs_its_steps_latest_first_and_once(self, done):
        undo = Undo()
        undo.callback(done.append, 1)
        undo.callback(done.append, 2)
        undo.close()
        undo.close()
        assert done == [2, 1]

    def test_runs_them_at_the_end_of_a_block(self, done):
        with Undo() as undo:
            undo.callback(done.append, 1)
            assert done == []
        assert done == [1]

    def test_runs_none_that_it_forgot(self, done):
        with Undo() as undo:
            undo.callback(done.append, 1)
            undo.forget()
        assert done == []

    def test_hands_its_steps_over(self, done):
        with Undo() as undo:
            undo.callback(done.append, 1)
            moved = undo.pop_all()
        assert done == []
        moved.close()
        assert done == [1]

    def test_closes_what_it_keeps(self, tmp_path):
        with Undo() as undo:
            file = undo.keep((tmp_path / "kept").open("w"))
        assert file.closed


class TestFailingStep:
    def test_is_raised_with_notes_of_those_after_it(self, done):
        undo = Undo()
        undo.callback(fail, "third")
        undo.callback(done.append, 2)
        undo.callback(fail, "first")
        with pytest.raises(ValueError, match="first") as raised:
            undo.close()
        assert raised.value.__notes__ == ["cleaning up: ValueError: third"]
        assert done == [2]

    def test_is_a_note_of_what_ended_the_block(self):
        undo = Undo()
        undo.callback(fail, "step")
        with pytest.raises(ValueError, match="block") as raised, undo:
            fail("block")
        assert raised.value.__notes__ == ["cleaning up: ValueError: step"]

    def test_is_one_whose_answer_does_not_pass_its_check(self, done):
        undo = Undo()
        undo.checked(done.append, max, 1, 2)
        undo.checked(fail, str, "answer")
        with pytest.raises(ValueError, match="answer"):
            undo.close()
        assert done == [2]


class TestWhatAFunctionMade:
    def test_is_given_back(self, done):
        undo = Undo()
        answer = undo.made(lambda size: (0, f"{size} bytes"), (4,), done.append, (), done.append)
        assert answer == (0, "4 bytes")
        undo.close()
        assert done == ["4 bytes", None]

    def test_is_given_back_with_further_arguments(self, done):
        undo = Undo()
        undo.made(lambda: (0, 1, 2), (), lambda *args: done.append(args), (3,), id)
        undo.close()
        assert done == [(1, 2, 3)]

    def test_is_a_pointer_too(self, done):
        undo = Undo()
        assert undo.made(lambda: "pointer", (), done.append, (), id) == "pointer"
        undo.close()
        assert done == ["pointer"]

    @pytest.mark.parametrize("answer", [(1,), (2, "made"), None, 0])
    def test_is_nothing_where_it_failed(self, answer, done):
        undo = Undo()
        assert undo.made(lambda: answer, (), done.append, (), id) == answer
        undo.close()
        assert done == []

    def test_is_nothing_where_it_raised(self, done):
        with pytest.raises(ValueError, match="raised"), Undo() as undo:
            undo.made(fail, ("raised",), done.append, (), id)
        assert done == []

    def test_is_unknown_of_an_empty_answer(self, done):
        with pytest.raises(IndexError), Undo() as undo:
            undo.made(tuple, (), done.append, (), id)
        assert done == []

    @pytest.mark.parametrize("make", [Undo().made, Undo().done])
    @pytest.mark.parametrize("arguments", [(id,), (id, 5, id, (), id), (id, (1,), id, 5, id)])
    def test_needs_arguments_of_the_right_types(self, make, arguments):
        with pytest.raises(TypeError):
            make(*arguments)


class TestWhatAFunctionDid:
    def test_is_undone(self, done):
        undo = Undo()
        assert undo.done(lambda: (0,), (), done.append, (7,), id) == (0,)
        undo.close()
        assert done == [7]

    def test_is_undone_where_an_exception_came_after_it(self, done):
        with pytest.raises(ValueError, match="late"), Undo() as undo:
            undo.done(fail, ("late",), done.append, (7,), id)
        assert done == [7]

    def test_is_nothing_where_it_failed(self, done):
        undo = Undo()
        assert undo.done(lambda: (1,), (), done.append, (7,), id) == (1,)
        undo.close()
        assert done == []


#: Closes more steps than a list gives up without asking for memory; none is there.
ALL_FAIL = """
import _testcapi
from gdrpy._core._mapping import Undo

undo = Undo()
for _ in range(100):
    undo.callback(int)
_testcapi.set_nomemory(0)
try:
    undo.close()
except MemoryError:
    pass
_testcapi.remove_mem_hooks()
undo.close()
print("ended")
"""


class TestWithoutMemory:
    def test_gives_back_all_that_was_made(self):
        answer, made, given_back = (0, "made"), [], []

        def make():
            made.append("made")
            return answer

        fails_at, failed = 0, True
        while failed:
            fails_at, undo = fails_at + 1, Undo()
            _testcapi.set_nomemory(fails_at, fails_at + 1)
            try:
                undo.made(make, (), given_back.append, (), id)
                failed = False
            except MemoryError:
                pass
            finally:
                _testcapi.remove_mem_hooks()
            undo.close()
            assert given_back == made
        assert fails_at > 1

    def test_runs_its_steps_to_the_end(self):
        done = subprocess.run(
            [sys.executable, "-c", ALL_FAIL], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (0, "ended\n")


class TestDropped:
    def test_runs_its_steps(self, done):
        undo = Undo()
        undo.callback(done.append, 1)
        del undo
        assert done == [1]

    def test_in_a_cycle_runs_them_when_that_is_collected(self, done):
        undo = Undo()
        undo.callback(done.append, 1)
        undo.callback(id, undo)
        del undo
        gc.collect()
        assert done == [1]

    def test_puts_them_on_the_list_that_it_was_given(self, done):
        dropped = []
        undo = Undo()
        undo.callback(done.append, 1)
        undo = undo.pop_all(dropped)
        del undo
        assert done == []
        again = dropped.pop()
        del again
        assert (done, len(dropped)) == ([], 1)
        dropped.pop().close()
        assert (done, dropped) == ([1], [])

    def test_tells_of_a_failing_step_and_goes_on(self, done, monkeypatch):
        monkeypatch.setattr(sys, "unraisablehook", lambda told: done.append(told.exc_value.args))
        undo = Undo()
        undo.callback(done.append, 1)
        undo.callback(fail, "step")
        del undo
        assert done == [1, ("step",)]

    def test_leaves_its_parents_steps_alone_in_a_forked_child(self):
        read, write = os.pipe()
        undo = Undo()
        undo.callback(os.write, write, b"x")
        child = os.fork()
        if not child:
            del undo
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        undo.close()
        assert os.read(read, 2) == b"x"
        os.close(read)
        os.close(write)
