"""A unit of `test_jobs`: a thread of unit 1 serves, while its main thread computes."""

import threading

import samite
from samite import kernel


@samite.mobile
def mark():
    kernel.store64(0, 0, 1)
    return kernel.me()


fabric = samite.init()
fabric.deadline = 600  # the first unit compiles, while the other waits
mobile = samite.Mobile(fabric)
word = fabric.allocate(4096)
mobile.grant(0, word, "write")
fabric.barrier()
if fabric.unit == 0:
    assert mobile.call(1, mark).result() == 1
else:
    threading.Thread(target=mobile.serve, daemon=True).start()
    seen = word.array("i8")
    turns = 0
    while seen[0] == 0:  # it does not wait in Samite, and it keeps the interpreter busy
        turns += 1
print("done", flush=True)
fabric.barrier()
