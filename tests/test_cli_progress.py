"""Progress: drawn on a terminal, silent elsewhere. Oracle: the characters written."""

import io

from onecat_jax.cli.progress import terminal_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_no_progress():
    assert terminal_progress(io.StringIO()) is None


def test_a_terminal_sees_what_is_done_and_the_bar_goes_away():
    terminal = Terminal()
    progress = terminal_progress(terminal)
    for done in range(3):
        progress(f"program {done}", done, 2)
    text = terminal.getvalue()
    assert "program 0" in text
    assert "program 1" in text
    assert "1/2" in text
    assert text.rstrip(" ").endswith("\r")


def test_a_second_task_gets_its_own_bar():
    terminal = Terminal()
    progress = terminal_progress(terminal)
    progress("load", 1, 4)
    progress("compile", 1, 8)
    progress("ready", 8, 8)
    assert "1/4" in terminal.getvalue()
    assert "8/8" in terminal.getvalue()


def test_bytes_are_shown_as_multiples():
    terminal = Terminal()
    progress = terminal_progress(terminal, unit="B")
    progress("convert", 1_500_000, 3_000_000)
    assert "1.50M/3.00M" in terminal.getvalue()
    assert "B/s" in terminal.getvalue()
