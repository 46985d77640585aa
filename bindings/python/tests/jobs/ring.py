"""A unit of `test_jobs`: memory of others, and a kernel that moves from unit to unit."""

import numpy as np
import samite
from samite import kernel


@samite.mobile(np.float64)
def total(sums):
    sums[0] += kernel.segment(0, np.float64)[:100].sum()
    kernel.add64(1, 0, 1)
    if kernel.me() + 1 < kernel.units():
        kernel.forward(kernel.me() + 1, sums)
        return
    kernel.reply(sums)


@samite.mobile
def fails(units):
    if kernel.me() != units[0]:
        kernel.forward(units[0], units)
        return
    kernel.load64(9, 0)


with samite.init() as fabric:
    fabric.deadline = 600  # the first unit compiles, while the others wait
    unit, units = fabric.unit, fabric.units
    assert (fabric.identity.rank, fabric.identity.size) == (unit, units)
    segment = fabric.allocate(2 << 20)
    visits = fabric.allocate(4096)
    data = segment.array(np.float64)
    data[:100] = unit

    # The segment of the unit to the right, by its key.
    right = (unit + 1) % units
    fabric.send((unit - 1) % units, segment.key, 5)
    neighbour = fabric.attach(fabric.recv(right, 5))
    assert np.frombuffer(neighbour.get(0, 800)).sum() == 100 * right
    if neighbour.is_mapped:
        assert neighbour.array(np.float64, 100).sum() == 100 * right
    neighbour.put(800, np.array([unit + 0.5]))
    fabric.barrier()
    assert data[100] == (unit - 1) % units + 0.5

    mobile = samite.Mobile(fabric)
    mobile.grant(0, segment, "read")
    mobile.grant(1, visits, "write")
    fabric.barrier()
    if unit == 0:
        for _ in range(3):
            reply = mobile.call(0, total, [0.25]).result()
            assert np.frombuffer(reply)[0] == 0.25 + 100 * sum(range(units)), reply
        try:
            mobile.call(0, fails, [units - 1]).result()
        except samite.Error as error:
            assert (error.code, error.cause, error.path) == (608, "Grant", [0, units - 1]), error.path
        else:
            raise AssertionError("a segment that is not granted was read")
    fabric.barrier()
    assert visits.array(np.int64)[0] == 3
    print("done")
