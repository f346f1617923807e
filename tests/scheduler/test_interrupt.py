"""A signal is noted whenever it comes, and never holds up the thread that it comes to (S38)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from scheduler.interrupt import SIGNALS, Interrupts

FLOODED = """
import os, signal, threading
from scheduler.interrupt import Interrupts

def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)

with Interrupts() as interrupts:
    sender = threading.Thread(target=send)
    sender.start()
    while sender.is_alive():
        interrupts.wait(0.00001)
    print(interrupts.first, interrupts.count > 1, interrupts.wait(0))
"""


def test_signals_that_come_while_it_waits_for_them_do_not_stop_the_thread() -> None:
    ended = subprocess.run([sys.executable, "-c", FLOODED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("15 True True\n", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_kept_and_the_former_handler_comes_back(number: signal.Signals) -> None:
    former = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert not interrupts.wait(0)
        os.kill(os.getpid(), number)
        assert interrupts.wait(30)
        assert (interrupts.first, interrupts.count) == (number, 1)
    assert signal.getsignal(number) is former


def test_work_off_the_main_thread_is_ended_by_a_call_and_not_after_its_end() -> None:
    former = [signal.getsignal(number) for number in SIGNALS]
    interrupts = Interrupts(signals=())
    with interrupts:
        assert [signal.getsignal(number) for number in SIGNALS] == former
        caller = threading.Thread(target=interrupts.interrupt)
        caller.start()
        assert interrupts.wait(30)
        caller.join()
        assert (interrupts.first, interrupts.count) == (signal.SIGINT, 1)
    interrupts.interrupt()  # its pipe's number may be another file's by now
    assert interrupts.count == 1
