"""From a Python function to LLVM IR, which :mod:`samite._target` turns into the forms in which code
travels.

numba compiles the function, together with all that it calls. The entry is added: it makes an array
of the payload, and sends the result. Kernels have no Python: they count no references, and an
exception becomes a sentence.
"""

import pickle
import re

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy
from numba.core import cgutils, compiler, registry, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError, UnsupportedBytecodeError, UnsupportedError
from numba.np.numpy_support import as_dtype, from_dtype

from . import _lowering, _target
from ._moved import CompileError

#: What numba's code calls: nothing in a kernel has a count of references, and arrays are reshaped
#: where they are, if they have no gaps.
_RUNTIME = """
define internal void @NRT_incref(ptr %of) alwaysinline {
  ret void
}

define internal void @NRT_decref(ptr %of) alwaysinline {
  ret void
}

define internal i32 @numba_attempt_nocopy_reshape(i64 %axes, ptr %shape, ptr %strides, i64 %new.axes,
    ptr %new.shape, ptr %new.strides, i64 %size, i32 %is.fortran) {
entry:
  %refused = icmp ne i32 %is.fortran, 0
  br i1 %refused, label %no, label %old
old:
  %axis = phi i64 [ %axes, %entry ], [ %before, %outer ]
  %dense = phi i64 [ %size, %entry ], [ %larger, %outer ]
  %seen = icmp eq i64 %axis, 0
  br i1 %seen, label %new, label %look
look:
  %before = sub i64 %axis, 1
  %count.at = getelementptr i64, ptr %shape, i64 %before
  %count = load i64, ptr %count.at
  %stride.at = getelementptr i64, ptr %strides, i64 %before
  %stride = load i64, ptr %stride.at
  %is.one = icmp eq i64 %count, 1
  %is.dense = icmp eq i64 %stride, %dense
  %fits = or i1 %is.one, %is.dense
  br i1 %fits, label %outer, label %no
outer:
  %larger = mul i64 %dense, %count
  br label %old
new:
  %new.axis = phi i64 [ %new.axes, %old ], [ %new.before, %step ]
  %new.dense = phi i64 [ %size, %old ], [ %new.larger, %step ]
  %done = icmp eq i64 %new.axis, 0
  br i1 %done, label %yes, label %step
step:
  %new.before = sub i64 %new.axis, 1
  %new.stride.at = getelementptr i64, ptr %new.strides, i64 %new.before
  store i64 %new.dense, ptr %new.stride.at
  %new.count.at = getelementptr i64, ptr %new.shape, i64 %new.before
  %new.count = load i64, ptr %new.count.at
  %new.larger = mul i64 %new.dense, %new.count
  br label %new
yes:
  ret i32 1
no:
  ret i32 0
}
"""


class Compiled:
    """A function as LLVM IR, for any processor.

    ``entry`` is its name, ``read`` makes what it returned of the bytes of a reply."""

    def __init__(self, entry, result, text):
        self.entry = entry
        self.read = _reader(result)
        self._text = text

    def wasm(self):
        """Returns it as a module of WebAssembly."""
        return _target.wasm(self._text, self.entry)

    def bitcode(self, triple):
        """Returns it as bitcode for a processor."""
        return _target.bitcode(self._text, self.entry, triple)


def _reader(result):
    """Returns what reads a reply of this type."""
    if isinstance(result, types.NoneType):
        return bytes
    if isinstance(result, types.Array):
        dtype = as_dtype(result.dtype)
        return lambda reply: numpy.frombuffer(reply, dtype).copy()
    fields = [(f"f{at}", as_dtype(part)) for at, part in enumerate(_lowering.wire(result))]
    is_tuple = isinstance(result, types.BaseTuple)

    def read(reply):
        values = numpy.frombuffer(reply, numpy.dtype(fields))[0].item()
        return values if is_tuple else values[0]

    return read


def compile(function, dtype):
    """Compiles a function that takes an array of elements of ``dtype``, or nothing if it is None.
    """
    target = registry.cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    flags = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.no_compile = True
    flags.enable_pyobject = False
    flags.nrt = True
    flags.error_model = "numpy"
    flags.boundscheck = True
    arguments = () if dtype is None else (types.Array(_element(dtype), 1, "C"),)
    with global_compiler_lock:
        _lowering.compiled_now = function
        _lowering.payload_now = arguments[0].dtype if arguments else None
        try:
            done = compiler.compile_extra(
                target.typing_context, target.target_context, function, arguments, None, flags, {}
            )
        except (NumbaError, UnsupportedBytecodeError) as error:
            raise CompileError(explained(function, error)) from None
        finally:
            _lowering.compiled_now = _lowering.payload_now = None
        result = done.signature.return_type
        check_result(function, result)
        entry = _name(function)
        wrapper = _entry(target.target_context, done.fndesc, entry, arguments, result)
        library = done.library
        module = llvm.parse_assembly(str(library._final_module))
        seen = set()
        for part in library._linking_libraries:
            if part not in seen:
                seen.add(part)
                module.link_in(part._get_module_for_linking(), preserve=True)
        module.link_in(llvm.parse_assembly(cgutils.normalize_ir_text(str(wrapper))))
        return Compiled(entry, result, _target.merged(_with_sentences(str(module)), entry))


def _element(dtype):
    try:
        return from_dtype(dtype)
    except NumbaError:
        raise CompileError(f"an array of {dtype} cannot be the payload of a kernel") from None


def _name(function):
    """Returns the name of the entry."""
    name = function.__name__
    is_taken = name in _target.LIBRARY_CALLS or name.startswith(("samite_", "_"))
    return name if name.isidentifier() and name.isascii() and not is_taken else "kernel"


def explained(function, error):
    """Returns numba's message with a hint."""
    text = str(error)
    if isinstance(error, (UnsupportedError, UnsupportedBytecodeError)):
        hint = "numba does not compile this part of Python"
    elif "<class 'function'>" in text or "samite._moved.Kernel" in text:
        hint = "functions that a kernel calls are decorated with @numba.njit, and nothing else"
    elif "NameError" in text or "ntyped global name" in text:
        hint = (
            "a kernel uses numbers, arrays, tuples and functions; the values of its global "
            "variables are those at the time of its first call"
        )
    else:
        hint = (
            "kernels compute with numbers, arrays and tuples, and have no Python objects; "
            "samite.kernel lists what else they can do"
        )
    return f"`{function.__name__}` cannot become a kernel: {hint}\n{text}"


def check_result(function, result):
    """Refuses results that cannot be sent."""
    name = function.__name__
    if isinstance(result, types.NoneType):
        return
    if isinstance(result, types.Array):
        if result.ndim != 1:
            raise CompileError(
                f"`{name}` returns an array of {result.ndim} dimensions: a reply has no shape; "
                "return `array.reshape(array.size)`, and give the result its shape where you call"
            )
        if result.layout != "C":
            raise CompileError(f"`{name}` returns an array with gaps: copy it to a buffer, and reply")
        if not _lowering.is_own(result):
            raise CompileError(
                f"`{name}` returns a buffer or a segment, which is not its own any more when it has "
                "returned: send it with samite.kernel.reply(array), and return nothing"
            )
        return
    if isinstance(result, types.Optional) or _lowering.wire(result) is None:
        raise CompileError(
            f"`{name}` returns {result}: a kernel always returns a number, a tuple of numbers or a "
            "part of its payload, or never anything"
        )


def _entry(context, callee, entry, arguments, result):
    """Returns the function that a call runs: `entry(payload, len) -> 0, or the code of an error`."""
    module = context.create_module("samite.entry")
    byte, number = ir.IntType(8), ir.IntType(32)
    function = ir.Function(module, ir.FunctionType(number, [byte.as_pointer(), number]), entry)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    payload, length = function.args
    values = []
    for of in arguments:
        size = context.get_abi_sizeof(context.get_data_type(of.dtype))
        count = builder.udiv(builder.zext(length, ir.IntType(64)), ir.IntType(64)(size))
        values.append(_lowering.array_at(context, builder, of, payload, count))
    kind = context.call_conv.get_function_type(callee.restype, callee.argtypes)
    kernel = ir.Function(module, kind, callee.llvm_func_name)
    status, value = context.call_conv.call_function(
        builder, kernel, callee.restype, callee.argtypes, values
    )
    with builder.if_then(status.is_error, likely=False):
        # The exception as a sentence (`_with_sentences`), or null.
        sentence = ir.LiteralStructType([byte.as_pointer(), ir.IntType(64)])
        about = builder.bitcast(status.excinfoptr, sentence.as_pointer())
        known = builder.icmp_unsigned("!=", about, about.type(None))
        with builder.if_else(known) as (has, has_not):
            with has:
                text = builder.load(cgutils.gep_inbounds(builder, about, 0, 0))
                size = builder.load(cgutils.gep_inbounds(builder, about, 0, 1))
                size = builder.trunc(size, number)
                _lowering.fail_bytes(builder, number(1), text, size)
            with has_not:
                _lowering.fail_with(context, builder, number(1), "an exception")
        builder.ret(number(1))
    if not isinstance(result, types.NoneType):
        at, size = _lowering.bytes_of(context, builder, result, value)
        _lowering.reply_bytes(builder, at, size)
    builder.ret(number(0))
    return module


_PICKLED = re.compile(
    r'^(@\.const\.pickledata\.[0-9a-f]+(?:\.[0-9]+)?) = (.*?)constant \[\d+ x i8\] c"(.*)"(.*)$',
    re.MULTILINE,
)

# Its first two parts, the sentence and its length, lie at the same offsets on all processors.
_DESCRIBED = re.compile(
    r"^(@\.const\.picklebuf\.[^\n]*?constant )\{ ptr, i32, ptr, ptr, i32 \} "
    r"\{ ptr (@\.const\.pickledata\.[0-9a-f]+(?:\.[0-9]+)?), i32 [^\n}]*\}",
    re.MULTILINE,
)

_REPLACED = re.compile(
    r"^(?:define|declare) [^\n]*@(?:NRT_incref|NRT_decref|numba_attempt_nocopy_reshape)\("
    r"(?:[^\n]*\{$.*?^\}|[^\n]*$)",
    re.MULTILINE | re.DOTALL,
)


def _with_sentences(text):
    """Replaces the pickled exceptions of a module by sentences, and keeps no path of this machine.
    """
    sizes = {}

    def sentence(found):
        name, linkage, content, rest = found.groups()
        data = re.sub(
            rb"\\([0-9A-Fa-f]{2})", lambda code: bytes([int(code[1], 16)]), content.encode()
        )
        said = _said(data)[:256]
        sizes[name] = len(said)
        quoted = "".join(f"\\{one:02x}" for one in said)
        return f'{name} = {linkage}constant [{len(said)} x i8] c"{quoted}"{rest}'

    text = _PICKLED.sub(sentence, text)

    def described(found):
        before, name = found.groups()
        return f"{before}{{ ptr, i64 }} {{ ptr {name}, i64 {sizes[name]} }}"

    text = _DESCRIBED.sub(described, text)
    text = _REPLACED.sub("", text) + _RUNTIME
    # The environment of a function for the interpreter, which is never used.
    return text.replace(" = common global ptr null", " = internal global ptr null")


def _said(data):
    try:
        kind, arguments, where = pickle.loads(data)
    except Exception:
        return b"an exception"
    text = getattr(kind, "__name__", "an exception")
    if arguments:
        text += ": " + ", ".join(str(argument) for argument in arguments)
    if where and where[2]:
        text += f" (line {where[2]} of {where[0]})"
    return text.encode()


