"""A unit of `test_jobs`: unit 1 is killed, and started again. Its argument is a folder."""

import os
import pathlib
import signal
import sys

import samite

fabric = samite.init()
fabric.deadline = 600
others = [unit for unit in range(fabric.units) if unit != 1]
if fabric.unit == 1:
    file = pathlib.Path(sys.argv[1]) / "first-life"
    if not file.exists():
        file.touch()
        fabric.barrier()
        for unit in others:
            assert fabric.recv(unit, 1) == b"to the first life"
        os.kill(os.getpid(), signal.SIGKILL)
    for unit in others:
        fabric.send(unit, b"here again", 2)
    for unit in others:
        assert fabric.recv(unit, 3) == b"to the second life"
        fabric.send(unit, b"from the second life", 4)
else:
    fabric.barrier()
    fabric.send(1, b"to the first life", 1)
    # The second life joins during this wait.
    assert fabric.recv_from(2) == (1, b"here again")
    fabric.send(1, b"to the second life", 3)
    assert fabric.recv(1, 4) == b"from the second life"
fabric.barrier()
print("done", flush=True)
