"""A unit of `test_jobs`: the last one is killed while the others wait for it."""

import os
import signal

import samite

fabric = samite.init()
fabric.deadline = 600
mobile = samite.Mobile(fabric)
fabric.barrier()
if fabric.unit == fabric.units - 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    fabric.barrier()
except samite.Error as error:
    print("barrier", error.code, error.name, flush=True)
capsule = samite.Capsule.from_wat(
    '(module (import "samite" "memory" (memory 0))'
    ' (func (export "one") (param i32 i32) (result i32) (i32.const 0)))'
)
try:
    mobile.call(fabric.units - 1, capsule).result()
except samite.Error as error:
    print("call", error.code, error.cause, flush=True)
