"""The progress bar itself: amounts, notes, and when it is shown."""

import sys
import threading

import pytest

from bayesadam.progress import progress_bar


def test_amounts_and_notes(capsys):
    with progress_bar("working", 4, True) as advance:
        advance()
        advance(1.5, "loss 0.250")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("working")
    assert "62%" in err  # 2.5 of 4, rounded down as rich does
    assert "loss 0.250" in err


def test_a_note_stays_until_the_next_one(capsys):
    with progress_bar("working", 3, True) as advance:
        advance(1, "first")
        advance(1, "second")
        advance(1)
    err = capsys.readouterr().err
    assert "100%" in err
    assert "first" not in err  # not a terminal: only the end is written
    assert "second" in err


@pytest.mark.parametrize(
    ("progress", "shown", "terminal", "visible"),
    [
        (True, False, False, True),
        (False, True, True, False),
        (None, True, True, True),
        (None, False, True, False),
        (None, True, False, False),
    ],
)
def test_when_it_is_shown(progress, shown, terminal, visible, monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: terminal)
    with progress_bar("working", 2, progress, shown=shown) as advance:
        advance(2, "note")
    assert ("working" in capsys.readouterr().err) == visible


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_is_closed_after_an_error(error, monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    before = set(threading.enumerate())
    with pytest.raises(error), progress_bar("working", 2, True):
        started = set(threading.enumerate()) - before
        raise error
    assert started
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()
    assert capsys.readouterr().err.count("\x1b[?25h") == 1  # the cursor is back
