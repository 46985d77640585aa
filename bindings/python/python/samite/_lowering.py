"""Tells numba what the functions of :mod:`samite.kernel` are: calls of functions that the engines
of moved code offer, with the types of ``samite_kernel.h``.

Importing it needs numba. All integers are ``int64`` for kernels: numba would turn the sum of an
``int64`` and an ``uint64`` into a float.
"""

import inspect

import llvmlite.ir as ir
from numba.core import cgutils, registry, types
from numba.core.errors import TypingError
from numba.extending import lower_builtin, type_callable
from numba.core.typing.npydecl import parse_dtype
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import as_dtype

from . import kernel

#: The longest payload or reply, and the longest copy, in bytes.
PAYLOAD_MAX = 65536

_WORD = ir.IntType(64)
_INT = ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
_VOID = ir.VoidType()


def _extern(builder, name, result, arguments):
    kind = ir.FunctionType(result, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, "samite_" + name)


def _call(builder, name, result, *arguments):
    callee = _extern(builder, name, result, [argument.type for argument in arguments])
    return builder.call(callee, arguments)


def _integer(of, what):
    if not isinstance(of, (types.Integer, types.Boolean)):
        raise TypingError(f"{what} is an integer, not {of}")


def is_own(of):
    """Returns whether an array type is that of the payload, or a part of it: only such memory is
    still there when the kernel has returned."""
    return of.aligned


def wire(of):
    """Returns the types of the numbers that a value is sent as, or None if it cannot be sent."""
    of = types.unliteral(of)
    if isinstance(of, (types.Number, types.Boolean)):
        return [of]
    if isinstance(of, types.BaseTuple):
        parts = [types.unliteral(part) for part in of]
        if parts and all(isinstance(part, (types.Number, types.Boolean)) for part in parts):
            return parts
    return None


def _sendable(of, what):
    if isinstance(of, types.Array):
        if of.layout != "C":
            raise TypingError(f"{what} is an array without gaps: copy it to a buffer first")
    elif wire(of) is None:
        raise TypingError(f"{what} is a number, a tuple of numbers, or an array, not {of}")


def _memory(builder, element, count):
    """Returns memory of the stack, which is not initialised."""
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(element, count))
    memory.align = 16
    return memory


def bytes_of(context, builder, of, value):
    """Returns address and length of the bytes that a value is sent as."""
    of = types.unliteral(of)
    if isinstance(of, types.Array):
        array = make_array(of)(context, builder, value)
        size = builder.mul(array.nitems, array.itemsize)
        at = builder.bitcast(array.data, _BYTES)
        if not is_own(of):
            # Kernels send their own memory only, and this may be a segment. What is too long is
            # left as it is, and refused.
            scratch = builder.bitcast(_memory(builder, ir.IntType(8), PAYLOAD_MAX), _BYTES)
            fits = builder.icmp_unsigned("<=", size, _WORD(PAYLOAD_MAX))
            with builder.if_then(fits):
                cgutils.raw_memcpy(builder, scratch, at, size, 1)
            at = builder.select(fits, scratch, at)
        most = _WORD(2**32 - 1)
        size = builder.select(builder.icmp_unsigned("<", size, most), size, most)
        return at, builder.trunc(size, _INT)
    parts = wire(of)
    values = [value]
    if isinstance(of, types.BaseTuple):
        values = cgutils.unpack_tuple(builder, value, len(parts))
    values = [
        context.data_model_manager[part].as_data(builder, one) for part, one in zip(parts, values)
    ]
    sizes = [context.get_abi_sizeof(one.type) for one in values]
    room = builder.bitcast(_memory(builder, ir.IntType(8), sum(sizes)), _BYTES)
    at = 0
    for one, size in zip(values, sizes):
        place = builder.gep(room, [_WORD(at)])
        builder.store(one, builder.bitcast(place, one.type.as_pointer()), align=1)
        at += size
    return room, _INT(at)


def fail_with(context, builder, code, text):
    """Ends the call with a code and a constant text."""
    text = text.encode()[:256]
    constant = ir.Constant(ir.ArrayType(ir.IntType(8), len(text)), bytearray(text))
    place = cgutils.global_constant(builder.module, ".samite.text", constant)
    fail_bytes(builder, code, builder.bitcast(place, _BYTES), _INT(len(text)))


def fail_bytes(builder, code, text, size):
    """Ends the call with a code and a text."""
    _call(builder, "fail", _VOID, code, text, size)


def reply_bytes(builder, at, size):
    """Replies with bytes of the kernel."""
    _call(builder, "reply", _VOID, at, size)


def _number(builder, value, of, width):
    """Converts an integer to one of this width."""
    if value.type.width >= width.width:
        return builder.trunc(value, width) if value.type.width > width.width else value
    is_signed = isinstance(of, types.Integer) and of.signed
    return builder.sext(value, width) if is_signed else builder.zext(value, width)


def _id(builder, value, of):
    """Converts the number of a grant or unit to 4 bytes; one that does not fit is that of none."""
    value = _number(builder, value, of, _WORD)
    none = _WORD(0xFFFFFFFF)
    fits = builder.icmp_unsigned("<", value, none)
    return builder.trunc(builder.select(fits, value, none), _INT)


def _define(function, lower):
    """Lowers a function; how it is typed is the decorated function, which gets the types of the
    arguments."""
    def typed(typer):
        type_callable(function)(lambda context: typer)
        lower_builtin(function, types.VarArg(types.Any))(lower)
        return typer

    return typed


def _simple(name, imported, result):
    """A function whose arguments are integers: the first, a grant, of 4 bytes, all others of 8."""
    function = getattr(kernel, name)

    def lower(context, builder, signature, arguments):
        values = [_number(builder, one, of, _WORD) for one, of in zip(arguments, signature.args)]
        if values:
            values[0] = _id(builder, arguments[0], signature.args[0])
        if result is types.void:
            _call(builder, imported, _VOID, *values)
            return context.get_dummy_value()
        kind = _INT if not values else _WORD
        return _number(builder, _call(builder, imported, kind, *values), types.uint32, _WORD)

    def typed(*arguments):
        for argument in arguments:
            _integer(argument, f"an argument of {name}")
        return result

    # Numba binds arguments by the names that the typing function has.
    typed.__signature__ = inspect.signature(function)
    _define(function, lower)(typed)


_simple("me", "me", types.int64)
_simple("units", "units", types.int64)
_simple("origin", "origin", types.int64)
_simple("hops", "hops", types.int64)
_simple("length", "len", types.int64)
_simple("load64", "load64", types.int64)
_simple("store64", "store64", types.void)
_simple("add64", "add64", types.int64)
_simple("cas64", "cas64", types.int64)


def array_at(context, builder, of, at, count):
    """Returns an array of one dimension over memory that is not its own."""
    size = _WORD(context.get_abi_sizeof(context.get_data_type(of.dtype)))
    array = make_array(of)(context, builder)
    data = builder.bitcast(at, context.get_data_type(of.dtype).as_pointer())
    populate_array(array, data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return array._getvalue()


#: What NumPy makes of the types of Python.
_OF_PYTHON = {float: types.float64, int: types.int64, bool: types.boolean}


def _array_of(dtype, function):
    element = parse_dtype(dtype)
    if element is None and isinstance(dtype, types.Function):
        element = _OF_PYTHON.get(dtype.typing_key)
    if element is None:
        raise TypingError(f"{function} takes the type of its elements, such as numpy.float64")
    # What is not marked as aligned cannot be returned (`is_own`).
    return types.Array(element, 1, "C", aligned=False)


def _segment(context, builder, signature, arguments):
    grant = _id(builder, arguments[0], signature.args[0])
    of = signature.return_type
    at = _call(builder, "base", _BYTES, grant)
    bytes_there = _call(builder, "len", _WORD, grant)
    is_mapped = builder.icmp_unsigned("!=", at, at.type(None))
    with builder.if_then(builder.not_(is_mapped), likely=False):
        text = "the segment has no address: allocate a multiple of 2 MiB, or use load64, copy_in"
        fail_with(context, builder, _INT(1), text)
    size = _WORD(context.get_abi_sizeof(context.get_data_type(of.dtype)))
    count = builder.udiv(bytes_there, size)
    count = builder.select(is_mapped, count, _WORD(0))
    return array_at(context, builder, of, at, count)


@_define(kernel.segment, _segment)
def _type_segment(grant, dtype):
    _integer(grant, "the grant")
    return _array_of(dtype, "segment")


def _buffer(context, builder, signature, arguments):
    of = signature.return_type
    count = signature.args[0].literal_value
    element = context.get_data_type(of.dtype)
    memory = _memory(builder, element, count)
    # There is one piece of memory for each place in the kernel: a second array would be the first.
    is_made = cgutils.alloca_once(builder, cgutils.bool_t)  # false when the function begins
    with builder.if_then(builder.load(is_made), likely=False):
        text = "a kernel makes a buffer twice at the same place: make it before the loop"
        fail_with(context, builder, _INT(1), text)
    builder.store(cgutils.true_bit, is_made)
    cgutils.memset(builder, memory, _WORD(count * context.get_abi_sizeof(element)), 0)
    return array_at(context, builder, of, memory, _WORD(count))


#: The function that becomes a kernel now, and the type of the elements of its payload; None if it
#: has none. They are set while numba's lock is held.
compiled_now = None
payload_now = None


@_define(kernel.buffer, _buffer)
def _type_buffer(count, dtype):
    # The memory is part of the frame of the function, which a helper leaves before the kernel.
    stack = registry.cpu_target.typing_context.callstack
    if len(stack) != 1 or stack[0].func_id.func is not compiled_now:
        raise TypingError(
            "a buffer is made in the kernel itself: pass it to the functions that the kernel calls"
        )
    if not isinstance(count, types.IntegerLiteral):
        raise TypingError("the count of a buffer is a constant: a number, or a global variable")
    of = _array_of(dtype, "buffer")
    if not 0 < count.literal_value * as_dtype(of.dtype).itemsize <= PAYLOAD_MAX:
        raise TypingError(f"a buffer has between 1 and {PAYLOAD_MAX} bytes")
    return of


def _copy(name):
    def lower(context, builder, signature, arguments):
        grant = _id(builder, arguments[0], signature.args[0])
        offset = _number(builder, arguments[1], signature.args[1], _WORD)
        array = make_array(signature.args[2])(context, builder, arguments[2])
        size = builder.mul(array.nitems, array.itemsize)
        most = _WORD(2**32 - 1)
        size = builder.select(builder.icmp_unsigned("<", size, most), size, most)
        size = builder.trunc(size, _INT)
        _call(builder, name, _VOID, grant, offset, builder.bitcast(array.data, _BYTES), size)
        return context.get_dummy_value()

    @_define(getattr(kernel, name), lower)
    def typed(grant, offset, array):
        _integer(grant, "the grant")
        _integer(offset, "the offset")
        if not isinstance(array, types.Array) or array.layout != "C":
            raise TypingError(f"{name} takes an array without gaps, not {array}")
        return types.void


_copy("copy_in")
_copy("copy_out")


def _reply(context, builder, signature, arguments):
    reply_bytes(builder, *bytes_of(context, builder, signature.args[0], arguments[0]))
    return context.get_dummy_value()


@_define(kernel.reply, _reply)
def _type_reply(value):
    _sendable(value, "a reply")
    return types.void


def _fail(context, builder, signature, arguments):
    code = _number(builder, arguments[0], signature.args[0], _INT)
    fail_with(context, builder, code, signature.args[1].literal_value)
    return context.get_dummy_value()


@_define(kernel.fail, _fail)
def _type_fail(code, text):
    _integer(code, "the code of an error")
    if not isinstance(text, types.StringLiteral):
        raise TypingError("the text of an error is a constant")
    return types.void


def _check_elements(sent):
    """Refuses a payload that the same kernel would take for elements of another type. A kernel of
    bytes gives them a meaning itself."""
    own = payload_now
    if own == types.uint8 or not isinstance(own, (types.Number, types.Boolean)):
        return
    parts = [sent.dtype] if isinstance(sent, types.Array) else wire(sent)
    for part in parts:
        if part != own:
            raise TypingError(
                f"the payload there has elements of {own}, and this one is of {part}: convert it"
            )


def _move(name):
    def lower(context, builder, signature, arguments):
        unit = _id(builder, arguments[0], signature.args[0])
        at, size = bytes_of(context, builder, signature.args[1], arguments[1])
        _call(builder, name, _VOID, unit, _INT(0), at, size)
        return context.get_dummy_value()

    @_define(getattr(kernel, name), lower)
    def typed(unit, value):
        _integer(unit, "the unit")
        _sendable(value, "a payload")
        _check_elements(value)
        return types.void


_move("forward")
_move("spawn")
