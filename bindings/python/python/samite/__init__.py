"""One memory for many processes, from Python.

A process joins its job with :func:`init`, shares memory as NumPy arrays (:class:`Segment`), and
sends functions to where the data is (:func:`mobile`, :class:`Mobile`)::

    import numpy as np, samite
    from samite import kernel

    @samite.mobile
    def total(payload):
        return kernel.segment(0, np.float64).sum() + payload[0]

    with samite.init() as fabric:                  # in a job of `samite run -n 4 python program.py`
        segment = fabric.allocate(2 << 20)         # shared, zeroed
        segment.array(np.float64)[:] = fabric.unit
        mobile = samite.Mobile(fabric)
        mobile.grant(0, segment, "read")
        fabric.barrier()
        if fabric.unit == 0:
            for unit in range(fabric.units):
                print(mobile.call(unit, total, [0.5]).result())
        fabric.barrier()                           # a unit that waits runs what others call

Errors of all layers are :class:`Error`.
"""

from . import kernel
from ._moved import CompileError, Future, Kernel, Mobile, mobile
from ._samite import (
    Capsule,
    Code,
    Error,
    Fabric,
    Identity,
    Remote,
    Segment,
    alone,
    init,
    join,
)

__all__ = [
    "Capsule",
    "Code",
    "CompileError",
    "Error",
    "Fabric",
    "Future",
    "Identity",
    "Kernel",
    "Mobile",
    "Remote",
    "Segment",
    "alone",
    "init",
    "join",
    "kernel",
    "mobile",
]
