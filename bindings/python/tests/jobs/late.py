"""A unit of `test_jobs`: unit 1 computes and does not answer; two threads of unit 0 wait for it."""

import threading

import samite

#: A kernel that replies with nothing.
MODULE = (
    '(module (import "samite" "memory" (memory 0))'
    ' (func (export "nothing") (param i32 i32) (result i32) (i32.const 0)))'
)

fabric = samite.init()
fabric.deadline = 600
mobile = samite.Mobile(fabric)
capsule = samite.Capsule.from_wat(MODULE)
if fabric.unit == 1:
    words = fabric.allocate(4096)
    fabric.send(0, words.key)
    array = words.array("i8")
    array[0] = 1  # from now on, it makes no progress
    while array[1] == 0:
        pass
else:
    array = fabric.attach(fabric.recv(1)).array("i8")
    while array[0] == 0:
        pass
    call = mobile.call(1, capsule)
    replies, errors = [], []
    patient = threading.Thread(target=lambda: replies.append(call.result(1e9)), daemon=True)
    patient.start()
    while not call._lock.locked():  # until that thread waits for the call
        pass
    fabric.deadline = 0.05

    def impatient():
        try:
            call.result()
        except samite.Error as error:
            errors.append(error)

    for wait in (impatient, lambda: errors.append(call.done())):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), "it waits longer than its deadline"
    late, is_done = errors
    assert (late.code, is_done) == (609, False), errors
    assert "within 50ms" in str(late), late
    fabric.deadline = 600
    array[1] = 1
    patient.join()
    assert replies == [b""], replies
fabric.barrier()
# Unit 1 has got the code from unit 0, and has not registered it.
assert mobile.evict(capsule)
assert not mobile.evict(capsule)
print("done", flush=True)
