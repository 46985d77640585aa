"""What a kernel can do: the functions that a function marked with :func:`samite.mobile` may call.

They work where the kernel runs, and nowhere else. Offsets and lengths count bytes. All numbers
that they return are ``int64``, so that sums of them stay integers. A grant is the number under
which the unit has granted a segment (:meth:`samite.Mobile.grant`).

A function that is called wrongly (a segment that is not granted, a range outside of it) ends the
call with an error. WebAssembly stops at once. Bitcode goes on until it returns, and the functions
do nothing meanwhile and return 0: a kernel for both has no loop that ends only when a function
returns something else than 0.
"""

__all__ = [
    "add64",
    "buffer",
    "cas64",
    "copy_in",
    "copy_out",
    "fail",
    "forward",
    "hops",
    "length",
    "load64",
    "me",
    "origin",
    "reply",
    "segment",
    "spawn",
    "store64",
    "units",
]


def _elsewhere(name):
    raise RuntimeError(
        f"samite.kernel.{name} works in a kernel only: mark the function with @samite.mobile, "
        "and call it at a unit (Mobile.call)"
    )


def me():
    """Returns the unit on which the kernel runs."""
    _elsewhere("me")


def units():
    """Returns the number of units."""
    _elsewhere("units")


def origin():
    """Returns the unit that called first, and gets the reply."""
    _elsewhere("origin")


def hops():
    """Returns how often the call may still move to another unit."""
    _elsewhere("hops")


def length(grant):
    """Returns the length of a granted segment."""
    _elsewhere("length")


def segment(grant, dtype):
    """Returns a granted segment as an array of one dimension, without a copy.

    The segment consists of whole pages: it was allocated with a multiple of 2 MiB. Others are
    reached by :func:`load64` and :func:`copy_in`. Words that others change meanwhile are accessed
    by :func:`load64` and its like, since the compiler may read an element of an array once, or
    several times. In WebAssembly, a store to a segment that is granted for reading ends the call;
    bitcode is not stopped.
    """
    _elsewhere("segment")


def load64(grant, offset):
    """Returns the aligned word of 8 bytes at ``offset``."""
    _elsewhere("load64")


def store64(grant, offset, value):
    """Stores an aligned word of 8 bytes."""
    _elsewhere("store64")


def add64(grant, offset, value):
    """Adds to a word, atomically; returns what was there."""
    _elsewhere("add64")


def cas64(grant, offset, expected, new):
    """Replaces a word if it is ``expected``, atomically; returns what was there."""
    _elsewhere("cas64")


def copy_in(grant, offset, array):
    """Copies bytes of a segment to an array of the kernel, as many as it has; at most 64 KiB."""
    _elsewhere("copy_in")


def copy_out(grant, offset, array):
    """Copies an array of the kernel to a segment; at most 64 KiB."""
    _elsewhere("copy_out")


def buffer(count, dtype):
    """Returns an array of zeros that lives until the kernel returns: at most 64 KiB, and ``count``
    is a constant. All buffers of a kernel have 1 MiB together. It cannot be returned; :func:`reply`
    sends it. It is made in the kernel itself, not in a function that the kernel calls, and outside
    of loops: a call that makes a buffer twice at the same place ends with an error."""
    _elsewhere("buffer")


def reply(value):
    """Replies with a number, a tuple of numbers, or an array; at most 64 KiB. The caller gets bytes
    (:meth:`samite.Future.result`). A kernel that returns a value replies with it."""
    _elsewhere("reply")


def fail(code, text):
    """Ends the call with an error code and a text, which is a constant. Bitcode goes on: return
    after it. ``raise`` in a kernel does the same, with the code 1."""
    _elsewhere("fail")


def forward(unit, value):
    """Goes on at another unit when this call has returned. The payload there is a number, a tuple
    of numbers, or an array, of the type of the elements here; a kernel of bytes (``uint8``) sends
    any. A kernel that forwards returns no value."""
    _elsewhere("forward")


def spawn(unit, value):
    """Starts a further call of this kernel at a unit, whose result nobody gets. The payload there
    is as for :func:`forward`."""
    _elsewhere("spawn")
