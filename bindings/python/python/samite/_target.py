"""From LLVM IR to WebAssembly and bitcode.

llvmlite's LLVM optimises the IR and compiles it, and ``wasm-ld`` links WebAssembly. Code calls the
functions of the fabric, and nothing else: what allocates memory, or calls the interpreter or a
library, is refused with its name.
"""

import cmath
import functools
import math
import os
import re
import shutil
import subprocess
import tempfile

import llvmlite.binding as llvm

from ._moved import CompileError

#: What code may call besides the functions of the fabric. WebAssembly has it in `_MEMORY`.
MEMORY_CALLS = {"memcpy", "memmove", "memset"}

#: Functions of the library of C that LLVM knows by their names: none of these is that of a kernel.
LIBRARY_CALLS = MEMORY_CALLS.union(
    ["abort", "abs", "bcmp", "calloc", "free", "labs", "main", "malloc", "memcmp", "realloc"],
    ["strlen"],
    (
        name + suffix
        for name in [
            *dir(math), *dir(cmath), "exp10", "fdim", "fmax", "fmin", "logb", "lrint", "lround",
            "nearbyint", "rint", "round", "roundeven", "scalbn", "sincos",
        ]
        for suffix in ("", "f", "l")
    ),
)

#: Copies of memory. The instructions of WebAssembly for them do not work on granted segments.
_MEMORY = """
define hidden ptr @memmove(ptr %to, ptr %from, i32 %len) #0 {
entry:
  %below = icmp ult ptr %to, %from
  br i1 %below, label %up, label %down
up:
  %done = call ptr @memcpy(ptr %to, ptr %from, i32 %len)
  ret ptr %to
down:
  %left = phi i32 [ %len, %entry ], [ %next, %step ]
  %over = icmp eq i32 %left, 0
  br i1 %over, label %end, label %step
step:
  %next = sub i32 %left, 1
  %source = getelementptr i8, ptr %from, i32 %next
  %target = getelementptr i8, ptr %to, i32 %next
  %byte = load i8, ptr %source
  store i8 %byte, ptr %target
  br label %down
end:
  ret ptr %to
}

define hidden ptr @memcpy(ptr %to, ptr %from, i32 %len) #0 {
entry:
  %words = and i32 %len, -8
  br label %wide
wide:
  %at = phi i32 [ 0, %entry ], [ %after, %word ]
  %whole = icmp ult i32 %at, %words
  br i1 %whole, label %word, label %narrow
word:
  %word.source = getelementptr i8, ptr %from, i32 %at
  %word.target = getelementptr i8, ptr %to, i32 %at
  %value = load i64, ptr %word.source, align 1
  store i64 %value, ptr %word.target, align 1
  %after = add i32 %at, 8
  br label %wide
narrow:
  %i = phi i32 [ %at, %wide ], [ %next, %byte ]
  %more = icmp ult i32 %i, %len
  br i1 %more, label %byte, label %end
byte:
  %source = getelementptr i8, ptr %from, i32 %i
  %target = getelementptr i8, ptr %to, i32 %i
  %one = load i8, ptr %source
  store i8 %one, ptr %target
  %next = add i32 %i, 1
  br label %narrow
end:
  ret ptr %to
}

define hidden ptr @memset(ptr %to, i32 %byte, i32 %len) #0 {
entry:
  %value = trunc i32 %byte to i8
  br label %look
look:
  %at = phi i32 [ 0, %entry ], [ %next, %step ]
  %more = icmp ult i32 %at, %len
  br i1 %more, label %step, label %end
step:
  %target = getelementptr i8, ptr %to, i32 %at
  store i8 %value, ptr %target
  %next = add i32 %at, 1
  br label %look
end:
  ret ptr %to
}

attributes #0 = { "no-builtins" }
"""

#: Bytes of the stack in the memory of a kernel, besides its buffers.
_STACK = 256 << 10

#: The most bytes that the buffers of a kernel have together.
_BUFFERS_MAX = 1 << 20


def merged(text, entry):
    """Returns a module of LLVM IR for x86-64, as numba makes it, with all that the function calls in
    one function, so that it suits other processors, too.

    numba's code has offsets into structures of this processor, which differ where pointers have 4
    bytes. They are consistent if all accesses have them: as long as one layout is used throughout.
    """
    triple = "x86_64-unknown-linux-gnu"
    machine = _machine(triple, "", "")
    text = _CALLED.sub(_instruction, _for_target(text, triple, machine))
    text = str(_optimised(text, entry, machine, vectors=False))
    # What is left of structures with pointers has the layout of each processor.
    if _LAYOUT.search(text):
        raise CompileError(
            f"`{entry}` keeps arrays in other objects, which is not possible: use variables"
        )
    return text


#: Functions of libm for which processors have an instruction.
_CALLED = re.compile(r"@(sqrt|floor|ceil|trunc|fabs|rint|nearbyint)(f?)\(")

#: An access to a structure that contains a pointer.
_LAYOUT = re.compile(
    r"^ +(?:%\S+ = (?:load|getelementptr)|store)\b[^\n=]*?[{<][^}>\n]*\bptr\b[^}>\n]*[}>]", re.MULTILINE
)


def _instruction(found):
    return f"@llvm.{found[1]}.{'f32' if found[2] else 'f64'}("


def wasm(text, entry):
    """Returns a module of WebAssembly with the function ``entry`` of a module of LLVM IR."""
    triple = "wasm32-unknown-unknown"
    machine = _machine(triple, "mvp", "+simd128,+sign-ext,+nontrapping-fptoint")
    module = _optimised(_as_imports(_for_target(text, triple, machine)), entry, machine)
    _check_calls(module)
    stack = _STACK + _buffers(module, machine, entry)
    layout = f'target datalayout = "{machine.target_data}"\n'
    module.link_in(llvm.parse_assembly(layout + _MEMORY))
    return _linked(machine.emit_object(module), entry, stack)


def bitcode(text, entry, triple):
    """Returns bitcode with the function ``entry`` of a module of LLVM IR, for
    ``x86_64-unknown-linux-gnu`` or ``aarch64-unknown-linux-gnu``."""
    machine = _machine(triple, "", "")
    module = _optimised(_for_target(text, triple, machine), entry, machine)
    _check_calls(module)
    return module.as_bitcode()


_ALLOCATED = re.compile(r" = alloca (.*?)(?:, i\d+ %?\w+)?(?:, align \d+)?$", re.MULTILINE)


def _buffers(module, machine, entry):
    """Returns how many bytes the frames of the functions of a module have, or more."""
    text = str(module)
    lines = re.findall(r"^%\S+ = type .*$", text, re.MULTILINE)
    lines += [f"@f{at} = external global {of}" for at, of in enumerate(_ALLOCATED.findall(text))]
    frames = llvm.parse_assembly("\n".join(lines)).global_variables
    sizes = (machine.target_data.get_abi_size(frame.global_value_type) for frame in frames)
    size = sum((size + 31) & -16 for size in sizes)
    if size > _BUFFERS_MAX:
        raise CompileError(
            f"`{entry}` needs {size} bytes for its buffers and for the parts of segments that it "
            f"sends (64 KiB each), and a kernel has {_BUFFERS_MAX}"
        )
    return size


def _check_calls(module):
    """Refuses code that calls what no unit offers."""
    for function in module.functions:
        name = function.name
        if not function.is_declaration or name.startswith(("llvm.", "samite_")):
            continue
        if name in MEMORY_CALLS:
            continue
        if name.startswith("NRT_"):
            what = "allocates memory: use samite.kernel.buffer, or the payload"
        elif name.startswith(("Py", "_Py", "numba_")):
            what = f"needs the interpreter ({name}), which kernels do not have"
        else:
            raise CompileError(_calls(name))
        raise CompileError(f"a kernel {what}")


def _calls(name):
    return f"a kernel calls `{name}` of a library, which kernels do not have"


@functools.cache
def _initialise():
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(triple, processor, features):
    _initialise()
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=processor, features=features, opt=3, reloc="static" if "wasm" in triple else "pic",
        codemodel="default",
    )


def _for_target(text, triple, machine):
    layout = str(machine.target_data)
    text = re.sub(r'^target datalayout = ".*"$', f'target datalayout = "{layout}"', text, flags=re.M)
    return re.sub(r'^target triple = ".*"$', f'target triple = "{triple}"', text, flags=re.M)


def _as_imports(text):
    """Says from which module WebAssembly imports the functions."""
    def attributes(found):
        line, name = found.groups()
        return f'{line} "wasm-import-module"="samite" "wasm-import-name"="{name}"'

    return re.sub(r"^(declare .*@samite_(\w+)\([^\n]*?\)[^\n]*)$", attributes, text, flags=re.M)


def _optimised(text, entry, machine, vectors=True):
    module = llvm.parse_assembly(text)
    module.verify()
    for symbol in (*module.functions, *module.global_variables):
        if not symbol.is_declaration and symbol.name != entry:
            symbol.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = vectors
    options.slp_vectorization = vectors
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)
    return module


def _linked(code, entry, stack):
    with tempfile.TemporaryDirectory(prefix="samite-") as folder:
        source, target = os.path.join(folder, "kernel.o"), os.path.join(folder, "kernel.wasm")
        with open(source, "wb") as file:
            file.write(code)
        line = [
            *linker(), "--no-entry", f"--export={entry}", "--import-memory=samite,memory",
            "--stack-first", "-z", f"stack-size={stack}", "--strip-all", "--gc-sections", "-O2",
            source, "-o", target,
        ]
        ended = subprocess.run(line, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            # The compiler calls functions for instructions that the processor lacks.
            unknown = re.search(r"undefined symbol: (\S+)", ended.stderr)
            if unknown:
                raise CompileError(_calls(unknown[1]))
            raise CompileError(f"wasm-ld cannot link the kernel: {ended.stderr.strip()}")
        with open(target, "rb") as file:
            return file.read()


@functools.cache
def _rust_linker():
    """Returns the linker of a Rust toolchain, if there is one."""
    rustc = shutil.which("rustc")
    if rustc is None:
        return None
    ended = subprocess.run(
        [rustc, "--print", "target-libdir"], capture_output=True, text=True, check=False
    )
    linker = os.path.join(os.path.dirname(ended.stdout.strip()), "bin", "rust-lld")
    return linker if os.access(linker, os.X_OK) else None


def linker():
    """Returns the command of a linker of WebAssembly."""
    for name in ("wasm-ld-22", "wasm-ld"):
        found = shutil.which(name)
        if found:
            return [found]
    rust = _rust_linker()
    if rust:
        return [rust, "-flavor", "wasm"]
    raise CompileError(
        "kernels need `wasm-ld`, the linker of WebAssembly: install lld (Debian: lld-22; conda: lld), "
        "or a Rust toolchain"
    )
