"""Functions that move: the decorator, and calls of what it has decorated."""

import functools
import inspect
import numbers
import threading
import time

import numpy

from . import _samite


class CompileError(Exception):
    """A function that cannot become a kernel; the message says why, and what to do."""

    __module__ = "samite"


class Kernel:
    """A function that units can be asked to run; made by :func:`mobile`.

    It is compiled when it is called first, once for each type of payload. The values of global
    variables that it uses are those of that moment. Calling it like any function runs it here, in
    the interpreter.
    """

    def __init__(self, function, dtype, native):
        parameters = inspect.signature(function).parameters.values()
        if len(parameters) > 1:
            raise TypeError(
                f"{function.__name__} has {len(parameters)} parameters: a kernel has one, its payload, "
                "or none; pass an array, or a structured one"
            )
        functools.update_wrapper(self, function)
        self._function = function
        self._takes = len(parameters) == 1
        self._dtype = None if dtype is None else numpy.dtype(dtype)
        self._native = native
        self._forms = {}
        if dtype is not None and not self._takes:
            raise TypeError(f"{function.__name__} has no payload, but was given the type of one")

    def __call__(self, *arguments):
        return self._function(*arguments)

    def __repr__(self):
        return f"<samite kernel {self.__name__}>"

    def compile(self, dtype=None):
        """Compiles it for payloads of this type of elements; returns the :class:`Capsule`."""
        return self._form(self._checked(dtype)).capsule

    def _checked(self, dtype):
        if not self._takes:
            return None
        if self._dtype is not None:
            return self._dtype
        return numpy.dtype("u1" if dtype is None else dtype)

    def _form(self, dtype):
        form = self._forms.get(dtype)
        if form is None:
            form = self._forms[dtype] = _Form(self._function, dtype, self._native)
        return form

    def _packed(self, payload):
        """Returns the form for a payload, and its bytes."""
        if not self._takes:
            if payload is not None:
                raise TypeError(f"{self.__name__} has no parameter, but a payload was given")
            return self._form(None), b""
        if payload is None and self._dtype is None:
            try:
                return self._form(self._checked(None)), b""
            except CompileError as error:
                raise CompileError(
                    f"{self.__name__} has a parameter and is called without a payload, so it is "
                    "compiled for bytes: pass a payload, or say what its elements are "
                    f"(@samite.mobile(dtype=...))\n{error}"
                ) from None
        if payload is None or isinstance(payload, (bytes, bytearray, memoryview)):
            data = b"" if payload is None else bytes(payload)
            dtype = self._checked(None)
            if len(data) % dtype.itemsize:
                raise ValueError(f"{len(data)} bytes are no whole elements of {dtype}")
            return self._form(dtype), data
        if self._dtype is None:
            array = _of_numbers(numpy.asarray(payload), payload)
            if array.dtype.kind == "O":
                raise TypeError(f"{payload!r} has numbers that no type of NumPy has: pass an array")
        else:
            array = _array(payload, self._dtype)
        return self._form(self._checked(array.dtype)), array.tobytes()


def _of_numbers(array, values):
    """Returns an array of the numbers that it was made of; refuses what are no numbers."""
    are_numbers = array.dtype.kind in "biufcV" or array.dtype.kind == "O" and all(
        isinstance(value, numbers.Number) for value in array.flat
    )
    if not are_numbers:
        raise TypeError(
            f"a payload is an array, a number, a list of numbers, or bytes, not {values!r}"
        )
    return array


def _array(values, dtype):
    """Returns an array of values, which are tuples if their type has fields; refuses what changes
    them."""
    rows = [values] if isinstance(values, tuple) else values
    are_tuples = isinstance(rows, list) and all(isinstance(row, tuple) for row in rows)
    if dtype.names is None or not are_tuples:
        return _converted(_of_numbers(numpy.asarray(values), values), dtype)
    for row in rows:
        if len(row) != len(dtype.names):
            raise TypeError(f"{row} has {len(row)} values: an element of {dtype} is another tuple")
    array = numpy.zeros(len(rows), dtype)
    for at, name in enumerate(dtype.names):
        column = _array([row[at] for row in rows], dtype[name].base)
        if column.shape != array[name].shape:
            raise TypeError(f"a value of the field `{name}` has not the shape that {dtype} says")
        array[name] = column
    return array


def _converted(array, dtype):
    """Returns an array with the same values in another type; refuses what changes them."""
    if array.dtype == dtype:
        return array
    if array.dtype.names is not None or dtype.names is not None:
        raise TypeError(
            f"a payload of {array.dtype} is not converted to {dtype}: pass tuples, or an array of "
            "this type"
        )
    is_cut = array.dtype.kind in "fc" and dtype.kind in "iub"
    if is_cut or array.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"a payload of {array.dtype} is not converted to {dtype}: convert it yourself")
    converted = array.astype(dtype)
    # The numbers of Python are compared exactly, also an integer with a float.
    if array.dtype.kind in "iubO" and converted.tolist() != array.tolist():
        raise OverflowError(f"a value of the payload does not fit into {dtype}")
    return converted


class _Form:
    """A kernel that is compiled for one type of payload."""

    def __init__(self, function, dtype, native):
        try:
            from . import _compiler
        except ImportError as error:
            raise ImportError(
                f"kernels are compiled by numba, which is missing: pip install 'samite[mobile]' ({error})"
            ) from error
        compiled = _compiler.compile(function, dtype)
        bitcode = None
        if native:
            bitcode = {
                "x86-64": compiled.bitcode("x86_64-unknown-linux-gnu"),
                "aarch64": compiled.bitcode("aarch64-unknown-linux-gnu"),
            }
        self.entry = compiled.entry
        self.capsule = _samite.Capsule([self.entry], wasm=compiled.wasm(), bitcode=bitcode)
        self.read = compiled.read


def mobile(function=None, dtype=None, *, native=False):
    """Makes a function one that moves to other units: a :class:`Kernel`.

    The function takes one parameter, its payload, as an array of one dimension, or none. It may use
    what numba compiles without Python objects, and :mod:`samite.kernel`. What it returns is the
    result of the call: a number, a tuple of numbers, or a part of the payload. If it returns
    nothing, the result is the bytes that it passes to :func:`samite.kernel.reply`, or none.

    :param dtype: the type of the elements of the payload. By default it is that of the array that a
        call passes, and ``uint8`` for bytes.
    :param native: adds LLVM bitcode to the WebAssembly, for x86-64 and aarch64. Only units that
        trust it run it (:meth:`Mobile.set_policy`).

    ::

        @samite.mobile
        def norm(values):
            total = 0.0
            for value in values:
                total += value * value
            return math.sqrt(total)

        @samite.mobile(dtype=np.int32)
        def count(bounds):
            ...
    """
    if function is None:
        return lambda function: mobile(function, dtype, native=native)
    # What numba.njit has made of a function has the function itself.
    function = getattr(function, "py_func", function)
    if not inspect.isfunction(function):
        # `@samite.mobile(np.float64)`
        if dtype is None:
            return lambda decorated: mobile(decorated, function, native=native)
        raise TypeError(f"{function!r} is not a function")
    return Kernel(function, dtype, native)


def _capsule(what):
    if isinstance(what, _samite.Code):
        return what.capsule
    if isinstance(what, _samite.Capsule):
        return what
    raise TypeError(f"{what!r} is neither a function of @samite.mobile nor a Capsule nor a Code")


class Mobile(_samite.Mobile):
    """Moved code, as this unit sends and runs it. A process has one.

    A unit runs what others call whenever one of its threads waits for anything in Samite: in
    :meth:`serve`, :meth:`Fabric.barrier`, :meth:`Future.result`.
    """

    def __init__(self, fabric):
        self._codes = {}

    def register(self, capsule):
        """Registers a :class:`Capsule`, so that this unit can call it and give it to others: a
        :class:`Code`, which can be called in its place. Nothing is sent. Calls register by
        themselves what was not registered before."""
        code = super().register(capsule)
        self._codes[code.hash] = code
        return code

    def _code(self, capsule):
        code = self._codes.get(capsule.hash)
        # A signature does not change the hash.
        if code is None or capsule.signer not in (None, code.capsule.signer):
            code = self.register(capsule)
        return code

    def evict(self, what):
        """Forgets code, whether this unit has registered it or got it from another one: a
        :class:`Code`, a :class:`Capsule`, or a :class:`Kernel` with all its forms. Returns whether
        it was there and is gone: code for which a call waits stays. The next call registers it
        again."""
        if isinstance(what, Kernel):
            capsules = [form.capsule for form in what._forms.values()]
        else:
            capsules = [_capsule(what)]
        was_there = False
        for capsule in capsules:
            if self._forget(capsule):
                was_there = True
                self._codes.pop(capsule.hash, None)
        return was_there and not any(capsule.hash in self._codes for capsule in capsules)

    def _resolved(self, what, entry, payload):
        if isinstance(what, Kernel):
            form, payload = what._packed(payload)
            return form.capsule, form.entry, payload, form.read
        capsule = _capsule(what)
        return capsule, entry or capsule.entries[0], payload, bytes

    def call(
        self, unit, what, payload=None, *, entry=None,
        run=None, time=None, hops=None, grants=None, may_spawn=None, may_define=None,
    ):
        """Calls a kernel, or an entry of a :class:`Capsule` or :class:`Code`, at a unit; returns a
        :class:`Future`.

        :param payload: an array, a number, a list of numbers, or bytes; at most 64 KiB. That of a
            capsule is bytes or an array.
        :param entry: the name of the entry of a capsule, by default the first one.
        :param run: how long it may run on one unit at a time, in seconds.
        :param time: how long it may run on all units together, in seconds.
        :param hops: how often it may move on.
        :param grants: the numbers of the grants that it may use; all by default.
        """
        capsule, entry, payload, read = self._resolved(what, entry, payload)
        given = {
            "run": run, "time": time, "hops": hops, "grants": grants,
            "may_spawn": may_spawn, "may_define": may_define,
        }
        started = self._start(unit, self._code(capsule), entry, payload, given)
        return Future(started, read)

    def send(self, unit, what, payload=None, *, entry=None):
        """As :meth:`call`, without a result and with the usual limits. Nobody waits for it: when it
        fails, :meth:`take_failures` returns the failure at this unit."""
        capsule, entry, payload, _ = self._resolved(what, entry, payload)
        self._post(unit, self._code(capsule), entry, payload)

    def prefetch(self, what, units, *, dtype=None):
        """Brings code to units and has it compiled there, before the first call; for a kernel that
        of payloads of ``dtype``. Returns a :class:`Future`, which ends when all have it."""
        capsule = what.compile(dtype) if isinstance(what, Kernel) else _capsule(what)
        return Future(self._bring(self._code(capsule), list(units)), lambda reply: None)


class Future:
    """A call under way. One that is dropped is abandoned: the kernel goes on."""

    def __init__(self, call, read):
        self._call = call
        self._read = read
        self._lock = threading.Lock()

    def done(self):
        """Returns whether the call has ended. Makes progress, if no other thread waits for it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._call.done()
        finally:
            self._lock.release()

    def result(self, timeout=None):
        """Waits for the result, for ``timeout`` seconds, or as long as :attr:`Fabric.deadline`.

        The result of a kernel that returns a value is that value; otherwise it is the bytes of the
        reply. Raises :class:`Error` if the call failed, with ``cause`` and ``path``, or if it has
        not ended in time (``code`` 609): then the result can be asked for again. Several threads
        may ask: one waits for the call, and the others for that one.
        """
        if timeout is None:
            timeout = self._call.deadline
        end = time.monotonic() + timeout
        is_first = self._lock.acquire(timeout=min(max(timeout, 0), threading.TIMEOUT_MAX))
        try:
            left = min(timeout, max(end - time.monotonic(), 0))
            return self._read(self._call.wait(left, timeout))
        finally:
            if is_first:
                self._lock.release()

    def __repr__(self):
        return repr(self._call)
